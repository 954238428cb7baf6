"""Whether a hidden test script passes, by what pytest reports of each of its tests.

The code under test runs in the same process as the tests. What acts on all tests alike is found out by two tests of
random names that are added to each script, one that has to pass and one that has to fail. What tells these from the
others, or forges reports, is found out by running scripts that passed again with tests turned round (`doubt`). What
replaces functions by which tests are judged, or adds itself to pytest, is found out by looking at them. What remains
possible is told in docs/rollouts/reference.md: code that reads what the tests expect.
"""

from __future__ import annotations

import ast
import json
import random
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from koderz.errors import Fault
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import Backend, Command, Mount
from koderz.systems.workspaces import git, userland

_GUEST = Path(__file__).with_name("guest")
_TOOLS, _FOLDER, _PYTEST = "/opt/koderz/guest", "/opt/koderz/grading", "/opt/koderz/pytest"
TAMPERED = "a canary fared otherwise, or what judges was changed"
_MOST_REPORTS = 64 << 20  # bytes

_States = dict[str, dict[str, list[Mapping[str, Any]]]]  # pytest's reports by test and phase


Status = Literal["PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS"]
"""The end of a test, as pytest's short summary has it."""

SCRIPT_SECONDS = 60.0  # of one test script


@dataclass(frozen=True, slots=True)
class Script:
    """A hidden test script, run by pytest."""

    path: str
    rubric_id: str
    content: str
    timeout_sec: float = SCRIPT_SECONDS
    # of the task's folder, where its text lies there
    content_file: str = field(default="", repr=False)


_NONE = Script("test_none.py", "", "")


@dataclass(frozen=True, slots=True)
class ScriptResult:
    """Outcome of one script."""

    path: str
    success: bool
    output: str
    cause: str = ""  # why it didn't pass: timeout, tampering, or the limit that it was ended for
    # by name: whether it passed, canaries aside
    tests: Mapping[str, bool] = field(default_factory=dict)
    unfinished: frozenset[str] = frozenset()  # those that the end of the process cut off
    statuses: Mapping[str, Status] = field(default_factory=dict)  # by name, canaries aside


@dataclass(frozen=True, slots=True)
class Canaries:
    """The two tests that are added to a script."""

    passes: str
    fails: str
    source: str
    shown: str  # what the second says of its failure

    @classmethod
    def drawn(cls) -> Canaries:
        """New ones of random names and values."""
        draw = random.SystemRandom()
        good, bad = (f"test_{secrets.token_hex(4)}" for _ in range(2))
        low, high = draw.randrange(100), draw.randrange(100, 200)
        right = f"def {good}():\n    assert [{low}, {high}] == [{low}, {high}]\n"
        wrong = f"def {bad}():\n    assert [{low}, {high}] == [{high}, {low}]\n"
        both = [right, wrong]
        draw.shuffle(both)
        return cls(good, bad, "\n\n\n" + "\n\n".join(both), f"[{low}, {high}] == [{high}, {low}]")


async def run_script(
    script: Script,
    place: Path,
    backend: Backend,
    wanted: Command,
    changed: Iterable[str] = (),
    *,
    paths: Sequence[str] = (),
    options: Sequence[str] = (),
) -> ScriptResult:
    """Runs a script in the graded checkout of `place`, in which the diff changed some files.

    `paths` go first on sys.path, `options` are pytest's. Raises Fault where pytest can't be had.
    """
    canaries, token = Canaries.drawn(), secrets.token_hex(16)
    git.write(place / "checkout", script.path, (script.content + canaries.source).encode())
    with scratch() as folder:
        order: dict[str, Any] = {
            "token": token,
            "path": script.path,
            "pytest": _PYTEST,
            "changed": sorted(changed),
        }
        order |= {"paths": [*paths], "options": [*options]}
        (folder / "order.json").write_text(json.dumps(order))
        own = [Mount(path, f"{_PYTEST}/{name}") for path, name in userland.pytest_modules()]
        mounts = [
            *wanted.mounts,
            Mount(_GUEST, _TOOLS),
            Mount(folder, _FOLDER, writable=True),
            *own,
        ]
        argv = ["python3", "-I", "-B", f"{_TOOLS}/driver.py", _FOLDER]
        limits = replace(wanted.limits, seconds=script.timeout_sec)
        asked = replace(
            wanted, argv=argv, mounts=mounts, limits=limits, script=_GUEST / "driver.py"
        )
        ended = await backend.run(asked, place)
        reports = [*_reports(folder / "reports.jsonl", token)]
    if not any(report["what"] == "begun" for report in reports):
        if script is _NONE:
            why = next(
                (report["error"] for report in reports if report["what"] == "missing"),
                ended.output[-300:],
            )
            raise Fault(
                f"tests can't be run by pytest: {why.strip() or 'it does not start'}", cause="judge"
            )
        # where it can be run, it is the code under test that keeps that from being said
        with scratch() as alone:
            (alone / "checkout").mkdir()
            await run_script(_NONE, alone, backend, wanted)
        return ScriptResult(script.path, False, ended.output, ended.cause or "tampering")
    output = ended.output.replace(canaries.passes, "canary_passes").replace(
        canaries.fails, "canary_fails"
    )
    states = _states(reports)
    cause = ended.cause or _judged(reports, states, script, canaries)
    added = (canaries.passes, canaries.fails)
    tests = {
        test: _passed(each)
        for test, each in states.items()
        if test.rpartition("::")[2] not in added
    }
    unfinished = frozenset(test for test in tests if "teardown" not in states[test])
    statuses = {test: _status(states[test]) for test in tests}
    why = "" if cause == "tests" else cause
    return ScriptResult(script.path, not cause, output, why, tests, unfinished, statuses)


def _reports(path: Path, token: str) -> Iterator[Mapping[str, Any]]:
    """The lines that bear the token."""
    if path.is_symlink() or not path.is_file():
        return
    with path.open("rb") as file:
        for line in file.read(_MOST_REPORTS).splitlines():
            try:
                report = json.loads(line)
            except ValueError:
                continue
            if isinstance(report, dict) and report.get("token") == token:
                yield report


def _states(said: Iterable[Mapping[str, Any]]) -> _States:
    states: _States = {}
    for report in said:
        if report["what"] == "report":
            states.setdefault(report["test"], {}).setdefault(report["when"], []).append(report)
    return states


def _judged(
    said: list[Mapping[str, Any]], states: _States, script: Script, canaries: Canaries
) -> str:
    """Why the script doesn't pass: `tests`, or `tampering` where a canary fares as it mustn't; else empty."""
    collected = [
        test for report in said if report["what"] == "collected" for test in report["tests"]
    ]
    if any(report["what"] == "patched" for report in said):
        return "tampering"
    if not collected and not states:
        return "tests"  # it can't be imported, or ended while it was
    named = {test.rpartition("::")[2]: test for test in collected}
    if canaries.passes not in named or canaries.fails not in named:
        return "tampering"
    good, bad = named[canaries.passes], named[canaries.fails]
    for canary, outcome in ((good, "passed"), (bad, "failed")):
        for report in states.get(canary, {}).get("call", []):
            if report["outcome"] != outcome or report["expected"]:
                return "tampering"
        if any(
            each["outcome"] == "skipped" or each["expected"]
            for each in states.get(canary, {}).get("setup", [])
        ):
            return "tampering"
    failed = states.get(bad, {}).get("call", [])
    if not _passed(states.get(good, {})) or not failed:
        return "tests"  # the process ended, or what is set up for all tests failed
    if any(canaries.shown not in each["told"] for each in failed):
        return "tampering"
    tests = [test for test in collected if test not in (good, bad)]
    functions = {test.partition("[")[0].partition("::")[2] for test in tests}
    complete = tests and _expected(script.content) <= functions
    return "" if complete and all(_passed(states.get(test, {})) for test in tests) else "tests"


def _passed(states: Mapping[str, list[Mapping[str, Any]]]) -> bool:
    """Whether set-up, call and tear-down of a test all ran and passed."""
    return all(
        states.get(when)
        and all(each["outcome"] == "passed" and not each["expected"] for each in states[when])
        for when in ("setup", "call", "teardown")
    )


def _status(states: Mapping[str, list[Mapping[str, Any]]]) -> Status:
    if _passed(states):
        return "PASSED"
    reports = [(when, each) for when, several in states.items() for each in several]
    if any(when != "call" and each["outcome"] == "failed" for when, each in reports):
        return "ERROR"
    if any(each["outcome"] == "failed" for _, each in reports) or "teardown" not in states:
        return "FAILED"
    if any(each["outcome"] == "skipped" for _, each in reports):
        return "XFAIL" if any(each["expected"] for _, each in reports) else "SKIPPED"
    return "XPASS" if any(each["expected"] for _, each in reports) else "FAILED"


def _expected(source: str) -> set[str]:
    """The tests that a script defines whatever its settings, as `name` or `Class::name`."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return set()
    found = {*_functions(body)}
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            names = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
            if "__init__" not in names:
                found |= {f"{node.name}::{name}" for name in _functions(node.body)}
    return found


def _functions(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test"
        ):
            yield node.name
