"""koderz' own agent: a model that works by commands and edits, written as fenced blocks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from koderz.prompts import PLACEHOLDERS, Prompts
from koderz.solvers.agents import graded
from koderz.solvers.handles import AskHandle, JudgeHandle, WorkspaceHandle
from koderz.types import Expected, Message, Task, Verdict

_FENCE = re.compile(r"^(`{3,})(shell|edit)(?:[ \t]+([^\n`]+))?[ \t]*\n(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_OPENED = re.compile(r"^`{3,}(shell|edit)\b", re.MULTILINE)
_HALVES = re.compile(r"\A<{7}[^\n]*\n(.*?)^={7}\n(.*?)^>{7}[^\n]*\s*\Z", re.MULTILINE | re.DOTALL)

_TURNS = (3, 30)  # of a usual rollout
_TURN_TOKENS = 400  # of a reply, and of what it is told in return


class Action(NamedTuple):
    """Something that a reply asks for."""

    command: str  # empty for an edit
    path: str = ""
    old: str = ""
    new: str = ""


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
    """What a model makes of the repository in up to `max_turns` replies; one without a block ends it."""
    system = {"role": "system", "content": prompts.render("agent-system", workdir=workspace.workdir)}
    messages: list[Message] = [system, *task.messages]
    for _ in range(max_turns):
        reply = await ask(messages)
        actions = read_actions(reply.text)
        if not actions and actions is not None:
            cause = {"length": "length", "refusal": "refused"}.get(reply.finish_reason, "")
            return await graded(task, judge, workspace, ran_out=cause)
        told = prompts.render("agent-no-block") if actions is None else ""
        for action in actions or ():
            if workspace.seconds_left <= 0:
                return await graded(task, judge, workspace, ran_out="agent_timeout")
            told += await _carried_out(action, workspace, command_timeout)
        messages += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": told.strip()}]
        if workspace.seconds_left <= 0:
            return await graded(task, judge, workspace, ran_out="agent_timeout")
    return await graded(task, judge, workspace, ran_out="turns")


def read_actions(text: str) -> list[Action] | None:
    """What a reply asks for, in its order; None where a block of it can't be read."""
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
    """What the model is told of an action."""
    if not action.command:
        done = await workspace.edit(action.path, action.old, action.new)
        return f"edit {action.path}: {done['output']}\n\n"
    done = await workspace.shell(action.command, seconds)
    ended = f"ended for its {done['cause']} limit" if done["cause"] else f"exit code {done['status']}"
    return f"{done['output'].rstrip()}\n[{ended}]\n\n".lstrip("\n")


def estimate(prompt_tokens: float, _task_id: str, parameters: Mapping[str, Any]) -> Sequence[Expected]:
    """A call a turn, each of which is told all that was said before."""
    low, high = (min(turns, parameters["max_turns"]) for turns in _TURNS)
    sent = [turns * prompt_tokens + 2 * _TURN_TOKENS * turns * (turns - 1) / 2 for turns in (low, high)]
    return [Expected("main", (low, high), (sent[0], sent[1]), (low * _TURN_TOKENS, high * _TURN_TOKENS))]


koderz_agent.roles = ()  # type: ignore[attr-defined]
koderz_agent.estimate = estimate  # type: ignore[attr-defined]
koderz_agent.prompts = {"main": [name for name in PLACEHOLDERS if name.startswith("agent-")]}  # type: ignore[attr-defined]
