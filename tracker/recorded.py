"""Records of other runs in a results folder: replies, found by what decides them, and rewards.

The journals are all that there is: where the replies lie is read off them anew each time, from the end of each call's
line alone. A reply itself is read, and looked at, once it is asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from koderz_tracker.blobs import fetched, whole, with_texts
from koderz_tracker.errors import JournalError, KoderzError, StorageError
from koderz_tracker.files import open_own
from koderz_tracker.index import CODES, load_index, read_records, read_spans, unreadable
from koderz_tracker.journal import NAME
from koderz_tracker.privacy import Privacy
from koderz_tracker.records import Blob, Call, Plan, Reused, Reward, Text, decode
from koderz_tracker.runs import is_locked, require_own

_AT_END = re.compile(rb'"asked":"([0-9a-f]{32})"')
_TAIL = 128  # bytes at the end of a call's line, which hold what was asked as koderz writes it
_NO_REPLIES = frozenset({"context", "imported", "rejected", "time"})
"""Ends of calls to which the model said nothing: a server's refusal, a reply that was late, a line of a file."""


class _Place(NamedTuple):
    """The place of a call's line."""

    run: Path
    offset: int
    length: int


class _OfCall(Struct):
    """The fields of a call that are read where another program wrote its line."""

    asked: str = ""
    reused: Reused | None = None


class RecordedReplies:
    """The replies of runs that have ended, each of which answers one call of a run."""

    def __init__(
        self,
        runs: Iterable[Path],
        privacy: Privacy | None = None,
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        """`privacy` opens private texts; `say` is told once of each run with replies that can't be taken."""
        self.calls = 0
        self._privacy, self._say = privacy, say
        self._places: dict[bytes, list[_Place]] = {}
        self._taken: set[Reused] = set()
        self._failed: set[Path] = set()
        silent = 0
        for run in runs:
            try:
                if is_locked(run):
                    say(f"reuse: {run.name} is still going, so none of its replies is taken")
                    continue
                silent += self._add(require_own(run))
            except KoderzError as error:
                say(f"reuse: none of the replies of {run.name} is taken: {error}")
        if silent:
            say(
                f"reuse: {silent} run{'s' * (silent > 1)} of an earlier koderz, which didn't record all that decides "
                "a reply, can't be taken from"
            )

    def take(self, asked: str) -> Call | None:
        """The latest whole reply to this that wasn't taken yet, free of cost; None if there is none."""
        found: Call | None = None
        for place in self._places.get(bytes.fromhex(asked), ()):
            call = self._read(place, asked)
            if call is None or call.reused is None or call.reused in self._taken:
                continue
            if found is None or found.reused is None or found.reused.time < call.reused.time:
                found = call
        if found and found.reused:
            self._taken.add(found.reused)
        return found

    def leave_those_of(self, run: Path) -> None:
        """Excludes the replies that a run, which is resumed, has taken already."""
        for line in read_spans(run / NAME, _calls_of(run)):
            if b'"reused":' in line and (reused := _of_call(line).reused):
                self._taken.add(reused)

    def give_back(self) -> None:
        """Lets all replies be taken again."""
        self._taken.clear()

    def _add(self, run: Path) -> bool:
        """Adds the places of a run's calls; returns whether no call says what was asked."""
        before, calls = self.calls, 0
        journal = run / NAME
        try:
            with open_own(journal, 2) as file:
                for offset, length in _calls_of(run):
                    calls += 1
                    tail = os.pread(
                        file.fileno(), min(length, _TAIL), offset + length - min(length, _TAIL)
                    )
                    at_end = _AT_END.search(tail)
                    asked = (
                        at_end[1].decode()
                        if at_end
                        else _of_call(os.pread(file.fileno(), length, offset)).asked
                    )
                    if re.fullmatch("[0-9a-f]{32}", asked):
                        self._places.setdefault(bytes.fromhex(asked), []).append(
                            _Place(run, offset, length)
                        )
                        self.calls += 1
        except OSError as error:
            raise unreadable(journal, error) from None
        return calls > 0 and self.calls == before

    def _read(self, place: _Place, asked: str) -> Call | None:
        """The call at a place with all its texts, as the answer to another; None if it can't be that."""
        run, *span = place
        try:
            (record,) = read_records(run / NAME, [(span[0], span[1])])
            if not isinstance(record, Call) or record.asked != asked:
                raise JournalError(f"{run / NAME} was changed")
            if record.finish_reason in _NO_REPLIES:
                return None
            record = fetched(record, run)
            record = self._privacy.opened(record) if self._privacy else record
            with_texts(record, _refuse_private)
            call = whole(record, run)
        except (KoderzError, ValueError) as error:
            if run not in self._failed:
                self._failed.add(run)
                self._say(
                    f"reuse: a reply of {run.name} can't be read, so that is asked anew: {error}"
                )
            return None
        assert isinstance(call, Call), "it has the kind that it had"
        own = Reused(run.name, call.experiment_id, call.call, call.time)
        saved = call.cost_saved if call.reused else call.cost
        if saved < 0 or (call.reused and call.reused.call < 1):  # which no summary could hold
            return None
        return replace(
            call, reused=call.reused or own, cost=0.0, cost_saved=saved, retries=0, throttled=0
        )


def _calls_of(run: Path) -> list[tuple[int, int]]:
    """Offset and length of each call's line."""
    columns = load_index(run / NAME).columns("code", "length", "offset")
    return [(offset, length) for code, length, offset in columns if code == CODES["call"]]


def _of_call(line: bytes) -> _OfCall:
    try:
        return msgspec.json.decode(line, type=_OfCall)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _OfCall()


def _refuse_private(_: str, text: Text) -> Text:
    if isinstance(text, Blob) and text.private:
        raise JournalError("its texts are private to another suite")
    return text


FOLDER = re.compile(r"rewards_[0-9a-f]{8}_\d{8}_\d{6}")
TASKS = "tasks"
"""The file beside a journal of rewards with the digests of tasks in it, a line each. It can be made anew from there."""

_DIGEST = re.compile(rb'^\{"kind":"reward",.*?"task_digest":"([0-9a-f]+)"')


def reward_folders(results: Path) -> list[Path]:
    """The folder of every journal of rewards, oldest first."""
    if not results.is_dir():
        return []
    names = [name for name in os.listdir(results) if FOLDER.fullmatch(name)]  # noqa: PTH208 of many runs
    found = [results / name for name in names if (results / name / NAME).is_file()]
    return sorted(found, key=lambda folder: folder.name.split("_", 2)[2])


@dataclass(frozen=True, slots=True)
class RewardsSummary:
    """The figures of a journal of rewards."""

    run_id: str
    mode: str
    start_time: str
    suites: list[str]
    scored: int
    faults: int
    mean_reward: float | None  # None where nothing was scored
    tamper_rate: float | None


def summed_up(folder: Path) -> RewardsSummary:
    """The figures of a journal of rewards. Raises JournalError if it can't be read."""
    suites: list[str] = []
    scored = faults = tampered = 0
    total, started = 0.0, ""
    try:
        with open_own(folder / NAME, 2) as lines:
            for line in lines:
                record = decode(line) if line.endswith(b"\n") else None
                if isinstance(record, Plan):
                    suites, started = [*record.config.get("suites", ())], record.time
                elif isinstance(record, Reward) and record.reward is None:
                    faults += 1
                elif isinstance(record, Reward) and record.reward is not None:
                    scored, total, tampered = (
                        scored + 1,
                        total + record.reward,
                        tampered + bool(record.tampering),
                    )
    except OSError as error:
        raise JournalError(f"{folder / NAME} can't be read ({error.strerror})") from None
    mean, rate = (total / scored, tampered / scored) if scored else (None, None)
    return RewardsSummary(folder.name, "rewards", started, suites, scored, faults, mean, rate)


class RewardedTasks:
    """The digests of tasks that a journal of rewards has scores of."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / TASKS
        self._known: set[str] = set()

    def add(self, digest: str) -> None:
        """Add a task before its first score is recorded. Raises StorageError if the disk refuses."""
        if digest in self._known:
            return
        try:
            with self._path.open("a", encoding="ascii") as file:
                file.write(f"{digest}\n")
        except OSError as error:
            raise StorageError(f"{self._path} can't be written ({error.strerror})") from None
        self._known.add(digest)


def rewarded_in(results: Path, digests: Iterable[str]) -> tuple[str, ...]:
    """The names of the journals that have a score of one of these tasks, oldest first."""
    wanted = {*digests}
    return tuple(
        folder.name
        for folder in reward_folders(results)
        if not wanted.isdisjoint(_rewarded(folder))
    )


def _rewarded(folder: Path) -> set[str]:
    with suppress(OSError), open_own(folder / TASKS, 2) as tasks:
        return {*tasks.read().decode("ascii", "replace").split()}
    found = set()
    with suppress(OSError), open_own(folder / NAME, 2) as lines:
        for line in lines:
            if matched := _DIGEST.match(line):
                found.add(matched[1].decode())
    return found
