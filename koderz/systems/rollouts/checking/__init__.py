"""Checks of tasks: their own solution passes, and doing nothing doesn't. What is found is written as it comes."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from koderz.errors import Fault, KoderzError, StorageError, Unreachable
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import Backend
from koderz.settings.paths import cache_folder
from koderz.systems.rollouts.grading import Graded, grade
from koderz.systems.rollouts.grading.terms import terms_of
from koderz.systems.rollouts.options import RolloutsOptions
from koderz.systems.rollouts.task import Rollout
from koderz.systems.rollouts.tasks.runnable import Omission, by_reason
from koderz.systems.rollouts.workspaces.afresh import Work
from koderz.systems.rollouts.workspaces.workspace import Stores, Workspace, at_once
from koderz_tracker.files import write_whole


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of checking a task."""

    id: str
    wrong: str = ""  # why it can't be used
    warning: str = ""
    is_prepared: bool = True  # whether its environment could be made
    is_decided: bool = True  # whether it is the task that is wrong, not the sandbox

    @property
    def status(self) -> str:
        """The task's state: `sound`, `unsound`, `unprepared`, or `unclear` if the sandbox can't tell."""
        if not self.is_decided:
            return "unclear"
        if not self.is_prepared:
            return "unprepared"
        return "unsound" if self.wrong else "sound"


async def check_tasks(
    tasks: Sequence[Rollout],
    backend: Backend,
    *,
    times: int = 1,
    jobs: int = 1,
    take: Callable[[Rollout, Checked], None] | None = None,
) -> list[Checked]:
    """Checks each task `times` times, `jobs` of them at once, and hands over each result as it comes.

    Raises Unreachable if the backend can't run here.
    """
    free = asyncio.Semaphore(jobs)

    async def checked(task: Rollout) -> Checked:
        async with free:
            found = await check(task, Stores({"": backend}), times)
            if take:
                take(task, found)
            return found

    async with backend:
        return await asyncio.gather(*map(checked, tasks))


async def check(task: Rollout, stores: Stores, times: int = 1) -> Checked:
    """Tries a task's own solution, and doing nothing, so many times."""
    warning, is_prepared = "", False
    for _ in range(times):
        try:
            await stores.of(task)
            is_prepared = True
            solved, left = (
                await _graded(task, stores, solve=True),
                await _graded(task, stores, solve=False),
            )
        except Unreachable:
            raise
        except Fault as fault:
            return Checked(
                task.id, str(fault), is_prepared=is_prepared, is_decided=fault.cause != "sandbox"
            )
        except KoderzError as error:
            return Checked(task.id, str(error))
        if not solved.scored.success or solved.scored.score_of_graded != 1:
            return Checked(
                task.id, f"its own solution doesn't pass: {solved.cause or 'its score is below 1'}"
            )
        if left.scored.success:
            return Checked(task.id, "doing nothing passes")
        if left.scored.total_score > 0:
            warning = f"doing nothing scores {left.scored.total_score:.2f}"
    return Checked(task.id, "", warning)


async def fails_own_solution(task: Rollout, backend: Backend) -> bool:
    """Whether a task's own solution fails its tests, in a backend that is entered. Raises Fault if none can tell."""
    return not (await _graded(task, Stores({"": backend}), solve=True)).scored.success


async def _graded(task: Rollout, stores: Stores, *, solve: bool) -> Graded:
    """The grading of a task's own solution, or of doing nothing; of a task with steps that of the first that fails."""
    with scratch() as place:
        workspace = Workspace(task, stores, place, at_once, RolloutsOptions())
        graded: Graded | None = None
        for stage in task.stages:
            if (begun := await workspace.begin(stage))["wrong"]:
                raise Fault(begun["wrong"], cause=begun["cause"])
            graded = await _part_graded(stage.task, workspace, stores, place, task, solve=solve)
            if not graded.scored.success:
                break
        return graded or await _part_graded(task, workspace, stores, place, task, solve=solve)


async def _part_graded(
    task: Rollout, workspace: Workspace, stores: Stores, place: Path, whole: Rollout, *, solve: bool
) -> Graded:
    if solve:
        await workspace.solve()
    diff = str((await workspace.diff())["diff"])
    terms = await terms_of(task, stores, whole)
    return await grade(task, Work(diff, place, workspace.collected), stores, terms)


_SHOWN = 20  # reasons


def log_of(places: Sequence[Path], sandbox: str, *, flaky: bool) -> Path:
    """The file of the last check of these places in that sandbox."""
    named = "\0".join([*sorted(str(place.absolute()) for place in places), sandbox, str(flaky)])
    return cache_folder() / "checks" / f"{hashlib.sha256(named.encode()).hexdigest()[:16]}.jsonl"


class CheckLog:
    """The results of a check by the digest of each task, a JSON line each; `before` are those of an earlier one."""

    def __init__(self, path: Path, left_out: Sequence[Omission], *, resume: bool) -> None:
        """Raises StorageError if the file can't be written."""
        self.path, self._left_out = path, left_out
        self.before = _read(path) if resume else {}
        self.checked: dict[str, Checked] = {}
        refused = [_line("", Checked(each.id, each.why), "refused") for each in left_out]
        lines = [
            *refused,
            *(_line(digest, each, each.status) for digest, each in self.before.items()),
        ]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, lines, durable=False)
            self._file = path.open("ab")
        except OSError as error:
            raise StorageError(f"{path} can't be written ({error.strerror})") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._file.close()

    def taken_up(self, tasks: Sequence[Rollout]) -> list[Rollout]:
        """The tasks without those that were checked before and haven't changed since, which count as checked."""
        self.checked |= {
            task.digest: self.before[task.digest] for task in tasks if task.digest in self.before
        }
        return [task for task in tasks if task.digest not in self.checked]

    def add(self, task: Rollout, checked: Checked) -> None:
        """Writes down the result of a task."""
        self.checked[task.digest] = checked
        self._file.write(_line(task.digest, checked, checked.status))
        self._file.flush()

    def document(self, tasks: int) -> dict[str, Any]:
        """The numbers of tasks, and why some are refused, unprepared or unsound. `tasks`: those that are accepted."""
        counts = Counter(each.status for each in self.checked.values())
        return {
            "tasks": tasks + len(self._left_out),
            "refused": len(self._left_out),
            "accepted": tasks,
            "checked": len(self.checked),
            "prepared": counts["sound"] + counts["unsound"],
            "sound": counts["sound"],
            "reasons": [*self._reasons()],
            "list": str(self.path),
        }

    def _reasons(self) -> Iterator[dict[str, Any]]:
        groups = {"refused": self._left_out}
        for status in ("unprepared", "unsound"):
            found = [each for each in self.checked.values() if each.status == status]
            groups[status] = [Omission(each.id, each.wrong) for each in found]
        for status, left_out in groups.items():
            yield from ({"status": status, **reason._asdict()} for reason in by_reason(left_out))


def table_lines(document: dict[str, Any]) -> Iterator[str]:
    """The document of a check as a table: what became of the tasks, and the reasons with an example each."""
    counts = [f"{document[name]:,} {name}" for name in ("accepted", "checked", "prepared", "sound")]
    yield f"{document['tasks']:,} tasks: {', '.join(counts)}"
    reasons = document["reasons"]
    for each in reasons[:_SHOWN]:
        yield f"{each['number']:>6}  {each['status']:10}  {each['reason']}, such as {each['example']}"
    if more := reasons[_SHOWN:]:
        yield f"{sum(each['number'] for each in more):>6}  for {len(more)} other reasons"
    if reasons:
        yield f"the whole list: {document['list']}"


def _line(digest: str, checked: Checked, status: str) -> bytes:
    about = {
        "id": checked.id,
        "status": status,
        "why": checked.wrong,
        "warning": checked.warning,
        "digest": digest,
    }
    return json.dumps(about).encode() + b"\n"


def _read(path: Path) -> dict[str, Checked]:
    """The decided results in the file of an earlier check; a torn line is none."""
    found = dict[str, Checked]()
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return found
    for line in lines:
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            row = json.loads(line)
            if row["status"] in ("sound", "unsound", "unprepared"):
                prepared = row["status"] != "unprepared"
                found[row["digest"]] = Checked(
                    row["id"], row["why"], row["warning"], is_prepared=prepared
                )
    return found
