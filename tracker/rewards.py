"""The recorded rewards of a results folder: which tasks models were rewarded on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from koderz_tracker.errors import JournalError, StorageError
from koderz_tracker.files import open_own
from koderz_tracker.journal import NAME
from koderz_tracker.records import Plan, Reward, decode

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
