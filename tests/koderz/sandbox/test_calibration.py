"""Limits that mean the same on every machine."""

from __future__ import annotations

import asyncio
from pathlib import Path

from koderz.errors import Fault
from koderz.sandbox import Job, Outcome
from koderz.sandbox.calibration import Calibration, calibrate

JOBS = {f"task/{number}": Job(f"# {number}", "", "f") for number in range(4)}


class Slow:
    """A machine on which everything takes half a second."""

    def __init__(self, broken: str = "") -> None:
        self.judged = 0
        self.broken = broken

    async def judge_anew(self, job: Job) -> Outcome:
        self.judged += 1
        if job.program == self.broken:
            raise Fault("the tests never called f")
        return Outcome("passed", cpu=0.5)


def measured(machine: Slow, cache: Path, nominal: float = 1.0) -> Calibration:
    return asyncio.run(calibrate(machine, JOBS, nominal=nominal, cache=cache))


def test_a_machine_twice_as_slow_gets_twice_the_time(tmp_path: Path) -> None:
    assert measured(Slow(), tmp_path) == Calibration(2.0)


def test_what_was_measured_on_this_machine_is_not_measured_again(tmp_path: Path) -> None:
    measured(Slow(), tmp_path)
    again = Slow()
    assert measured(again, tmp_path) == Calibration(2.0)
    assert again.judged == 0


def test_a_cache_that_is_spoilt_or_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    measured(Slow(), tmp_path)
    for file in tmp_path.iterdir():
        file.write_text("{")
    assert measured(Slow(), tmp_path) == Calibration(2.0)
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert measured(Slow(), blocked) == Calibration(2.0)


def test_references_that_do_not_pass_are_named_and_tried_again_next_time(tmp_path: Path) -> None:
    found = measured(Slow("# 2"), tmp_path)
    assert found.broken == {"task/2": "the tests never called f"}
    assert measured(Slow(), tmp_path).broken == {}


def test_nonsense_stretches_no_limit_without_end(tmp_path: Path) -> None:
    assert measured(Slow(), tmp_path, nominal=1e-9).scale == 20.0
