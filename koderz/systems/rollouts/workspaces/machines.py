"""The machine of a verifier: the agent's own, a new one like it, or one of its own image, with the tests at /tests.

Programs stand in there for those by which published verifiers install their test runner from the network. uv's
installer and `apt-get install` of what is there do nothing; `uvx … pytest` is koderz' pytest, with the plugins that it
wants from wheels or from the environment.
"""

from __future__ import annotations

import asyncio
import compileall
import contextlib
import re
import shlex
import shutil
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import cast

from koderz.errors import Fault, KoderzError
from koderz.sandbox.archives import damage
from koderz.sandbox.scratch import own_folder
from koderz.sandbox.workspace import Backend, Command, Image, Images, Mount
from koderz.systems.rollouts.environments.building import build
from koderz.systems.rollouts.environments.trees import shown
from koderz.systems.rollouts.task import Healthcheck, Rollout, Verifier
from koderz.systems.rollouts.workspaces.artifacts import Collected, put_back
from koderz.systems.workspaces import git, userland
from koderz.systems.workspaces.folders import files_below
from koderz.systems.workspaces.guarding import guard
from koderz.systems.workspaces.local import Local
from koderz.systems.workspaces.snapshots import Listing, copy_tree

_TESTS = "/tests"
_OWN = "/opt/koderz/tests.sh"


def runs(backend: Backend, image: Image | str | None) -> bool:
    """Whether commands run in an image there, rather than on what stands in for it."""
    return bool(image) and (backend.has_images or isinstance(image, str))


def is_separate(task: Rollout) -> bool:
    """Whether the verifier has a machine of its own."""
    return bool(task.verifier and task.verifier.is_separate)


async def lay_separate(
    task: Rollout, collected: Collected, store: git.Store, backend: Backend, place: Path
) -> tuple[Sequence[Mount], Sequence[str]]:
    """Makes the machine of a separate verifier in the empty folder `place`, with the agent's artifacts alone.

    Returns what its command sees besides, and what was put aside.
    """
    verifier, checkout = verifier_of(task), place / "checkout"
    workdir = verifier.workdir or task.workdir
    if verifier.image is None:
        await store.checkout(checkout)
        baseline = await store.baseline()
    else:
        baseline = place / "baseline"
        checkout.mkdir()
        if verifier.made and isinstance(backend, Local):
            await build(verifier.made, backend)
        if runs(backend, verifier.image):
            await cast("Images", backend).copy_out(verifier.image, workdir, checkout)
    with contextlib.closing(await asyncio.to_thread(Listing.of, checkout)) as made:
        if verifier.image:
            await asyncio.to_thread(copy_tree, made, baseline)
        mounts, left_out = put_back(collected, place, workdir)
        return mounts, [*left_out, *guard(checkout, baseline, (), seen=workdir)]


async def test_command(task: Rollout, place: Path, backend: Backend, wanted: Command) -> Command:
    """The command that runs a task's own test script. Raises Fault if its machine isn't healthy."""
    verifier = verifier_of(task)
    environment, mounts = {**wanted.environment, **verifier.environment}, [*wanted.mounts]
    script = f"{_TESTS}/test.sh"
    if verifier.is_separate and verifier.image:
        environment = dict(verifier.environment)
        image = verifier.image if runs(backend, verifier.image) else None
        if isinstance(verifier.image, Image) and image is None:
            environment = {**verifier.image.environment, **environment}
        wanted = replace(
            wanted, image=image, checkout=verifier.workdir or wanted.checkout, services=None
        )
        tests = None if image else _copied(verifier, place / "tests")
        mounts += _laid_over(task, verifier, tests)
    else:
        tests = await shown(verifier.tests, place / "tests")
    if tests:
        mounts.append(Mount(tests, _TESTS))
    if verifier.is_apart and verifier.script:
        script = _OWN
        mounts.append(Mount(verifier.script, _OWN))
    argv = ["bash", script]
    if stands_in(task) and not (verifier.is_separate and wanted.image and verifier.image):
        argv, more = command_with(task, *argv)
        mounts += more
    found = replace(wanted, argv=argv, environment=environment, mounts=mounts)
    if verifier.is_separate and verifier.healthcheck:
        await require_healthy(
            verifier.healthcheck, found, place, backend, f"the verifier of {task.id}"
        )
    return found


def verifier_of(task: Rollout) -> Verifier:
    """The task's own verifier. Raises Fault if it has none."""
    if task.verifier is None:
        raise Fault(f"{task.id} has no verifier", cause="data")
    return task.verifier


def _copied(verifier: Verifier, target: Path) -> Path:
    """The folder of tests that the lines of a verifier's Dockerfile make."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    assert isinstance(verifier.image, Image)
    every = files_below(verifier.image.context)
    for step in verifier.steps:
        if step.word != "COPY" or not step.text.startswith(_TESTS):
            continue
        inner = PurePosixPath(step.text).relative_to(_TESTS)
        for name in step.sources:
            source = PurePosixPath(name).as_posix().removeprefix("./")
            prefix = "" if source == "." else f"{source}/"
            for path, file in every.items():
                if path == source:
                    is_folder = (
                        step.text.endswith("/") or len(step.sources) > 1 or step.text == _TESTS
                    )
                    _lay(file, target / inner / (Path(path).name if is_folder else ""))
                elif path.startswith(prefix):
                    _lay(file, target / inner / path.removeprefix(prefix))
    return target


def _laid_over(task: Rollout, verifier: Verifier, copied: Path | None) -> list[Mount]:
    """Lays tests that aren't the task's own over those of a verifier's Dockerfile, or shows them in its image."""
    mounts = []
    for folder in verifier.tests:
        if folder.is_relative_to(task.folder):
            continue
        for path, file in files_below(folder).items():
            if copied is None:
                mounts.append(Mount(file, f"{_TESTS}/{path}"))
            elif (copied / path).is_file():
                _lay(file, copied / path)
    return mounts


def _lay(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(file, target)


async def require_healthy(
    check: Healthcheck, command: Command, place: Path, backend: Backend, who: str
) -> None:
    """Runs a healthcheck until it ends with 0. Raises Fault once it has failed too often in a row."""
    limits = replace(command.limits, seconds=check.seconds)
    asked = replace(command, argv=["sh", "-c", check.command], limits=limits, bridge=None)
    began, failed = time.monotonic(), 0
    while (ended := await backend.run(asked, place)).status:
        is_starting = time.monotonic() - began < check.start_period
        failed += not is_starting
        if failed >= check.retries:
            why = ended.output.strip().splitlines()[-1:] or [
                ended.cause or f"exit code {ended.status}"
            ]
            raise Fault(
                f"{who} isn't healthy: {check.command[:80]!r}: {why[0][:200]}", cause="healthcheck"
            )
        await asyncio.sleep(check.start_interval if is_starting else check.interval)


TOOLS = "/opt/koderz/tools"

_GUEST = Path(__file__).parents[1] / "guest"
_NAMES = ("uv", "uvx", "curl", "wget", "apt-get", "apt")
_RUNNERS = ("pytest", "py.test")
_COLOURS = "pygments"  # which is large, and not loaded where there is no terminal
_INSTALLS = re.compile(r"^(?!\s*#).*(?:\b(?:uvx?|apt-get|apt)\s+\S|astral\.sh/uv)", re.MULTILINE)
_ENV = f'export PATH="{TOOLS}:$PATH"\n'


def stands_in(task: Rollout) -> bool:
    """Whether a task's verifier installs what koderz' programs stand in for, as it has no network."""
    verifier = task.verifier
    if verifier is None or task.is_online:
        return False
    if verifier.installs or verifier.programs:
        return True
    text = verifier.script.read_text("utf-8", "replace") if verifier.script else ""
    return bool(_INSTALLS.search(text))


def command_with(task: Rollout, *argv: str) -> tuple[list[str], list[Mount]]:
    """The command of a verifier among the programs that stand in for others, and where these are seen."""
    verifier, lines = task.verifier, [f'PATH="{TOOLS}:$PATH"; export PATH']
    if verifier and (verifier.installs or verifier.programs):
        lines = [f'PATH="{TOOLS}:{TOOLS}/bin:$PATH"; export PATH']
        lines += (
            [f"uv pip install {shlex.join(verifier.installs)} || exit 127"]
            if verifier.installs
            else []
        )
        lines += (
            [f"apt-get install {shlex.join(verifier.programs)} || exit 127"]
            if verifier.programs
            else []
        )
    line = "\n".join([*lines, 'exec "$@"'])
    return ["sh", "-c", line, "sh", *argv], [Mount(_folder(task.wheels), TOOLS)]


@lru_cache(maxsize=8)
def _folder(wheels: str) -> Path:
    """A folder with the programs, koderz' pytest, and the packages of the wheels in a folder."""
    folder = own_folder() / f"tools-{abs(hash(wheels)):x}"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bin").mkdir(parents=True)
    for path in (
        *(folder / name for name in _NAMES),
        *(folder / "bin" / name for name in _RUNNERS),
    ):
        shutil.copyfile(_GUEST / "tool.sh", path)
        path.chmod(0o755)
    for name in ("main.py", "ctrf.py"):
        shutil.copyfile(_GUEST / name, folder / name)
    (folder / "env").write_text(_ENV)
    (folder / "pytest").mkdir()
    for source, name in userland.pytest_modules():
        target = folder / "pytest" / name
        unused = shutil.ignore_patterns("__pycache__" if name == _COLOURS else "")
        shutil.copytree(source, target, ignore=unused) if source.is_dir() else shutil.copy2(
            source, target
        )
    # A verifier may not write there, and each would compile pytest anew.
    compileall.compile_dir(folder / "pytest", rx=re.compile(rf"/{_COLOURS}/"), quiet=2)
    (folder / "site").mkdir()
    for wheel in _usable(Path(wheels)) if wheels else ():
        _unpack(wheel, folder / "site")
    return folder


def _usable(folder: Path) -> Iterator[Path]:
    """The wheels of a folder that this machine can use, older versions first."""
    if not folder.is_dir():
        raise KoderzError(f"--wheels {folder}: there is no such folder")
    from packaging.tags import Tag, sys_tags
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    known = {*sys_tags(), Tag("py3", "none", "any")}
    found = []
    for path in sorted(folder.glob("*.whl")):
        try:
            name, version, _, tags = parse_wheel_filename(path.name)
        except InvalidWheelFilename as error:
            raise KoderzError(f"--wheels: {path}: {error}") from None
        if tags & known:
            found.append((name, version, path))
    return (path for _, _, path in sorted(found))


def _unpack(wheel: Path, site: Path) -> None:
    """Unpacks the packages of a wheel. Raises KoderzError for a damaged one, or a path that leaves its folder."""
    with damage(wheel), zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            path = PurePosixPath(info.filename)
            if path.is_absolute() or ".." in path.parts or info.is_dir():
                if not info.is_dir():
                    raise KoderzError(f"--wheels: {wheel}: {info.filename} leaves its folder")
                continue
            target = site / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(info))
