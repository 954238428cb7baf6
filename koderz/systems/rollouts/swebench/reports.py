"""Reports on logs of tests, by the rules of swebench 5.0.2: each test's status, and the verdict of `report.json`.

The statuses of a log are words: PASSED, FAILED, ERROR, SKIPPED, XFAIL, or whatever else begins with one of these. Of
several lines about a test the last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Literal

from koderz.errors import KoderzError
from koderz.settings.installation import package_command

Statuses = dict[str, str]
Parser = Callable[[str], Statuses]

PASSED, FAILED, ERROR, SKIPPED, XFAIL = WORDS = ("PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL")

_SKIPS = re.compile(r"\[\d+\]")  # pytest's count of tests that are skipped for one reason
_COLOUR = re.compile(r"\[\d+m")
_CONTROLS = dict.fromkeys(range(1, 32))
_BUTTONS = {"MouseButton.LEFT": "1", "MouseButton.RIGHT": "3"}


def pytest(log: str) -> Statuses:
    """Lines of pytest's short summary: the first word is the status, the second the id."""
    return {name: status for status, name in _summary(log.split("\n"))}


def pytest_options(log: str) -> Statuses:
    """The same, with a path in an id's brackets cut to its last part."""
    return {_without_folders(name): status for status, name in _summary(log.split("\n"))}


def matplotlib(log: str) -> Statuses:
    """The same, with mouse buttons by number."""
    for name, number in _BUTTONS.items():
        log = log.replace(name, number)
    return pytest(log)


def pytest_v2(log: str) -> Statuses:
    """Coloured lines of pytest with the status first or last; the rest is the id."""
    found: Statuses = {}
    for raw in log.split("\n"):
        line = _COLOUR.sub("", raw).translate(_CONTROLS)
        leads = line.startswith(WORDS)
        if not leads and not line.endswith(WORDS):
            continue
        words = (line.partition(" - ")[0] if line.startswith(FAILED) else line).split()
        if len(words) < 2 or (leads and _counts_skips(words)):
            continue
        status, name = (words[0], words[1:]) if leads else (words[-1], words[:-1])
        found[" ".join(name)] = status
    return found


def seaborn(log: str) -> Statuses:
    """Lines of pytest that say FAILED first, or PASSED first or second."""
    found: Statuses = {}
    for line in log.split("\n"):
        words = line.split()
        if len(words) < 2:
            continue
        if line.startswith(FAILED):
            found[words[1]] = FAILED
        elif f" {PASSED} " in line:
            if words[1] == PASSED:
                found[words[0]] = PASSED
        elif line.startswith(PASSED):
            found[words[1]] = PASSED
    return found


def sympy(log: str) -> Statuses:
    """Headings of sympy's failures, as `PATH.py:TEST`, then lines `test_… ok`, F or E."""
    found: Statuses = {}
    lines = log.split("\n")
    for line in lines:
        heading = line.partition(" ")[2].rpartition(" ")[0]
        path, marker, test = heading.rpartition(".py:")
        if marker:
            found[f"{path}.py:{test}"] = FAILED
    for line in map(str.strip, lines):
        for ending, status in ((" E", ERROR), (" F", FAILED), (" ok", PASSED)):
            if line.startswith("test_") and line.endswith(ending):
                found[line.split()[0]] = status
    return found


def django(log: str) -> Statuses:
    """Lines `TEST ... ok` of unittest, also where something else is printed between the two."""
    found: Statuses = {}
    begun: str | None = None
    for raw in log.split("\n"):
        line = raw.strip()
        if _VERSION in line:
            found[_VERSION] = PASSED
        begun = line.partition(" ... ")[0] if " ... " in line else begun
        for test, status in _told_of(line):
            found[test] = status
        if begun is not None and _after_migration(line).startswith("ok"):
            found[begun] = PASSED
    return found | dict.fromkeys(_interrupted(log), PASSED)


_VERSION = "--version is equivalent to version"
_DONE = (" ... ok", " ... OK", " ...  OK")
_MIGRATION = "Applying sites.0002_alter_domain_unique...test_no_migrations"
_BEGUN = re.compile(r"^(.*?)\s\.\.\.\sTesting against Django installed in ", re.MULTILINE)
_ENDED = re.compile(r" silenced\)\.\nok$", re.MULTILINE)
_OTHERWISE = (
    re.compile(r"^(.*?)\s\.\.\.\sInternal Server Error: /.*/\nok$", re.MULTILINE),
    re.compile(
        r"^(.*?)\s\.\.\.\sSystem check identified no issues \(0 silenced\)\nok$", re.MULTILINE
    ),
)


def _after_migration(line: str) -> str:
    """The line without a migration that is printed before the result of a test."""
    if line.endswith(_DONE) and line.startswith(_MIGRATION):
        return line.partition("...")[2].strip()
    return line


def _told_of(line: str) -> Iterator[tuple[str, str]]:
    """The tests of which a line of Django's says how they ended, in the order in which that counts."""
    if ending := next((each for each in _DONE if line.endswith(each)), ""):
        line = _after_migration(line)
        yield line.rpartition(ending)[0] if ending in line else line, PASSED
    if " ... skipped" in line:
        yield line.partition(" ... skipped")[0], SKIPPED
    for word, status in (("FAIL", FAILED), ("ERROR", ERROR)):
        if line.endswith(f" ... {word}"):
            yield line.partition(f" ... {word}")[0], status
        if line.startswith(f"{word}:") and len(words := line.split(maxsplit=2)) > 1:
            yield words[1], status


def _interrupted(log: str) -> Iterator[str]:
    """The tests between whose name and `ok` one of three messages is printed."""
    at = 0
    while (begun := _BEGUN.search(log, at)) and (ended := _ENDED.search(log, begun.end())):
        yield begun[1]
        at = ended.end()
    for pattern in _OTHERWISE:
        yield from pattern.findall(log)


def _summary(lines: list[str], *, counts: bool = False) -> Iterator[tuple[str, str]]:
    """The status and id of each line that begins with a status. `counts`: those that count skips, too."""
    for line in lines:
        if line.startswith(WORDS):
            words = (line.replace(" - ", " ") if line.startswith(FAILED) else line).split(
                maxsplit=2
            )
            if len(words) > 1 and (counts or not _counts_skips(words)):
                yield words[0], words[1]


def _counts_skips(words: list[str]) -> bool:
    return words[0] == SKIPPED and _SKIPS.fullmatch(words[1]) is not None


def _without_folders(name: str) -> str:
    start, end = name.find("["), name.rfind("]")
    if not 0 <= start < end:
        return name
    option = name[start + 1 : end]
    if option.startswith("/") and not option.startswith("//") and "*" not in option:
        option = f"/{option.rpartition('/')[2]}"
    return f"{name[:start]}[{option}]"


_OF_REPOSITORIES: Mapping[Parser, str] = {
    pytest: "pytest astroid flask marshmallow pvlib pyvista sqlfluff xarray",
    pytest_options: "pytest_options pydicom requests pylint",
    pytest_v2: "pytest_v2 astropy scikit sphinx",
    matplotlib: "matplotlib",
    seaborn: "seaborn",
    django: "django",
    sympy: "sympy",
}
PARSERS: Final[Mapping[str, Parser]] = {
    f"parse_log_{name}": parser
    for parser, names in _OF_REPOSITORIES.items()
    for name in names.split()
}
"""koderz' own parsers by the names that rows give them."""


def _older(log: str) -> Statuses:
    return {name: status for status, name in _summary(log.split("\n"), counts=True)}


def _older_options(log: str) -> Statuses:
    return {_without_folders(name): status for name, status in _older(log).items()}


def _older_matplotlib(log: str) -> Statuses:
    for name, number in _BUTTONS.items():
        log = log.replace(name, number)
    return _older(log)


def _older_v2(log: str) -> Statuses:
    """Coloured lines of pytest; ids end at their first blank, and a status in the second place may be any word."""
    found: Statuses = {}
    for raw in log.split("\n"):
        line = _COLOUR.sub("", raw).translate(_CONTROLS)
        words = (line.replace(" - ", " ") if line.startswith(FAILED) else line).split()
        if len(words) > 1 and line.startswith(WORDS):
            found[words[1]] = words[0]
        elif len(words) > 1 and line.endswith(WORDS):
            found[words[0]] = words[1]
    return found


_TIME = re.compile(
    r"(?:\s*\[\s*[\d.]+ ?m?s\s*\]|\s*\(\s*[\d.]+ ?m?s\s*\)|\s+in [\d.]+ ?(?:m?s|sec|seconds?|msec))\s*$"
)
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\\-_])")


def untimed(test: str) -> str:
    """A test's name without colours, and without the time that a runner prints behind it."""
    return _TIME.sub("", _ESCAPES.sub("", test)).strip()


def _rebench(parser: Parser) -> Parser:
    return lambda log: {untimed(test): status for test, status in parser(log).items()}


def _live(log: str) -> Statuses:
    """The summary of pytest, with each status as passed, skipped or failed."""
    words = {PASSED: PASSED, SKIPPED: SKIPPED}
    return {test: words.get(status.rstrip(":"), FAILED) for test, status in _older(log).items()}


def _lines(pattern: str) -> Parser:
    """The lines in which a pattern finds a `status` and a `test`."""
    found = re.compile(pattern.replace("STATUS", f"(?P<status>{'|'.join(WORDS)})"), re.MULTILINE)
    return lambda log: {match["test"]: match["status"] for match in found.finditer(log)}


_OLDER: Mapping[str, Parser] = {
    "pytest": _older,
    "pytest_options": _older_options,
    "pytest_v2": _older_v2,
    "matplotlib": _older_matplotlib,
    "seaborn": seaborn,
    "django": django,
    "sympy": sympy,
}
DIALECTS: Final[Mapping[str, Parser]] = {
    **{f"swebench4.{name}": parser for name, parser in _OLDER.items()},
    **{f"rebench.parse_log_{name}": _rebench(parser) for name, parser in _OLDER.items()},
    "live.pytest": _live,
    "smith": _lines(r"^(?P<test>\S+)[^\S\n]+STATUS"),
    "smith_xdist": _lines(r"^\[gw\d\]\sSTATUS[^\S\n](?P<test>\S+)"),
    "smith_summary": _lines(r"^STATUS[^\S\n](?P<test>\S+)"),
}
"""The parsers of rows that aren't of version 5, by koderz' names for them."""

Runner = Literal["pytest", "other"]


def runner_of(name: str) -> Runner:
    """The test runner whose logs a parser reads."""
    if name in DIALECTS:
        return "other" if name.endswith(("django", "sympy")) else "pytest"
    return "other" if PARSERS.get(name, django) in (django, sympy) else "pytest"


def summary_parser(name: str, parser: Parser) -> Parser:
    """The parser of lines `STATUS TEST`, as koderz' own pytest reports a test."""
    return pytest if name.startswith("smith") else parser


def parser_of(name: str, instance: Mapping[str, Any], where: str) -> Parser:
    """The parser of a row: koderz' own, else the installed swebench's, which is told the row.

    Raises KoderzError if neither has one of this name.
    """
    if own := PARSERS.get(name) or DIALECTS.get(name):
        return own
    try:
        parsers = import_module("swebench.harness.log_parsers").PARSER_REGISTRY
        described = import_module("swebench.types").TestSpec
    except ImportError as error:
        raise KoderzError(
            f"{where}: log_parser {name!r} is none of koderz' own; it needs: {package_command('swebench')} ({error})"
        ) from None
    if name not in parsers:
        raise KoderzError(
            f"{where}: log_parser {name!r} is neither koderz' own nor the installed swebench's"
        )
    told = {
        field: instance.get(field) or "" for field in ("instance_id", "image", "repo", "version")
    }
    spec = described(**told, eval_script_list=[], FAIL_TO_PASS=[], PASS_TO_PASS=[])
    return lambda log: parsers[name](log, spec)


START, END, EXIT_CODE = ">>>>> Start Test Output", ">>>>> End Test Output", ">>>>> Test Exit Code"

EvalType = Literal["pass_and_fail", "fail_only"]
Report = dict[str, Any]

_UNGRADED = (
    ">>>>> Patch Apply Failed",
    ">>>>> Reset Failed",
    ">>>>> Tests Errored",
    ">>>>> Tests Timed Out",
)
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
# what a patch can bring about, too
_AMBIGUOUS = ("missing_module", "no_tests_collected", "tests_timed_out")
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
    # a test of PASS_TO_PASS may be absent
    "live": StatusRule((PASSED,), (PASSED,), None, (FAILED,)),
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
        return {
            **blank(patch_exists=True),
            **(_infrastructure(log) if expected.rule == "swebench5" else {}),
        }
    return graded(expected, statuses)


def graded(expected: Expected, statuses: Mapping[str, str]) -> Report:
    """The fields for tests that have run, by their statuses."""
    rule = _RULES[expected.rule]
    ftp = _sorted_out(expected.fail_to_pass, statuses, expected, rule.fixed, rule.unfixed)
    ptp = _sorted_out(expected.pass_to_pass, statuses, expected, rule.kept, rule.broken)
    ptp["failure"] += [
        test
        for test in expected.intact
        if statuses.get(test) in _BROKEN and test not in ptp["failure"]
    ]
    return {
        **blank(patch_exists=True),
        "patch_successfully_applied": True,
        "resolved": not (ftp["failure"] or ptp["failure"]),
        "tests_status": {
            "FAIL_TO_PASS": ftp,
            "PASS_TO_PASS": ptp,
            "FAIL_TO_FAIL": _none(),
            "PASS_TO_FAIL": _none(),
        },
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
    # their own harnesses read the whole log, without any mark
    if rule in ("live", "rebench", "multi"):
        return parser(log)
    if rule == "smith":
        if any(marker in log for marker in (_UNGRADED[0], _UNGRADED[-1])):
            return None
        # the marks as the shell traces them
        start, end = log.find(f"+ : '{START}'"), log.find(f"+ : '{END}'")
        return parser(log[start:end].removeprefix(f"+ : '{START}'")) if 0 <= start <= end else None
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
        return {
            "success": [test for test in tests if statuses.get(test) != FAILED],
            "failure": failed,
        }
    find = status_in if expected.rule == "swebench5" else Mapping.get
    found = {test: find(statuses, test) for test in tests}
    return {
        "success": [test for test in tests if found[test] in successes],
        "failure": [
            test
            for test in tests
            if found[test] not in successes and (failures is None or found[test] in failures)
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
