"""Patches: the user's own in files and folders, those in replies of models, and diffs of texts."""

from __future__ import annotations

import asyncio
import difflib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from koderz.errors import KoderzError
from koderz.sandbox.scratch import scratch
from koderz.systems.patches.options import PerformanceOptions
from koderz.systems.patches.tasks import PerfTask, chosen
from koderz.systems.workspaces.git import export
from koderz.systems.workspaces.predictions import parse_predictions

_OPENING = re.compile(r"(`{3,})[ \t]*(diff|patch|file[ \t]+[^\n`]+)")


def patch_of(reply: str, files: Mapping[str, str]) -> str:
    """The diff in a reply, or made from its whole files against `files`; empty if it has neither."""
    blocks = [(word.split(maxsplit=1), body) for word, body in _blocks(reply)]
    whole = {word[1].strip(): body for word, body in blocks if word[0] == "file"}
    diffs = [body for word, body in blocks if word[0] != "file"]
    if diffs:
        return "".join(diffs)
    if whole:
        return diff_of(files, {**files, **whole})
    return reply if re.search(r"^--- \S.*\n\+\+\+ \S", reply, re.MULTILINE) else ""


def _blocks(reply: str) -> Iterator[tuple[str, str]]:
    """The info line and the text of each closed block, in time linear in the reply."""
    lines = reply.split("\n")
    closing: dict[str, list[int]] = {}  # by fence, the last line first
    for number in range(len(lines) - 1, 0, -1):
        closing.setdefault(lines[number].rstrip(), []).append(number)
    number = 0
    while number < len(lines):
        opening = _OPENING.fullmatch(lines[number].rstrip())
        ends = closing.get(opening[1], []) if opening else []
        while ends and ends[-1] <= number:
            ends.pop()
        if opening and ends:
            yield opening[2], "".join(f"{line}\n" for line in lines[number + 1 : ends[-1]])
            number = ends[-1]
        number += 1


def diff_of(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """A unified diff of texts by path, as git writes it; nothing is removed."""
    return "".join(
        part
        for path, text in sorted(after.items())
        if text != before.get(path)
        for part in _diff(path, before, text)
    )


def _diff(path: str, before: Mapping[str, str], text: str) -> Iterator[str]:
    old = before.get(path)
    yield f"diff --git a/{path} b/{path}\n"
    if old is None:
        yield "new file mode 100644\n"
    lines, more = (each.splitlines(keepends=True) for each in (old or "", text))
    for line in difflib.unified_diff(
        lines, more, "/dev/null" if old is None else f"a/{path}", f"b/{path}"
    ):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


# what begins a diff, and no line of JSON holds
_DIFF = re.compile(rb"^(diff --git a/|--- \S.*\n\+\+\+ \S)", re.MULTILINE)
_CHANGED = re.compile(r"^--- a/([^\t\n]+)", re.MULTILINE)
_SUMMARIES = ("run_summary.json", "journal.json")
_MOST = 100  # characters of a name


@dataclass(frozen=True, slots=True)
class UserPatches:
    """Patches by task, each task's samples in order, and their author."""

    patches: Mapping[str, tuple[str, ...]]
    model: str
    # of patches, likewise; empty where one has none
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def given_by(options: PerformanceOptions, agent: str, tasks: Sequence[PerfTask]) -> UserPatches:
    """The patches of an agent in --patches; without a name, those of --predictions. Raises KoderzError for none."""
    if agent:
        return read_agent(options.patches or Path("patches"), agent, tasks)
    return read_predictions(options.predictions, tasks)


def with_tasks(words: Sequence[str], tasks: Sequence[PerfTask]) -> list[str]:
    """The words of --predictions with whole paths; a plain diff without a task gets the only one.

    Raises KoderzError where there are several, and for a file that can't be read.
    """
    found = []
    for word in words:
        name, file = _named(word)
        if not name and _is_diff(file, _data(file)):
            if len(tasks) != 1:
                raise KoderzError(
                    f"{file} is a plain diff, and names no task: give one by its id or --commit, or write TASK={file}"
                )
            name = tasks[0].id
        found.append(f"{name}={file.absolute()}" if name else str(file.absolute()))
    return found


def agents_in(folder: Path) -> list[str]:
    """The agents in a folder of patches: its folders, and its .jsonl files."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted({path.stem for path in found if path.suffix == ".jsonl" or path.is_dir()})


def read_agent(folder: Path, agent: str, tasks: Sequence[PerfTask]) -> UserPatches:
    """The patches of one agent: run folders with a model_patch.diff, else predictions.

    Raises KoderzError where there are none.
    """
    place, file = folder / agent, folder / f"{agent}.jsonl"
    if place.is_dir():
        return _user_patches([*_runs(place, tasks)], agent, place)
    if file.is_file():
        return read_predictions([file], tasks)
    known = ", ".join(agents_in(folder)) or "none"
    raise KoderzError(
        f"there are no patches of {agent!r}: neither {place} nor {file} is there; there are {known}"
    )


def read_predictions(words: Sequence[str | Path], tasks: Sequence[PerfTask]) -> UserPatches:
    """The predictions in .jsonl files, .json files (a list or an object by id), and plain diffs as TASK=FILE.

    Several of one id are its samples. Raises KoderzError for a file that can't be read, a prediction without an id or a
    patch, or of a task that isn't there.
    """
    ids = {task.id for task in tasks}
    found: list[tuple[str, str, str]] = []
    models: list[str] = []
    for word in words:
        name, file = _named(word)
        data = _data(file)
        if name:
            if not _is_diff(file, data):
                raise KoderzError(
                    f"{word}: {file} is no plain diff; of tasks that it names itself write {file} alone"
                )
            patch = data.decode(errors="replace")
            found += [(task, patch, file.name) for task in chosen(tasks, [name])]
            continue
        for each in parse_predictions(file, data):
            if each.instance not in ids:
                name = each.instance[:100]
                raise KoderzError(
                    f"{each.where}: there is no task {name!r}: koderz perf tasks lists them"
                )
            found.append((each.instance, each.patch or "", each.model))
            models.append(each.model)
    model = ", ".join(dict.fromkeys(filter(None, models)))[:_MOST]
    return _user_patches(found, model or "predictions", *words)


def require_own(given: UserPatches, tasks: Sequence[PerfTask]) -> UserPatches:
    """The patches. Raises KoderzError for a patch that changes no file of its task, as far as files are here."""
    for task in tasks:
        changes = [
            found for patch in given.patches.get(task.id, ()) if (found := _CHANGED.findall(patch))
        ]
        paths = _paths_of(task) if changes else ()
        for changed in changes:
            if paths and not any(path in paths for path in changed):
                raise KoderzError(
                    f"a patch of {task.id} is another repository's: there is no {changed[0]} in this one"
                )
    return given


def _paths_of(task: PerfTask) -> Collection[str]:
    """The files of base; empty if they would have to be fetched or can't be, which measuring reports."""
    if task.files or not Path(task.repo).exists():
        return task.files
    with scratch() as folder, suppress(KoderzError):
        tree = folder / "tree"
        tree.mkdir()
        asyncio.run(export(task.repo, task.base_commit, tree))
        return {str(path.relative_to(tree)) for path in tree.rglob("*")}
    return ()


def of_tasks(given: UserPatches, tasks: Sequence[PerfTask]) -> UserPatches:
    """The patches of some tasks. Raises KoderzError if there are none, or one is another repository's."""
    wanted = {task.id for task in tasks}
    patches = {task: each for task, each in given.patches.items() if task in wanted}
    if not patches:
        raise KoderzError(
            f"there are no patches of the tasks that are asked for; there are of {', '.join(given.patches)}"
        )
    return require_own(replace(given, patches=patches), tasks)


def _user_patches(found: Sequence[tuple[str, str, str]], model: str, *where: object) -> UserPatches:
    """Patches from tuples of task, patch and its name. Raises KoderzError if there are none."""
    if not found:
        raise KoderzError(f"there are no patches of these tasks in {', '.join(map(str, where))}")
    patches: dict[str, list[str]] = {}
    names: dict[str, list[str]] = {}
    for task, patch, name in found:
        patches.setdefault(task, []).append(_whole(patch))
        names.setdefault(task, []).append(_whole(name))
    return UserPatches(_by_task(patches), model, _by_task(names))


def _by_task(found: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    return {task: tuple(each) for task, each in found.items()}


def _whole(text: str) -> str:
    """The text without halves of surrogate pairs, which no file can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _named(word: str | Path) -> tuple[str, Path]:
    """The task and the file of one value of --predictions, `TASK=FILE` or `FILE`. The task is empty if it has none."""
    name, equals, file = str(word).partition("=")
    return (name, Path(file)) if equals and not Path(word).is_file() else ("", Path(word))


def _data(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise KoderzError(f"{file} can't be read: {error.strerror}") from None


def _is_diff(file: Path, data: bytes) -> bool:
    return file.suffix in (".diff", ".patch") or _DIFF.search(data) is not None


def _runs(folder: Path, tasks: Sequence[PerfTask]) -> Iterator[tuple[str, str, str]]:
    """The patches of run folders whose summary names the human commit of one of the tasks."""
    within = folder.resolve()
    for path in sorted(folder.rglob("model_patch.diff")):
        if not (path.is_file() and path.resolve().is_relative_to(within)):
            continue  # an agent's link to somewhere else
        commit = next(
            filter(None, (_human_commit(path.with_name(name)) for name in _SUMMARIES)), ""
        )
        for task in tasks:
            if len(commit) >= 7 and task.human_commit.startswith(commit.lower()):
                yield task.id, path.read_text(encoding="utf-8", errors="replace"), path.parent.name


def _human_commit(path: Path) -> str:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))["commits"]["human"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return told if isinstance(told, str) else ""
