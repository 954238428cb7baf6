"""The results folder: the folders of runs, their locks, and the names by which people refer to them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from koderz_tracker.errors import JournalError, KoderzError, RunBusy
from koderz_tracker.files import links_in, open_own, refuse_links, whole_folder, write_whole
from koderz_tracker.index import load_index, read, read_spans, unreadable
from koderz_tracker.journal import NAME
from koderz_tracker.records import Plan, encode

if TYPE_CHECKING:
    from filelock import BaseFileLock

RUN_ID = re.compile(r"bench_[0-9a-f]{8}_\d{8}_\d{6}")
TO_LOOK = 0.5  # seconds: whoever only looks whether a lock is held is in its way for a moment


def create_run(results: Path, name: str, plan: Plan) -> tuple[Path, BaseFileLock]:
    """Makes a new run's folder with its plan in it, locked as by `lock_run`, whole or not at all.

    Raises KoderzError where the results folder can't be written.
    """
    folder = results / name
    try:
        with whole_folder(folder) as draft:
            write_whole(draft / NAME, [encode(plan)])
            lock = lock_run(draft)
    except OSError as error:
        raise KoderzError(
            f"the results folder {results} can't be written ({error.strerror}); choose another with --results"
        ) from None
    return folder, lock


def lock_run(folder: Path) -> BaseFileLock:
    """Locks the run for this process. The kernel releases the lock whenever the process ends.

    Raises RunBusy where another process holds it, KoderzError where the folder can't be written.
    """
    message = f"another koderz process is working on {folder.name}; see it with: koderz benchmark watch {folder.name}"
    return acquired(folder / "lock", TO_LOOK, RunBusy(message))


def acquired(path: Path, timeout: float, busy: KoderzError) -> BaseFileLock:
    """Takes a lock file in a run's folder.

    Raises `busy` where another process has it for so many seconds, KoderzError where there can be no lock, or where
    a link in the folder could have koderz write elsewhere.
    """
    from filelock import FileLock, Timeout

    refuse_links(path.parent / link for link in links_in(path.parent))
    lock = FileLock(path, timeout=timeout)
    try:
        lock.acquire()
    except Timeout:
        raise busy from None
    except OSError as error:
        raise KoderzError(f"{path.parent} can't be locked ({error.strerror})") from None
    return lock


def is_locked(folder: Path) -> bool:
    """Whether a process is working on the run right now. Raises KoderzError if that can't be found out."""
    try:
        return is_held(folder / "lock")
    except OSError as error:
        raise KoderzError(f"{folder} can't be locked ({error.strerror})") from None


def is_held(lock: Path) -> bool:
    """Whether a process holds this lock file. Several may ask at once. Raises OSError."""
    try:
        file = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno == errno.ELOOP:  # koderz takes no lock through a link
            return False
        raise
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def read_plan(folder: Path) -> Plan:
    """The plan of a run: the first line of its journal. Raises JournalError if there is none."""
    return plan_and_line(folder)[0]


def plan_and_line(folder: Path) -> tuple[Plan, bytes]:
    """The plan of a run, and its journal line. Raises JournalError if there is none."""
    journal = folder / NAME
    try:
        with open_own(journal, 2) as file:
            line = file.readline()
    except OSError as error:
        raise unreadable(journal, error) from None
    problem = "its first line is none"
    try:
        if isinstance(plan := read(line), Plan):
            return plan, line
    except JournalError as error:
        problem = str(error)
    with contextlib.suppress(JournalError):
        spans = [entry.span for entry in load_index(journal) if entry.kind == "plan"]
        for line in read_spans(journal, spans[:1]):
            if isinstance(plan := read(line), Plan):
                return plan, line
    raise JournalError(
        f"{journal}: byte 0: it doesn't begin with a plan ({problem}), so no run can be told from it"
    )


def run_folders(results: Path) -> list[Path]:
    """The folder of every run, oldest first."""
    if not results.is_dir():
        return []
    found = []
    for name in filter(RUN_ID.fullmatch, os.listdir(results)):  # noqa: PTH208 of 10,000 runs, Paths take the longest
        with contextlib.suppress(OSError):  # a folder without a journal is none
            found.append(
                (name.split("_", 2)[2], os.stat(f"{results}/{name}/{NAME}").st_ctime_ns, name)  # noqa: PTH116
            )
    return [results / name for _, _, name in sorted(found)]


def find_run(results: Path, name: str) -> Path:
    """The folder of the run named by an id, a unique prefix of one, a summary file, `latest` or `latest~1`.

    Raises KoderzError, saying what there is, where that is no run or several.
    """
    path = Path(name)
    if path.suffix == ".json" or path.is_dir():
        folder = path.with_suffix("") if path.suffix == ".json" else path
        if not (folder / NAME).exists():
            raise KoderzError(
                f"{path}: the run's journal {folder / NAME} isn't there, so it can't be picked up"
            )
        return require_own(folder)
    exact = results / name
    is_there = re.fullmatch(r"\w+", name) and (exact / NAME).exists()
    return require_own(exact if is_there else named(run_folders(results), name, results))


def require_own(run: Path) -> Path:
    """The same run, by its folder or its summary. Raises KoderzError if one of them, or a file in it, is a link.

    Whoever made such a folder could have any file of this machine read, shown or published.
    """
    folder = run.with_suffix("") if run.suffix == ".json" else run
    refuse_links(
        (
            folder,
            folder.parent / f"{folder.name}.json",
            *(folder / link for link in links_in(folder)),
        )
    )
    return run


def refuse_log(plan: Plan) -> None:
    """Raises KoderzError for a plan that was made of another tool's log, of which nothing can be done again."""
    tool = plan.config.get("imported")
    if isinstance(tool, str) and tool != "replies":
        raise KoderzError(
            f"{plan.run_id} was imported from a log of {tool}: its verdicts stand as they are, and nobody can ask or "
            "judge anew what it tells"
        )


def named(runs: Sequence[Path], name: str, results: Path) -> Path:
    """The run among `runs` (oldest first) named by `latest`, `latest~1`, an id or a unique prefix of one.

    Raises KoderzError, saying what there is in `results`, where that is no run or several.
    """
    if matched := re.fullmatch(r"latest(?:~(\d+))?", name):
        back = int(matched[1] or 0)
        if not runs:
            raise KoderzError(f"{results} holds no run yet; make one with: koderz benchmark 0 10")
        if back >= len(runs):
            raise KoderzError(f"{results} holds {len(runs)} runs, so there is no latest~{back}")
        return runs[-1 - back]
    if not re.fullmatch(r"[A-Za-z0-9_]+", name):
        raise KoderzError(
            f"{name!r} is no run: give its id, the beginning of its id, a summary file or latest"
        )
    found = [path for path in runs if path.stem.startswith(name) or path.stem[6:].startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(path.stem for path in found[:3])
        raise KoderzError(
            f"{name} is the beginning of {len(found)} runs ({some}, …); give more of the id"
        )
    hint = f"the latest is {runs[-1].stem}" if runs else "it holds none yet"
    raise KoderzError(f"there is no run {name} in {results}; {hint}")
