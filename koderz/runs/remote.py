"""Fetches a run that was begun on another machine, by its id."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from koderz.engines import StoredRun, stored_run
from koderz.errors import KoderzError
from tracker.records import Record
from tracker.runs import RUN_ID, find_run
from tracker.tracker import Tracker

FILES = "files"  # in the folder of a run that was brought: what its plan names by path
_AT_ONCE = 16  # experiments that are read


async def find_anywhere(results: Path, name: str, environ: Mapping[str, str]) -> Path:
    """The folder of a run, made anew if only a remote engine has it. Raises KoderzError if nobody does."""
    try:
        return find_run(results, name)
    except KoderzError:
        found = await stored_run(name, environ) if RUN_ID.fullmatch(name) else None
        if found is None:
            raise
    from koderz.engines.portable import lay_out, plan_record

    plan, store = found
    with Tracker.create(results, name, plan_record(plan)) as tracker:
        lay_out(plan, tracker.folder / FILES)
        await _bring(store, tracker)
        return tracker.folder


async def _bring(store: StoredRun, tracker: Tracker) -> None:
    """Writes the stored records of every experiment into the journal."""
    from koderz.engines.portable import read_lines

    experiments = iter(sorted(await store.experiments()))

    async def lane() -> None:
        for experiment_id in experiments:
            await tracker.record(*_as_it_ended(list(read_lines(await store.lines(experiment_id)))))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(lane())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _as_it_ended(lines: list[Record]) -> list[Record]:
    """The records without an outcome that was worked on again, such as a fault that was retried."""
    return [line for line in lines[:-1] if line.kind not in ("experiment", "fault")] + lines[-1:]
