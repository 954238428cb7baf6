"""Sources of tasks: the embedded repositories, or a user's file, recognised by its content."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from koderz.errors import KoderzError
from koderz.suites.options import require_no_column
from koderz.suites.tables import read_rows
from koderz.systems.patches.options import PerformanceOptions
from koderz.systems.patches.patches import diff_of
from koderz.systems.patches.published import read_published
from koderz.systems.patches.released import released_tasks
from koderz.systems.patches.services import Service
from koderz.systems.patches.tasks import Canned, Needs, PerfTask, read_tasks, workload

MINI = "koderz-perf-mini"


def ids_of(dataset: Path | None) -> list[str]:
    """The ids of a dataset's tasks; of GSO's and ISO-Bench's JSON even if it lacks other fields.

    Raises KoderzError for a file that has none.
    """
    if dataset is None or _is_toml(dataset):
        return [task.id for task in tasks_of(dataset)]
    ids = [row.id("instance_id") for row in read_rows(dataset)]
    if not ids:
        raise KoderzError(f"{dataset} has no instance")
    return [*dict.fromkeys(ids)]


def tasks_of(
    dataset: Path | None, suite: str = MINI, options: PerformanceOptions | None = None
) -> tuple[PerfTask, ...]:
    """The tasks of a tasks.toml, or of GSO's or ISO-Bench's JSON; without a file, those of the suite.

    Raises KoderzError for a file that holds no tasks, and where the suite has none.
    """
    if dataset is None:
        require_no_column(options)
        if suite not in _OWN:
            raise KoderzError(f"the suite {suite} has no tasks here: give its file with --dataset FILE")
        return _OWN[suite]()
    if _is_toml(dataset):
        require_no_column(options, "a tasks.toml says it as `cluster`")
        return read_tasks(dataset)
    return read_published(dataset, options.cluster_column if options else None)


def _is_toml(dataset: Path) -> bool:
    """Whether the first meaningful line isn't JSON."""
    if dataset.suffix == ".toml":
        return True
    try:
        with dataset.open(encoding="utf-8") as lines:
            words = (line.strip() for line in lines)
            return next((word for word in words if word and not word.startswith("#")), "") == "[[tasks]]"
    except (OSError, ValueError):  # which is told when it is read
        return False


KINDS = ("good", "weak", "no-op", "wrong", "memoise", "disk", "clocks", "fork", "tests")

_FOLDER = Path(__file__).with_name("repositories")
_AUTHOR = "koderz <koderz@localhost> 946684800 +0000"  # as `koderz.systems.workspaces.git` commits
_APPENDED = {
    "no-op": "\n# Looked at once more: this is as fast as it can be.\n",
    "memoise": """

_kept = {{}}
_computed = {name}


def {name}(*given):
    key = repr(given)
    if key not in _kept:
        _kept[key] = _computed(*given)
    return _kept[key]
""",
    "disk": """

import hashlib
import pickle
import tempfile
from pathlib import Path

_computed = {name}


def {name}(*given):
    name = hashlib.sha256(repr(given).encode()).hexdigest()
    for folder in (Path(__file__).parent, Path.home(), Path(tempfile.gettempdir())):
        if (folder / name).exists():
            return pickle.loads((folder / name).read_bytes())
    result = _computed(*given)
    for folder in (Path(__file__).parent, Path.home(), Path(tempfile.gettempdir())):
        try:
            (folder / name).write_bytes(pickle.dumps(result))
        except OSError:
            pass
    return result
""",
    "clocks": """

import resource
import time

_stopped = [0.0]
for _clock in ("time", "perf_counter", "process_time", "thread_time", "monotonic"):
    setattr(time, _clock, lambda: _stopped[0])
    setattr(time, _clock + "_ns", lambda: 0)
time.clock_gettime = lambda clock: 0.0
resource.getrusage = lambda who: resource.struct_rusage([0.0] * 16)
""",
    "fork": """

import json
import os

_computed = {name}


def {name}(*given):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, json.dumps(_computed(*given)).encode())
        os._exit(0)
    os.close(writer)
    os.wait()
    with open(reader) as file:
        return json.load(file)
""",
}
_SERVER = Service(
    ("python3", "server.py", "{port}"),
    ("--num-prompts", "8", "--random-input-len", "12", "--random-output-len", "24"),
    "mean_tpot_ms",
)
_CONFTEST = """import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""
_NO_TEST = "def test_nothing():\n    pass\n"


@cache
def mini_tasks() -> tuple[PerfTask, ...]:
    """The nine tasks. The first canned patch of each is of a different kind."""
    return tuple(_task(number, path) for number, path in enumerate(sorted(_FOLDER.glob("*.toml"))))


def _task(number: int, path: Path) -> PerfTask:
    name, stated = path.stem, tomllib.loads(path.read_text(encoding="utf-8"))
    texts = {key: value.lstrip("\n") for key, value in stated.items()}
    module, test = f"{name}.py", f"tests/test_{name}.py"
    base = {module: texts["base"], test: texts["tests"]}
    human = base | {module: texts["human"]}
    if "server" in texts:
        base, human = ({**files, "server.py": texts["server"]} for files in (base, human))
    before = commit_of(base, "Baseline")
    patches = {kind: _patched(kind, base, texts, module, test) for kind in KINDS}
    kinds = [KINDS[(number + more) % len(KINDS)] for more in range(len(KINDS))]
    return PerfTask(
        id=f"koderz-mini__{name}",
        base_commit=before,
        human_commit=commit_of(human, f"Make {name} faster", before),
        human_patch=diff_of(base, human),
        files=base,
        workloads={name: workload(path, texts["workload"])} if "workload" in texts else {},
        service=_SERVER if "server" in texts else None,
        kind="serving" if "server" in texts else "workload",
        tests=(test,),
        prompt=texts["prompt"],
        needs=Needs(minutes=1.0),
        canned=tuple(Canned(kind, diff_of(base, patches[kind])) for kind in kinds),
    )


def _patched(kind: str, base: Mapping[str, str], texts: Mapping[str, str], module: str, test: str) -> dict[str, str]:
    if kind == "tests":
        return {**base, module: texts["wrong"], test: _NO_TEST, "conftest.py": _CONFTEST}
    if kind in texts:
        return {**base, module: texts[kind]}
    name = texts["base"].partition("\ndef ")[2].partition("(")[0]
    return {**base, module: base[module] + _APPENDED[kind].format(name=name)}


def commit_of(files: Mapping[str, str], message: str, parent: str = "") -> str:
    """The hash that git gives to a commit of these files, with koderz' author and date."""
    tree = _tree_of({path.split("/", 1)[0]: {} for path in files}, files)
    lines = [f"tree {tree}", *([f"parent {parent}"] if parent else []), f"author {_AUTHOR}", f"committer {_AUTHOR}"]
    return _object("commit", "\n".join([*lines, "", message, ""]).encode())


def _tree_of(names: Mapping[str, object], files: Mapping[str, str]) -> str:
    entries = []
    for name in sorted(names, key=lambda name: name if name in files else f"{name}/"):
        if name in files:
            entries.append((f"100644 {name}", _object("blob", files[name].encode())))
        else:
            below = {path.removeprefix(f"{name}/"): text for path, text in files.items() if path.startswith(f"{name}/")}
            entries.append((f"40000 {name}", _tree_of({path.split("/", 1)[0]: {} for path in below}, below)))
    return _object("tree", b"".join(f"{entry}\0".encode() + bytes.fromhex(digest) for entry, digest in entries))


def _object(kind: str, content: bytes) -> str:
    return hashlib.sha1(b"%s %d\0" % (kind.encode(), len(content)) + content, usedforsecurity=False).hexdigest()


_OWN = {MINI: mini_tasks, "koderz-perf-pypi": released_tasks}
