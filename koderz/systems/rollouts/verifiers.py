"""Verifiers that tasks bring along: Harbor's tests/test.sh with rewards, terminal-bench's run-tests.sh.

Published ones install their test runner first. One that can't, for want of a network, ends before a test has run, which
says nothing of the agent's work. Whether it is the verifier's doing or the agent's shows a second run of it in a fresh
checkout without the agent's changes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from koderz.errors import Fault
from koderz.sandbox.workspace import Backend, Command, Ended, Mount, git
from koderz.sandbox.workspace.folders import scratch
from koderz.systems.rollouts.tasks import OWN_TESTS, Rollout

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
    r"|error sending request|No matching distribution found|List directory \S+ is missing).*",
    re.MULTILINE,
)
_ERROR = re.compile(r"^(?:E {2,}|\S+: )((?:\w*Error|error): .*)", re.MULTILINE)  # pytest's
_COLOURS = re.compile(r"\x1b\[[\d;]*m")


async def verified(
    task: Rollout, place: Path, store: git.Store, backend: Backend, wanted: Command
) -> tuple[Ended, Mapping[str, float]]:
    """The end of the task's own tests in `place`, and the rewards that they gave, by name.

    Raises Fault where the verifier, also without the agent's changes, takes too long, gives no reward or runs no test.
    """
    ended, rewards = await _run(task, place, backend, wanted)
    if not isinstance(rewards, Fault) and (_passed(rewards) or _has_tested(task, ended)):
        return ended, rewards
    with scratch() as fresh:
        await store.checkout(fresh / "checkout")
        without, usual = await _run(task, fresh, backend, wanted)
    if not isinstance(rewards, Fault):
        if not _has_tested(task, without):
            why = reason(ended.output) or f"exit code {ended.status}"
            raise Fault(f"the verifier of {task.id} ended before a test had run: {why}", cause="judge")
        return ended, rewards
    if isinstance(usual, Fault):
        raise rewards
    return ended, dict.fromkeys(usual, 0.0)


async def _run(
    task: Rollout, place: Path, backend: Backend, wanted: Command
) -> tuple[Ended, Mapping[str, float] | Fault]:
    """The end of the verifier, and its rewards, or a fault that says why there are none."""
    if task.format == "terminal-bench":
        ended = await backend.run(_command(task, wanted), place)
        return ended, {"tests": float(not ended.status and not ended.cause)}
    with scratch() as logs:
        ended = await backend.run(_command(task, wanted, Mount(logs, "/logs/verifier", writable=True)), place)
        try:
            return ended, _rewards(logs, ended, task)
        except Fault as fault:
            return ended, fault


def _passed(rewards: Mapping[str, float]) -> bool:
    return all(reward == 1 for reward in rewards.values())


def _command(task: Rollout, wanted: Command, *mounts: Mount) -> Command:
    """The command that runs a task's own test script, with its folder `tests` at /tests."""
    tests = [Mount(task.folder / "tests", "/tests")] if (task.folder / "tests").is_dir() else []
    own = Mount(task.folder / OWN_TESTS[task.format], "/opt/koderz/tests.sh")
    return replace(wanted, argv=["bash", "/opt/koderz/tests.sh"], mounts=[*tests, own, *mounts])


def _has_tested(task: Rollout, ended: Ended) -> bool:
    """Whether a test has run, by the output: a runner's results, or without a runner no failed installation."""
    output = _COLOURS.sub("", ended.output)
    if _RAN.search(output):
        return True
    lines = (task.folder / OWN_TESTS[task.format]).read_text("utf-8", "replace").splitlines()
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
        try:
            with path.open("rb") as file:
                value: Any = json.loads(file.read(_LARGEST_REWARD))
        except ValueError:
            value = None
        rewards = value if isinstance(value, dict) else {"reward": value}
        numbers = [each for each in rewards.values() if isinstance(each, int | float) and not isinstance(each, bool)]
        if len(numbers) == len(rewards) > 0 and all(map(math.isfinite, numbers)):
            return {str(key): float(each) for key, each in rewards.items()}
        raise Fault(f"the verifier of {task.id} wrote a {name} that is no finite number", cause="judge")
    said = ended.output.strip().splitlines() or [f"exit code {ended.status}"]
    raise Fault(f"the verifier of {task.id} wrote no reward: {said[-1][:200]}", cause="judge")
