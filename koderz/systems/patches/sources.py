"""Sources of tasks: embedded repositories, released packages that pip fetches, or a user's file, known by its content.

Published rows are those of GSO (gso-bench/gso, c89aecd) and of ISO-Bench (Lossfunk/ISO-Bench).

Wheels are fetched by pip from whatever package index it is set up with, held to their hashes, and kept. Nothing of them
runs here.
"""

from __future__ import annotations

import ast
import asyncio
import hashlib
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

from koderz.errors import KoderzError, Unreachable
from koderz.settings.paths import cache_folder
from koderz.suites.dataset import Row
from koderz.suites.options import require_no_column
from koderz.suites.tables import rows_in
from koderz.systems.patches.machines import Machine
from koderz.systems.patches.options import PerformanceOptions
from koderz.systems.patches.patches import diff_of
from koderz.systems.patches.tasks import (
    GITHUB,
    PROMPT,
    Canned,
    Needs,
    PerfTask,
    Service,
    read_tasks,
    service_of,
    unique,
    workload,
)
from koderz.systems.workspaces import git

_RELEASED = Path(__file__).with_name("releases")
_WORDS = "download --quiet --disable-pip-version-check --no-deps --only-binary :all: --retries 1 --timeout 20"
_SECONDS = 600.0


@cache
def released_tasks() -> tuple[PerfTask, ...]:
    """A task for each file: two versions of a package. Its id names the later one."""
    return tuple(_released_task(path) for path in sorted(_RELEASED.glob("*.toml")))


def _released_task(path: Path) -> PerfTask:
    stated = tomllib.loads(path.read_text(encoding="utf-8"))
    before, after = (stated[side][0].split()[0].partition("==")[2] for side in ("base", "human"))
    return PerfTask(
        id=f"{path.stem}-{after}",
        base_commit=before,
        human_commit=after,
        wheels=(tuple(stated["base"]), tuple(stated["human"])),
        workloads={path.stem.replace("-", "_"): workload(path, stated["workload"].lstrip("\n"))},
        prompt=f"{PROMPT} It is about {stated['about']}.",
        needs=Needs(minutes=3.0),
    )


async def fetch(tasks: Iterable[PerfTask]) -> None:
    """Downloads all their wheels. Raises Unreachable, in one line, if that fails."""
    await asyncio.to_thread(
        _fetch, [line for task in tasks for side in task.wheels for line in side]
    )


async def unpack(requirements: Sequence[str], tree: Path) -> None:
    """Unpacks the modules of these wheels into a folder. Raises Unreachable as `fetch` does."""
    await asyncio.to_thread(_fetch, requirements)
    for line in requirements:
        with zipfile.ZipFile(_wheel_of(line)) as wheel:
            for info in wheel.infolist():
                if not info.is_dir() and ".dist-info/" not in info.filename:
                    git.write(tree, info.filename, wheel.read(info))


def _fetch(requirements: Iterable[str]) -> None:
    # one by one, since two versions of a package don't go together
    for line in dict.fromkeys(requirements):
        if not _is_kept(line):
            place = _wheel_of(line)
            place.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=place.parent) as folder:
                _download(line, Path(folder)).replace(place)


def _download(requirement: str, folder: Path) -> Path:
    stated = folder / "requirements.txt"
    stated.write_text(f"{requirement}\n")
    words = ("--require-hashes", "--dest", str(folder), "--requirement", str(stated))
    try:
        done = subprocess.run(
            # no pip.py of the working folder
            [sys.executable, "-I", "-m", "pip", *_WORDS.split(), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS,
            check=False,
        )
        said = done.stdout.decode(errors="replace").strip().splitlines()
    except subprocess.TimeoutExpired:
        said = [f"it takes longer than {_SECONDS:.0f} s"]
    found = [*folder.glob("*.whl")]
    if len(found) != 1:
        errors = [
            line.removeprefix("ERROR:").strip() for line in said if line.startswith("ERROR")
        ] or said
        why = errors[-1][:300] if errors else "it says nothing"
        raise Unreachable(
            f"koderz-perf-pypi needs {requirement.split()[0]} by pip, from a package index: {why}"
        )
    return found[0]


def _is_kept(requirement: str) -> bool:
    place = _wheel_of(requirement)
    return place.is_file() and hashlib.sha256(place.read_bytes()).hexdigest() == place.stem


def _wheel_of(requirement: str) -> Path:
    return cache_folder() / "wheels" / f"{requirement.rpartition(':')[2]}.whl"


_HUMAN_COMMITS = MappingProxyType({"opt_commit": "gso", "head_commit": "iso", "commit_hash": "iso"})
_FUNCTIONS = ("experiment", "store_result", "load_result", "check_equivalence", "run_test")
_FETCHES = re.compile(
    r"\b(apt(-get)? \w+|(conda|mamba) \w+|curl|wget|git (clone|fetch|pull)|np[mx]|yarn|cargo|uv (sync|add|tool))\b"
)
_PIP = re.compile(r"\bpip3? install\b[^'\n]*")
# words of a `pip install` that fetches nothing
_OFFLINE = (("--no-index",), ("--no-deps", "--no-build-isolation"))


def read_published(path: Path, cluster_column: str | None = None) -> tuple[PerfTask, ...]:
    """The tasks of a file of GSO or ISO-Bench, told apart by their fields. Raises KoderzError for others."""
    found = [
        replace(_row_task(row), cluster=row.cluster_by(cluster_column)) for row in rows_in(path)
    ]
    if not found:
        raise KoderzError(f"{path} has no tasks")
    return unique(path, found)


def _row_task(row: Row) -> PerfTask:
    name = next((name for name in _HUMAN_COMMITS if row.fields.get(name)), "")
    if not name:
        raise row.error("it has neither GSO's opt_commit nor ISO-Bench's head_commit")
    of_gso = _HUMAN_COMMITS[name] == "gso"
    scripts = row.texts("tests" if of_gso or "tests" in row.fields else "efficiency_test")
    repo = row.text("repo")
    about = row.text("api", "")
    command = "" if of_gso else row.text("perf_command", "")
    return PerfTask(
        id=row.id("instance_id"),
        base_commit=row.text("base_commit"),
        human_commit=row.text(name),
        human_patch=row.text("gt_diff" if of_gso else "patch", ""),
        repo=repo if "://" in repo or repo.startswith("/") else f"{GITHUB}{repo}",
        workloads={f"test_{number}": script for number, script in enumerate(scripts)},
        install=_install([*row.texts("setup_commands"), *row.texts("install_commands")]),
        prompt=f"{PROMPT} It is about {about}." if about else PROMPT,
        needs=Needs(minutes=60.0, processes=True, memory_mb=16_384),  # tables of 2 GB, copied
        service=service_of(command, row.text("model", "")) if command else None,
        kind=_kind(command),
        format="gso" if of_gso else "iso",
    )


def _kind(command: str) -> str:
    """The kind in `KINDS` of a row of ISO-Bench, by its command."""
    return (
        next((kind for kind in ("throughput", "latency") if kind in command), "serving")
        if command
        else "workload"
    )


def _install(commands: Sequence[str]) -> tuple[str, ...]:
    """A single command that runs these in one shell, so that settings such as `source .venv/bin/activate` persist.

    Without `git clean`, which would remove what a patch adds.
    """
    wanted = [each for each in commands if each.strip() and "git clean" not in each]
    return ("bash -euo pipefail -c " + shlex.quote("\n".join(wanted)),) if wanted else ()


def refused(tasks: Sequence[PerfTask], machines: Mapping[str, Machine] | None = None) -> str:
    """The reason why tasks can't be measured; empty if they can. `machines`: by id, of tasks that have one.

    Raises KoderzError for a test script or a command that can't be measured anywhere.
    """
    for task in tasks:
        machine = (machines or {}).get(task.id, Machine())
        if task.service and task.service.refused:
            raise KoderzError(f"{task.id}: {task.service.refused}")
        if task.service and task.conventions.published and not machine.base:
            return f"{task.id} needs a GPU and its own server: it can't be measured here"
        if task.conventions.published:
            _require_scripts(task)
            if not machine.base and (wanted := _fetching(machine.install(task))):
                what = f"its install has {wanted!r}, and nothing is fetched within the sandbox"
                how = "measure it with --sandbox docker or modal, or in an environment that --overrides names"
                return f"{task.id} needs its image: {what}; {how}"
    return ""


def _fetching(install: Sequence[str]) -> str:
    """The first command of an install that needs a network; empty if none does."""
    for line in "\n".join(install).splitlines():
        if found := _FETCHES.search(line):
            return found[0]
        if (found := _PIP.search(line)) and not any(
            all(word in line for word in words) for words in _OFFLINE
        ):
            return found[0]
    return ""


def _require_scripts(task: PerfTask) -> None:
    for name, source in task.workloads.items():
        try:
            found = {
                node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)
            }
        except (SyntaxError, ValueError) as error:
            raise KoderzError(f"{task.id}: {name} is no Python: {error}") from None
        if missing := [each for each in _FUNCTIONS if each not in found]:
            raise KoderzError(f"{task.id}: {name} defines no {missing[0]}, which a test script has")


MINI = "koderz-perf-mini"


def ids_of(dataset: Path | None) -> list[str]:
    """The ids of a dataset's tasks; of GSO's and ISO-Bench's JSON even if it lacks other fields.

    Raises KoderzError for a file that has none.
    """
    if dataset is None or _is_toml(dataset):
        return [task.id for task in tasks_of(dataset)]
    ids = [row.id("instance_id") for row in rows_in(dataset)]
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
            return (
                next((word for word in words if word and not word.startswith("#")), "")
                == "[[tasks]]"
            )
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


def _patched(
    kind: str, base: Mapping[str, str], texts: Mapping[str, str], module: str, test: str
) -> dict[str, str]:
    if kind == "tests":
        return {**base, module: texts["wrong"], test: _NO_TEST, "conftest.py": _CONFTEST}
    if kind in texts:
        return {**base, module: texts[kind]}
    name = texts["base"].partition("\ndef ")[2].partition("(")[0]
    return {**base, module: base[module] + _APPENDED[kind].format(name=name)}


def commit_of(files: Mapping[str, str], message: str, parent: str = "") -> str:
    """The hash that git gives to a commit of these files, with koderz' author and date."""
    tree = _tree_of({path.split("/", 1)[0]: {} for path in files}, files)
    lines = [
        f"tree {tree}",
        *([f"parent {parent}"] if parent else []),
        f"author {_AUTHOR}",
        f"committer {_AUTHOR}",
    ]
    return _object("commit", "\n".join([*lines, "", message, ""]).encode())


def _tree_of(names: Mapping[str, object], files: Mapping[str, str]) -> str:
    entries = []
    for name in sorted(names, key=lambda name: name if name in files else f"{name}/"):
        if name in files:
            entries.append((f"100644 {name}", _object("blob", files[name].encode())))
        else:
            below = {
                path.removeprefix(f"{name}/"): text
                for path, text in files.items()
                if path.startswith(f"{name}/")
            }
            entries.append(
                (f"40000 {name}", _tree_of({path.split("/", 1)[0]: {} for path in below}, below))
            )
    return _object(
        "tree", b"".join(f"{entry}\0".encode() + bytes.fromhex(digest) for entry, digest in entries)
    )


def _object(kind: str, content: bytes) -> str:
    return hashlib.sha1(
        b"%s %d\0" % (kind.encode(), len(content)) + content, usedforsecurity=False
    ).hexdigest()


_OWN = {MINI: mini_tasks, "koderz-perf-pypi": released_tasks}
