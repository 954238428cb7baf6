"""The results of `koderz rollouts check`, written as they come, so that one that was stopped goes on, and their sum."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from koderz.errors import StorageError
from koderz.settings.paths import cache_folder
from koderz.systems.rollouts.checking import Checked
from koderz.systems.rollouts.task import Rollout
from koderz.systems.rollouts.tasks.runnable import Omission, by_reason
from koderz_tracker.files import write_whole

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
        lines = [*refused, *(_line(digest, each, each.status) for digest, each in self.before.items())]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, lines, durable=False)
            self._file = path.open("ab")
        except OSError as error:
            raise StorageError(f"{path} can't be written ({error.strerror})") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def taken_up(self, tasks: Sequence[Rollout]) -> list[Rollout]:
        """The tasks without those that were checked before and haven't changed since, which count as checked."""
        self.checked |= {task.digest: self.before[task.digest] for task in tasks if task.digest in self.before}
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
    about = {"id": checked.id, "status": status, "why": checked.wrong, "warning": checked.warning, "digest": digest}
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
                found[row["digest"]] = Checked(row["id"], row["why"], row["warning"], is_prepared=prepared)
    return found
