"""The sandboxes of koderz and of another package pass the tests that every sandbox has to pass."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.sandbox import SANDBOXES, Job, JobResult, Opening, Sandbox, open_sandbox
from koderz.sandbox.contained import ContainedSandbox
from koderz.sandbox.linux.isolation import SECCOMP
from koderz.settings.schema import Settings
from koderz.testing.sandboxes import CHECKS, Check
from tests.koderz.sandbox.test_docker import stand_in


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


TRIED = ("contained", "uncontained", "plain", "docker", "podman", "modal")
SAME = {"local": "contained"}
WORDS = {
    "def add(x, y): return x - y": ("failed", "assertion"),
    "def add(x, y): return x / 0": ("error", "exception:ZeroDivisionError"),
    "def add(x, y) return": ("error", "syntax"),
    "def add(x, y):\n    while True: pass": ("timeout", "cpu"),
    "def add(x, y): return bytearray(1 << 40)": ("error", "memory"),
    "def add(x, y): print('x' * (1 << 21))": ("error", "output"),
    "def add(x, y): return 'x' * (17 << 20)": ("error", "output"),
    "import os\ndef add(x, y): os._exit(3)": ("error", "killed"),
    "def add(x, y): raise SystemExit(0)": ("error", "exception:SystemExit"),
}


@pytest.fixture
def sandbox(
    request: pytest.FixtureRequest, holds: frozenset[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The name of a sandbox that can be opened: a stand-in is `docker` or `podman`, and Modal is a loopback one."""
    name: str = request.param
    if name in ("docker", "podman", "modal") and SECCOMP not in holds:
        pytest.skip("this machine has no seccomp")
    if name == "modal":
        request.getfixturevalue("cloud")
    elif name in ("docker", "podman"):
        stand_in(tmp_path, monkeypatch, name=name)
    return name


def test_sandbox_of_the_registry_is_tried() -> None:
    assert SANDBOXES.keys() - {"gullible"} == {*TRIED, *SAME}
    assert all(SANDBOXES.load(name) is SANDBOXES.load(other) for name, other in SAME.items())


@pytest.mark.slow
@pytest.mark.parametrize("sandbox", TRIED, indirect=True)
def test_sandbox_passes(sandbox: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koderz.sandbox.contained.WALL_FACTOR", 1000)  # nobody who is only kept waiting is ended

    async def tried() -> None:
        async with open_sandbox(sandbox, judges=2, own_programs=True) as opened:
            for check in CHECKS:
                await check(opened)
            for source, expected in WORDS.items():
                test = f"def check(candidate):\n    assert candidate(1, 2) == 3  # {source!r}\n"
                found = await opened.judge(Job(source, test, "add", timeout=0.3))
                after = await opened.judge(Job("def add(x, y): return x + y", test, "add"))
                assert (found.verdict, found.cause) == expected, (source, found.message)
                assert after.verdict == "passed", (source, after.message)

    asyncio.run(tried())


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
        SANDBOXES.load("gullible").open_workspaces(Settings(sandbox="gullible"))


def test_sandbox_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SANDBOXES.known, "nothing", "koderz.sandbox:FULL")
    with pytest.raises(KoderzError, match=r"the sandbox nothing is no subclass of koderz\.extend\.Sandbox"):
        open_sandbox("nothing", judges=1)
