"""What outlives containers: a run's Dict, where each reply is at once, and the Volume, which keeps all for good.

Dict `<app>-<run>`: `"plan"`, `(experiment, n)` for its n-th line, `(experiment, "call")` for who performs it.
Volume: `runs/<run>/plan.json` and `runs/<run>/<experiment>.jsonl`.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from koderz.modal.cloud import list_files, read_file, spoken, stored, write_file
from koderz.modal.names import Names

if TYPE_CHECKING:
    import modal

_STORE = "the run's store"
_HOLDER = "call"


class RunStore:
    """The store of one run, as the driver and as a container see it."""

    def __init__(self, names: Names, run: str) -> None:
        self._names, self.run = names, run

    @cached_property
    def _dict(self) -> modal.Dict:
        import modal

        return modal.Dict.from_name(self._names.store(self.run), create_if_missing=True)

    async def _get(self, key: object) -> Any:
        """What the Dict has; None where it has nothing."""
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
        """All lines: out of the Dict, or out of the Volume, where the Dict has forgotten them."""
        found = await self.new_lines(experiment_id, 0)
        return found or _whole_lines(await self._read(f"{experiment_id}.jsonl") or b"")

    async def new_lines(self, experiment_id: str, start: int) -> list[bytes]:
        """The lines from the `start`-th on, of an experiment under way: the Dict alone has them, or nobody yet."""
        found: list[bytes] = []
        while (line := await self._get((experiment_id, start + len(found)))) is not None:
            found.append(line)
        return found

    async def counts(self) -> Counter[str]:
        """How many lines the Dict has, by experiment."""
        with spoken(_STORE):
            keys = [key async for key in self._dict.keys.aio()]
        return Counter(key[0] for key in keys if isinstance(key, tuple) and key[1] != _HOLDER)

    async def experiments(self) -> set[str]:
        """Those that the Dict or the Volume has lines of."""
        with spoken(_STORE):
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
        holder: str = await self._get(key)
        if holder != after:
            return holder
        await self._dict.put.aio(key, call_id)
        return call_id

    async def claimed(self, experiment_id: str) -> str:
        """The call that performs the experiment; empty where none has begun."""
        return await self._get((experiment_id, _HOLDER)) or ""


class ContainerShelf:
    """What outlives a container of one experiment: lines go to the Dict, then to the mounted volume.

    Whoever owns the volume commits it. What can't be stored is a Fault.
    """

    def __init__(self, store: RunStore, experiment_id: str, mount: Path) -> None:
        self._store, self._experiment_id = store, experiment_id
        self._path = mount / "runs" / store.run / f"{experiment_id}.jsonl"
        self._next = 0

    async def lines(self) -> list[bytes]:
        """What the Dict has; after days without use, in which it forgets, what the mounted volume has.

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
        """Returns once the line is durable."""
        async with stored():
            self._next = 1 + await self._store.append(self._experiment_id, line, self._next)
            self._write(line, mode="ab")

    async def claim(self, call_id: str, after: str) -> str:
        """The call that performs this experiment: `call_id`, unless another than `after` has it already."""
        async with stored():
            return await self._store.claim(self._experiment_id, call_id, after)

    def _write(self, data: bytes, mode: Literal["wb", "ab"]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open(mode) as file:
            file.write(data)


def _whole_lines(data: bytes) -> list[bytes]:
    return [line + b"\n" for line in data.split(b"\n")[:-1]]
