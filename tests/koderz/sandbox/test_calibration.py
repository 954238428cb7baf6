"""Limits that mean the same on every machine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from koderz.errors import Fault
from koderz.sandbox import Job, JobResult, Sandbox
from koderz.sandbox.calibration import LONGEST, MachineCache, calibrate, calibrated_sandbox
from tests.conftest import Shell

JOBS = [Job(f"# {number}", "", "f") for number in range(4)]


class Slow(Sandbox):
    """A machine on which everything takes half a second, and now and then two."""

    name = "slow"

    def __init__(self, broken: str = "") -> None:
        self.judged = 0
        self.broken = broken

    async def judge(self, job: Job) -> JobResult:
        self.judged += 1
        if job.program == self.broken:
            raise Fault("the tests never called f")
        return JobResult("passed", cpu=2.0 if self.judged % 2 else 0.5)


def measured(machine: Slow, nominal: float) -> float | None:
    return asyncio.run(calibrate(machine, JOBS, nominal=nominal))


def test_limits_are_doubled_on_a_machine_twice_as_slow() -> None:
    assert measured(Slow(), 1.0) == 2.0


def test_limits_are_not_shortened_on_a_fast_machine() -> None:
    assert measured(Slow(), 100.0) == 1.0


def test_nonsense_stretches_no_limit_without_end() -> None:
    assert measured(Slow(), 1e-9) == LONGEST


def test_yardstick_that_does_not_pass_measures_nothing() -> None:
    assert measured(Slow("# 2"), 1.0) is None


def test_cache_that_is_spoilt_or_unwritable_costs_only_time(tmp_path: Path) -> None:
    cache = MachineCache(tmp_path, "speed", "here")
    cache.write(2.5)
    assert MachineCache(tmp_path, "speed", "here").read() == 2.5
    assert MachineCache(tmp_path, "speed", "elsewhere").read() is None
    cache.file.write_text("{")
    assert cache.read() is None
    (tmp_path / "file").write_text("")
    MachineCache(tmp_path / "file", "speed").write(1.0)


def test_machine_is_measured_once_and_limits_are_stretched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    async def scale() -> float:
        async with calibrated_sandbox("contained", judges=1, own_programs=True) as sandbox:
            return sandbox.speed

    assert 1 <= asyncio.run(scale()) <= LONGEST
    (file,) = (tmp_path / "koderz").glob("speed-*.json")
    file.write_text("3.5")
    assert asyncio.run(scale()) == 3.5


@pytest.mark.slow
def test_stretched_limits_are_told_by_records_and_the_doctor(koderz: Shell) -> None:
    koderz("benchmark", "0", "1", "--model", "simulated", "--quiet")
    assert koderz.summary()["environment"]["cpu_scale"] >= 1
    told = json.loads(koderz("doctor", "--json").out)
    (sandbox,) = [finding for finding in told if finding["what"] == "sandbox"]
    assert "CPU limits × " in sandbox["detail"] or sandbox["state"] == "broken"
    (docker,) = [finding for finding in told if finding["what"] == "docker"]
    assert docker["state"] in ("ok", "missing")
