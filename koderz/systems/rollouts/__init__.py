"""The system `rollouts`: agents at work on prepared repositories.

Its folders are the way of a rollout. `tasks` reads what is asked, `environments` makes what that runs in, `agents` work
in `workspaces`, `grading` runs hidden tests on what they leave, and `results` writes and reads what became of it.
`checking` tells whether tasks are fit for use, and `commands` and `helps` are what a user calls.
"""

from __future__ import annotations

import koderz.systems.workspaces  # noqa: F401 without which no agent works
from koderz.settings.systems import System

_HERE = "koderz.systems.rollouts"

SYSTEM = System(
    name="rollouts",
    suites={"rollouts": f"{_HERE}.suite:RolloutsSuite"},
    solvers={
        "agent:koderz": f"{_HERE}.agents.own:koderz_agent",
        "agent:oracle": f"{_HERE}.agents.own:oracle",
        "agent:nop": f"{_HERE}.agents.own:nop",
        "agent:scripted": f"{_HERE}.agents.command_line:scripted",
        "agent:codex": f"{_HERE}.agents.command_line:codex",
        "agent:claude-code": f"{_HERE}.agents.command_line:claude_code",
        "agent:aider": f"{_HERE}.agents.command_line:aider",
        "agent:mini-swe-agent": f"{_HERE}.agents.command_line:mini_swe_agent",
        "agent:*": f"{_HERE}.agents.command_line:solver_of",
    },
    agents={
        name: f"{_HERE}.agents.adapters:{name.replace('-', '_')}"
        for name in ("codex", "claude-code", "aider", "mini-swe-agent")
    },
    options={
        "suite.rollouts": f"{_HERE}.options:RolloutsOptions",
        "solver.agent:koderz": f"{_HERE}.agents:AgentOptions",
        "solver.agent:scripted": f"{_HERE}.agents:ScriptOptions",
    },
    summaries={
        "rollouts": f"{_HERE}.results.figures:FIGURES",
        "canaries": f"{_HERE}.results.figures:CANARIES",
    },
    documents={"rollouts": f"{_HERE}.results.files:RolloutFiles"},
    formats={
        **dict.fromkeys(("predictions", "swebench"), f"{_HERE}.results.exports:predictions"),
        "harbor": f"{_HERE}.results.exports:harbor",
        "atif": f"{_HERE}.results.exports:atif",
        "skill-creator": f"{_HERE}.results.exports:skill_creator",
    },
    checks={"rollouts": f"{_HERE}.doctor:check"},
    commands={
        "rollouts": (
            f"{_HERE}.commands",
            "Have agents work on prepared repositories, graded by hidden tests.",
        ),
        "helps": (f"{_HERE}.helps:helps", "Tell whether a skill or server helps an agent."),
    },
)
