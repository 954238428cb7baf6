"""The state of each sink of a run: `<run_id>/sinks.json`, written whole or not at all.

A cache like the index: one that is missing, torn or of another journal only means that the sinks are
handed every record again, which leaves their targets as they are.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import orjson

from koderz_tracker.errors import StorageError
from koderz_tracker.files import open_own, write_whole
from koderz_tracker.journal import NAME as JOURNAL
from koderz_tracker.records import now

NAME = "sinks.json"
_HEAD_BYTES = 4096  # of a plan, which hold its id and time

State = Literal["up to date", "behind", "down", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The state of one sink: how far it has come."""

    state: State
    reason: str = ""  # why it is down, or behind; what it refuses for good, where it is up to date
    bytes: int = 0  # of the journal that are durable in the target
    records: int = 0  # that those bytes hold
    time: str = field(default_factory=now)  # when this was written
    options: Mapping[str, Any] = field(default_factory=dict)  # what the target was made with

    def __str__(self) -> str:
        return f"{self.state}: {self.reason}" if self.reason else self.state

    def progress(self, folder: Path | str) -> int:
        """The share of the journal that is in the sink, in per cent."""
        try:
            return 100 * self.bytes // os.stat(f"{folder}/{JOURNAL}").st_size  # noqa: PTH116
        except (OSError, ZeroDivisionError):
            return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    schema_version: int = 1
    journal: str = ""  # SHA-256 of the beginning of its first line
    sinks: dict[str, Standing] = field(default_factory=dict)


def standing_of(folder: Path | str) -> Mapping[str, Standing]:
    """The state of each sink of the run in `folder`, by name; empty if nothing is known.

    What was up to date is behind once the journal has grown. Reads a few hundred bytes, and what the
    journal has grown by.
    """
    found = _read(folder)
    return {
        name: replace(standing, state="behind")
        if standing.state == "up to date" and _has_grown(f"{folder}/{JOURNAL}", standing.bytes)
        else standing
        for name, standing in found.sinks.items()
    }


def record_standings(
    folder: Path, change: Callable[[Mapping[str, Standing]], Mapping[str, Standing]]
) -> None:
    """Replaces the recorded states with those that `change` returns for the present ones.

    Safe from several processes and threads at once. Raises StorageError where the disk refuses.
    """
    from filelock import FileLock

    if not folder.is_dir():  # which a lock would make again
        raise StorageError(f"{folder} is gone")
    try:
        with FileLock(folder / ".sinks.lock"):
            before = _read(folder)
            after = _File(journal=_digest(folder), sinks={**before.sinks, **change(before.sinks)})
            if after != before:
                data = orjson.dumps(after, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
                write_whole(folder / NAME, [data], durable=False)
    except OSError as error:
        raise StorageError(f"{folder / NAME} can't be written ({error.strerror})") from None


def choose_sinks(folder: Path, chosen: Iterable[str], known: Iterable[str]) -> None:
    """Records which sinks a session feeds. A sink that is turned off and on again keeps its position."""
    on = tuple(chosen)

    def change(before: Mapping[str, Standing]) -> dict[str, Standing]:
        names = dict.fromkeys((*known, *on, *before))
        return {name: _turned(before.get(name), on=name in on) for name in names}

    record_standings(folder, change)


def mark_up_to_date(folder: Path, name: str) -> None:
    """Records that a sink has the whole journal, for a sink that is made anew from all of it each time."""
    end = (folder / JOURNAL).stat().st_size
    record_standings(folder, lambda _: {name: Standing(state="up to date", bytes=end)})


def _turned(before: Standing | None, *, on: bool) -> Standing:
    if before is None:
        return Standing(state="behind" if on else "off")
    if on == (before.state != "off"):
        return before
    return replace(before, state="behind" if on else "off", reason="", time=now())


def _has_grown(journal: str, since: int) -> bool:
    """Whether there is a whole line from byte `since` on; a torn last line doesn't count."""
    try:
        if os.stat(journal).st_size <= since:  # noqa: PTH116
            return False
        with open_own(journal, 2) as file:
            file.seek(since)
            return file.readline(1 << 26).endswith(b"\n")
    except OSError:
        return False


def _read(folder: Path | str) -> _File:
    """Reads the file by its path as plain text: for 10,000 runs, Path objects cost more than the reading."""
    try:
        with open_own(f"{folder}/{NAME}", 2) as file:
            found = msgspec.json.decode(file.read(), type=_File)
    except (OSError, msgspec.DecodeError):
        return _File()
    return found if found.journal == _digest(folder) else _File()


def _digest(folder: Path | str) -> str:
    try:
        with open_own(f"{folder}/{JOURNAL}", 2) as file:
            return hashlib.sha256(file.readline(_HEAD_BYTES)).hexdigest()
    except OSError:
        return ""
