"""The sandboxes of koderz and of another package pass the tests that every sandbox has to pass."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.sandbox import SANDBOXES, Job, JobResult, Opening, Sandbox, open_sandbox, open_workspaces
from koderz.sandbox.contained import ContainedSandbox
from koderz.settings.schema import Settings
from koderz.testing.sandboxes import CHECKS, Check


class Gullible(Sandbox):
    """A sandbox that takes whatever it is handed for right."""

    name = "gullible"

    async def judge(self, job: Job) -> JobResult:
        return JobResult("passed")


class Plain:
    """A sandbox of a package for which there was no class."""

    name, isolation, speed = "plain", "", 1.0

    def __init__(self, wanted: Opening) -> None:
        self._inner = ContainedSandbox.open(wanted)

    async def judge(self, job: Job) -> JobResult:
        return await self._inner.judge(job)

    async def judge_anew(self, job: Job) -> JobResult:
        self._inner.speed = self.speed
        return await self._inner.judge_anew(job)

    async def __aenter__(self) -> Plain:
        await self._inner.__aenter__()
        self.isolation = self._inner.isolation
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._inner.__aexit__(*error)


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (Gullible, Plain):
        monkeypatch.setitem(SANDBOXES.known, kind.__name__.lower(), f"{__name__}:{kind.__name__}")


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", ["contained", "uncontained", "plain"])
def test_sandbox_passes(name: str, check: Check) -> None:
    asyncio.run(check(name))


@pytest.mark.parametrize("check", CHECKS[1:], ids=lambda check: check.__name__)
def test_sandbox_that_breaks_a_rule_does_not_pass(check: Check) -> None:
    with pytest.raises(AssertionError):
        asyncio.run(check("gullible"))


def test_sandbox_of_a_function_is_calibrated_where_it_has_a_speed() -> None:
    async def opened() -> Sandbox:
        async with open_sandbox("plain", judges=1, own_programs=True) as sandbox:
            sandbox.speed = 2.0
            assert (await sandbox.judge_anew(Job("def f(): ...", "def check(f):\n    f()", "f"))).verdict == "passed"
            return sandbox

    sandbox = asyncio.run(opened())

    assert (sandbox.name, sandbox.is_calibrated, sandbox.speed) == ("plain", True, 2.0)
    assert sandbox.isolation


def test_sandbox_without_workspaces_says_so() -> None:
    with pytest.raises(KoderzError, match="--sandbox gullible: no commands of agents or patches can be run there"):
        open_workspaces("gullible", Settings(sandbox="gullible"))


def test_sandbox_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SANDBOXES.known, "nothing", "koderz.sandbox:FULL")
    with pytest.raises(KoderzError, match=r"the sandbox nothing is no subclass of koderz\.extend\.Sandbox"):
        open_sandbox("nothing", judges=1)
