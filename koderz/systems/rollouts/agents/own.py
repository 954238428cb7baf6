"""koderz' own agent: a model that works by commands and edits, as tool calls or in fenced blocks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from koderz.prompts import PLACEHOLDERS, Prompts
from koderz.solvers.definition import solver
from koderz.solvers.handles import AskHandle, JudgeHandle, WorkspaceHandle
from koderz.systems.rollouts.additions import told_of
from koderz.systems.rollouts.agents import judged
from koderz.systems.rollouts.agents.options import AgentOptions
from koderz.types import LENGTH_REASONING, REJECTED, TIME, Expected, Message, Task, Verdict

_FENCE = re.compile(r"^(`{3,})(shell|edit)(?:[ \t]+([^\n`]+))?[ \t]*\n(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_OPENED = re.compile(r"^`{3,}(shell|edit)\b", re.MULTILINE)
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
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


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


class Action(NamedTuple):
    """An action that a reply asks for."""

    command: str  # empty for an edit
    path: str = ""
    old: str = ""
    new: str = ""
    wrong: str = ""  # why it can't be carried out


def estimate(prompt_tokens: float, _task_id: str, parameters: Mapping[str, Any]) -> Sequence[Expected]:
    """A call for each turn, with all earlier messages."""
    low, high = (min(turns, parameters["max_turns"]) for turns in _TURNS)
    usual = min(_USUAL_TURNS, high)
    sent = [turns * prompt_tokens + 2 * _TURN_TOKENS * turns * (turns - 1) / 2 for turns in (low, high, usual)]
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
        added = f"\n\n{text}" if (text := told_of([each.mounted for each in workspace.additions])) else ""
        system = {"role": "system", "content": prompts.render("agent-tools", workdir=workspace.workdir) + added}
        messages: list[Message] = [{"role": "tools", "content": [*TOOLS]}, system, *part.messages]
        reply = await ask(messages)
        if reply.finish_reason == REJECTED:
            system = {"role": "system", "content": prompts.render("agent-system", workdir=workspace.workdir) + added}
            messages = [system, *part.messages]
            reply = await ask(messages)
        for turn in range(1, max_turns + 1):
            asked = read_calls(reply.tool_calls) or read_actions(reply.text)
            if not asked and asked is not None:
                return LENGTH_REASONING if reply.truncated == "reasoning" else _CAUSES.get(reply.finish_reason, "")
            messages.append({"role": "assistant", "content": reply.text or None})
            if reply.tool_calls:
                messages[-1]["tool_calls"] = [*reply.tool_calls]
            told = [prompts.render("agent-no-block")] if asked is None else []
            for action in asked or ():
                if workspace.seconds_left <= 0:
                    return "agent_timeout"
                done.append(action.command)
                told.append(await _carried_out(action, workspace, command_timeout))
            messages += _results(reply.tool_calls, told)
            if workspace.seconds_left <= 0:
                return "agent_timeout"
            if turn < max_turns:
                reply = await ask(messages)
        return "turns"

    return await judged(task, judge, workspace, work, done)


def read_calls(calls: Sequence[Mapping[str, Any]]) -> list[Action]:
    """The actions that tool calls ask for, one each."""
    return [_called(call["function"]) for call in calls]


def _called(function: Mapping[str, Any]) -> Action:
    try:
        given = orjson.loads(function["arguments"] or "{}")
        names = {tool["function"]["name"]: tool["function"]["parameters"]["required"] for tool in TOOLS}
        values = [given[name] for name in names[function["name"]]]
        if not all(isinstance(value, str) for value in values):
            raise TypeError("they have to be texts")
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        return Action("", wrong=f"{function['name']} can't be called so: {error}")
    return Action(*values) if function["name"] == "shell" else Action("", *values)


def _results(calls: Sequence[Mapping[str, Any]], told: Sequence[str]) -> list[Message]:
    """The messages that answer a reply: one for each call, or one for all actions in its text."""
    if not calls:
        return [{"role": "user", "content": "\n\n".join(told)}]
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": text} for call, text in zip(calls, told, strict=True)
    ]


def read_actions(text: str) -> list[Action] | None:
    """The actions in a reply, in order; None if a block can't be read."""
    found = [*_FENCE.finditer(text)]
    actions: list[Action] = []
    for block in found:
        _, kind, path, body = block.groups()
        if kind == "shell":
            actions.append(Action(body))
            continue
        halves = _HALVES.match(body)
        if halves is None or not path:
            return None
        actions.append(Action("", path.strip(), *halves.groups()))
    rest = _FENCE.sub("", text)
    return None if _OPENED.search(rest) else actions


async def _carried_out(action: Action, workspace: WorkspaceHandle, seconds: float) -> str:
    """Carries out an action; returns the text for the model."""
    if action.wrong:
        return action.wrong
    if not action.command:
        done = await workspace.edit(action.path, action.old, action.new)
        return f"edit {action.path}: {done['output']}"
    done = await workspace.shell(action.command, seconds)
    ended = f"ended for its {done['cause']} limit" if done["cause"] else f"exit code {done['status']}"
    return f"{done['output'].rstrip()}\n[{ended}]".lstrip("\n")
