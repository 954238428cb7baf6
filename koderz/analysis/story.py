"""One experiment's whole story: prompts, replies, verdicts and their results, its worker, and its conversations.

Messages are those of chat completions, or a client's request on any wire that the bridge speaks; people read them as
texts. The worker may have come in other tools' files.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from koderz.analysis.logs import reader_of
from koderz.errors import KoderzError
from koderz.models.clients import ITEM, REQUEST
from koderz_tracker.basis import Frame
from koderz_tracker.index import load_index, read_records
from koderz_tracker.journal import NAME
from koderz_tracker.records import Arm, Attempt, Call, Experiment, Fault, Grade, Once, Plan, Record
from koderz_tracker.runs import RUN_ID
from koderz_tracker.stories import Stories

RESULT = "result"
"""The speaker of a tool's result."""

_OUTPUT_CHARS = 4000  # of what a tool printed
_FOLDED_CHARS = 200
_WHERE = "koderz benchmark show --json has them"
_SILENT = "(no output)"

# by kind of part
_CALLS = {"tool_use": "input", "function_call": "arguments", "custom_tool_call": "input"}
_RESULTS = {
    "tool_result": "content",
    "function_call_output": "output",
    "custom_tool_call_output": "output",
}
_THOUGHTS = {"thinking": "thinking", "reasoning": "summary"}
_OWN = {"system", "developer", "tools"}  # what an agent says of itself
# what an agent adds to its user's words
_TAGGED = re.compile(r"\s*<([\w-][\w -]*)>.*</\1>\s*", re.DOTALL)
_UNTOLD = {"role", "content", "type", "id", "status", "tool_calls", "tool_call_id"}


class Utterance(NamedTuple):
    """A text and its speaker: a role, or the kind of text."""

    who: str
    text: str


def told_asked(call: Call, messages: Iterable[Mapping[str, Any]]) -> Iterator[Utterance]:
    """The texts of messages of a call, with long outputs cut and a client's own system text in one line."""
    folds = is_of_client(call)
    for message in messages:
        for who, group in groupby(_texts(message), key=lambda said: said.who):
            texts = [
                _folded(text) if folds and (who in _OWN or _TAGGED.fullmatch(text)) else text
                for _, text in group
            ]
            text = "\n".join(texts)
            yield Utterance(who, shortened(text, _OUTPUT_CHARS) if who == RESULT else text)


def told_results(call: Call) -> list[str]:
    """The tool results in a client's request that answer the previous reply; empty for other calls."""
    last = takewhile(
        lambda message: not is_own(message), reversed(call.messages if is_of_client(call) else ())
    )
    return [text for message in reversed([*last]) for who, text in _texts(message) if who == RESULT]


def told_reply(call: Call, *, raw: bool = False) -> str:
    """A model's reply: its text, with `raw` its reasoning, and its tool calls with their arguments."""
    text = str(call.reply if raw or call.text is None else call.text).strip()
    calls = (_called(each.get("function") or {}, "arguments") for each in call.tool_calls)
    return "\n\n".join(filter(None, [text, *calls])) or "(an empty reply)"


def is_of_client(call: Call) -> bool:
    """Whether the call is another agent's request passed on by the bridge."""
    return bool(call.messages) and call.messages[0]["role"] == REQUEST


def is_own(message: Mapping[str, Any]) -> bool:
    """Whether a message is the model's own."""
    if message["role"] == ITEM:
        return _kind(message["content"][0]) not in _RESULTS
    return bool(message["role"] == "assistant")


def known_by(message: Mapping[str, Any]) -> int:
    """A key that is equal for messages of equal content, whatever a client adds for caching."""
    if message["role"] == REQUEST:
        return hash(REQUEST)
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    said = [
        {**part, "cache_control": None} if isinstance(part, Mapping) else part for part in parts
    ]
    return hash(orjson.dumps({**message, "content": said}, option=orjson.OPT_SORT_KEYS))


def chat_of(messages: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Messages of any wire by their role (system, user, assistant or tool) with a text as content.

    One of the model's may have `reasoning` and `tool_calls`, each {id, name, arguments, error}; a tool's has the
    `tool_call_id` that it answers. Offers of tools are left out.
    """
    for message in messages:
        role, content = str(message["role"]), message.get("content")
        if role in (REQUEST, "tools"):
            continue
        texts: list[str] = []
        thoughts = [message["reasoning_content"]] if message.get("reasoning_content") else []
        calls = [*map(_chat_call, message.get("tool_calls") or ())]
        if role == "tool":
            content = [
                {
                    "type": "tool_result",
                    "tool_use_id": message.get("tool_call_id"),
                    "content": content,
                }
            ]
        for part in content if isinstance(content, list) else filter(None, [content]):
            kind = _kind(part)
            if kind in _RESULTS:
                answered = {"tool_call_id": part.get("tool_use_id") or part.get("call_id") or ""}
                yield {"role": "tool", "content": _flat(part.get(_RESULTS[kind])), **answered}
            elif kind in _THOUGHTS:
                thoughts.append(_flat(part.get(_THOUGHTS[kind])))
            elif kind in _CALLS:
                named = {"name": part.get("name"), "arguments": part.get(_CALLS[kind])}
                calls.append(
                    _chat_call({"id": part.get("call_id") or part.get("id"), "function": named})
                )
            else:
                texts.append(_flat(part))
        if texts or thoughts or calls:
            own = {"reasoning": "\n".join(filter(None, thoughts)), "tool_calls": calls}
            who = "system" if role in _OWN else "user"
            if is_own(message):
                who = "assistant"
            yield {"role": who, "content": "\n".join(texts), **(own if who == "assistant" else {})}


def chat_reply(call: Call) -> dict[str, Any]:
    """A model's reply as one of these messages."""
    return {
        "role": "assistant",
        "content": str(call.reply if call.text is None else call.text),
        "reasoning": str(call.reasoning),
        "tool_calls": [*map(_chat_call, call.tool_calls)],
    }


def _chat_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    given, error = function.get("arguments"), None
    if isinstance(given, str):
        try:
            given = orjson.loads(given or "{}")
        except orjson.JSONDecodeError as reason:  # a free text, or one that was cut off
            error = str(reason)
    arguments = given if isinstance(given, Mapping) else {"arguments": given}
    return {
        "id": str(call.get("id") or ""),
        "name": str(function.get("name") or ""),
        "arguments": dict(arguments),
        "error": error,
    }


def shortened(text: str, most: int, where: str = _WHERE) -> str:
    """The text without its middle if longer than `most`, with a note on the omitted characters."""
    if len(text) <= most:
        return text
    half = most // 2
    return (
        f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out; {where} …\n{text[-half:]}"
    )


def _folded(text: str) -> str:
    head = text.strip()[:_FOLDED_CHARS].partition("\n")[0]
    left = len(text.strip()) - len(head)
    return f"{head} … {left:,} more characters; {_WHERE}" if left else head


def _texts(message: Mapping[str, Any]) -> Iterator[Utterance]:
    """The parts of a message, in order."""
    role, content = str(message["role"]), message.get("content")
    if role == REQUEST:
        return
    if role == "tools" and isinstance(content, list):
        content = ", ".join(map(_tool, content))
    if role == "tool":
        content = [{"type": "tool_result", "content": content}]
    for part in content if isinstance(content, list) else filter(None, [content]):
        yield _part(role, part)
    for call in message.get("tool_calls") or ():
        yield Utterance(role, _called(call.get("function") or {}, "arguments"))
    others = [f"{name}: {_json(value)}" for name, value in message.items() if name not in _UNTOLD]
    yield from ([Utterance(role, "\n".join(others))] if others else ())


def _part(role: str, part: Any) -> Utterance:
    kind = _kind(part)
    if kind in _RESULTS:
        return Utterance(RESULT, _flat(part.get(_RESULTS[kind])).rstrip() or _SILENT)
    if kind in _THOUGHTS:
        return Utterance("reasoning", _flat(part.get(_THOUGHTS[kind])))
    if kind in _CALLS:
        return Utterance("assistant", _called(part, _CALLS[kind]))
    return Utterance(role, _flat(part))


def _kind(part: Any) -> str:
    return str(part.get("type", "")) if isinstance(part, Mapping) else ""


def _flat(content: Any) -> str:
    """The text of a part, or of several."""
    if isinstance(content, list):
        return "\n".join(map(_flat, content))
    if not isinstance(content, Mapping):
        return str(content or "")
    return (
        str(content["text"])
        if isinstance(content.get("text"), str)
        else f"[{_kind(content) or 'part'}]"
    )


def _tool(tool: Any) -> str:
    """The name of an offered tool."""
    if not isinstance(tool, Mapping):
        return str(tool)
    return str((tool.get("function") or tool).get("name") or _kind(tool))


def _called(call: Mapping[str, Any], field: str) -> str:
    """A tool's name and its arguments, a line each if short."""
    name, arguments = call.get("name"), call.get(field)
    if isinstance(arguments, str):
        with suppress(orjson.JSONDecodeError):  # of a free text
            arguments = orjson.loads(arguments or "{}")
    fields = arguments if isinstance(arguments, Mapping) else {field: arguments}
    values = {
        key: value if isinstance(value, str) else _json(value) for key, value in fields.items()
    }
    if len(values) == 1 and "\n" not in (only := next(iter(values.values()))).rstrip("\n"):
        return f"→ {name}: {only}".rstrip("\n")
    return "\n".join(
        [f"→ {name}", *(f"  {line}" for key, text in values.items() for line in _field(key, text))]
    )


def _field(name: str, text: str) -> list[str]:
    lines = text.splitlines()
    return (
        [f"{name}: {text}".rstrip()]
        if len(lines) < 2
        else [f"{name}:", *(f"  {line}" for line in lines)]
    )


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


_GRADES_TOLD = 20
Outcome = Experiment | Fault


@dataclass(frozen=True, slots=True)
class StoryStep:
    """One call, one attempt, or an attempt with the call whose reply it judged."""

    call: Call | None
    attempt: Attempt | None
    # the messages of the call that the call before it didn't have
    asked: Sequence[Mapping[str, Any]]
    # lines of a unified diff to the program of the attempt before; empty for the first
    diff: tuple[str, ...]
    # calls of MCP servers' tools between this call and the next
    tools: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Story:
    """The story of an experiment. Its texts are whole and a model's, so they have to be made safe before display."""

    experiment_id: str
    problem_id: str
    solver: str
    arm: str
    sample: int
    steps: tuple[StoryStep, ...]
    outcome: Outcome
    grades: tuple[Grade, ...] = ()
    made: Mapping[str, Any] = field(default_factory=dict)  # by `once`, the last of each name
    sample_name: str = ""  # what the user calls the sample

    @property
    def attempts(self) -> list[Attempt]:
        return [step.attempt for step in self.steps if step.attempt]

    @property
    def calls(self) -> list[Call]:
        return [step.call for step in self.steps if step.call]

    @property
    def program(self) -> str | None:
        """The program of the last attempt at the problem that has one; None if none has."""
        own = [attempt for attempt in self.attempts if not attempt.task_id]
        programs = [attempt.program for attempt in own if isinstance(attempt.program, str)]
        return programs[-1] if programs else None


class Experiments:
    """The experiments of one run, in the order of its plan and without secrets; each is read on demand."""

    def __init__(self, folder: Path) -> None:
        """Opens a run. Raises JournalError if its journal has no plan."""
        self.folder = folder
        self._stories = Stories(folder)
        self.plan = self._stories.plan
        self._names = {(cell.task, cell.arm): cell.names for cell in self.plan.cells or ()}
        self._stories.refresh()
        self.outcomes = tuple(self._ordered(map(self._stories.scrubber.record, _outcomes(folder))))

    def story(self, outcome: Outcome) -> Story:
        """The story of an outcome. If attempts were judged anew, the last verdict on each counts."""
        records = self._stories.of(outcome.experiment_id)
        return Story(
            outcome.experiment_id,
            outcome.problem_id,
            outcome.solver,
            outcome.arm,
            outcome.sample,
            tuple(_steps(records)),
            outcome,
            tuple(record for record in records if isinstance(record, Grade)),
            {record.name: record.value for record in records if isinstance(record, Once)},
            self.sample_name(outcome),
        )

    def sample_name(self, outcome: Outcome) -> str:
        """The user's name for the sample, such as a patch of a file; empty if it has none."""
        names = self._names.get((outcome.problem_id, outcome.arm), ())
        return names[outcome.sample] if outcome.sample < len(names) else ""

    def of(self, arms: Container[str]) -> Iterator[Story]:
        """The stories of these arms."""
        return (self.story(outcome) for outcome in self.outcomes if outcome.arm in arms)

    def _ordered(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        tasks = {task: number for number, task in enumerate(self.plan.tasks)}
        arms = {arm.name: number for number, arm in enumerate(self.plan.arms)}
        return sorted(
            outcomes,
            key=lambda o: (
                o.sample,
                tasks.get(o.problem_id, len(tasks)),
                arms.get(o.arm, len(arms)),
            ),
        )


def journal_folder(path: Path) -> Path:
    """The folder with the journal of the run at `path`, or beside that summary. Raises KoderzError if there is none."""
    folder = path if path.is_dir() else path.with_suffix("")
    if not (folder / NAME).exists():
        if not RUN_ID.fullmatch(path.stem) and reader_of(path):
            raise KoderzError(
                f"{path} is another tool's log; make a run of it first: koderz benchmark import {path}"
            )
        raise KoderzError(
            f"{path}: its journal {folder / NAME} isn't there, and only that holds programs and replies"
        )
    return folder


def told_frames(frames: Sequence[Frame]) -> str:
    """The frames in the form of Python's tracebacks, without a newline at the end."""
    lines = [
        f"  File {frame.file}, line {frame.line}, in {frame.function}\n    {frame.source}"
        for frame in frames
    ]
    return "\n".join(line.rstrip() for line in lines)


def told_grades(grades: Sequence[Grade]) -> Iterator[str]:
    """A heading, then a line for each of the first grades."""
    n = len(grades)
    yield f"{n} grade{'s' * (n != 1)}, {sum(grade.score for grade in grades) / n:.4g} on average"
    yield from map(told_grade, grades[:_GRADES_TOLD])
    if n > _GRADES_TOLD:
        yield f"… and {n - _GRADES_TOLD} more; koderz benchmark show --json has all of them"


def told_grade(grade: Grade) -> str:
    """A grade in one line."""
    others = [f"{name} {value:.4g}" for name, value in grade.metrics.items()]
    others += [f"{name} {value}" for name, value in grade.labels.items()]
    return " · ".join([f"{grade.item}: {grade.score:.4g}", *others])


def servers_of(values: Iterable[object]) -> Iterator[Mapping[str, Any]]:
    """The records of MCP servers among values that were made once: `servers`, by name, and `calls`."""
    for value in values:
        if isinstance(value, dict) and isinstance(value.get("mcp"), dict):
            yield value["mcp"]


def told_servers(story: Story) -> Iterator[str]:
    """A line for each MCP server of the agent, and for each thing that it did wrong."""
    for worked in servers_of(story.made.values()):
        for name, own in worked["servers"].items():
            yield f"{name}: {own['calls']} calls, {own['errors']} failed, {own['seconds']:.3f} s"
            yield from (f"{name}: {finding}" for finding in own["findings"])


def told_tool(tool: Mapping[str, Any]) -> tuple[str, str]:
    """A call of an MCP server's tool: a heading, and the text of its arguments and its result."""
    failed = " failed" if tool["is_error"] else ""
    heading = f"{tool['server']}.{tool['tool']}{failed} · {tool['seconds']:.3f} s, {tool['bytes']:,} bytes"
    return heading, f"{tool['arguments']}\n{tool['result']}"


def problem_named(name: str, tasks: Sequence[str]) -> str:
    """The task with this id, or the part after its slash. Raises KoderzError if there is none."""
    if name in tasks:
        return name
    found = [task for task in tasks if task.rpartition("/")[2] == name]
    if len(found) == 1:
        return found[0]
    some = ", ".join(tasks[:3])
    raise KoderzError(
        f"the run has no task {name!r}; it has {some}{', …' if len(tasks) > 3 else ''}"
    )


def diff(before: str, after: str) -> Iterator[str]:
    """A unified diff of two programs, without its two lines of file names."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2)
    return (line for number, line in enumerate(lines) if number > 1)


def _outcomes(folder: Path) -> Iterator[Outcome]:
    """The last outcome of each experiment."""
    journal = folder / NAME
    for record in read_records(journal, load_index(journal).ends()):
        if isinstance(record, Experiment | Fault):
            yield record


def _steps(records: Sequence[Record]) -> Iterator[StoryStep]:
    """Calls in the order of the journal, each with the attempt that its reply became."""
    attempts = {record.number: record for record in records if isinstance(record, Attempt)}
    by_call: dict[int | None, list[Attempt]] = {}
    for number in sorted(attempts):
        by_call.setdefault(attempts[number].call, []).append(attempts[number])
    asked = _Conversations()
    before: str | None = None
    calls = [record for record in records if isinstance(record, Call)]
    made = (record.value for record in records if isinstance(record, Once))
    tools = [tool for each in servers_of(made) for tool in each["calls"]]
    ends = [call.time for call in calls[1:]]
    for call, attempt in _paired(calls, by_call):
        program = attempt.program if attempt and isinstance(attempt.program, str) else None
        changes = tuple(diff(before, program)) if before is not None and program is not None else ()
        until = next(iter(ends), "") if call else ""
        own = [tool for tool in tools if not until or tool["begun"] < until]
        tools, ends = tools[len(own) :], ends[1:] if call else ends
        yield StoryStep(call, attempt, asked.new(call) if call else (), changes, own)
        before = program if program is not None else before


def _paired(
    calls: Iterable[Call], attempts: dict[int | None, list[Attempt]]
) -> Iterator[tuple[Call | None, Attempt | None]]:
    """Each call with its attempts, of which there may be none or several; then attempts without a call."""
    for call in calls:
        judged = attempts.pop(call.call, [])
        yield call, judged[0] if judged else None
        yield from ((None, attempt) for attempt in judged[1:])
    yield from ((None, attempt) for rest in attempts.values() for attempt in rest)


class _Conversations:
    """The messages of calls so far, by conversation; a client's conversations differ in their first user message."""

    def __init__(self) -> None:
        self._before: dict[int, Counter[int]] = {}

    def new(self, call: Call) -> list[Mapping[str, Any]]:
        """The messages of a call that the one before it lacked, except the model's own, which are shown earlier."""
        keys = [known_by(message) for message in call.messages]
        users = (
            key
            for key, message in zip(keys, call.messages, strict=True)
            if message["role"] == "user"
        )
        conversation = next(users, 0) if is_of_client(call) else 0
        before = self._before.get(conversation, Counter())
        self._before[conversation], left = Counter(keys), Counter(before)
        found: list[Mapping[str, Any]] = []
        for key, message in zip(keys, call.messages, strict=True):
            left[key] -= 1
            if left[key] < 0 and not (before and is_own(message)):
                found.append(message)
        return found


def thought_of(tokens: int | None) -> str:
    """The tokens of thought among those of a reply, in words that follow its number; empty where nobody counts them."""
    return "" if tokens is None else f" ({tokens:,} reasoning)"


_AGENT = "agent:"
_KODERZ_OWN = ("koderz", "oracle", "nop", "scripted")
_NO_MODEL = ("agent:oracle", "agent:nop", "patch:base", "patch:human")


def planned_of(plan: Plan, arm: str) -> int:
    """The number of planned experiments of an arm, without those on tasks that stand apart from all figures."""
    if plan.cells is not None:
        return sum(
            cell.samples for cell in plan.cells if cell.arm == arm and cell.task not in plan.apart
        )
    return (len(plan.tasks) - len(plan.apart)) * plan.samples


def worker_of(plan: Plan, arm: str) -> str:
    """The name of an arm in predictions: its agent and model, such as `codex+openai/gpt-6-luna`.

    Where several arms of the run have both in common, what else their names say stands behind it.
    """
    names = _workers(tuple((each.name, _base(plan, each)) for each in plan.arms))
    return names.get(arm) or plan.model_of(arm)


def agent_version(plan: Plan, story: Story) -> str:
    """The agent's version as its command line states it; koderz' for own agents; `unknown` if not on record."""
    if story.solver.removeprefix(_AGENT) in _KODERZ_OWN or not story.solver.startswith(_AGENT):
        return str(plan.environment.get("koderz") or "unknown")
    worked: Any = story.made.get("agent")
    version = worked.get("version") if isinstance(worked, Mapping) else None
    return str(version or "unknown")


def _base(plan: Plan, arm: Arm) -> str:
    kind, _, name = arm.solver.rpartition(":")
    if arm.solver in _NO_MODEL:
        return name
    model = plan.model_of(arm.name)
    return f"{name}+{model}" if f"{kind}:" == _AGENT else model


@lru_cache(maxsize=64)
def _workers(bases: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """The names of arms, made unique by more words of the arm's name."""
    every = [base for _, base in bases]
    found: dict[str, str] = {}
    for arm, base in bases:
        known = {part for part in base.split("+") if part}
        rest = [word for part in arm.split(" · ") if part not in known and (word := _word(part))]
        name = base if every.count(base) == 1 else "+".join([base, *rest])
        taken = [*found.values()]
        number = next(
            n for n in range(1, len(bases) + 1) if (name if n == 1 else f"{name}+{n}") not in taken
        )
        found[arm] = name if number == 1 else f"{name}+{number}"
    return found


def _word(text: str) -> str:
    """A part of a name in a form that fits the name of a folder."""
    return re.sub(r"[^\w.=,:-]+", "-", text).strip("-")
