"""What outlives containers: a run's Dict, where each reply is at once, and the Volume, which keeps all for good.

Dict `<app>-<run>`: `"plan"`, `(experiment, n)` for its n-th line, `(experiment, "call")` for who performs it.
Volume: `runs/<run>/plan.json` and `runs/<run>/<experiment>.jsonl`.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal

from koderz.errors import KoderzError
from koderz.modal.cloud import list_files, read_file, spoken, stored, write_file
from koderz.modal.names import Names

if TYPE_CHECKING:
    import modal

_HOLDER = "call"


class RunStore:
    """The store of one run, as the driver and as a container see it."""

    def __init__(self, names: Names, run: str) -> None:
        self._names, self.run = names, run

    @cached_property
    def _dict(self) -> modal.Dict:
        import modal

        return modal.Dict.from_name(self._names.store(self.run), create_if_missing=True)

    async def put_plan(self, plan: bytes) -> None:
        with spoken("the run's store"):
            await self._dict.put.aio("plan", plan)
            await write_file(self._names.volume, f"runs/{self.run}/plan.json", plan)

    async def plan(self) -> bytes | None:
        with spoken("the run's store"):
            found: bytes | None = await self._dict.get.aio("plan")
            return found or await read_file(self._names.volume, f"runs/{self.run}/plan.json")

    async def lines(self, experiment_id: str) -> list[bytes]:
        """All lines: out of the Dict, or out of the Volume, where the Dict has forgotten them."""
        if found := await self.new_lines(experiment_id, 0):
            return found
        with spoken("the run's store"):
            data = await read_file(self._names.volume, f"runs/{self.run}/{experiment_id}.jsonl")
        return _whole_lines(data or b"")

    async def new_lines(self, experiment_id: str, start: int) -> list[bytes]:
        """The lines from the `start`-th on, of an experiment under way: the Dict alone has them, or nobody yet."""
        found: list[bytes] = []
        with spoken("the run's store"):
            while (line := await self._dict.get.aio((experiment_id, start + len(found)))) is not None:
                found.append(line)
        return found

    async def counts(self) -> Counter[str]:
        """How many lines the Dict has, by experiment."""
        with spoken("the run's store"):
            keys = [key async for key in self._dict.keys.aio()]
        return Counter(key[0] for key in keys if isinstance(key, tuple) and key[1] != _HOLDER)

    async def experiments(self) -> set[str]:
        """Those that the Dict or the Volume has lines of."""
        with spoken("the run's store"):
            files = await list_files(self._names.volume, f"runs/{self.run}")
        kept = {path.stem for path in map(PurePosixPath, files) if path.suffix == ".jsonl"}
        return kept | set(await self.counts())

    async def append(self, experiment_id: str, line: bytes, n: int) -> int:
        """Puts a line at the first free place from `n` on; returns that place."""
        while not await self._dict.put.aio((experiment_id, n), line, skip_if_exists=True):
            n += 1
        return n

    async def claim(self, experiment_id: str, call_id: str, after: str) -> str:
        """Makes `call_id` the one that performs the experiment, unless another than `after` is; returns who is."""
        key = (experiment_id, _HOLDER)
        if await self._dict.put.aio(key, call_id, skip_if_exists=True):
            return call_id
        holder = str(await self._dict.get.aio(key))
        if holder != after:
            return holder
        await self._dict.put.aio(key, call_id)
        return call_id

    async def claimed(self, experiment_id: str) -> str:
        """The call that performs the experiment; empty where none has begun."""
        with spoken("the run's store"):
            return str(await self._dict.get.aio((experiment_id, _HOLDER)) or "")


class ContainerShelf:
    """What outlives a container: lines go to the Dict, then to the mounted volume, whose owner commits it."""

    def __init__(self, names: Names, mount: Path) -> None:
        self._names, self._mount = names, mount
        self._stores: dict[str, RunStore] = {}
        self._next: dict[str, int] = {}  # by experiment

    async def plan(self, run: str) -> bytes:
        """Raises KoderzError where the run's plan isn't there."""
        async with stored():
            found = await self._store(run).plan()
        if found is None:
            raise KoderzError(f"the plan of {run} is not in the run's store any more")
        return found

    async def lines(self, run: str, experiment_id: str) -> list[bytes]:
        """What the Dict has; after days without use, in which it forgets, what the mounted volume has.

        The volume as it is mounted here may lack what a container that died hadn't committed: it gets that now.
        """
        path = self._path(run, experiment_id)
        async with stored():
            if found := await self._store(run).new_lines(experiment_id, 0):
                _write(path, b"".join(found))
            else:
                found = _whole_lines(path.read_bytes()) if path.exists() else []
        self._next[experiment_id] = len(found)
        return found

    async def append(self, run: str, experiment_id: str, line: bytes) -> None:
        """Returns once the line is durable."""
        async with stored():
            place = await self._store(run).append(experiment_id, line, self._next.get(experiment_id, 0))
            self._next[experiment_id] = place + 1
            _write(self._path(run, experiment_id), line, mode="ab")

    async def claim(self, run: str, experiment_id: str, call_id: str, after: str) -> str:
        """The call that performs this experiment: `call_id`, unless another than `after` has it already."""
        async with stored():
            return await self._store(run).claim(experiment_id, call_id, after)

    def forget(self, experiment_id: str) -> None:
        self._next.pop(experiment_id, None)

    def _path(self, run: str, experiment_id: str) -> Path:
        return self._mount / "runs" / run / f"{experiment_id}.jsonl"

    def _store(self, run: str) -> RunStore:
        return self._stores.setdefault(run, RunStore(self._names, run))


def _whole_lines(data: bytes) -> list[bytes]:
    return [line + b"\n" for line in data.split(b"\n")[:-1]]


def _write(path: Path, data: bytes, mode: Literal["wb", "ab"] = "wb") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode) as file:
        file.write(data)
