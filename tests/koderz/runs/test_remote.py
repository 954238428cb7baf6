"""A run that only an engine elsewhere keeps is brought here by its id, whichever engine that is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from koderz.engines import ENGINES, Driver, Engine, StoredRun
from koderz.engines.portable import files_of, pack_plan
from koderz.errors import KoderzError
from koderz.runs.resume import find_anywhere
from koderz_tracker.records import Call, encode
from tests.koderz.world import journal_of, planned


@dataclass
class Kept:
    """What an engine keeps of one run."""

    run_id: str
    plan: bytes
    of: Mapping[str, list[bytes]] = field(default_factory=dict)

    async def found(self, run_id: str, _: Mapping[str, str]) -> tuple[bytes, Kept] | None:
        return (self.plan, self) if run_id == self.run_id else None

    async def experiments(self) -> set[str]:
        return {*self.of}

    async def lines(self, experiment_id: str) -> list[bytes]:
        return self.of[experiment_id]


class Keeping(Engine):
    """An engine that keeps a run."""

    name = "keeping"
    _kept: ClassVar[Kept]

    async def run(self, driver: Driver) -> None:
        raise AssertionError

    @classmethod
    async def stored(cls, run_id: str, environ: Mapping[str, str]) -> tuple[bytes, StoredRun] | None:
        return await cls._kept.found(run_id, environ)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    plan = asyncio.run(planned(tmp_path, 2))
    ids = [identity.experiment_id for identity in plan.experiments()]
    calls = {
        each: Call(experiment_id=each, call=1, purpose="attempt", model="m", messages=[], reply="r") for each in ids
    }
    found = Kept(plan.name, pack_plan(plan, files_of(plan)), {each: [encode(call)] for each, call in calls.items()})
    monkeypatch.setitem(ENGINES.known, "keeping", f"{__name__}:Keeping")
    monkeypatch.setattr(Keeping, "_kept", found, raising=False)
    return found


def test_run_that_an_engine_keeps_is_brought_here_with_its_lines(tmp_path: Path, kept: Kept) -> None:
    folder = asyncio.run(find_anywhere(tmp_path / "here", kept.run_id, {}))

    assert folder == tmp_path / "here" / kept.run_id
    assert {record.experiment_id for record in journal_of(folder) if isinstance(record, Call)} == {*kept.of}


def test_run_that_no_engine_keeps_is_named(tmp_path: Path, kept: Kept) -> None:
    with pytest.raises(KoderzError, match="there is no run bench_00000000_20260101_000000"):
        asyncio.run(find_anywhere(tmp_path / "here", "bench_00000000_20260101_000000", {}))
