"""A run as Modal has it, whoever submitted it; looking changes nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from koderz.engines.portable import line_key, read_lines
from koderz.modal.cloud import Cloud, page_of
from koderz.modal.names import names_of
from koderz.modal.store import RunStore
from tracker.index import load_index, read_records
from tracker.journal import NAME
from tracker.records import Record
from tracker.runs import read_plan

_AT_ONCE = 16  # experiments that are read


class RemoteRun:
    """What has been stored of a run since the last look, and where its experiments are to be seen."""

    def __init__(self, folder: Path, config: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        """`config`: of the run's plan."""
        names = names_of(environ)
        stated = {"max_containers": config.get("max_containers"), **read_plan(folder).environment.get("modal", {})}
        limits = {name: stated.get(name) for name in ("max_containers", "max_inputs")}
        self._store = RunStore(names, folder.name)
        self._cloud = Cloud(names, gpu=config.get("gpu"), **limits)
        self._seen = Counter[str]()  # lines, by experiment
        journal = folder / NAME
        spans = [entry.span for entry in load_index(journal) if entry.kind]
        self._known = {_key(record) for record in read_records(journal, spans)}

    async def new_lines(self) -> AsyncIterator[bytes]:
        """Those that neither the journal had when this was made, nor an earlier look found. Raises Unreachable."""
        counts = await self._store.counts()
        grown = [name for name, count in sorted(counts.items()) if count > self._seen[name]]
        for start in range(0, len(grown), _AT_ONCE):
            names = grown[start : start + _AT_ONCE]
            found = await asyncio.gather(*(self._store.new_lines(name, self._seen[name]) for name in names))
            for name, lines in zip(names, found, strict=True):
                self._seen[name] += len(lines)
                for line in lines:
                    if self._known.isdisjoint(map(_key, read_lines([line]))):
                        yield line

    async def page(self, experiment_id: str) -> str:
        """Where the call that performs an experiment is to be seen; empty where none has begun."""
        call = await self._store.claimed(experiment_id)
        return page_of(call) if call else ""

    async def is_busy(self) -> bool:
        """Whether anything runs or waits there."""
        return any(await self._cloud.load())


def _key(record: Record) -> tuple[str, ...]:
    return (getattr(record, "experiment_id", ""), *line_key(record))
