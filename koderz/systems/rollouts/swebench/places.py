"""Places in which an instance is tested: its repository at the base commit, prepared once, copied for each run."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from koderz.errors import Fault, KoderzError
from koderz.sandbox.once import Once
from koderz.sandbox.scratch import remove, scratch
from koderz.sandbox.workspace import Backend, Command, Ended, Images, Limits, Mount
from koderz.systems.rollouts.swebench import Instance
from koderz.systems.rollouts.swebench.dialects import EvalScript
from koderz.systems.workspaces import git
from koderz.systems.workspaces.environments import interpreter_of
from koderz.systems.workspaces.folders import new_path
from koderz.systems.workspaces.guarding import guard
from koderz.systems.workspaces.images.tree import is_same
from koderz.systems.workspaces.scripts import Script

SECONDS = 1800.0  # of an eval script, as the official harness has it

_OUTPUT = 256 << 20  # bytes of a log
_OUT, _SCRIPT = "/opt/koderz/prepared", "/opt/koderz/eval.sh"
_TOLD = "\nenv -0 > /opt/koderz/prepared/environment\n"
_UNTOLD = ("PWD", "OLDPWD", "SHLVL", "_")
_OFFLINE = {
    "PIP_NO_INDEX": "1",
    "PIP_NO_BUILD_ISOLATION": "0",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
_USUAL = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Applied:
    """A tree with a patch in it."""

    ok: bool
    why: str = ""  # it can't be applied


@dataclass(frozen=True, slots=True)
class PreparedPlace:
    """A place after the part of an instance's script that comes before the tests, without any patch."""

    place: Path
    store: git.Store
    variables: Mapping[str, str]  # of the tests' shell
    # the files that the tests' command names, with the tests that grade the patch
    scripts: Sequence[Script]
    hidden: Sequence[str]  # the files that the patch of the tests changes


@dataclass(slots=True)
class InstancePlaces:
    """The places of a run's instances."""

    backend: Backend
    # those that are made already, by key
    stores: dict[str, git.Store] = field(default_factory=dict)
    _stores: Once[git.Store] = field(default_factory=Once)
    _prepared: Once[PreparedPlace] = field(default_factory=Once)

    async def store(self, instance: Instance) -> git.Store:
        """The repository at the base commit, as one commit without a history. Raises Fault if it can't be had."""
        if made := self.stores.get(instance.key):
            return made
        return await self._stores(instance.key.encode(), lambda: self._stored(instance))

    async def prepared(self, instance: Instance, install: str | None = None) -> PreparedPlace:
        """A place, prepared by the instance's own script; with `install` on the tree with that patch.

        Raises Fault if it can't be made.
        """
        key = f"{instance.key} {install or ''}".encode("utf-8", "surrogateescape")
        return await self._prepared(key, lambda: self._prepare(instance, install))

    async def published(self, instance: Instance, patch: str) -> tuple[Applied, Ended]:
        """Runs the whole script on the tree with a patch, as the official harness does."""
        store = await self.store(instance)
        with scratch() as place:
            applied = await apply(patch, store, place / "checkout")
            if not applied.ok:
                return applied, Ended(0, "")
            return applied, await self._run(instance, place, self._script(instance).published)

    @asynccontextmanager
    async def copied(self, prepared: PreparedPlace, patched: Path) -> AsyncIterator[Path]:
        """A copy of a prepared place, with the changes of a patched tree; the patch of the tests goes over them."""
        baseline = await prepared.store.baseline()
        with scratch() as place:
            for each in prepared.place.iterdir():
                await asyncio.to_thread(_copy, each, place / each.name)
            await asyncio.to_thread(lay, patched, baseline, place / "checkout")
            for path in prepared.hidden:
                git.restore(place / "checkout", path, prepared.place / "checkout")
            yield place

    def wanted(self, instance: Instance, prepared: PreparedPlace) -> Command:
        """A command in a copy of the prepared place."""
        return replace(self._command(instance), environment=prepared.variables)

    def _script(self, instance: Instance) -> EvalScript:
        return EvalScript(
            instance.eval_script, instance.substitute.install if instance.substitute else ()
        )

    async def tested(self, instance: Instance, prepared: PreparedPlace, place: Path) -> Ended:
        """Runs the part of the script that tests in a copy of the prepared place."""
        script = EvalScript(instance.eval_script).testing
        return await self._run(instance, place, script, self.wanted(instance, prepared))

    async def _stored(self, instance: Instance) -> git.Store:
        folder = new_path(f"testbed-{instance.digest}")
        try:
            with git.tree_of(folder) as tree:
                if instance.substitute:
                    await git.export(instance.substitute.source, instance.base_commit, tree)
                else:
                    await cast("Images", self.backend).copy_out(
                        instance.image, instance.workdir, tree
                    )
                    remove(tree / ".git")
                await break_tree(instance, tree)
                store = await git.stored(tree, folder)
            await store.baseline()
        except (KoderzError, OSError) as error:
            raise Fault(f"{instance.id} can't be prepared: {error}", cause="unprepared") from error
        return store

    async def _prepare(self, instance: Instance, install: str | None) -> PreparedPlace:
        store, script = await self.store(instance), self._script(instance)
        place = new_path(f"place-{instance.digest}")
        place.mkdir()
        if install:
            await apply(install, store, place / "checkout")
        else:
            await store.checkout(place / "checkout")
        with scratch() as out:
            lines = script.preparation + _TOLD
            ended = await self._run(
                instance, place, lines, mounts=[Mount(out, _OUT, writable=True)]
            )
            try:
                told = (out / "environment").read_bytes()
            except OSError:
                why = ended.cause or ended.output[-300:].strip() or f"exit code {ended.status}"
                raise Fault(
                    f"{instance.id} can't be prepared: its script ends: {why}", cause="unprepared"
                ) from None
        pairs = (os.fsdecode(each).partition("=") for each in told.split(b"\0") if each)
        variables = {name: value for name, _, value in pairs if name not in _UNTOLD}
        hidden = await git.touched(instance.test_patch.encode())
        tree = place / "checkout"
        scripts = [
            Script(path, "", (tree / path).read_text("utf-8", "surrogateescape"), SECONDS)
            for path in script.files(tree)
        ]
        return PreparedPlace(place, store, variables, scripts, hidden)

    async def _run(
        self,
        instance: Instance,
        place: Path,
        lines: str,
        wanted: Command | None = None,
        mounts: Sequence[Mount] = (),
    ) -> Ended:
        """Runs lines of bash in a place. The baseline stands in for the base commit, whose history isn't there."""
        store = await self.store(instance)
        with scratch() as folder:
            (folder / "eval.sh").write_text(lines.replace(instance.base_commit, store.commit))
            wanted = wanted or self._command(instance)
            own = [*wanted.mounts, *mounts, Mount(folder / "eval.sh", _SCRIPT)]
            return await self.backend.run(
                replace(wanted, argv=["/bin/bash", _SCRIPT], mounts=own), place
            )

    def _command(self, instance: Instance) -> Command:
        limits = Limits(seconds=SECONDS, output_bytes=_OUTPUT)
        if instance.substitute is None:
            return Command([], checkout=instance.workdir, image=instance.image, limits=limits)
        variables, folders = variables_of(instance)
        mounts = [Mount(Path(folder), folder) for folder in folders]
        return Command([], variables, mounts, checkout=instance.workdir, limits=limits)


def variables_of(instance: Instance) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """The variables and folders of this machine by which commands use the environment that stands in for an image.

    Raises KoderzError if its python doesn't run.
    """
    assert instance.substitute
    python = interpreter_of(instance.substitute, "--environments")
    paths = import_path(instance)
    found = {"PYTHONPATH": ":".join(paths)} if paths else {}
    return {"PATH": f"{python.path}:{_USUAL}", **_OFFLINE, **found}, python.prefixes


def import_path(instance: Instance) -> Sequence[str]:
    """The folders of modules that the rule of a substitute names."""
    rule = instance.substitute
    return [f"{instance.workdir}/{rule.path}"] if rule and rule.path else []


async def break_tree(instance: Instance, tree: Path) -> None:
    """Puts the bug of an instance into its image's tree, where its row has one. Raises GitError if it doesn't fit."""
    await git.apply(instance.bug.encode("utf-8", "surrogateescape"), tree)


async def apply(patch: str, store: git.Store, folder: Path) -> Applied:
    """Makes a tree with a patch at `folder`, in the order of the official harness: `git apply`, `--3way`, `patch`.

    Between these that harness tries `git apply --reject`, which succeeds only where the first does. A patch that the
    tree has already counts as applied. If none succeeds, what `folder` holds is undefined.
    """
    content, why = patch.encode("utf-8", "surrogateescape"), ""
    for words in ((), ("--3way",), None):
        await _checked_out(store, folder)
        try:
            await (
                git.patch(content, folder) if words is None else git.apply(content, folder, *words)
            )
        except git.GitError as error:
            why = why or str(error)
        else:
            return Applied(ok=True)
    await _checked_out(store, folder)
    try:
        await git.apply(content, folder, "--check", "--reverse")
    except git.GitError:
        return Applied(ok=False, why=why)
    return Applied(ok=True)


async def _checked_out(store: git.Store, folder: Path) -> None:
    """Makes a checkout in place of whatever is there."""
    remove(folder)
    await store.checkout(folder)


async def guarded(
    patch: str, prepared: PreparedPlace, folder: Path, lifted: Collection[str]
) -> list[str]:
    """Makes a tree with a patch at `folder`, without what would have a say in its own grading. Returns what that was.

    Raises GitError if the patch doesn't fit.
    """
    applied = await apply(patch, prepared.store, folder)
    if not applied.ok:
        raise git.GitError(applied.why)
    return (
        []
        if "settings" in lifted
        else guard(folder, await prepared.store.baseline(), prepared.scripts)
    )


def lay(tree: Path, baseline: Path, into: Path) -> None:
    """Makes the same changes in a third tree that one has beside its baseline."""
    for path in sorted({*_files(tree), *_files(baseline)}):
        if not _same(tree / path, baseline / path):
            git.restore(into, path, tree)


def _files(tree: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(tree):
        if Path(folder) == tree and ".git" in folders:
            folders.remove(".git")
        links = [name for name in folders if Path(folder, name).is_symlink()]
        yield from (Path(folder, name).relative_to(tree).as_posix() for name in (*files, *links))


def _same(one: Path, other: Path) -> bool:
    """Whether two paths have the same content and, if they are files, the same right to be executed."""
    return is_same(one, other) and (
        one.is_symlink() or not (one.stat().st_mode ^ other.stat().st_mode) & 0o100
    )


def _copy(source: Path, target: Path) -> None:
    """Copies a folder as it is: links, and marks of an overlay, too."""
    cp = shutil.which("cp")
    if cp is None:
        raise Fault("cp is missing, by which places are copied", cause="sandbox")
    done = subprocess.run(
        [cp, "-a", "--reflink=auto", str(source), str(target)], capture_output=True, check=False
    )
    if done.returncode:
        raise Fault(
            f"{source} can't be copied: {done.stderr.decode(errors='replace')[-200:]}",
            cause="sandbox",
        )
