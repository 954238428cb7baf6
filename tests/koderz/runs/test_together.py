"""Runs that were planned together are resumed together, in their order, by one command with one exit code."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from koderz.plans.plan import Plan
from koderz.runs.prepare import prepare
from koderz.runs.session import lay_down
from koderz_tracker.journal import NAME
from koderz_tracker.records import encode
from koderz_tracker.runs import read_plan
from tests.conftest import PATIENCE, Shell, wait_for, whole_lines
from tests.koderz.world import write_tasks


def laid_down(koderz: Shell, *settings: dict[str, Any]) -> list[str]:
    """The ids of runs that are planned together and none of which has begun: one of a task for each settings."""
    environ = koderz.environment()
    usual = {"local_model": "simulated", "mode": "zero-shot", "judges": 1, "results": koderz.results}
    usual["dataset"] = write_tasks(koderz.folder, 1)

    async def lay() -> Sequence[Plan]:
        plans = [await prepare(usual | own, range(1), environ=environ) for own in settings]
        await lay_down(plans, environ)
        return plans

    return [plan.name for plan in asyncio.run(lay())]


def kinds(koderz: Shell, run: str) -> list[str]:
    return [line["kind"] for line in whole_lines(koderz.results / run / NAME)]


def begun(koderz: Shell, runs: Sequence[str]) -> list[bool]:
    return ["resumed" in kinds(koderz, run) for run in runs]


@pytest.mark.slow
@pytest.mark.parametrize("named", ["latest", "latest~1", "by its id"])
def test_resume_takes_up_all_runs_that_were_planned_together(koderz: Shell, named: str) -> None:
    runs = laid_down(koderz, {}, {}, {})
    done = koderz("benchmark", "resume", runs[2] if named == "by its id" else named, "--json")

    assert [kinds(koderz, run)[-1] for run in runs] == ["finished"] * 3
    began = [whole_lines(koderz.results / run / NAME)[1]["time"] for run in runs]
    assert began == sorted(began)
    told = json.loads("[" + done.out.replace("}\n{", "},{") + "]")
    assert [summary["run_id"] for summary in told] == runs

    before = [kinds(koderz, run) for run in runs]
    again = koderz("benchmark", "resume", named if named != "by its id" else runs[0])
    assert [f"{run}: nothing to do" in again.err for run in runs] == [True] * 3
    assert [kinds(koderz, run) for run in runs] == before


@pytest.mark.slow
def test_resume_ends_with_the_exit_code_of_what_went_most_wrong(koderz: Shell) -> None:
    runs = laid_down(koderz, {"simulated_fault_rate": 1.0, "max_retries": 0}, {})
    koderz("benchmark", "resume", "latest", "--quiet", code=3)

    assert begun(koderz, runs) == [True, True]


@pytest.mark.slow
def test_retry_takes_the_named_run_alone(koderz: Shell) -> None:
    runs = laid_down(koderz, {}, {})
    koderz("benchmark", "retry", runs[1], "--quiet", code=(0, 3))

    assert begun(koderz, runs) == [False, True]


@pytest.mark.slow
def test_resume_that_is_interrupted_leaves_the_following_runs(koderz: Shell) -> None:
    runs = laid_down(koderz, {"simulated_latency": 0.5, "samples": 20, "concurrency": 1}, {}, {})
    running = koderz.start("benchmark", "resume", "latest")
    wait_for(lambda: "call" in kinds(koderz, runs[0]) or running.poll() is not None)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=PATIENCE)

    assert running.returncode == 130, err
    assert begun(koderz, runs) == [True, False, False]
    assert "2 runs planned together with it not begun" in err


def test_resume_leaves_out_a_run_that_is_gone_and_says_so(koderz: Shell) -> None:
    runs = laid_down(koderz, {}, {})
    shutil.rmtree(koderz.results / runs[0])
    done = koderz("benchmark", "resume", "latest")

    assert f"{runs[0]}, which was planned together with {runs[1]}, is left out: there is no run" in done.err
    assert kinds(koderz, runs[1])[-1] == "finished"


@pytest.mark.slow
def test_plan_from_elsewhere_resumes_no_other_runs(koderz: Shell) -> None:
    (own,), (foreign,) = laid_down(koderz, {}), laid_down(koderz, {})
    journal = koderz.results / foreign / NAME
    plan = read_plan(journal.parent)
    for named in ([own, foreign], [own], ["../elsewhere", foreign], [str(Path(koderz.results, own)), foreign]):
        journal.write_bytes(encode(structs.replace(plan, together=named)))
        koderz("benchmark", "resume", foreign, "--quiet", "--trust-config")
        assert begun(koderz, [own, foreign]) == [False, True]
