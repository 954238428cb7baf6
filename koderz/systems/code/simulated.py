"""The simulated model, which answers a suite's tasks plausibly, at no cost and with nothing to install."""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import chain
from typing import Literal

import orjson

from koderz.models.simulated import SimulatedReplies
from koderz.systems.code.slips import Versions
from koderz.systems.code.tasks import CodeTask
from koderz.types import Message, Sampling
from koderz_tracker.messages import text_of

Wanted = Literal["code", "specification", "review"]

_INSTRUCTIONS: tuple[tuple[re.Pattern[str], Wanted], ...] = (
    (
        re.compile(r"\W*(?:write|draft)\b.{0,80}?\bspecification\b", re.IGNORECASE | re.DOTALL),
        "specification",
    ),
    (re.compile(r"\W*review\b.{0,80}?\battempts?\b", re.IGNORECASE | re.DOTALL), "review"),
)
_DEFINED = re.compile(r"\bdef\s+(\w+)\s*\(")
_CALLED = re.compile(r"\b(\w+)\s*\(")
_COUNTED = re.compile(
    r"\battempts?\W{1,3}(\d{1,3})\b|\b(\d{1,3})\s+(?:failed\s+)?attempts?\b", re.IGNORECASE
)
_FAILED = ("AssertionError", "Traceback", "failed", "not right")
_GUIDANCE = (
    (
        "pecification",
        re.compile(r"^[^\w\n]{0,8}(?:this )?specification\b", re.IGNORECASE | re.MULTILINE),
    ),
    ("uidance", re.compile(r"^[^\w\n]{0,8}guidance\b", re.IGNORECASE | re.MULTILINE)),
)


class TaskIndex:
    """Finds the task of a conversation, however its prompt is wrapped."""

    def __init__(self, tasks: Iterable[CodeTask]) -> None:
        self._by_message: dict[str, CodeTask] = {}
        self._by_name: defaultdict[str, list[CodeTask]] = defaultdict(list)
        for task in tasks:
            self._by_name[task.payload.entry_point].append(task)
            if task.messages:
                self._by_message.setdefault(text_of(task.messages[-1]), task)

    def find(self, messages: Sequence[Message]) -> CodeTask | None:
        """The task of the first message that contains one; None if no message does."""
        texts = [*_contents(messages, "user"), *_contents(messages, "system")]
        found = chain(map(self._by_message.get, texts), map(self._named, texts))
        return next((task for task in found if task is not None), None)

    def _named(self, text: str) -> CodeTask | None:
        """The task whose prompt is in the text; else the one whose function is defined or called last."""
        for names in (_DEFINED, _CALLED):
            named = dict.fromkeys(reversed(names.findall(text)))
            tasks = [task for name in named for task in self._by_name.get(name, ())]
            if tasks:
                quoted = [task for task in tasks if task.prompt.strip() in text]
                return max(quoted, key=lambda task: len(task.prompt), default=tasks[0])
        return None


def wanted(messages: Sequence[Message]) -> Wanted:
    """The kind of answer asked for, by the first words of a system prompt or the last message."""
    for text in [*_contents(messages, "system"), *_contents(messages, "user")[-1:]]:
        for instruction, word in _INSTRUCTIONS:
            if instruction.match(text):
                return word
    return "code"


def failures_shown(messages: Sequence[Message]) -> int:
    """The number of failed attempts in a conversation, by its turns or by the text of its last message.

    "Attempt 4" and "4 failed attempts" count for conversations that were cut short to fit.
    """
    turns = len(_contents(messages, "assistant"))
    last = "".join(_contents(messages, "user")[-1:])
    counts = _COUNTED.findall(last) if "ttempt" in last else []
    said = [int(one or other) for one, other in counts]
    return max(turns, *said, int(any(words in last for words in _FAILED)))


def guidance_given(messages: Sequence[Message]) -> int:
    """The number of kinds of guidance (a specification, a review's advice) in the messages: 0, 1 or 2."""
    told = [text_of(message) for message in messages if message["role"] != "assistant"]
    return sum(
        any(word in text and heading.search(text) is not None for text in told)
        for word, heading in _GUIDANCE
    )


def _contents(messages: Sequence[Message], role: str) -> list[str]:
    return [text_of(message) for message in messages if message["role"] == role]


REFUSALS = (
    "I'm sorry, but I can't help with that request.",
    "I can't provide a solution to this problem without more context.",
)


def reply_with(program: str, name: str, draw: float) -> str:
    """A program in one of the usual shapes of a reply; `draw` (0..1) chooses it.

    A body without its function is only put into a fence, with or without a word before it.
    """
    shapes = SHAPES if program.startswith(("def ", "from ", "import ")) else BODY_SHAPES
    return shapes[int(draw * len(shapes))].format(program=program, name=name)


def without_code(name: str) -> str:
    """A reply that talks about the task and never gets to the code."""
    return (
        f"To implement `{name}`, go through the input once and keep track of what was seen so far. "
        "Mind the empty input and repeated values. Let me know if you would like to see this as code."
    )


def specification(task: CodeTask | None) -> str:
    """A plausible specification of a task; its first words mark it as one in later prompts."""
    quoted = re.search(r'"""\s*(.+?)(?:\n\s*\n|>>>|""")', task.prompt, re.DOTALL) if task else None
    name, purpose = (
        _name(task),
        " ".join(quoted[1].split()) if quoted else "do what the task's text says.",
    )
    return (
        f"Specification of `{name}`\n\n"
        f"Purpose: {purpose}\n\n"
        "Behaviour:\n"
        "1. Keep the signature as it is given, and return the value: print nothing.\n"
        "2. Handle the empty input first, then a single element, then the general case.\n"
        "3. Boundaries are inclusive where the examples show it.\n"
        "4. Do not change the arguments in place.\n\n"
        "Check: every example of the docstring gives exactly the value shown."
    )


def review(task: CodeTask | None) -> str:
    """A plausible review of failed attempts; its first words mark it as guidance in later prompts."""
    return (
        f"Guidance for `{_name(task)}`\n\n"
        "The attempts follow a sound approach, but do not treat the boundary of the input as the failing "
        "assertion asks for. Trace that assertion by hand, compare each intermediate value with what the "
        "docstring says, and correct the first one that differs. Keep the rest as it is."
    )


def unrecognised() -> str:
    """The reply if no known task is asked for."""
    return "This is a simulated model: it answers only the tasks that it was given, and found none of them here."


def _name(task: CodeTask | None) -> str:
    return task.payload.entry_point if task else "the function"


_FENCE = "```python\n{program}\n```"
_PLAIN_FENCE = "```\n{program}\n```"
_INTRODUCED = f"Here is an implementation of `{{name}}`:\n\n{_FENCE}"
_EXPLAINED = (
    f"To solve this, we can follow the description step by step.\n\n{_FENCE}\n\n"
    "**Explanation**\n\n1. The function goes through its input once.\n"
    "2. It keeps what it needs and returns the result at the end.\n\nThis covers the examples given."
)
_THOUGHT = (
    "<think>\nThe task is to write {name}. First idea: a loop over the input; check the examples "
    f"by hand. The edge cases look fine.\n</think>\n\n{_INTRODUCED}"
)
_WITH_USAGE = f"{_INTRODUCED}\n\nTo read its description:\n\n```python\nhelp({{name}})\n```"

BODY_SHAPES: Sequence[str] = (_FENCE, _PLAIN_FENCE, f"The body of the function:\n\n{_FENCE}")
SHAPES: Sequence[str] = (
    *(_INTRODUCED, _INTRODUCED, _EXPLAINED, _EXPLAINED, _FENCE, _FENCE, "```py\n{program}\n```"),
    *(_PLAIN_FENCE, _THOUGHT, _WITH_USAGE, "{program}"),
)
"""The wrappings of a program, filled in with the name of its function."""


GUIDANCE = 0.08  # how much a specification, or a review, adds to the skill
MENDABLE = 0.65  # of the tasks that go wrong at first, how many feedback can mend
ROUNDS = 5  # the most rounds of feedback that a mendable task needs
LUCK = 0.15  # chance a round that feedback mends a mendable task before its time
VARIETY = 0.6  # how far temperature 1 moves a task between easy and hard
ENDLESS = 0.01  # of all tasks, how many may meet a first answer that never ends
# chosen so that, with seed 0, the first ten tasks of HumanEval show every outcome
SALT = "tasks 2287"


class Simulated(SimulatedReplies):
    """A model made of the tasks' own references: right, or wrong by a slip that a model could make.

    A reply is a pure function of the tasks, `seed`, the messages and, where the temperature is above 0,
    the sampling seed: nothing is remembered from one call to the next, so a run that was killed and
    resumed meets the same model. Some tasks are answered right at once (about the share `skill`), some
    after one or more rounds of feedback, some never; a specification or a review in the prompt helps.

    `latency` is the mean of the seconds that a reply takes, each between half and one and a half of it.
    """

    def __init__(
        self,
        tasks: Sequence[CodeTask],
        *,
        seed: int = 0,
        skill: float = 0.6,
        latency: float = 0.0,
        fault_rate: float = 0.0,
    ) -> None:
        super().__init__(self._reply, latency=latency, fault_rate=fault_rate)
        self._tasks = len(tasks)
        self._index = TaskIndex(tasks)
        self._versions: dict[str, Versions] = {}  # follow from task and seed alone
        self._seed, self._skill = seed, skill

    def delay(self, messages: Sequence[Message], sampling: Sampling) -> float:
        return self._latency * (0.5 + self._draws(messages, sampling)[0])

    async def check(self) -> dict[str, str]:
        """The number of tasks that it can answer."""
        return {"tasks": str(self._tasks)}

    def _draws(self, messages: Sequence[Message], sampling: Sampling) -> Sequence[float]:
        varied = sampling.seed if sampling.temperature else None
        return _draws([self._seed, varied, messages])

    def _reply(self, messages: Sequence[Message], sampling: Sampling) -> str:
        draws = self._draws(messages, sampling)
        task, wants = self._index.find(messages), wanted(messages)
        if wants != "code":
            return specification(task) if wants == "specification" else review(task)
        if task is None:
            return unrecognised()
        versions = self._versions.setdefault(task.id, Versions(task, seed=self._seed))
        if versions.right and self._is_right(task, messages, sampling, draws):
            return reply_with(_pick(versions.right, draws[1]), task.payload.entry_point, draws[2])
        return self._wrong_reply(task, versions, failures_shown(messages), draws)

    def _is_right(
        self,
        task: CodeTask,
        messages: Sequence[Message],
        sampling: Sampling,
        draws: Sequence[float],
    ) -> bool:
        skill = min(1.0, self._skill + GUIDANCE * guidance_given(messages))
        mendable = (1 - skill) * MENDABLE
        hardness = self._task_draws(task)[0]
        never = hardness >= skill + mendable
        # A higher temperature moves a sample further from the task's own hardness.
        warmth = min(1.0, sampling.temperature or 0.0)
        hardness = min(max(hardness + (draws[3] - 0.5) * VARIETY * warmth, 0.0), 1.0 - 2**-32)
        if hardness < skill or never:
            return hardness < skill
        shown = failures_shown(messages)
        return shown > ROUNDS * (hardness - skill) / mendable or (shown > 0 and draws[4] < LUCK)

    def _wrong_reply(
        self, task: CodeTask, versions: Versions, shown: int, draws: Sequence[float]
    ) -> str:
        if shown == 0 and self._task_draws(task)[1] < ENDLESS:
            return reply_with(versions.endless, task.payload.entry_point, draws[2])
        if draws[5] < 0.03:
            return _pick(REFUSALS, draws[2])
        if draws[5] < 0.05:
            return without_code(task.payload.entry_point)
        program = _pick(versions.wrong, draws[6])
        if draws[5] < 0.09:
            program = program.replace(":\n", "\n", 1)  # a syntax error in its first line
        elif draws[5] < 0.11:
            program = program.replace(task.payload.entry_point, f"solve_{task.payload.entry_point}")
        return reply_with(program, task.payload.entry_point, draws[2])

    def _task_draws(self, task: CodeTask) -> Sequence[float]:
        return _draws([SALT, self._seed, task.id])


def _draws(parts: object) -> Sequence[float]:
    """Eight numbers in 0..1 determined by the arguments."""
    digest = blake2b(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS), digest_size=32).digest()
    return [number / 2**32 for number in struct.unpack("<8I", digest)]


def _pick(choices: Sequence[str], draw: float) -> str:
    return choices[int(draw * len(choices))]
