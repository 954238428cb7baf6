"""A run that was begun on another machine, brought here by its id."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from koderz.errors import KoderzError
from koderz.modal.names import is_configured, names_of
from tracker.records import Record
from tracker.runs import RUN_ID, find_run
from tracker.tracker import Tracker

if TYPE_CHECKING:
    from koderz.modal.store import RunStore

FILES = "files"  # in the folder of a run that was brought: what its plan names by path
_AT_ONCE = 16  # experiments that are read


async def find_anywhere(results: Path, name: str, environ: Mapping[str, str]) -> Path:
    """The folder of a run, made anew where only Modal knows it. KoderzError where nobody does."""
    try:
        return find_run(results, name)
    except KoderzError:
        if not (RUN_ID.fullmatch(name) and is_configured(environ)):
            raise
        from koderz.engines.portable import lay_out, plan_record
        from koderz.modal.store import RunStore

        store = RunStore(names_of(environ), name)
        plan = await store.plan()
        if plan is None:
            raise
    with Tracker.create(results, name, plan_record(plan)) as tracker:
        lay_out(plan, tracker.folder / FILES)
        await _bring(store, tracker)
        return tracker.folder


async def _bring(store: RunStore, tracker: Tracker) -> None:
    """Writes down what is stored of every experiment."""
    experiments = iter(sorted(await store.experiments()))
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(_bring_each(experiments, store, tracker))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _bring_each(experiments: Iterator[str], store: RunStore, tracker: Tracker) -> None:
    from koderz.engines.portable import read_lines

    for experiment_id in experiments:
        await tracker.record(*_as_it_ended(list(read_lines(await store.lines(experiment_id)))))


def _as_it_ended(lines: list[Record]) -> list[Record]:
    """Without an outcome that was gone on from: a fault that was retried, say."""
    return [line for line in lines[:-1] if line.kind not in ("experiment", "fault")] + lines[-1:]
