"""The trees of a task: before, as the human left it, and with a patch; installed and compiled."""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self, cast

from koderz.errors import Fault, KoderzError
from koderz.sandbox.once import Once
from koderz.sandbox.scratch import own_folder, scratch
from koderz.sandbox.workspace import (
    CHECKOUT,
    Command,
    Ended,
    Image,
    Images,
    Limits,
    Mount,
    Running,
    Timed,
)
from koderz.settings.paths import home_folder
from koderz.systems.patches.machines import Machine
from koderz.systems.patches.sources import unpack
from koderz.systems.patches.tasks import PerfTask
from koderz.systems.workspaces import git
from koderz.systems.workspaces.folders import new_path
from koderz.systems.workspaces.guarding import SETTINGS, guard
from koderz.systems.workspaces.images.tree import is_same
from koderz.systems.workspaces.remote import unpack as unpack_tree
from koderz.systems.workspaces.scripts import Script, run_script

MOST_DIFF = 10 << 20  # bytes
_INSTALL_SECONDS, _TEST_SECONDS = 1800.0, 600.0
_MOST_SHOWN = 100_000  # characters of modules, for a model
_MODULES = ("sitecustomize.py", "usercustomize.py")


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of applying a patch."""

    status: str  # passed, test_failed, patch_failed or empty_patch
    why: str = ""
    way: str = ""  # of `koderz.systems.workspaces.git.WAYS`
    tampering: tuple[str, ...] = ()  # what was dropped, as `path: why`


@dataclass(slots=True)
class Trees:
    """Source trees of a run's tasks. The base and human trees are created once and never modified."""

    backend: Timed
    machines: Mapping[str, Machine] = field(default_factory=dict)  # by task
    notes: Sequence[str] = ()  # what isn't as tasks state it
    # by repository and commit, see `Kit`
    packed: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    _stores: Once[git.Store] = field(default_factory=Once)
    _trees: Once[Path] = field(default_factory=Once)

    @property
    def notices(self) -> Sequence[str]:
        """Notices for users about the machines, and about deviations from the tasks."""
        return [
            *(told for name, machine in self.machines.items() if (told := machine.line_of(name))),
            *self.notes,
        ]

    def on(self, task: PerfTask) -> Timed:
        """The backend that runs the task's commands."""
        machine = self.machines.get(task.id)
        return Fitted(self.backend, machine) if machine else self.backend

    async def base(self, task: PerfTask) -> Path:
        """The tree before. Raises Fault if it can't be made, or the task's own tests fail on it."""
        return await self._trees(f"{task.digest} base".encode(), lambda: self._base(task))

    async def human(self, task: PerfTask) -> Path:
        """The tree as the human left it. Raises Fault if it can't be made, or base's tests fail on it."""
        return await self._trees(f"{task.digest} human".encode(), lambda: self._human(task))

    async def patched(self, task: PerfTask, diff: str, folder: Path) -> Applied:
        """Makes the tree with a patch in the empty `folder`, which stays empty unless the status is `passed`."""
        if not diff.strip():
            return Applied("empty_patch", "the patch is empty")
        try:
            content = diff.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return Applied("patch_failed", "the patch is no text")
        if len(content) > MOST_DIFF:
            return Applied("patch_failed", f"the patch is larger than {MOST_DIFF >> 20} MB")
        store = await self._store(task)
        try:
            way = await store.patched(folder, content)
        except git.GitError as error:
            return Applied("patch_failed", str(error))
        with scratch() as aside:
            base = aside / "base"
            await store.checkout(base)
            tampering = [*_restored(task, folder, base), *_guarded(task, folder, base)]
            why = await self._built(task, folder)
            tampering += _settled(task, folder, base)
            why = why or await self._tested(task, folder, base)
        return Applied(
            "test_failed" if why else "passed", why, way, tuple(dict.fromkeys(tampering))
        )

    async def _store(self, task: PerfTask) -> git.Store:
        return await self._stores(task.digest.encode(), lambda: self._stored(task))

    async def _stored(self, task: PerfTask) -> git.Store:
        with _preparing(task):
            folder = new_path(f"store-{task.digest}")
            with git.tree_of(folder) as tree:
                for path, text in task.files.items():
                    git.write(tree, path, text.encode())
                if task.wheels:
                    await unpack(task.wheels[0], tree)
                elif not task.files:
                    await self._export(task, task.base_commit, tree)
                store = await git.stored(tree, folder)
            if task.files and store.commit != task.base_commit:
                raise KoderzError(f"its base is {store.commit}, not {task.base_commit}")
            return store

    async def _base(self, task: PerfTask) -> Path:
        with _preparing(task):
            tree = new_path(f"base-{task.digest}")
            await (await self._store(task)).checkout(tree)
            await self._require_sound(task, tree, tree, "base")
            return tree

    async def _human(self, task: PerfTask) -> Path:
        with _preparing(task):
            tree = new_path(f"{HUMAN}{task.digest}")
            if task.human_patch and task.human_commit not in task.exported:
                await (await self._store(task)).patched(tree, task.human_patch.encode())
            else:
                tree.mkdir()
                if task.wheels:
                    await unpack(task.wheels[1], tree)
                else:
                    await self._export(task, task.human_commit, tree)
            await self._require_sound(task, tree, await self.base(task), "the human's answer")
            return tree

    async def _export(self, task: PerfTask, commit: str, tree: Path) -> None:
        if packed := self.packed.get(task.repo, {}).get(commit):
            await asyncio.to_thread(unpack_tree, BytesIO(packed), [str(tree)], math.inf)
        else:
            await git.export(
                self.machines.get(task.id, Machine()).source or task.repo, commit, tree
            )

    async def _require_sound(self, task: PerfTask, tree: Path, base: Path, what: str) -> None:
        if why := await self._built(task, tree) or await self._tested(task, tree, base):
            raise Fault(
                f"{task.id} can't be prepared: base_failed: {what}: {why}", cause="base_failed"
            )

    async def _built(self, task: PerfTask, tree: Path) -> str:
        """Installs the content of a tree and compiles its modules; returns the error, if any."""
        machine = self.machines.get(task.id, Machine())
        await self._furnish(task, tree, machine)
        if machine.model:
            await self._trees(machine.model.encode(), lambda: fetched(machine, self.backend))
        lines = [*machine.install(task), "python3 -I -m compileall -q . || true"]
        with scratch() as place:
            (place / "checkout").symlink_to(tree)
            for line in lines:
                limits = Limits(seconds=_INSTALL_SECONDS)
                wanted = Command(
                    ["/bin/sh", "-c", line], limits=limits, network=bool(machine.folder)
                )
                ended = await self.on(task).run(wanted, place)
                if ended.status or ended.cause:
                    return f"{line}: {ended.cause or f'exit code {ended.status}'}: {ended.output[-500:].strip()}"
        return ""

    async def _furnish(self, task: PerfTask, tree: Path, machine: Machine) -> None:
        """Adds the files of its image to a tree: those built and installed there."""
        if not (machine.folder or machine.package):
            return
        human = tree.name.startswith(HUMAN) and bool(machine.human)
        key = f"image {human} {machine}".encode()
        source = await self._trees(
            key, lambda: copied(machine, self.backend, new_path("image"), human=human)
        )
        with scratch() as aside:
            base = aside / "base"
            await (await self._store(task)).checkout(base)
            inner = machine.package.replace(".", "/")
            await asyncio.to_thread(put_beside, source, tree / inner, base / inner)

    async def _tested(self, task: PerfTask, tree: Path, base: Path) -> str:
        """Runs the tests in `base` in a copy of a tree; returns the first that fails, with its output."""
        for path in task.tests:
            with scratch() as place:
                shutil.copytree(tree, place / "checkout", symlinks=True)
                script = Script(path, "", _read_inside(base, path), _TEST_SECONDS)
                wanted = Command(
                    [],
                    {"PYTHONPATH": f"{CHECKOUT}/{task.path}"},
                    limits=Limits(seconds=_TEST_SECONDS),
                )
                result = await run_script(script, place, self.on(task), wanted)
                if not result.success:
                    return f"{path}: {result.cause or 'fails'}: {result.output[-500:].strip()}"
        return ""


def texts_of(tree: Path, task: PerfTask) -> dict[str, str]:
    """The modules of a tree that a model sees: those of the import path first, without tests."""
    first = tree / task.path
    paths = [
        path
        for path in sorted(tree.rglob("*.py"))
        if ".git" not in path.parts and not path.is_symlink()
    ]
    paths.sort(key=lambda path: not path.is_relative_to(first))
    found: dict[str, str] = {}
    room = _MOST_SHOWN
    for path in paths:
        here = path.relative_to(tree)
        if _is_test(here) or path.stat().st_size > room:
            continue
        found[here.as_posix()] = text = path.read_text(encoding="utf-8", errors="replace")
        room -= len(text)
    return found


def _settled(task: PerfTask, tree: Path, base: Path) -> Iterator[str]:
    """Restores pytest's settings around the tests, as an install may have run the patch's code."""
    folders = (
        {folder for test in task.tests for folder in PurePosixPath(test).parents}
        if task.install
        else set()
    )
    for path in (Path(folder, name) for folder in sorted(folders) for name in SETTINGS):
        if (os.path.lexists(tree / path) or os.path.lexists(base / path)) and not is_same(
            tree / path, base / path
        ):
            git.restore(tree, path.as_posix(), base)
            yield f"{path}: settings of pytest, after the install"


def _guarded(task: PerfTask, tree: Path, base: Path) -> list[str]:
    """Restores the files that pytest or an interpreter would read as its own."""
    places = [
        Script(f"{task.path}/module.py".removeprefix("./"), "", ""),
        *(Script(path, "", "") for path in task.tests),
    ]
    return guard(tree, base, places)


def _restored(task: PerfTask, tree: Path, base: Path) -> Iterator[str]:
    """Restores all tests, whatever their names."""
    paths = {
        path.relative_to(root)
        for root in (tree, base)
        for path in root.rglob("*")
        if not path.is_dir()
    }
    for path in sorted(paths):
        if (
            ".git" not in path.parts
            and (path.as_posix() in task.tests or _is_test(path))
            and not is_same(tree / path, base / path)
        ):
            git.restore(tree, path.as_posix(), base)
            yield f"{path}: a test"


def _is_test(path: Path) -> bool:
    pure = PurePosixPath(path)
    is_one = (
        pure.name.startswith("test_") or pure.stem.endswith("_test") or "tests" in pure.parts[:-1]
    )
    return is_one or pure.name in _MODULES


def _read_inside(tree: Path, path: str) -> str:
    """A text of a tree. Raises KoderzError if its path has a link, which may lead out of the tree."""
    if os.path.realpath(tree / path) != str(tree.resolve() / path):
        raise KoderzError(f"{path} is a link, or lies below one")
    return (tree / path).read_text(encoding="utf-8")


@contextmanager
def _preparing(task: PerfTask) -> Iterator[None]:
    """Turns any error raised in the block into a Fault."""
    try:
        yield
    except Fault:
        raise
    except (KoderzError, OSError) as error:
        raise Fault(f"{task.id} can't be prepared: {error}", cause="unprepared") from error


DOWNLOADS = "/opt/koderz/downloads"  # what scripts would fetch
HUMAN = "human-"  # how the name of a human's tree begins

_MODELS, _TOKENS = "/opt/koderz/models", ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_VOLUME = "koderz-weights"  # Modal's volume, which koderz modal serve has, too
# of what uses a GPU
_GPU_LIMITS = {"memory_mb": 256 << 10, "processes": 16 << 10, "disk_mb": 64 << 10}
_FETCH = "import huggingface_hub, sys; huggingface_hub.snapshot_download(sys.argv[1])"
_FETCH_SECONDS = 4 * 3600.0

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LOCATE = (
    "import importlib.util as u, sys; print(u.find_spec(sys.argv[1]).submodule_search_locations[0])"
)


class Fitted:
    """A backend that runs commands on the image of the tree that they work in."""

    def __init__(self, backend: Timed, machine: Machine) -> None:
        self.name, self.isolation, self.has_images = (
            backend.name,
            backend.isolation,
            backend.has_images,
        )
        self.cost, self.enforces = backend.cost, backend.enforces
        self.guards_channels = backend.guards_channels
        self._backend, self._machine = backend, machine

    async def run(self, command: Command, place: Path) -> Ended:
        """See `Backend`."""
        return await self._backend.run(self._fitted(command, place), place)

    def started(self, command: Command, place: Path) -> AbstractAsyncContextManager[Running]:
        """See `Timed`."""
        return self._backend.started(self._fitted(command, place), place)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return

    def _fitted(self, command: Command, place: Path) -> Command:
        tree, machine = (place / "checkout").resolve(), self._machine
        mounts: Sequence[Mount] = command.mounts
        if machine.folder:
            mounts = [*mounts, Mount(tree, machine.folder, writable=not command.read_only)]
        if machine.downloads:
            mounts = [*mounts, Mount(Path(machine.downloads), DOWNLOADS)]
        mounts = [*mounts, *(Mount(Path(prefix), prefix) for prefix in machine.prefixes)]
        own = {"PATH": f"{machine.path}:{_PATH}"} if machine.path else {}
        if machine.model:
            mounts = [*mounts, Mount(models(), _MODELS, kept=_VOLUME)]
            own |= {"HF_HOME": _MODELS, "HF_HUB_OFFLINE": "1"}
        return replace(
            command,
            image=image_of(machine, human=tree.name.startswith(HUMAN)),
            mounts=mounts,
            environment={**own, **command.environment},
            gpus=machine.gpu,
            limits=replace(command.limits, **_GPU_LIMITS) if machine.gpu else command.limits,
        )


def image_of(machine: Machine, *, human: bool = False) -> Image | str | None:
    """The image of a machine after its preparation; None for the default."""
    name = (human and machine.human) or machine.base
    if not (name and machine.prepare):
        return name or None
    text = f"FROM {name}\nUSER root\nRUN {machine.prepare}\n"
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    context = own_folder() / f"image-{digest}"
    context.mkdir(exist_ok=True)
    (context / "Dockerfile").write_text(text)
    return Image(context, digest)


async def copied(machine: Machine, backend: Timed, target: Path, *, human: bool) -> Path:
    """Copies the built and installed files of the repository from the image into `target`. Raises Fault."""
    image = image_of(machine, human=human)
    assert image
    folder = machine.folder or await _located(machine, backend, image)
    await asyncio.to_thread(target.mkdir)
    await cast("Images", backend).copy_out(image, folder, target)
    return target


def models() -> Path:
    """The folder in which Hugging Face's hub stores downloads."""
    return Path(os.environ.get("HF_HOME") or home_folder() / ".cache/huggingface")


async def fetched(machine: Machine, backend: Timed) -> Path:
    """The folder of models, with the served one downloaded: legs have neither network nor token. Raises Fault."""
    folder = models()
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    wanted = Command(
        ["python3", "-I", "-c", _FETCH, machine.model],
        {"HF_HOME": _MODELS},
        [Mount(folder, _MODELS, writable=True, kept=_VOLUME)],
        image=image_of(machine),
        network=True,
        secrets=[name for name in _TOKENS if name in os.environ],
        limits=Limits(seconds=_FETCH_SECONDS, disk_mb=1 << 30),
    )
    with scratch() as place:
        ended = await backend.run(wanted, place)
    if ended.status or ended.cause:
        raise Fault(
            f"the model {machine.model} can't be fetched: {ended.cause or ended.output[-300:].strip()}",
            cause="unprepared",
        )
    return folder


async def _located(machine: Machine, backend: Timed, image: Image | str) -> str:
    wanted = Command(
        ["python3", "-I", "-c", _LOCATE, machine.package], image=image, limits=Limits(seconds=60)
    )
    with scratch() as place:
        ended = await backend.run(wanted, place)
    if ended.status or not ended.output.strip():
        raise Fault(
            f"the image {machine.base} has no package {machine.package}: {ended.output[-300:].strip()}",
            cause="unprepared",
        )
    return ended.output.strip().splitlines()[-1]


def put_beside(source: Path, tree: Path, base: Path) -> None:
    """Copies files that `source` has and base lacks into a tree; a file that a patch removed stays away."""

    def known(folder: str, names: list[str]) -> list[str]:
        inner = Path(folder).relative_to(source)
        return [
            name
            for name in names
            if name == ".git" or _is_there(base / inner / name) or _is_there(tree / inner / name)
        ]

    shutil.copytree(source, tree, symlinks=True, dirs_exist_ok=True, ignore=known)


def _is_there(path: Path) -> bool:
    return path.is_symlink() or path.is_file()
