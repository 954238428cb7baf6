"""Conformance tests of solvers: functions that raise AssertionError if a solver breaks the rules.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_critic_is_a_solver(check, tmp_path):
        asyncio.run(check(tmp_path, Trial("mine.py:critic", {"roles": ("critic=simulated",)})))

Checks run on this machine and ask the simulated model only, so they need no key and cost nothing. Those that are given
the same folder and trial, one after another, share a plan and a run.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from koderz.plans.estimate import expected_calls
from koderz.plans.plan import Plan
from koderz.prompts import load_prompts
from koderz.runs.prepare import prepare
from koderz.settings.options import fields_of
from koderz.solvers.definition import HANDLES
from koderz.testing.engines import Notes, performed, shared, write_tasks
from koderz.testing.suites import require_verdicts
from koderz_tracker.records import Attempt, Call, Experiment, Grade, Once, Record


@dataclass(frozen=True)
class Trial:
    """A solver, and the run of one task in which it is tried."""

    solver: str
    """Its name, or FILE:NAME."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the run, such as `suite`, `roles` and the solver's own options. Without a suite or a dataset, the
    task is a small one in HumanEval's format."""

    cuts: int = 12
    """The most places of the record at which the experiment is killed and resumed."""


Check = Callable[[Path, Trial], Coroutine[Any, Any, None]]


async def signature_names_handles_first(folder: Path, trial: Trial) -> None:
    """Parameters that may be given by position are handles; a solver's own parameters stand behind `*`."""
    found = (await _planned(folder, trial)).arms[0].solver.signature.values()
    unknown = [
        each.name
        for each in found
        if each.kind is not each.KEYWORD_ONLY and each.name not in HANDLES
    ]
    assert not unknown, f"{unknown[0]!r} is no handle; the solver's own parameters stand behind *"


async def declarations_name_what_there_is(folder: Path, trial: Trial) -> None:
    """Choices and earlier versions name parameters, prompts name prompts, and each option has a help text."""
    plan = await _planned(folder, trial)
    solver = plan.arms[0].solver
    named = {*solver.choices, *(name for values in solver.earlier.values() for name in values)}
    assert named <= solver.signature.keys() - HANDLES, (
        f"no parameters: {sorted(named - solver.signature.keys())}"
    )
    prompts = {name for names in (solver.prompts or {}).values() for name in names}
    known = load_prompts(plan.settings.prompt_dir).texts.keys()
    assert prompts <= known, f"no prompts: {sorted(prompts - known)}"
    assert all(0 < version < solver.version for version in solver.earlier), (
        "earlier versions are below the version"
    )
    for option in fields_of(solver.options).values() if solver.options else ():
        assert option.about.help.endswith("."), f"the option {option.flag} has no sentence of help"


async def replay_repeats_no_call(folder: Path, trial: Trial) -> None:
    """Killed after any line of its record and resumed, an experiment comes to the same end with no call made twice."""
    plan = await _planned(folder, trial)
    (identity,) = plan.experiments()
    first = await _performed(folder, trial)
    lines, ended = _lines(first), _ended(first)
    calls = _calls(lines)
    for length in _lengths(len(lines), trial.cuts):
        again = await performed(plan, {}, recorded={identity.experiment_id: lines[:length]})
        made = _calls(_lines(again))
        where = f"resumed from {length} of {len(lines)} lines"
        if not plan.arms[0].solver.restarts:
            assert made == calls - _calls(lines[:length]), (
                f"{where}, it made {made} calls of {calls}"
            )
            assert _ended(again) == ended, f"{where}, it came to {_ended(again)}, not {ended}"


async def estimate_covers_the_calls(folder: Path, trial: Trial) -> None:
    """The calls of an experiment lie between the least and the most that were expected of it."""
    plan = await _planned(folder, trial)
    spans = [expected.calls for _, _, expected in expected_calls(plan)]
    made = _calls(_lines(await _performed(folder, trial)))
    low, high = sum(span[0] for span in spans), sum(span[1] for span in spans)
    assert low <= made <= high, f"it made {made} calls, and {low:g} to {high:g} were expected"


async def a_hostile_reply_is_no_fault(folder: Path, trial: Trial) -> None:
    """Whatever its models reply, an experiment ends with a verdict; see `koderz.testing.suites.HOSTILE`."""
    await require_verdicts(await _planned_anew(folder, trial))


CHECKS: tuple[Check, ...] = (
    signature_names_handles_first,
    declarations_name_what_there_is,
    replay_repeats_no_call,
    estimate_covers_the_calls,
    a_hostile_reply_is_no_fault,
)
"""All of them. None depends on another."""


async def _planned(folder: Path, trial: Trial) -> Plan:
    """The plan that checks share."""
    return await shared("plan", (folder, trial), partial(_planned_anew, folder, trial))


async def _performed(folder: Path, trial: Trial) -> Notes:
    """The run that checks share."""
    return await shared(
        "run", (folder, trial), partial(performed, await _planned(folder, trial), {})
    )


async def _planned_anew(folder: Path, trial: Trial) -> Plan:
    settings = {
        "local_model": "simulated",
        "results": folder / "results",
        "judges": 1,
        **trial.settings,
    }
    if not settings.keys() & {"suite", "dataset"}:
        settings["dataset"] = write_tasks(folder / "tasks.jsonl", 1)
    return await prepare(
        {**settings, "solver": trial.solver}, range(1), environ={"XDG_STATE_HOME": str(folder)}
    )


def _lines(notes: Notes) -> Sequence[Record]:
    """The lines by which an experiment is replayed, in the order in which they were recorded."""
    return [line for line in notes.lines if isinstance(line, Call | Attempt | Grade | Once)]


def _calls(lines: Sequence[Record]) -> int:
    return sum(isinstance(line, Call) for line in lines)


def _ended(notes: Notes) -> tuple[object, ...]:
    """The verdict, the score and the totals of the only experiment. Raises AssertionError if it ended as a fault."""
    (outcome,) = notes.outcomes
    record = outcome.record
    assert isinstance(record, Experiment), f"it ended as a fault: {outcome.fault or record}"
    return record.verdict, record.success, record.score, record.calls, record.grades, record.cost


def _lengths(lines: int, cuts: int) -> list[int]:
    """At most `cuts` numbers of lines, from none to all, evenly spread."""
    steps = min(lines, cuts - 1)
    return sorted({round(lines * step / max(1, steps)) for step in range(steps + 1)})
