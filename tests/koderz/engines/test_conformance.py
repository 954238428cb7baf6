"""The engines of koderz and of another package pass the tests that every engine has to pass."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from koderz.engines import ENGINES, Driver, Engine, Traits, open_engine
from koderz.engines.local import LocalEngine
from koderz.errors import KoderzError
from koderz.plans.plan import Plan
from koderz.settings.schema import Settings
from koderz.testing.engines import CHECKS, Check, planned


class Idle(Engine):
    """An engine that says that nothing is left to do."""

    name = "idle"

    async def run(self, driver: Driver) -> None:
        """Leave all work undone."""


class PlainEngine:
    """An engine of a package for which there was no class."""

    name, isolation, outlives, notices, throttle = "plain", "", False, ("hear",), ()

    def __init__(self, inner: Engine) -> None:
        self._inner = inner

    async def check(self) -> dict[str, Any]:
        return await self._inner.check()

    async def run(self, driver: Driver) -> None:
        await self._inner.run(driver)


@asynccontextmanager
async def open_plain(plan: Plan, environ: Mapping[str, str]) -> AsyncIterator[PlainEngine]:
    async with LocalEngine.open(plan, environ) as inner:
        yield PlainEngine(inner)


vars(open_plain)["traits"] = Traits(can=frozenset({"judge", "gpu"}))


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES.known, "idle", f"{__name__}:Idle")
    monkeypatch.setitem(ENGINES.known, "plain", f"{__name__}:open_plain")


TRIED = ("local", "plain", pytest.param("modal", marks=pytest.mark.slow))


def test_engine_of_the_registry_is_tried() -> None:
    assert ENGINES.keys() == {"local", "modal", "idle", "plain"}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", TRIED)
def test_engine_passes_conformance(name: str, check: Check, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if name == "modal":
        request.getfixturevalue("cloud")
    asyncio.run(check(tmp_path, name, os.environ if name == "modal" else {}))


def test_engine_that_breaks_a_rule_does_not_pass(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        asyncio.run(CHECKS[0](tmp_path, "idle", {}))


def test_engine_of_an_opener_has_all_members(tmp_path: Path) -> None:
    async def opened() -> Engine:
        async with open_engine(await planned(tmp_path, "plain", tasks=1), {}) as engine:
            return engine

    engine, kind = asyncio.run(opened()), ENGINES.load("plain")

    assert (engine.name, engine.notices, engine.throttle, engine.waits) == ("plain", ("hear",), (), "")
    assert (kind.can, kind.carries, kind.options) == (frozenset({"judge", "gpu"}), frozenset(), None)
    assert kind.settle(settings := Settings(), ()) is settings
    assert kind.view(tmp_path, {}, {}) is None
    assert asyncio.run(kind.stored("bench_0", {})) is None


def test_engine_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES.known, "nothing", "koderz.systems.modal.names:INPUTS")
    with pytest.raises(KoderzError, match=r"the engine nothing is no subclass of koderz\.extend\.Engine"):
        ENGINES.load("nothing")


def test_engine_with_a_misspelt_member_is_refused() -> None:
    with pytest.raises(KoderzError, match=r"^Own has no member `outlive`; did you mean `outlives`\?$"):
        type("Own", (Idle,), {"outlive": True})
