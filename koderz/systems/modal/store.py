"""The storage of a run on Modal: a Dict, which has each reply at once, and a Volume, which keeps everything.

Dict `<app>-<run>`: `"plan"`, `(experiment, n)` for its n-th line, `(experiment, "call")` for who performs it.
Volume: `runs/<run>/plan.json` and `runs/<run>/<experiment>.jsonl`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from koderz.engines.portable import line_key, read_lines
from koderz.systems.modal.cloud import (
    Cloud,
    list_files,
    page_of,
    read_file,
    spoken,
    stored,
    write_file,
)
from koderz.systems.modal.names import Names, names_of
from koderz_tracker.index import load_index, read_records
from koderz_tracker.journal import NAME
from koderz_tracker.records import Record
from koderz_tracker.runs import read_plan

if TYPE_CHECKING:
    import modal

_STORE = "the run's store"
_HOLDER = "call"
_AT_ONCE = 16  # experiments that are read


class RunStore:
    """The store of one run, as the driver and the containers use it."""

    def __init__(self, names: Names, run: str) -> None:
        self._names, self.run = names, run

    @cached_property
    def _dict(self) -> modal.Dict:
        import modal

        return modal.Dict.from_name(self._names.store(self.run), create_if_missing=True)

    async def _get(self, key: object) -> Any:
        """The value of a key in the Dict; None if there is none."""
        with spoken(_STORE):
            return await self._dict.get.aio(key)

    async def _read(self, file: str) -> bytes | None:
        with spoken(_STORE):
            return await read_file(self._names.volume, f"runs/{self.run}/{file}")

    async def put_plan(self, plan: bytes) -> None:
        with spoken(_STORE):
            await self._dict.put.aio("plan", plan)
            await write_file(self._names.volume, f"runs/{self.run}/plan.json", plan)

    async def plan(self) -> bytes | None:
        return await self._get("plan") or await self._read("plan.json")

    async def lines(self, experiment_id: str) -> list[bytes]:
        """All lines of an experiment, from the Dict, or from the Volume if the Dict has dropped them."""
        found = await self.new_lines(experiment_id, 0)
        return found or _whole_lines(await self._read(f"{experiment_id}.jsonl") or b"")

    async def new_lines(self, experiment_id: str, start: int) -> list[bytes]:
        """The lines from the `start`-th on of an experiment under way, which only the Dict can have."""
        found: list[bytes] = []
        while (line := await self._get((experiment_id, start + len(found)))) is not None:
            found.append(line)
        return found

    async def counts(self) -> Counter[str]:
        """The number of lines in the Dict, by experiment."""
        with spoken(_STORE):
            keys = [key async for key in self._dict.keys.aio()]
        return Counter(key[0] for key in keys if isinstance(key, tuple) and key[1] != _HOLDER)

    async def experiments(self) -> set[str]:
        """The experiments with lines in the Dict or on the Volume."""
        with spoken(_STORE):
            files = await list_files(self._names.volume, f"runs/{self.run}")
        names = {path.stem for path in map(PurePosixPath, files) if path.suffix == ".jsonl"}
        return names | set(await self.counts())

    async def append(self, experiment_id: str, line: bytes, n: int) -> int:
        """Puts a line at the first free place from `n` on; returns that place."""
        while not await self._dict.put.aio((experiment_id, n), line, skip_if_exists=True):
            n += 1
        return n

    async def claim(self, experiment_id: str, call_id: str, after: str) -> str:
        """Claims an experiment for `call_id`, unless a call other than `after` has it; returns the holder."""
        key = (experiment_id, _HOLDER)
        if await self._dict.put.aio(key, call_id, skip_if_exists=True):
            return call_id
        holder: str | None = await self._get(key)
        if holder and holder != after:
            return holder
        await self._dict.put.aio(key, call_id)
        return call_id

    async def claimed(self, experiment_id: str) -> str:
        """The call that runs the experiment; empty if none has begun."""
        return await self._get((experiment_id, _HOLDER)) or ""


class RemoteRun:
    """A run on Modal, whoever submitted it: its new lines, and the pages of its calls."""

    def __init__(self, folder: Path, config: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        """`config`: of the run's plan."""
        names = names_of(environ)
        stated = {
            "max_containers": config.get("max_containers"),
            **read_plan(folder).environment.get("modal", {}),
        }
        limits = {name: stated.get(name) for name in ("max_containers", "max_inputs")}
        self._store = RunStore(names, folder.name)
        self._cloud = Cloud(names, gpu=config.get("gpu"), **limits)
        self._seen = Counter[str]()  # lines, by experiment
        journal = folder / NAME
        spans = [entry.span for entry in load_index(journal) if entry.kind]
        self._known = {_key(record) for record in read_records(journal, spans)}

    async def new_lines(self) -> AsyncIterator[bytes]:
        """The lines that are neither in the journal, nor were found by an earlier call. Raises Unreachable."""
        counts = await self._store.counts()
        grown = [name for name, count in sorted(counts.items()) if count > self._seen[name]]
        for start in range(0, len(grown), _AT_ONCE):
            names = grown[start : start + _AT_ONCE]
            found = await asyncio.gather(
                *(self._store.new_lines(name, self._seen[name]) for name in names)
            )
            for name, lines in zip(names, found, strict=True):
                self._seen[name] += len(lines)
                for line in lines:
                    if self._known.isdisjoint(map(_key, read_lines([line]))):
                        yield line

    async def page(self, experiment_id: str) -> str:
        """The address of the page of an experiment's call; empty if none has begun."""
        call = await self._store.claimed(experiment_id)
        return page_of(call) if call else ""

    async def is_busy(self) -> bool:
        """Whether anything runs or waits there."""
        return any(await self._cloud.load())


class ContainerShelf:
    """The storage of one experiment in a container: lines go to the Dict, then to the mounted volume.

    Whoever owns the volume commits it. What can't be stored is a Fault.
    """

    def __init__(self, store: RunStore, experiment_id: str, mount: Path) -> None:
        self._store, self._experiment_id = store, experiment_id
        self._path = mount / "runs" / store.run / f"{experiment_id}.jsonl"
        self._next = 0

    async def lines(self) -> list[bytes]:
        """The lines in the Dict, or those on the volume if the Dict has dropped them after days without use.

        The volume as it is mounted here may lack what a container that died hadn't committed: it gets that now.
        """
        async with stored():
            if found := await self._store.new_lines(self._experiment_id, 0):
                self._write(b"".join(found), mode="wb")
            else:
                found = _whole_lines(self._path.read_bytes()) if self._path.exists() else []
        self._next = len(found)
        return found

    async def append(self, line: bytes) -> None:
        """Stores a line and returns once it is durable."""
        async with stored():
            self._next = 1 + await self._store.append(self._experiment_id, line, self._next)
            self._write(line, mode="ab")

    async def claim(self, call_id: str, after: str) -> str:
        """Claims this experiment for `call_id`, unless a call other than `after` has it; returns the holder."""
        async with stored():
            return await self._store.claim(self._experiment_id, call_id, after)

    def _write(self, data: bytes, mode: Literal["wb", "ab"]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open(mode) as file:
            file.write(data)


def _whole_lines(data: bytes) -> list[bytes]:
    return [line + b"\n" for line in data.split(b"\n")[:-1]]


def _key(record: Record) -> tuple[str, ...]:
    return (getattr(record, "experiment_id", ""), *line_key(record))
