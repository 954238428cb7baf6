"""Agents that are command lines: each runs in a sandbox, and reaches its model only through the bridge.

An adapter is an object that has what `Adapter` says; other packages add theirs by entry points of the
group `koderz.agents`. The solver `agent:NAME` has it work.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from koderz.errors import Fault, KoderzError
from koderz.models.names import parse_model_name
from koderz.sandbox.workspace import BRIDGE_URL, HOME, Launch
from koderz.settings.systems import own_names
from koderz.solvers.definition import (
    AskHandle,
    JudgeHandle,
    OnceHandle,
    Solver,
    WorkspaceHandle,
    asks_nothing,
    solver,
)
from koderz.systems.rollouts.agents import ScriptOptions, judged
from koderz.systems.rollouts.agents.acp import AcpAgent, AcpBridge
from koderz.systems.rollouts.agents.adapters import Dirs, adapter_of, require_taken, version_command
from koderz.systems.rollouts.agents.bridge import Bridge
from koderz.types import MAIN, REJECTED, Expected, Task, Verdict

_CAUSES = {"timeout": "agent_timeout", "memory": "memory", "processes": "memory"}
_FINISHES = {"length": "length", REJECTED: "length", "refusal": "refused", "turns": "turns"}
_USUAL_TURNS = 12
# characters of the output of an agent that prints no events, which hold its last message
_LAST = 4000
# calls of a usual rollout, and tokens of each
_TURNS, _SENT, _SAID = (3, 40), (20_000, 45_000), 400


def solver_of(name: str) -> Solver[..., Any]:
    """The solver that runs the agent with this name. Raises KoderzError if it is unknown."""
    if name not in own_names("agents"):
        adapter_of(name)

    @solver(restarts=True, roles=(), estimate=_estimate)
    async def solve(
        task: Task,
        ask: AskHandle,
        judge: JudgeHandle,
        once: OnceHandle,
        workspace: WorkspaceHandle,
        models: Any,
    ) -> Verdict:
        adapter = adapter_of(name)
        model = parse_model_name(models[MAIN]).name

        errors, actions, unknown = list[str](), list[str](), list[str]()
        is_acp = isinstance(adapter, AcpAgent)
        require_taken(name, workspace.additions)

        def launch(part: Task) -> Launch:
            kind = partial(AcpBridge, part.prompt, workspace.workdir) if is_acp else Bridge
            bridge = kind(ask, model, workspace.additions)
            bridge.actions = actions
            package = adapter.find()
            if package is None:
                raise Fault(
                    f"launch_failed: {name} isn't installed here; install it by: {adapter.install}",
                    cause="launch_failed",
                )
            dirs = Dirs(
                package.program, HOME, workspace.workdir, BRIDGE_URL, bridge.token, bridge.additions
            )
            argv, environment = adapter.command(part.prompt, model, dirs)
            version = () if is_acp else version_command(adapter, package)
            folders = (*package.folders, *bridge.folders)
            return Launch(argv, {**_variables(bridge), **environment}, folders, bridge, version)

        async def work(part: Task) -> str:
            ended, cause = await _worked(workspace, partial(launch, part))
            if is_acp and not ended["calls"]:
                unknown.append(
                    "no call came by the bridge, so that what it asked and cost is unknown"
                )
            if ended["status"] == 127 and not ended["calls"]:
                raise Fault(
                    f"launch_failed: {ended['output'].strip()[-300:]}", cause="launch_failed"
                )
            events = [
                event for line in ended["output"].splitlines() for event in adapter.events(line)
            ]
            counted = Counter(event.kind for event in events)
            actions.extend(event.text for event in events if event.kind == "tool")
            told = {"reused": ended["reused"], "tools": counted["tool"], "events": len(events)}
            await once("agent-metrics", lambda: told)
            messages = [event.text for event in events if event.kind == "message"]
            workspace.message = messages[-1] if messages else ended["output"][-_LAST:]
            errors.extend(event.text for event in events if event.kind == "error")
            return cause

        verdict = await judged(task, judge, workspace, work, actions)
        notes = [each[:500] for each in (*errors[-1:], *unknown[:1])]
        return replace(verdict, note=verdict.note or "; ".join(notes), cost_known=not unknown)

    return solve


# It may ask, and mostly doesn't.
@solver(options=ScriptOptions, restarts=True, roles=(), estimate=asks_nothing)
async def scripted(
    task: Task,
    ask: AskHandle,
    judge: JudgeHandle,
    workspace: WorkspaceHandle,
    models: Any,
    *,
    script: Path | str | None = None,
) -> Verdict:
    """Runs the user's script with `bash -eu` in place of a command line, and has the result judged."""
    if script is None:
        raise KoderzError("the agent scripted needs --script FILE")
    place = os.path.abspath(script)  # noqa: ASYNC240, PTH100

    def launch() -> Launch:
        bridge = Bridge(ask, parse_model_name(models[MAIN]).name, workspace.additions)
        told = [
            {name: getattr(each, name) for name in ("kind", "name", "path", "server")}
            for each in bridge.additions
        ]
        variables = _variables(bridge) | ({"KODERZ_ADDITIONS": json.dumps(told)} if told else {})
        return Launch(["bash", "-eu", place], variables, [place, *bridge.folders], bridge)

    async def work(_part: Task) -> str:
        _, cause = await _worked(workspace, launch)
        return cause

    return await judged(task, judge, workspace, work)


async def _worked(
    workspace: WorkspaceHandle, launch: Callable[[], Launch]
) -> tuple[dict[str, Any], str]:
    """The result of an agent, and the limit that it ran into. Raises the fault that left it without answers."""
    ended = await workspace.agent(launch)
    return ended, _CAUSES.get(ended["cause"]) or _FINISHES.get(ended["finish"], "")


def _variables(bridge: Bridge) -> dict[str, str]:
    """The variables by which a command finds the bridge."""
    return {"KODERZ_BRIDGE_URL": BRIDGE_URL, "KODERZ_BRIDGE_TOKEN": bridge.token}


def _estimate(
    _prompt_tokens: float, _task_id: str, _parameters: Mapping[str, Any]
) -> Sequence[Expected]:
    sent = (_TURNS[0] * _SENT[0], _TURNS[1] * _SENT[1])
    usual = _USUAL_TURNS, _USUAL_TURNS * sum(_SENT) / 2, _USUAL_TURNS * _SAID
    return [Expected(MAIN, _TURNS, sent, (_TURNS[0] * _SAID, _TURNS[1] * _SAID), usual=usual)]


codex, claude_code, aider, mini_swe_agent = map(solver_of, own_names("agents"))
