"""The verdict on a log of tests, by the rules of swebench 5.0.2: an instance's `report.json`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from koderz.systems.rollouts.swebench.parsers import ERROR, FAILED, PASSED, SKIPPED, XFAIL, Parser, Statuses

START, END, EXIT_CODE = ">>>>> Start Test Output", ">>>>> End Test Output", ">>>>> Test Exit Code"

EvalType = Literal["pass_and_fail", "fail_only"]
Report = dict[str, Any]

_UNGRADED = (">>>>> Patch Apply Failed", ">>>>> Reset Failed", ">>>>> Tests Errored", ">>>>> Tests Timed Out")
_EXITED = re.compile(rf"{EXIT_CODE}:\s*(-?\d+)")
_RAN = re.compile(
    r"Executed [1-9]\d* of \d+|TOTAL: [1-9]\d* (?:SUCCESS|FAILED)|': ok$"  # karma
    r"|[1-9]\d* passing|^# tests [1-9]\d*|[1-9]\d* specs?, \d+ failures?"  # mocha, TAP, jasmine
    r"|Tests:\s+[1-9]\d*|Test Suites:\s+(?:\d+ \w+, )*[1-9]\d* total",  # jest
    re.MULTILINE,
)
_SIGNATURES = {
    "browser_launch_failed": r"Failed to launch|Failed to connect to the bus",
    "display_unavailable": r"cannot open display|Missing X server|unable to open X display",
    "out_of_memory": r"Cannot allocate memory|OutOfMemoryError|^Killed$",
    "container_unavailable": r"Error response from daemon|Cannot connect to the Docker daemon",
    "network_unreachable": r"Could not resolve host|Temporary failure in name resolution",
    "missing_module": r"Cannot find module|MODULE_NOT_FOUND|ModuleNotFoundError",
    "no_tests_collected": r"no tests ran|collected 0 items",
    "tests_timed_out": r"Timeout error: \d+ seconds exceeded",
}
_AMBIGUOUS = ("missing_module", "no_tests_collected", "tests_timed_out")  # which a patch can bring about, too
_SUCCESSES: Sequence[str] = (PASSED, XFAIL)
_FAILURES: Collection[str | None] = (FAILED, ERROR, SKIPPED, None)
_BROKEN: Collection[str | None] = (FAILED, ERROR)

RuleName = Literal["swebench5", "swebench4", "smith", "rebench", "live", "multi"]


@dataclass(frozen=True, slots=True)
class StatusRule:
    """How the harness of a dataset judges a test by its status. What is neither success nor failure doesn't count."""

    fixed: Collection[str]  # statuses that are a success of FAIL_TO_PASS
    kept: Collection[str]  # and of PASS_TO_PASS
    unfixed: Collection[str | None] | None = None  # its failures; None: all that is no success
    broken: Collection[str | None] | None = None


_IN_4 = StatusRule(_SUCCESSES, _SUCCESSES, (*_BROKEN, None), (*_BROKEN, None))
_RULES: Mapping[RuleName, StatusRule] = {
    "swebench5": StatusRule(_SUCCESSES, (*_SUCCESSES, SKIPPED), _FAILURES, _FAILURES),
    "swebench4": _IN_4,
    "smith": _IN_4,
    "rebench": StatusRule((PASSED,), (PASSED,)),
    "live": StatusRule((PASSED,), (PASSED,), None, (FAILED,)),  # a test of PASS_TO_PASS may be absent
    "multi": StatusRule(_SUCCESSES, _SUCCESSES),
}


@dataclass(frozen=True, slots=True)
class Expected:
    """The tests that decide about an instance, and how."""

    fail_to_pass: Sequence[str]
    pass_to_pass: Sequence[str]
    eval_type: EvalType = "pass_and_fail"
    rule: RuleName = "swebench5"
    intact: Sequence[str] = ()  # tests that mustn't fail, though they needn't pass


def report_of(expected: Expected, log: str, parser: Parser) -> Report:
    """The fields of `report.json` for a patch that isn't null and the log of its tests."""
    statuses = statuses_in(log, parser, expected.rule)
    if statuses is None:
        return {**blank(patch_exists=True), **(_infrastructure(log) if expected.rule == "swebench5" else {})}
    return graded(expected, statuses)


def graded(expected: Expected, statuses: Mapping[str, str]) -> Report:
    """The fields for tests that have run, by their statuses."""
    rule = _RULES[expected.rule]
    ftp = _sorted_out(expected.fail_to_pass, statuses, expected, rule.fixed, rule.unfixed)
    ptp = _sorted_out(expected.pass_to_pass, statuses, expected, rule.kept, rule.broken)
    ptp["failure"] += [test for test in expected.intact if statuses.get(test) in _BROKEN and test not in ptp["failure"]]
    return {
        **blank(patch_exists=True),
        "patch_successfully_applied": True,
        "resolved": not (ftp["failure"] or ptp["failure"]),
        "tests_status": {"FAIL_TO_PASS": ftp, "PASS_TO_PASS": ptp, "FAIL_TO_FAIL": _none(), "PASS_TO_FAIL": _none()},
    }


def _none() -> dict[str, list[str]]:
    return {"success": [], "failure": []}


def blank(*, patch_exists: bool) -> Report:
    """The fields for an instance without a patch, or one whose tests didn't run."""
    return {
        "patch_is_None": not patch_exists,
        "patch_exists": patch_exists,
        "patch_successfully_applied": False,
        "resolved": False,
        "infra_failure": False,
    }


def statuses_in(log: str, parser: Parser, rule: RuleName = "swebench5") -> Statuses | None:
    """The status of each test in a log; None if the log is no proof that the tests ran with the patch."""
    if rule in ("live", "rebench", "multi"):  # whose own harnesses read the whole log, without any mark
        return parser(log)
    if rule == "smith":
        return _smith_statuses(log, parser)
    if any(marker in log for marker in _UNGRADED) or START not in log or END not in log:
        return None
    statuses = parser(log.split(START, 2)[1].partition(END)[0]) or parser(log)
    if rule == "swebench4":
        return statuses
    if not statuses and not _RAN.search(log):
        return None
    exited = _EXITED.search(log)
    has_failed = any(status in (FAILED, ERROR) for status in statuses.values())
    if exited and exited[1].strip("-0") and statuses and not has_failed:
        return None
    return statuses


def _smith_statuses(log: str, parser: Parser) -> Statuses | None:
    """The statuses between the marks as the shell traces them."""
    if any(marker in log for marker in (_UNGRADED[0], _UNGRADED[-1])):
        return None
    start, end = log.find(f"+ : '{START}'"), log.find(f"+ : '{END}'")
    return parser(log[start:end].removeprefix(f"+ : '{START}'")) if 0 <= start <= end else None


def _infrastructure(log: str) -> Report:
    for reason, pattern in _SIGNATURES.items():
        if re.search(pattern, log, re.MULTILINE):
            return {"infra_failure": reason not in _AMBIGUOUS, "infra_failure_reason": reason}
    return {}


def _sorted_out(
    tests: Sequence[str],
    statuses: Mapping[str, str],
    expected: Expected,
    successes: Collection[str],
    failures: Collection[str | None] | None,
) -> dict[str, list[str]]:
    """The tests that are successes and those that are failures; some statuses are neither."""
    if expected.eval_type == "fail_only":
        failed = [test for test in tests if statuses.get(test) == FAILED]
        return {"success": [test for test in tests if statuses.get(test) != FAILED], "failure": failed}
    find = status_in if expected.rule == "swebench5" else Mapping.get
    found = {test: find(statuses, test) for test in tests}
    return {
        "success": [test for test in tests if found[test] in successes],
        "failure": [
            test for test in tests if found[test] not in successes and (failures is None or found[test] in failures)
        ],
    }


def status_in(statuses: Mapping[str, str], test: str) -> str | None:
    """The status of a test; of an id that was cut within its brackets that of the first test that begins so.

    It is None if there is none, or if tests that begin so differ in success.
    """
    if test in statuses or test.count("[") <= test.count("]"):
        return statuses.get(test)
    found = [status for name, status in statuses.items() if name.startswith(test)]
    return found[0] if len({status in _SUCCESSES for status in found}) == 1 else None
