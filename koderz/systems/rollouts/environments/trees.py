"""The files of a task's folder, and the baseline made of them, with which an agent begins."""

from __future__ import annotations

import fnmatch
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import cast

from koderz.errors import Fault, KoderzError, Unreachable
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import Backend, Command, Images, Limits
from koderz.systems.rollouts.swebench.places import break_tree
from koderz.systems.rollouts.task import Rollout, Step
from koderz.systems.workspaces import git
from koderz.systems.workspaces.folders import files_below
from koderz.systems.workspaces.local import Local
from koderz_tracker.errors import Cause

_RUN_SECONDS = 600.0
_IGNORING = ".harborignore"


def shown_below(task: Rollout) -> dict[str, Path]:
    """Each file that the task's image may include, by its path in the Dockerfile's folder."""
    hidden = task.hidden
    return {
        path: file
        for path, file in files_below(task.context or task.folder).items()
        if not any(path == each or path.startswith(f"{each}/") for each in hidden)
    }


async def files_shown(folder: Path) -> dict[str, Path]:
    """Each file below a folder of tests or of a solution, without those that a .harborignore there leaves out."""
    found = files_below(folder)
    if not any(PurePosixPath(path).name == _IGNORING for path in found):
        return found
    kept = {*await git.unignored(folder, _IGNORING)}
    return {
        path: file
        for path, file in found.items()
        if path in kept and PurePosixPath(path).name != _IGNORING
    }


async def shown(folders: Sequence[Path], target: Path) -> Path | None:
    """A folder with the files of these folders, later ones over earlier ones; None if there are none.

    It is made at `target`, unless one of them is so already.
    """
    found = [await files_shown(folder) for folder in folders if folder.is_dir()]
    if not found:
        return None
    if len(found) == 1 and not any(
        PurePosixPath(path).name == _IGNORING for path in files_below(folders[-1])
    ):
        return folders[-1]
    shutil.rmtree(target, ignore_errors=True)
    for files in found:
        for path, file in files.items():
            here = target / path
            here.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, here)
    return target


async def prepared(task: Rollout, folder: Path, backend: Backend) -> git.Store:
    """The task's folder as it is made, or its repository as one commit of a new history, stored at `folder`.

    Raises Fault where it can't be made.
    """
    cause: Cause = "unprepared"
    try:
        if task.made and isinstance(backend, Local):
            from koderz.systems.rollouts.environments.building import build

            await build(task.made, backend)
        with git.tree_of(folder) as tree:
            tree.chmod(0o755)
            repo = task.repo
            if repo.git_url:
                commit = repo.start_commit_sha or f"refs/source/heads/{repo.branch or 'main'}"
                await git.export(
                    task.source, commit, tree, subdir=repo.subdir, paths=repo.sparse_checkout
                )
            cause = "task"
            for path, source in task.files.items():
                content = source.encode() if isinstance(source, str) else source.read_bytes()
                is_program = isinstance(source, Path) and bool(source.stat().st_mode & 0o100)
                git.write(tree, path, content, executable=is_program)
            _remove(tree, task.removed)
            for path, text in task.injected.items():
                git.write(tree, path, text.encode())
            await _build(task, tree, backend)
            if task.instance:
                await break_tree(task.instance, tree)
                # What a link leads to outside of the tree stays.
                for path in task.instance.withheld:
                    place = tree / git.inner_path(path)
                    if place.is_file() and place.resolve().is_relative_to(tree.resolve()):
                        place.unlink()
            _mount(task, tree)
            # The history of an instance's image has its fix, so that its checkouts have none.
            return await git.stored(
                tree, folder, keep=task.has_tree_of_image and task.instance is None
            )
    except (KoderzError, OSError) as error:
        if isinstance(error, OSError | Unreachable):  # of this machine
            cause = "unprepared"
        raise Fault(f"{task.id} can't be prepared: {error}", cause=cause) from error


def _remove(tree: Path, patterns: Iterable[str]) -> None:
    """Removes files that match a name or glob; `dir/` matches folders only, at any depth unless it is a path."""
    for pattern in patterns:
        name = pattern.rstrip("/")
        git.inner_path(name)
        for path in sorted(tree.rglob("*")):
            here = path.relative_to(tree).as_posix()
            matches = fnmatch.fnmatch(here, name) or fnmatch.fnmatch(path.name, name)
            if not matches or not (path.exists() or path.is_symlink()):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif not pattern.endswith("/"):
                path.unlink()


async def _build(task: Rollout, tree: Path, backend: Backend) -> None:
    """Adds the content of the task's image; without images follows its Dockerfile on the host's userland."""
    if not task.has_tree_of_image:
        return
    image = task.image
    if image and (backend.has_images or (isinstance(image, str) and isinstance(backend, Local))):
        await cast("Images", backend).copy_out(image, task.workdir, tree)
        return
    if task.refused:
        raise KoderzError(task.refused)
    for step in task.steps:
        if step.word == "COPY":
            for path, source in _copied(step, task).items():
                git.write(tree, path, source.read_bytes())
                shutil.copystat(source, tree / path)
        else:
            await _run(step.text, task, tree, backend)


def _mount(task: Rollout, tree: Path) -> None:
    """Lays the folders that its compose file mounts, in place of what is there, without the task's hidden files."""
    every = shown_below(task) if task.mounted else {}
    for source, place in task.mounted:
        target = tree / place
        if target.is_dir():
            for each in target.iterdir():
                shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
        target.mkdir(parents=True, exist_ok=True)
        prefix = "" if source == "." else f"{source}/"
        for path, file in every.items():
            if path.startswith(prefix):
                here = target / path.removeprefix(prefix)
                here.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, here)


def _copied(step: Step, task: Rollout) -> Mapping[str, Path]:
    """The target and source of each file that a COPY copies from the checkout."""
    every = shown_below(task)
    found: dict[str, Path] = {}
    for name in step.sources:
        source = PurePosixPath(name).as_posix().removeprefix("./")
        below = {
            path: file
            for path, file in every.items()
            if source == "." or path.startswith(f"{source}/")
        }
        prefix = "" if source == "." else f"{source}/"
        if source in every:
            named = step.text.endswith("/") or step.text in ("", ".") or len(step.sources) > 1
            found[str(PurePosixPath(step.text, Path(source).name if named else ""))] = every[source]
        elif below:
            found |= {
                str(PurePosixPath(step.text, path.removeprefix(prefix))): file
                for path, file in below.items()
            }
        else:
            raise KoderzError(
                f"COPY: there is no {name} in {task.context or task.folder} that an agent may see"
            )
    return found


async def _run(line: str, task: Rollout, tree: Path, backend: Backend) -> None:
    with scratch() as place:
        shutil.move(tree, place / "checkout")
        wanted = Command(
            ["/bin/sh", "-c", line],
            environment={**task.stated, **task.environment},
            checkout=task.workdir,
            limits=Limits(seconds=_RUN_SECONDS),
        )
        try:
            ended = await backend.run(wanted, place)
        finally:
            shutil.move(place / "checkout", tree)
        if ended.status:
            said = ended.output.strip().splitlines() or [f"exit code {ended.status}"]
            raise KoderzError(
                f"RUN {shlex.quote(line)} fails without the image: {said[-1][:200]}; use --sandbox docker"
            )
