"""A run that ended before its first verdict, on every screen: nothing judged is not 0 %."""

from __future__ import annotations

import json

import pytest

from koderz.testing import a_journal, a_plan
from koderz_tracker.records import Finished
from koderz_tracker.sinks.json import write_summary
from tests.conftest import Shell
from tests.koderz.analysis.builders import OTHER, RUN
from tests.koderz.cli.conftest import Command
from tests.tracker.builders import fault, judged

BOTH = ["zero-shot", "iterative"]


@pytest.fixture(params=[BOTH[:1], BOTH, ["mine", "yours", "iterative"]], ids=["single", "comparative", "others"])
def solvers(request: pytest.FixtureRequest, koderz: Shell) -> list[str]:
    """The solvers of a run of faults alone, and of a later one with a verdict in its last arm."""
    chosen: list[str] = request.param
    last = chosen[-1]
    for run_id, record in ((RUN, fault(0, solver=last)), (OTHER, judged(0, solver=last))):
        plan = a_plan(1, arms=chosen, run_id=run_id)
        write_summary(a_journal(koderz.results, record, Finished(status="complete"), plan=plan))
    return chosen


@pytest.mark.usefixtures("solvers")
@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "--sort", "rate"],
        ["show", RUN],
        ["compare", OTHER, RUN],
        ["compare", RUN, OTHER, "--markdown"],
        ["compare", RUN, OTHER, OTHER],
        ["problems"],
        ["export", RUN, "--format", "csv"],
        ["report"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_screens_show_no_rate_of_nothing(command: Command, arguments: list[str]) -> None:
    done = command("benchmark", *arguments)

    assert "None" not in done.out + done.err
    assert " 0.0%" not in done.out


def test_json_has_null_for_a_rate_of_nothing(command: Command, solvers: list[str]) -> None:
    newest, faulted = json.loads(command("benchmark", "list", "--json").out)
    assert [arm["rate"] for arm in newest["arms"]] == [*[None] * (len(solvers) - 1), 100.0]
    assert {arm["rate"] for arm in faulted["arms"]} == {arm["iterations"] for arm in faulted["arms"]} == {None}
    assert [arm["solver"] for arm in newest["arms"]] == solvers

    compared = json.loads(command("benchmark", "compare", RUN, OTHER, "--arm", solvers[-1], "--json").out)
    assert (compared["a"]["success_rate"], compared["b"]["success_rate"]) == (None, 100.0)
    assert compared["difference"] is None


def test_gates_do_not_judge_nothing(command: Command, solvers: list[str]) -> None:
    done = command("benchmark", "compare", RUN, "--arm", solvers[-1], "--min-success-rate", "0", code=2)

    assert "has no results, so no gate can judge it" in done.err
