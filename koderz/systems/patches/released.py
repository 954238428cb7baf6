"""The suite `koderz-perf-pypi`: released packages with a faster later version, and workloads of our own.

Wheels are fetched by pip from whatever package index it is set up with, held to their hashes, and kept. Nothing of them
runs here.
"""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from koderz.errors import Unreachable
from koderz.settings.paths import cache_folder
from koderz.systems.patches.tasks import PROMPT, Needs, PerfTask, workload
from koderz.systems.workspaces import git

_FOLDER = Path(__file__).with_name("releases")
_WORDS = "download --quiet --disable-pip-version-check --no-deps --only-binary :all: --retries 1 --timeout 20"
_SECONDS = 600.0


@cache
def released_tasks() -> tuple[PerfTask, ...]:
    """A task for each file: two versions of a package. Its id names the later one."""
    return tuple(_task(path) for path in sorted(_FOLDER.glob("*.toml")))


def _task(path: Path) -> PerfTask:
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
