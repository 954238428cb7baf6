"""Parsers of test logs: the status of each test, by its id, as swebench 5.0.2 reads it.

The statuses of a log are words: PASSED, FAILED, ERROR, SKIPPED, XFAIL, or whatever else begins with one of these. Of
several lines about a test the last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
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
    re.compile(r"^(.*?)\s\.\.\.\sSystem check identified no issues \(0 silenced\)\nok$", re.MULTILINE),
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
            words = (line.replace(" - ", " ") if line.startswith(FAILED) else line).split(maxsplit=2)
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
    f"parse_log_{name}": parser for parser, names in _OF_REPOSITORIES.items() for name in names.split()
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


_TIME = re.compile(r"(?:\s*\[\s*[\d.]+ ?m?s\s*\]|\s*\(\s*[\d.]+ ?m?s\s*\)|\s+in [\d.]+ ?(?:m?s|sec|seconds?|msec))\s*$")
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
        raise KoderzError(f"{where}: log_parser {name!r} is neither koderz' own nor the installed swebench's")
    told = {field: instance.get(field) or "" for field in ("instance_id", "image", "repo", "version")}
    spec = described(**told, eval_script_list=[], FAIL_TO_PASS=[], PASS_TO_PASS=[])
    return lambda log: parsers[name](log, spec)
