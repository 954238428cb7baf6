"""Verifiers that tasks bring along: Harbor's tests/test.sh with rewards, terminal-bench's run-tests.sh.

Published ones install their test runner first. One that can't, for want of a network, ends before a test has run, which
says nothing of the agent's work. Whether it is the verifier's doing or the agent's shows what it makes of the task's
own solution or, where there is none, of a fresh checkout without the agent's changes.

A plugin goes with each pytest that a verifier calls. It says what each test did; exit codes, skips and expected
failures count for nothing. That reports are forged shows where the verifier runs again with the tests of /tests turned
round, after which a reward must be gone. To each file a test is added that has to fail and one that has to pass. Where
pytest reports what its tests did, each of those that were turned round has to fail.
"""

from __future__ import annotations

import json
import math
import posixpath
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from koderz.errors import Fault
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import CHANNEL_GUARDS, Backend, Command, Ended, Mount, RewardChannel
from koderz.systems.rollouts.doubt import opposites, unbelieved
from koderz.systems.rollouts.task import Rollout
from koderz.systems.rollouts.workspaces.machines import test_command, verifier_of
from koderz.systems.workspaces.folders import files_below
from koderz.systems.workspaces.scripts import TAMPERED, Canaries, Script, ScriptResult

TESTS = "/tests"
"""The folder of the tests, as a verifier sees it."""

_PLUGIN = Path(__file__).parents[1] / "guest" / "reporting"
_SEEN, _FOLDER = "/opt/koderz/reporting", "/opt/koderz/reports"
_FILE = "reports.jsonl"
_MOST = 64 << 20  # bytes of reports
_PHASES = ("setup", "call", "teardown")


def reporting(command: Command, folder: Path) -> Command:
    """The command with the plugin, whose reports go to an empty folder."""
    given = command.environment
    own = {
        "PYTEST_PLUGINS": ",".join(
            filter(None, [given.get("PYTEST_PLUGINS", ""), "koderz_reports"])
        ),
        "PYTHONPATH": ":".join(filter(None, [given.get("PYTHONPATH", ""), _SEEN])),
        "KODERZ_REPORTS": f"{_FOLDER}/{_FILE}",
    }
    mounts = [*command.mounts, Mount(_PLUGIN, _SEEN), Mount(folder, _FOLDER, writable=True)]
    return replace(command, environment={**given, **own}, mounts=mounts)


def tests_in(folder: Path) -> dict[str, bool]:
    """Whether each test of /tests passed, by its path there and its name, `test_a.py::test_one`."""
    states: dict[str, dict[str, list[bool]]] = {}
    for told in _told(folder / _FILE):
        path, _, name = str(told.get("test")).partition("::")
        if not path.startswith(f"{TESTS}/"):
            continue
        test = f"{posixpath.relpath(path, TESTS)}::{name}"
        good = told.get("outcome") == "passed" and not told.get("expected")
        states.setdefault(test, {}).setdefault(str(told.get("when")), []).append(good)
    return {
        test: all(each.get(when) and all(each[when]) for when in _PHASES)
        for test, each in states.items()
    }


def _told(path: Path) -> Iterator[Mapping[str, Any]]:
    if path.is_symlink() or not path.is_file():
        return
    with path.open("rb") as file:
        for line in file.read(_MOST).splitlines():
            try:
                told = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(told, dict):
                yield told


LOGS = "/logs/verifier"
"""The folder of rewards, as a verifier sees it."""

HIDDEN = ("/tests", "/opt/koderz")
"""The folders that programs of the agent's can't read while a verifier runs."""

_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 of the command's own
_LARGEST_REWARD = 1 << 20  # bytes

_RUNNERS = re.compile(
    r"\b(?:py\.?test|unittest|(?:cargo|go|npm|yarn|npm run|mvn) test|jest|mocha)\b(?!==|[-\[])"
)
_INSTALLS = re.compile(r"\b(?:install|add)\b|^\s*#")
_REDIRECTS = re.compile(r"(?<![2&])>(?!&)|\s-q\w*q")  # what then prints no summary
_RAN = re.compile(
    r"^=.* \d+ (?:passed|failed|errors?|skipped|xfailed|xpassed)\b"  # pytest
    r"|^\d+ (?:passed|failed|errors?|skipped|xfailed|xpassed)\b.* in [\d.]+ ?s"
    r"|^(?:PASSED|FAILED|ERROR) \S+\.py"
    r"|^Ran \d+ tests? in "  # unittest
    # cargo, go, TAP
    r"|^test result: |^--- (?:PASS|FAIL)|^(?:ok|FAIL)\s+\S+\s+[\d.]+s|^(?:not )?ok \d"
    # jest, mocha, JUnit
    r"|^Tests:\s.*\btotal|^\s*\d+ (?:passing|failing)\b|^(?:\[\w+\] )?Tests run: \d",
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
    # whether each passed, where pytest reports it
    tests: Mapping[str, bool] = field(default_factory=dict)
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
            return VerifierRun(
                ended, wrong=f"the verifier of {task.id} was killed with its sandbox", tests=tests
            )
        if by_status:
            return VerifierRun(
                ended, {"tests": float(not ended.status and not ended.cause)}, tests=tests
            )
        try:
            return VerifierRun(ended, _rewards(logs, ended, task), tests=tests)
        except Fault as fault:
            return VerifierRun(ended, wrong=str(fault), tests=tests)


def _guarded(command: Command, logs: Path, guards: Guards) -> Command:
    """The command with the channel of its rewards."""
    homes = {
        command.checkout,
        *_TEMPORARY,
        *(mount.target for mount in command.mounts if mount.writable),
    }
    homes |= {posixpath.dirname(path) for path in guards.agents} - {"/"}
    lifted = [name for name in CHANNEL_GUARDS if name in guards.lifted]
    channel = RewardChannel(
        logs, LOGS, hidden=HIDDEN, agents=guards.agents, homes=sorted(homes), lifted=lifted
    )
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
        raise Fault(
            f"the verifier of {task.id} takes longer than {task.test_seconds:.0f} s", cause="judge"
        )
    for name in ("reward.json", "reward.txt"):
        path = logs / name
        if path.is_symlink() or not path.is_file():
            continue
        if rewards := _read_rewards(path):
            return rewards
        raise Fault(
            f"the verifier of {task.id} wrote a {name} that is no finite number", cause="judge"
        )
    said = ended.output.strip().splitlines() or [f"exit code {ended.status}"]
    raise Fault(f"the verifier of {task.id} wrote no reward: {said[-1][:200]}", cause="judge")


def _read_rewards(path: Path) -> Mapping[str, float]:
    """The rewards in a file: a number, or in JSON also a table of such; true counts 1. Empty if they aren't finite."""
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_REWARD)
        value: Any = json.loads(text) if path.suffix == ".json" else float(text)
        rewards = value if isinstance(value, dict) else {"reward": value}
        numbers = {
            str(name): float(each)
            for name, each in rewards.items()
            if isinstance(each, int | float)
        }
    except (ValueError, OverflowError, RecursionError):
        return {}
    return (
        numbers
        if len(numbers) == len(rewards) and all(map(math.isfinite, numbers.values()))
        else {}
    )


_TEST_FILE = re.compile(r"(?:^|/)(?:test_[^/]*|[^/]*_test)\.py$")
STILL_REWARDED = "it gives the same reward where its tests claim the opposite"

RunTask = Callable[[Rollout], Awaitable[VerifierRun]]
"""Runs a task's verifier in a fresh tree."""


def test_files(task: Rollout) -> dict[str, str]:
    """The files of pytest among a task's tests, by their path below /tests."""
    found = {}
    for folder in task.verifier.tests if task.verifier else ():
        for path, file in files_below(folder).items():
            if _TEST_FILE.search(path):
                found[path] = file.read_text("utf-8", "replace")
    return found


def with_tests(task: Rollout, folder: Path) -> Rollout:
    """The task with a folder of tests laid over its own."""
    assert task.verifier
    return replace(task, verifier=replace(task.verifier, tests=(*task.verifier.tests, folder)))


async def doubt(task: Rollout, first: VerifierRun, run: RunTask, control: RunTask) -> str:
    """Why a reward isn't believed; empty if it is. `control` runs without the agent's changes."""
    scripts = [Script(path, "", text) for path, text in sorted(test_files(task).items())]
    if not scripts:
        return ""
    pairs = [opposites(script.content) for script in scripts]
    turning = _Turning(task, run, control)
    results = _results(scripts, first, {})
    if any(pair[0].turned and result.success for pair, result in zip(pairs, results, strict=True)):
        for number, (_, why) in (
            await unbelieved(scripts, results, turning.turned, turning.without)
        ).items():
            return f"{scripts[number].path}: {why}"
    else:
        for turn in (0, 1) if any(pair[0].turned for pair in pairs) else (0,):
            turned = [
                replace(each, content=pair[turn].source)
                for each, pair in zip(scripts, pairs, strict=True)
            ]
            if any(result.cause == "tampering" for result in await turning.turned(turned)):
                return TAMPERED
    return STILL_REWARDED if any(found.success for found in turning.runs) else ""


@dataclass(slots=True)
class _Turning:
    """Runs of a verifier with other tests."""

    task: Rollout
    run: RunTask
    control: RunTask
    runs: list[VerifierRun] = field(default_factory=list)  # of those with the agent's changes

    async def turned(self, scripts: Sequence[Script]) -> list[ScriptResult]:
        """A run with canaries added to each script."""
        added = {script.path: Canaries.drawn() for script in scripts}
        with _laid(
            self.task,
            [replace(each, content=each.content + added[each.path].source) for each in scripts],
        ) as task:
            found = await self.run(task)
        self.runs.append(found)
        return _results(scripts, found, added)

    async def without(self, scripts: Sequence[Script]) -> list[ScriptResult]:
        """A run without the agent's changes."""
        with _laid(self.task, scripts) as task:
            return _results(scripts, await self.control(task), {})


@contextmanager
def _laid(task: Rollout, scripts: Sequence[Script]) -> Iterator[Rollout]:
    with scratch() as folder:
        for script in scripts:
            path = folder / script.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(script.content, "utf-8")
        yield with_tests(task, folder)


def _results(
    scripts: Sequence[Script], found: VerifierRun, added: Mapping[str, Canaries]
) -> list[ScriptResult]:
    results = []
    for script in scripts:
        own = {
            test: ok for test, ok in found.tests.items() if test.partition("::")[0] == script.path
        }
        cause: str = found.ended.cause
        if (canaries := added.get(script.path)) and own:
            good, bad = (
                own.pop(f"{script.path}::{name}", None)
                for name in (canaries.passes, canaries.fails)
            )
            if bad or good is False:
                cause = "tampering"
        results.append(ScriptResult(script.path, any(own.values()), "", cause, own))
    return results
