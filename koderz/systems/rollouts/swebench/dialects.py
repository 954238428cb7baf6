"""Rows of datasets like SWE-bench, and of SWE-bench before version 5, in the fields that version 5 has.

One of these is the eval script. What a row leaves to its harness, such as the command of its tests, is what that
harness does: swebench 4.1.0 and swesmith 0.0.9 of PyPI, the evaluation scripts of SWE-bench-Live, SWE-rebench-V2 and
Multi-SWE-bench.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from koderz.suites.dataset import Row
from koderz.systems.rollouts.swebench.reports import DIALECTS, END, EXIT_CODE, START, untimed

TESTBED = "/testbed"

_BEGINNING = ("#!/bin/bash", "set -uxo pipefail")
_STATUS = "SWEBENCH_TEST_EXIT_CODE"
# of pytest's options, as they change how tests end
_KEPT = {"-W": 1, "-p": 1, "-o": 1, "--import-mode": 1}


@dataclass(frozen=True)
class EvalScript:
    """A script that installs a tree, lays the tests into it, runs them, and takes them out again."""

    text: str
    # commands that go before, in an environment that stands in for the image
    install: Sequence[str] = ()

    @property
    def published(self) -> str:
        """The script as the official harness runs it: it prints the exit code of the tests behind their output."""
        lines = [*self._lines]
        end = next((number for number, line in enumerate(lines) if END in line), None)
        if end is not None:
            lines[end : end + 1] = [f"{_STATUS}=$?", lines[end], f'echo "{EXIT_CODE}: ${_STATUS}"']
        return _whole([*self.install, *lines])

    @property
    def preparation(self) -> str:
        """The part before the tests run."""
        return _whole([*self.install, *self._lines[: self._marks[0]]])

    @property
    def testing(self) -> str:
        """The part that runs the tests, in a place that is prepared."""
        start, end = self._marks
        marked = [f": '{START}'", *self._lines[start + 1 : end], f"{_STATUS}=$?", f": '{END}'"]
        return _whole([*marked, f'echo "{EXIT_CODE}: ${_STATUS}"'])

    def files(self, tree: Path) -> list[str]:
        """The files of a tree that the tests' command names; empty if it names folders, as more may lie there."""
        found = []
        for word in self._words:
            path = word.partition("::")[0]
            if (
                word.startswith(("-", "/"))
                or ".." in Path(path).parts
                or not (tree / path).exists()
            ):
                continue
            if not (tree / path).is_file() or (tree / path).is_symlink():
                return []
            found.append(path)
        return [*dict.fromkeys(path for path in found if path.endswith(".py"))]

    @property
    def options(self) -> list[str]:
        """The options of the tests' command for pytest that change how tests end."""
        words, found = iter(self._words), list[str]()
        for word in words:
            name, equals, _ = word.partition("=")
            if word in _KEPT:
                found += [word, next(words, "")]
            elif (name in _KEPT and equals) or re.match(r"-[Wpo]\w", word):
                found.append(word)
        return found

    @cached_property
    def _lines(self) -> Sequence[str]:
        return [line for line in self.text.strip().split("\n") if line not in _BEGINNING]

    @property
    def _marks(self) -> tuple[int, int]:
        """The lines with the marks of begin and end. A script without them has no part that tests."""
        start = next(
            (number for number, line in enumerate(self._lines) if START in line), len(self._lines)
        )
        end = next(
            (number for number, line in enumerate(self._lines) if END in line), len(self._lines)
        )
        return start, max(start, end)

    @property
    def _words(self) -> Sequence[str]:
        start, end = self._marks
        try:
            return shlex.split("\n".join(self._lines[start + 1 : end]), comments=True)
        except ValueError:  # an open quotation mark
            return ()


def _whole(lines: Sequence[str]) -> str:
    return "\n".join([*_BEGINNING, *lines]) + "\n"


VERSION_5: Final = ("image", "eval_script", "log_parser", "eval_type")
"""The fields that version 5 added."""

_PATCH_ENDS = "EOF_114329324912"
_CONDA = ("source /opt/miniconda3/bin/activate", "conda activate testbed")
_NO_TESTS = (
    ".json",
    ".png",
    ".csv",
    ".txt",
    ".md",
    ".jpg",
    ".jpeg",
    ".pkl",
    ".yml",
    ".yaml",
    ".toml",
)
_HEAD = re.compile(r"^diff --git a/(.*) b/(.*)$", re.MULTILINE)

_PYTEST = "pytest -rA"
_ASTROPY = f"{_PYTEST} -vv -o console_output_style=classic --tb=no"
_DJANGO = "./tests/runtests.py --verbosity 2"
_SQLITE = f"{_DJANGO} --settings=test_sqlite --parallel 1"
_SYMPY = "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose"
_EDITABLE = "python -m pip install -e ."
_LANG = ("export LANG=en_US.UTF-8", "export LC_ALL=en_US.UTF-8", "export PYTHONIOENCODING=utf8")
_LANG_1 = (*_LANG, "export LANGUAGE=en_US:en")
_LANG_3 = (
    "sed -i '/en_US.UTF-8/s/^# //g' /etc/locale.gen && locale-gen",
    "export LANG=en_US.UTF-8",
    "export LANGUAGE=en_US:en",
    "export LC_ALL=en_US.UTF-8",
)

_Harness = tuple[str, str, Sequence[str]]
"""The command of the tests, the one that installs the repository, and those before it."""

_REPOSITORIES: Mapping[str, tuple[str, Mapping[str, _Harness]]] = {
    "astropy/astropy": (
        "pytest_v2",
        {
            r"[01]\..*": (_ASTROPY, "python -m pip install -e .[test] --verbose", ()),
            ".*": (_PYTEST, "python -m pip install -e .[test] --verbose", ()),
        },
    ),
    "django/django": (
        "django",
        {
            r"1\.[456]": (_SQLITE, "python setup.py install", ()),
            r"1\.9": (_DJANGO, "python setup.py install", _LANG_1),
            r"[12]\..*": (_SQLITE, "python setup.py install", _LANG_1),
            r"3\..*": (_SQLITE, _EDITABLE, _LANG_3),
            ".*": (_SQLITE, _EDITABLE, ()),
        },
    ),
    "matplotlib/matplotlib": (
        "matplotlib",
        {
            r"3\.[89]": (_PYTEST, 'python -m pip install --no-build-isolation -e ".[dev]"', ()),
            r"[12]\..*": (_PYTEST, "python setup.py build; python setup.py install", ()),
            ".*": (_PYTEST, _EDITABLE, ()),
        },
    ),
    "marshmallow-code/marshmallow": (
        "pytest",
        {".*": (_PYTEST, "python -m pip install -e '.[dev]'", ())},
    ),
    "mwaskom/seaborn": (
        "seaborn",
        {
            r"0\.11": ("pytest --no-header -rA", _EDITABLE, ()),
            ".*": ("pytest --no-header -rA", "python -m pip install -e .[dev]", ()),
        },
    ),
    "pallets/flask": ("pytest", {".*": (_PYTEST, _EDITABLE, ())}),
    "psf/requests": ("pytest_options", {".*": (_PYTEST, "python -m pip install .", ())}),
    "pvlib/pvlib-python": ("pytest", {".*": (_PYTEST, "python -m pip install -e .[all]", ())}),
    "pydata/xarray": ("pytest", {".*": (_PYTEST, _EDITABLE, ())}),
    "pydicom/pydicom": ("pytest_options", {".*": (_PYTEST, _EDITABLE, ())}),
    "pylint-dev/astroid": ("pytest", {".*": (_PYTEST, _EDITABLE, ())}),
    "pylint-dev/pylint": ("pytest_options", {".*": (_PYTEST, _EDITABLE, ())}),
    "pytest-dev/pytest": ("pytest", {".*": (_PYTEST, _EDITABLE, ())}),
    "pyvista/pyvista": ("pytest", {".*": (_PYTEST, _EDITABLE, ())}),
    "scikit-learn/scikit-learn": (
        "pytest_v2",
        {".*": (_PYTEST, "python -m pip install -v --no-use-pep517 --no-build-isolation -e .", ())},
    ),
    "sphinx-doc/sphinx": (
        "pytest_v2",
        {".*": ("tox --current-env -epy39 -v --", "python -m pip install -e .[test]", ())},
    ),
    "sqlfluff/sqlfluff": ("pytest", {".*": (_PYTEST, _EDITABLE, ())}),
    "sympy/sympy": ("sympy", {".*": (_SYMPY, _EDITABLE, ())}),
}
"""The log parser of each repository, and its commands by a pattern of its versions, as swebench 4.1.0 has them."""

_SMITH = "pytest --disable-warnings --color=no --tb=no --verbose"
_SMITH_COMMANDS: Mapping[str, str] = {
    "tkrajina__gpxpy": "pytest test.py --verbose --color=no --tb=no --disable-warnings",
    "mido__mido": f"{_SMITH} -rs -c /dev/null",
    "paramiko__paramiko": "pytest -rA --color=no --disable-warnings",
    "pydantic__pydantic": f"/root/.local/bin/uv run {_SMITH}",
}
_SMITH_PARSERS: Mapping[str, str] = {
    "HIPS__autograd": "smith_xdist",
    "paramiko__paramiko": "smith_summary",
}
# with test runners of their own
_SMITH_UNKNOWN = ("un33k__python-slugify", "tornadoweb__tornado", "python__mypy")
_SMITH_FILES = (  # whose tests run by the files that the row names, not all of them
    *(
        "scrapy__scrapy",
        "sqlfluff__sqlfluff",
        "tobymao__sqlglot",
        "sunpy__sunpy",
        "sympy__sympy",
        "getmoto__moto",
    ),
    *(
        "Project-MONAI__MONAI",
        "iterative__dvc",
        "dask__dask",
        "modin-project__modin",
        "conan-io__conan",
    ),
    "pandas-dev__pandas",
)
_LIVE_APPLY = "git apply -v -"
_REFRESH = "git update-index -q --refresh"  # as --3way compares times
_REBENCH_APPLY = "git apply -v --3way --recount --ignore-space-change --whitespace=nowarn -"


def as_version_5(row: Row) -> Row:
    """The row in version 5's fields, and with `workdir`, `rule`, `bug`, `withheld` or `intact` where they matter.

    A row of version 5 is returned as it is. Raises KoderzError for a row that is of no known dataset, and for one
    whose log is read by code in the row.
    """
    fields = row.fields
    if any(fields.get(name) not in (None, "") for name in VERSION_5 if name != "log_parser"):
        return row
    for mark, translate in _DIALECTS.items():
        if mark in fields:
            return Row(row.where, {**fields, **translate(row)})
    if str(fields.get("repo", "")).startswith("swesmith/"):
        return Row(row.where, {**fields, **_smith(row)})
    if "FAIL_TO_PASS" in fields and fields.get("repo") in _REPOSITORIES:
        return Row(row.where, {**fields, **_before_5(row)})
    return row


def _before_5(row: Row) -> dict[str, Any]:
    """SWE-bench, Lite and Verified as they were published before: the harness knows image, commands and parser."""
    repo, version, test_patch = row.text("repo"), row.id("version"), row.text("test_patch")
    parser, by_version = _REPOSITORIES[repo]
    command, install, before = next(
        found for pattern, found in by_version.items() if re.fullmatch(pattern, version)
    )
    named = [path for _, path in _HEAD.findall(test_patch) if not path.endswith(_NO_TESTS)]
    if repo == "django/django":
        named = [
            path.removesuffix(".py").removeprefix("tests/").replace("/", ".") for path in named
        ]
    base, told = row.text("base_commit"), f"cd {TESTBED}"
    informing = ["git status", "git show", f"git -c core.fileMode=false diff {base}"]
    begin = [
        *_CONDA,
        told,
        *before,
        f"git config --global --add safe.directory {TESTBED}",
        told,
        *informing,
        *_CONDA,
    ]
    return {
        "image": f"swebench/sweb.eval.x86_64.{_image_part(row.id('instance_id'))}:latest",
        "eval_script": _tested([*begin, install], base, test_patch, " ".join([command, *named])),
        "log_parser": f"swebench4.{parser}",
        "eval_type": "pass_and_fail",
        "rule": "swebench4",
    }


def _tested(begin: Sequence[str], base: str, test_patch: str, command: str) -> str:
    """A script that lays the patch of the tests over the base's, runs a command, and takes the patch out again."""
    reset = " ".join(["git checkout", base, *changed_files(test_patch)])
    return _script(*begin, reset, *_applied(test_patch), command=command, end=(reset,))


def _applied(patch: str, command: str = _LIVE_APPLY) -> Iterator[str]:
    if patch.strip():
        yield f"{command} <<'{_PATCH_ENDS}'\n{patch}\n{_PATCH_ENDS}"


def _script(*begin: str, command: str, end: Sequence[str] = ()) -> str:
    return "\n".join([*begin, f": '{START}'", command, f": '{END}'", *end])


def _image_part(instance_id: str) -> str:
    return instance_id.replace("__", "_1776_").lower()


def changed_files(patch: str) -> list[str]:
    """The files that a diff changes or removes, by their paths before it."""
    parts = re.split(r"^(?=diff --git )", patch, flags=re.MULTILINE)
    found = [(_HEAD.match(part), part) for part in parts]
    return [
        head[1]
        for head, part in found
        if head and not re.search(r"^(?:new file mode |--- /dev/null)", part, re.MULTILINE)
    ]


def _rebench(row: Row) -> dict[str, Any]:
    """SWE-rebench-V2: `install_config` says what to run and how its log is read."""
    config = _table(row, "install_config")
    command = config.get("test_cmd")
    if isinstance(command, list):
        command = "\n".join(map(str, command))
    if not isinstance(command, str) or not command.strip():
        raise row.error("install_config names no test_cmd")
    workdir = f"/{row.text('repo').rpartition('/')[2]}"
    # With --recount an empty line at the end would count as one more of the file.
    apply = _applied(row.text("test_patch").rstrip("\n"), _REBENCH_APPLY)
    return {
        "image": row.text("image_name"),
        "eval_script": _script(
            "set +u", f"cd {shlex.quote(workdir)}", _REFRESH, *apply, command=command
        ),
        "log_parser": _parser(row, config.get("log_parser"), "rebench."),
        "eval_type": "pass_and_fail",
        "rule": "rebench",
        "workdir": workdir,
        **{name: [*map(untimed, _listed(row, name))] for name in ("FAIL_TO_PASS", "PASS_TO_PASS")},
    }


def _live(row: Row) -> dict[str, Any]:
    """SWE-bench-Live: lists of commands that rebuild, test, and print what the tests said."""
    rebuild, test, show = (
        _listed(row, name) for name in ("rebuild_cmds", "test_cmds", "print_cmds")
    )
    if not test:
        raise row.error("test_cmds is empty")
    name = row.fields.get("log_parser") or row.fields.get("parser") or ""
    image = (
        row.fields.get("docker_image")
        or f"starryzhang/sweb.eval.x86_64.{_image_part(row.id('instance_id'))}"
    )
    return {
        "image": image,
        "eval_script": _script(
            "set +u",
            f"cd {TESTBED}",
            *_applied(row.text("test_patch")),
            *filter(str.strip, [" ; ".join(rebuild)]),
            command="\n".join(filter(str.strip, [" ; ".join(test), " ; ".join(show)])),
        ),
        "log_parser": _parser(
            row,
            str(name).strip().lower() if str(name).strip().lower() == "pytest" else name,
            "live.",
        ),
        "eval_type": "pass_and_fail",
        "rule": "live",
    }


def _smith(row: Row) -> dict[str, Any]:
    """SWE-smith: `patch` makes the bug in the image's repository, and its reverse is the solution."""
    name, _, commit = row.text("repo").removeprefix("swesmith/").rpartition(".")
    if name in _SMITH_UNKNOWN:
        raise row.error(f"{name} has a test runner of its own, which isn't known here")
    bug, wanted = (
        row.text("patch"),
        {key: _listed(row, key) for key in ("FAIL_TO_PASS", "PASS_TO_PASS")},
    )
    failing, passing = (
        sorted({test.partition("::")[0] for test in tests}) for tests in wanted.values()
    )
    files = shlex.join([*failing, *passing])
    command = _SMITH_COMMANDS.get(name, _SMITH) + (f" {files}" if name in _SMITH_FILES else "")
    return {
        "image": row.text("image_name"),
        "base_commit": commit,
        "patch": reversed_diff(bug),
        "test_patch": "",
        "eval_script": _script(
            f"cd {TESTBED}",
            *([f"git checkout HEAD -- {files}"] if files else []),
            *_CONDA,
            command=command,
        ),
        "log_parser": _SMITH_PARSERS.get(name, "smith"),
        "eval_type": "pass_and_fail",
        "rule": "smith",
        "bug": bug,
        "withheld": failing,
        **wanted,
    }


def _multi(row: Row) -> dict[str, Any]:
    """Multi-SWE-bench in Python, whose images are SWE-bench's, and whose `base.ref` is the command of the tests."""
    org, name, number = row.text("org"), row.text("repo"), row.id("number")
    if f"{org}/{name}" not in _REPOSITORIES:
        raise row.error(
            f"of Multi-SWE-bench the repositories of SWE-bench in Python are graded here, not {org}/{name}"
        )
    base, issues = _table(row, "base"), row.fields.get("resolved_issues")
    texts = [
        f"{each.get('title') or ''}\n\n{each.get('body') or ''}"
        for each in issues or ()
        if isinstance(each, dict)
    ]
    fixed = [test for kind in ("f2p", "s2p", "n2p") for test in _table(row, f"{kind}_tests")]
    before = _table(row, "test_patch_result").get("passed_tests")
    instance_id, command, commit = f"{org}__{name}-{number}", base.get("ref"), base.get("sha")
    if not isinstance(command, str) or not isinstance(commit, str):
        raise row.error("base names no ref, which is the command of the tests, or no sha")
    told = [f"cd {TESTBED}", f"git config --global --add safe.directory {TESTBED}"]
    return {
        "instance_id": instance_id,
        "repo": f"{org}/{name}",
        "base_commit": commit,
        "problem_statement": "\n\n".join(texts) or str(row.fields.get("body") or ""),
        "patch": row.text("fix_patch"),
        "image": f"swebench/sweb.eval.x86_64.{_image_part(instance_id)}:latest",
        "eval_script": _tested([*_CONDA, *told], commit, row.text("test_patch"), command),
        "log_parser": f"swebench4.{_REPOSITORIES[f'{org}/{name}'][0]}",
        "eval_type": "pass_and_fail",
        "rule": "multi",
        "FAIL_TO_PASS": fixed,
        "PASS_TO_PASS": [*_table(row, "p2p_tests")],
        "intact": [str(test) for test in before or ()],
    }


_DIALECTS: Mapping[str, Callable[[Row], dict[str, Any]]] = {
    "install_config": _rebench,
    "test_cmds": _live,
    "fix_patch": _multi,
}
"""How a row is read, by a field that rows of its dataset alone have."""


def _parser(row: Row, name: Any, prefix: str) -> str:
    """The parser of a name. Raises KoderzError for code, which isn't run, and for unknown names."""
    known = [each.removeprefix(prefix) for each in DIALECTS if each.startswith(prefix)]
    if isinstance(name, str) and name in known:
        return f"{prefix}{name}"
    if isinstance(name, str) and re.search(r"\n|\bdef\b|\blambda\b|\(", name):
        raise row.error(
            f"its log_parser is code, which isn't run; those known by name are {', '.join(known)}"
        )
    raise row.error(f"log_parser {str(name)[:80]!r} isn't known here; there are {', '.join(known)}")


def _decoded(row: Row, name: str, kind: str) -> Any:
    """The value of a field, which may be written as JSON; `kind` says in an error what it has to be."""
    value = row.fields.get(name)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise row.error(f"the field {name!r} is no JSON {kind}") from None


def _listed(row: Row, name: str) -> list[str]:
    """A list of texts, which may be written as JSON; empty if there is none."""
    value = _decoded(row, name, "list of texts")
    return Row(row.where, {name: value}).texts(name) if value is not None else []


def _table(row: Row, name: str) -> Mapping[str, Any]:
    """A table, which may be written as JSON; empty if there is none."""
    value = _decoded(row, name, "table")
    if not isinstance(value, dict | None):
        raise row.error(f"the field {name!r} has to be a table")
    return value or {}


_TURNED = {
    "new file mode": "deleted file mode",
    "deleted file mode": "new file mode",
    "old mode": "new mode",
    "new mode": "old mode",
    "rename from": "rename to",
    "rename to": "rename from",
    "copy from": "copy to",
    "copy to": "copy from",
}


def reversed_diff(diff: str) -> str:
    """A diff that undoes another one, of text files as Git writes them."""
    lines, left, right = [*diff.splitlines(keepends=True)], 0, 0
    found = list[str]()
    for line in lines:
        if left > 0 or right > 0:  # within a hunk, whose header says how many lines it has
            left -= line[:1] in ("-", " ", "\n")
            right -= line[:1] in ("+", " ", "\n")
            found.append({"-": "+", "+": "-"}.get(line[0], line[0]) + line[1:])
        elif head := re.match(r"@@ -(\d+(?:,(\d+))?) \+(\d+(?:,(\d+))?) @@", line):
            left, right = (int(count) if count is not None else 1 for count in (head[2], head[4]))
            found.append(f"@@ -{head[3]} +{head[1]} @@{line[head.end() :]}")
        elif head := re.match(r"diff --git a/(.*) b/(.*)$", line):
            found.append(f"diff --git a/{head[2]} b/{head[1]}\n")
        elif line.startswith("--- "):
            found.append(f"+++ {re.sub('^a/', 'b/', line[4:])}")
        elif line.startswith("+++ "):
            # The line before is the one that was `---`, and comes after this one now.
            found.insert(len(found) - 1, f"--- {re.sub('^b/', 'a/', line[4:])}")
        elif turned := next((word for word in _TURNED if line.startswith(f"{word} ")), ""):
            found.append(f"{_TURNED[turned]}{line[len(turned) :]}")
        else:
            found.append(re.sub(r"^index (\w+)\.\.(\w+)", r"index \2..\1", line))
    return "".join(found)
