"""Verifiers that tasks bring along: Harbor's tests/test.sh with rewards, terminal-bench's run-tests.sh.

Published ones install their test runner first. One that can't, for want of a network, ends before a test has run, which
says nothing of the agent's work. Whether it is the verifier's doing or the agent's shows what it makes of the task's
own solution or, where there is none, of a fresh checkout without the agent's changes.
"""

from __future__ import annotations

import json
import math
import posixpath
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from koderz.errors import Fault
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import CHANNEL_GUARDS, Backend, Command, Ended, Mount, RewardChannel
from koderz.systems.rollouts.machines import test_command, verifier_of
from koderz.systems.rollouts.reporting import reporting, tests_in
from koderz.systems.rollouts.task import Rollout

LOGS = "/logs/verifier"
"""The folder of rewards, as a verifier sees it."""

HIDDEN = ("/tests", "/opt/koderz")
"""The folders that programs of the agent's can't read while a verifier runs."""

_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 of the command's own
_LARGEST_REWARD = 1 << 20  # bytes

_RUNNERS = re.compile(r"\b(?:py\.?test|unittest|(?:cargo|go|npm|yarn|npm run|mvn) test|jest|mocha)\b(?!==|[-\[])")
_INSTALLS = re.compile(r"\b(?:install|add)\b|^\s*#")
_REDIRECTS = re.compile(r"(?<![2&])>(?!&)|\s-q\w*q")  # what then prints no summary
_RAN = re.compile(
    r"^=.* \d+ (?:passed|failed|errors?|skipped|xfailed|xpassed)\b"  # pytest
    r"|^\d+ (?:passed|failed|errors?|skipped|xfailed|xpassed)\b.* in [\d.]+ ?s"
    r"|^(?:PASSED|FAILED|ERROR) \S+\.py"
    r"|^Ran \d+ tests? in "  # unittest
    r"|^test result: |^--- (?:PASS|FAIL)|^(?:ok|FAIL)\s+\S+\s+[\d.]+s|^(?:not )?ok \d"  # cargo, go, TAP
    r"|^Tests:\s.*\btotal|^\s*\d+ (?:passing|failing)\b|^(?:\[\w+\] )?Tests run: \d",  # jest, mocha, JUnit
    re.MULTILINE,
)
_DIED = re.compile(
    r"^.*(?:\b(?:apt-get|apt|apk|yum|dnf|curl|wget|uvx?|pip3?|npm|conda): (?:command )?not found"
    r"|Could not resolve|Temporary failure (?:in name resolution|resolving)|Network is unreachable|Failed to fetch"
    r"|Unable to (?:locate package|fetch|acquire the dpkg)|are you root\?|Failed to establish a new connection"
    r"|the package \S+ isn't here; |python3 isn't here, on which|koderz has no network here"
    r"|error sending request|No matching distribution found|List directory \S+ is missing).*",
    re.MULTILINE,
)
_ERROR = re.compile(r"^(?:E {2,}|\S+: )((?:\w*Error|error): .*)", re.MULTILINE)  # pytest's
_COLOURS = re.compile(r"\x1b\[[\d;]*m")


Isolation = Literal["apart", "in-process"]
"""Whether a process of the verifier has loaded the agent's code."""


@dataclass(frozen=True, slots=True)
class VerifierRun:
    """One run of a verifier."""

    ended: Ended
    rewards: Mapping[str, float] = field(default_factory=dict)  # by name; empty: it gave none
    wrong: str = ""  # why it gave none
    tests: Mapping[str, bool] = field(default_factory=dict)  # whether each passed, where pytest reports it
    doubt: str = ""  # why its reward isn't believed
    cut: bool = False  # whether it, or a run in doubt of it, ended at the limit of time

    @property
    def isolation(self) -> Isolation:
        """Whether a process of the verifier has loaded the agent's code, as far as that is known."""
        return "in-process" if self.ended.loaded is None or self.ended.loaded else "apart"

    @property
    def success(self) -> bool:
        """Whether all rewards are 1."""
        return bool(self.rewards) and all(reward == 1 for reward in self.rewards.values())


@dataclass(frozen=True, slots=True)
class Guards:
    """The guards under which a verifier runs in a fresh tree."""

    agents: Collection[str] = ()  # the agent's files, as they are seen
    lifted: Collection[str] = ()
    reports: bool = True  # whether pytest reports what each test did


async def run(
    task: Rollout, place: Path, backend: Backend, wanted: Command, guards: Guards | None = None
) -> VerifierRun:
    """Runs the task's own tests in `place` until all of their processes have ended. No guards: as published."""
    by_status = verifier_of(task).by_status
    command = await test_command(task, place, backend, wanted)
    with scratch() as logs, scratch() as told:
        if guards and guards.reports:
            command = reporting(command, told)
        if guards and backend.guards_channels:
            command = _guarded(command, logs, guards)
        elif not by_status:
            command = replace(command, mounts=[*command.mounts, Mount(logs, LOGS, writable=True)])
        ended = await backend.run(command, place)
        tests = tests_in(told)
        if command.channel and ended.loaded is None and not ended.cause:
            return VerifierRun(ended, wrong=f"the verifier of {task.id} was killed with its sandbox", tests=tests)
        if by_status:
            return VerifierRun(ended, {"tests": float(not ended.status and not ended.cause)}, tests=tests)
        try:
            return VerifierRun(ended, _rewards(logs, ended, task), tests=tests)
        except Fault as fault:
            return VerifierRun(ended, wrong=str(fault), tests=tests)


def _guarded(command: Command, logs: Path, guards: Guards) -> Command:
    """The command with the channel of its rewards."""
    homes = {command.checkout, *_TEMPORARY, *(mount.target for mount in command.mounts if mount.writable)}
    homes |= {posixpath.dirname(path) for path in guards.agents} - {"/"}
    lifted = [name for name in CHANNEL_GUARDS if name in guards.lifted]
    channel = RewardChannel(logs, LOGS, hidden=HIDDEN, agents=guards.agents, homes=sorted(homes), lifted=lifted)
    return replace(command, channel=channel)


def has_tested(task: Rollout, ended: Ended) -> bool:
    """Whether a test has run, by the output: a runner's results, or without a runner no failed installation."""
    output = _COLOURS.sub("", ended.output)
    if _RAN.search(output):
        return True
    script = task.verifier.script if task.verifier else None
    lines = script.read_text("utf-8", "replace").splitlines() if script else []
    calls = [line for line in lines if _RUNNERS.search(line) and not _INSTALLS.search(line)]
    if calls and not any(_REDIRECTS.search(line) for line in calls):
        return False
    return not _DIED.search(output)


def reason(output: str) -> str:
    """The first line that reports a failure, else the last one; empty if nothing was printed."""
    output = _COLOURS.sub("", output).strip()
    if found := _DIED.search(output):
        return found[0].strip()[:200]
    errors = _ERROR.findall(output)
    return (errors or output.splitlines() or [""])[-1].strip()[:200]


def _rewards(logs: Path, ended: Ended, task: Rollout) -> Mapping[str, float]:
    """The rewards in reward.json, else in reward.txt. Raises Fault if there is no numeric one."""
    if ended.cause == "timeout":
        raise Fault(f"the verifier of {task.id} takes longer than {task.test_seconds:.0f} s", cause="judge")
    for name in ("reward.json", "reward.txt"):
        path = logs / name
        if path.is_symlink() or not path.is_file():
            continue
        if rewards := _read_rewards(path):
            return rewards
        raise Fault(f"the verifier of {task.id} wrote a {name} that is no finite number", cause="judge")
    said = ended.output.strip().splitlines() or [f"exit code {ended.status}"]
    raise Fault(f"the verifier of {task.id} wrote no reward: {said[-1][:200]}", cause="judge")


def _read_rewards(path: Path) -> Mapping[str, float]:
    """The rewards in a file: a number, or in JSON also a table of such; true counts 1. Empty if they aren't finite."""
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_REWARD)
        value: Any = json.loads(text) if path.suffix == ".json" else float(text)
        rewards = value if isinstance(value, dict) else {"reward": value}
        numbers = {str(name): float(each) for name, each in rewards.items() if isinstance(each, int | float)}
    except (ValueError, OverflowError, RecursionError):
        return {}
    return numbers if len(numbers) == len(rewards) and all(map(math.isfinite, numbers.values())) else {}
