"""koderz' own agents: a model that works by commands and edits, the task's solution, nothing, and a simulated model."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from json import dumps
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from koderz.prompts import PLACEHOLDERS, Prompts
from koderz.solvers.definition import AskHandle, JudgeHandle, WorkspaceHandle, asks_nothing, solver
from koderz.systems.rollouts.additions import told_of
from koderz.systems.rollouts.agents import AgentOptions, judged
from koderz.types import LENGTH_REASONING, REJECTED, TIME, Expected, Message, Task, Verdict
from koderz_tracker.messages import text_of

_FENCE = r"^(`{3,})(%s)(?:[ \t]+([^\n`]+))?[ \t]*\n(.*?)^\1[ \t]*$"
_OPENED = r"^`{3,}(?:%s)\b"
_KINDS, _CALL = "shell|edit", "|call"
_HALVES = re.compile(r"\A<{7}[^\n]*\n(.*?)^={7}\n(.*?)^>{7}[^\n]*\s*\Z", re.MULTILINE | re.DOTALL)

_CAUSES = {
    "length": "length",
    "refusal": "refused",
    TIME: TIME,
    REJECTED: "length",
}  # a request that has grown too long
_USUAL_TURNS = 10
_TURNS = (3, 30)  # of a usual rollout
_TURN_TOKENS = 400  # of a reply, and of what it is told in return


_TEXT = {"type": "string"}


def _tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {**_TEXT, "description": text} for key, text in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": [*parameters]}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": schema},
    }


TOOLS = (
    _tool("shell", "Runs a command with bash, in the repository.", command="The command."),
    _tool(
        "edit",
        "Replaces the one place of a file that reads `old` by `new`. An empty `old` writes the whole file.",
        path="The file, from the repository's root.",
        old="The text that is there, to the letter.",
        new="The text that takes its place.",
    ),
)


_CALLING = """Call a tool of a server with its arguments, which are JSON:

```call NAME
{"name": "value"}
```

The tools, each with the schema of its arguments:
"""


class Action(NamedTuple):
    """An action that a reply asks for."""

    command: str  # empty for an edit, and for a call
    path: str = ""
    old: str = ""
    new: str = ""
    wrong: str = ""  # why it can't be carried out
    tool: str = ""  # of an MCP server
    arguments: Mapping[str, Any] = MappingProxyType({})  # of that


def estimate(
    prompt_tokens: float, _task_id: str, parameters: Mapping[str, Any]
) -> Sequence[Expected]:
    """A call for each turn, with all earlier messages."""
    low, high = (min(turns, parameters["max_turns"]) for turns in _TURNS)
    usual = min(_USUAL_TURNS, high)
    sent = [
        turns * prompt_tokens + 2 * _TURN_TOKENS * turns * (turns - 1) / 2
        for turns in (low, high, usual)
    ]
    likely = usual, sent[2], usual * _TURN_TOKENS
    said = low * _TURN_TOKENS, high * _TURN_TOKENS
    return [Expected("main", (low, high), (sent[0], sent[1]), said, usual=likely)]


@solver(
    options=AgentOptions,
    roles=(),
    estimate=estimate,
    prompts={"main": [name for name in PLACEHOLDERS if name.startswith("agent-")]},
)
async def koderz_agent(
    task: Task,
    ask: AskHandle,
    judge: JudgeHandle,
    prompts: Prompts,
    workspace: WorkspaceHandle,
    *,
    max_turns: int = 50,
    command_timeout: float = 600.0,
) -> Verdict:
    """Lets a model work on the repository in up to `max_turns` replies; one without an action ends the work.

    It is offered tools; where its server refuses that, it is told to write fenced blocks. These count either way.
    """

    done: list[str] = []

    async def work(part: Task) -> str:
        async with workspace.tools() as tools:
            return await conversation(part, tools)

    async def conversation(part: Task, tools: Mapping[str, Mapping[str, Any]]) -> str:
        added = (
            f"\n\n{text}"
            if (text := told_of([each.mounted for each in workspace.additions]))
            else ""
        )
        system = {
            "role": "system",
            "content": prompts.render("agent-tools", workdir=workspace.workdir) + added,
        }
        offered = [*TOOLS, *tools.values()]
        messages: list[Message] = [{"role": "tools", "content": offered}, system, *part.messages]
        reply = await ask(messages)
        if reply.finish_reason == REJECTED:
            added += f"\n\n{_CALLING}{listed_of(tools)}" if tools else ""
            system = {
                "role": "system",
                "content": prompts.render("agent-system", workdir=workspace.workdir) + added,
            }
            messages = [system, *part.messages]
            reply = await ask(messages)
        for turn in range(1, max_turns + 1):
            asked = read_calls(reply.tool_calls, tools) or read_actions(reply.text, tools)
            if not asked and asked is not None:
                workspace.message = reply.text
                return (
                    LENGTH_REASONING
                    if reply.truncated == "reasoning"
                    else _CAUSES.get(reply.finish_reason, "")
                )
            messages.append({"role": "assistant", "content": reply.text or None})
            if reply.tool_calls:
                messages[-1]["tool_calls"] = [*reply.tool_calls]
            told = [prompts.render("agent-no-block")] if asked is None else []
            for action in asked or ():
                if workspace.seconds_left <= 0:
                    return "agent_timeout"
                done.append(
                    f"{action.tool} {dumps(action.arguments)}" if action.tool else action.command
                )
                told.append(await _carried_out(action, workspace, command_timeout))
            if reply.tool_calls:
                answers = zip(reply.tool_calls, told, strict=True)
                messages += [
                    {"role": "tool", "tool_call_id": call["id"], "content": text}
                    for call, text in answers
                ]
            else:
                messages.append({"role": "user", "content": "\n\n".join(told)})
            if workspace.seconds_left <= 0:
                return "agent_timeout"
            if turn < max_turns:
                reply = await ask(messages)
        return "turns"

    return await judged(task, judge, workspace, work, done)


def listed_of(tools: Mapping[str, Mapping[str, Any]]) -> str:
    """The tools of MCP servers for a model that can't be offered them as functions."""
    listed = [tool["function"] for tool in tools.values()]
    return "\n".join(
        f"- {each['name']}: {each['description']} {dumps(each['parameters'])}" for each in listed
    )


def read_calls(calls: Sequence[Mapping[str, Any]], tools: Collection[str] = ()) -> list[Action]:
    """The actions that tool calls ask for, one each. `tools`: the names of those of MCP servers."""
    return [_called(call["function"], tools) for call in calls]


def _called(function: Mapping[str, Any], tools: Collection[str]) -> Action:
    try:
        given = orjson.loads(function["arguments"] or "{}")
        if function["name"] in tools:
            if not isinstance(given, dict):
                raise TypeError("its arguments have to be an object")
            return Action("", tool=function["name"], arguments=given)
        names = {
            tool["function"]["name"]: tool["function"]["parameters"]["required"] for tool in TOOLS
        }
        values = [given[name] for name in names[function["name"]]]
        if not all(isinstance(value, str) for value in values):
            raise TypeError("they have to be texts")
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        return Action("", wrong=f"{function['name']} can't be called so: {error}")
    return Action(*values) if function["name"] == "shell" else Action("", *values)


def read_actions(text: str, tools: Collection[str] = ()) -> list[Action] | None:
    """The actions in a reply, in order; None if a block can't be read. `tools`: the names of those of MCP servers."""
    kinds = _KINDS + (_CALL if tools else "")
    fence = re.compile(_FENCE % kinds, re.MULTILINE | re.DOTALL)
    actions: list[Action] = []
    for block in fence.finditer(text):
        _, kind, path, body = block.groups()
        if kind == "shell":
            actions.append(Action(body))
            continue
        if kind == "call":
            actions.append(_called({"name": (path or "").strip(), "arguments": body}, tools))
            continue
        halves = _HALVES.match(body)
        if halves is None or not path:
            return None
        old, new = halves.groups()
        actions.append(Action("", path.strip(), old, new))
    rest = fence.sub("", text)
    return None if re.search(_OPENED % kinds, rest, re.MULTILINE) else actions


async def _carried_out(action: Action, workspace: WorkspaceHandle, seconds: float) -> str:
    """Carries out an action; returns the text for the model."""
    if action.wrong:
        return action.wrong
    if action.tool:
        done = await workspace.call(action.tool, action.arguments, seconds)
        ended = ""
        if done["cause"]:
            ended = f"ended for its {done['cause']} limit"
        elif done["status"]:
            ended = "error"
        return "\n".join(filter(None, [done["output"].rstrip(), ended and f"[{ended}]"]))
    if not action.command:
        done = await workspace.edit(action.path, action.old, action.new)
        return f"edit {action.path}: {done['output']}"
    done = await workspace.shell(action.command, seconds)
    ended = (
        f"ended for its {done['cause']} limit" if done["cause"] else f"exit code {done['status']}"
    )
    return f"{done['output'].rstrip()}\n[{ended}]".lstrip("\n")


@solver(roles=(), estimate=asks_nothing)
async def oracle(task: Task, judge: JudgeHandle, workspace: WorkspaceHandle) -> Verdict:
    """Applies the task's own solution, which has to pass."""

    async def work(_part: Task) -> str:
        await workspace.solve()
        return ""

    return await judged(task, judge, workspace, work)


@solver(roles=(), estimate=asks_nothing)
async def nop(task: Task, judge: JudgeHandle, workspace: WorkspaceHandle) -> Verdict:
    """Does nothing, which has to fail."""

    async def work(_part: Task) -> str:
        return ""

    return await judged(task, judge, workspace, work)


_MEDIAN = """The function takes the upper of the two. I mend that.

```edit numbers_summary.py
<<<<<<<
    return ordered[len(ordered) // 2]
=======
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2
>>>>>>>
```

```shell
python3 -m pytest -q test_visible.py
```"""

_SLUGS = """There is no module yet, so I write it.

```edit pages.py
<<<<<<<
=======
import re


def slug(title):
    return "-".join(re.findall(r"[a-z0-9]+", title.lower()))
>>>>>>>
```

```shell
python3 -c 'from pages import slug; print(slug("Hello, World"))'
```"""

_GREETING = """```shell
sed 's/.*/Hello, &!/' names.txt > greeting.txt
cat greeting.txt
```"""

_SKILL = re.compile(r"[^\s`'\"()<>]+/SKILL\.md")
_COMMAND = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)

_PLAYED: Mapping[str, str] = {"median()": _MEDIAN, "slug(title)": _SLUGS, "greeting.txt": _GREETING}


def simulate(messages: Sequence[Message]) -> str:
    """The reply to a conversation, by the number of its earlier replies."""
    told = " ".join(text_of(message) for message in messages if message["role"] == "user")
    turn = sum(message["role"] == "assistant" for message in messages)
    if "codes.txt" in told:
        return _of_parcels(" ".join(map(text_of, messages)), turn)
    edit = next((reply for mark, reply in _PLAYED.items() if mark in told), "")
    if turn == 0:
        return "I look at what is there.\n\n```shell\nls; head -50 *.py *.txt *.md 2>/dev/null\n```"
    return edit if turn == 1 and edit else "That is all."


def _of_parcels(told: str, turn: int) -> str:
    """The reply on a task of `koderz helps`: it reads the skills that it is offered, and does what it read last."""
    if turn == 0:
        skills = [f"cat {path}" for path in dict.fromkeys(_SKILL.findall(told))]
        return "\n".join(
            ["I read what there is on it.", "", "```shell", "cat README.md", *skills, "```"]
        )
    if turn == 1:
        command = (_COMMAND.findall(told) or ["cp parcels.txt codes.txt\n"])[-1]
        return f"I make the codes so.\n\n```shell\n{command}```"
    return "That is all."
