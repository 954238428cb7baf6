"""Sessions on a finished run that calibrate its judge: figures by labels, and the judge asked again."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from msgspec import structs

from koderz.engines.resources import model_facts, open_resources
from koderz.engines.sources import restored_settings
from koderz.experiments.calls import Caller
from koderz.experiments.experiment import PendingExperiment
from koderz.experiments.recording import JUDGE_ASK
from koderz.experiments.replay import Replaying
from koderz.experiments.runner import ExperimentRunner
from koderz.plans.plan import restore_plan
from koderz.runs.resume import require_own
from koderz.runs.sinks import write_results
from koderz.settings.layers import fields_in
from koderz_tracker.blobs import read_text
from koderz_tracker.files import write_whole
from koderz_tracker.records import Call, Experiment, JudgeCalibration, Record, Text
from koderz_tracker.tracker import Tracker

_ANEW = Replaying(rescore=True, judge_anew=True, calls_allowed=False)

AGAIN = f"{JUDGE_ASK}-again"
"""How the keys begin of a judge's calls that are no part of a verdict."""


def record_calibration(
    folder: Path, digest: str, arms: Mapping[str, dict[str, Any]], labels: Any
) -> Path:
    """Records the figures of a run's judge, and writes its labels and its summary. Returns the labels' file.

    Raises KoderzError while another process works on the run.
    """
    import asyncio

    async def work() -> None:
        async with _session(folder) as tracker:
            await tracker.record(JudgeCalibration(digest=digest, arms=dict(arms)))

    path = folder / "calibrations" / f"{digest}.json"
    path.parent.mkdir(exist_ok=True)
    write_whole(path, [orjson.dumps({"labels": labels, "arms": arms}, option=orjson.OPT_INDENT_2)])
    asyncio.run(work())
    write_results(folder)
    return path


@asynccontextmanager
async def _session(folder: Path) -> AsyncIterator[Tracker]:
    """A session of a run that leaves its status as it was."""
    with Tracker.reopen(folder) as tracker:
        status, reason = tracker.ended
        await tracker.begin_session("calibrate", {})
        try:
            yield tracker
        finally:
            await tracker.finish(status, reason)


class Repeats(NamedTuple):
    """The verdicts of a judge that was asked again about the same answers."""

    items: int
    rounds: int
    # share of all pairs of verdicts on an item that are equal; None: nothing was asked
    agreement: float | None
    flipped: int  # items of which not all verdicts are equal, the recorded one among them
    cost: float
    stopped: str  # why not all was asked; empty if it was


@dataclass(slots=True)
class _Calls:
    """A ledger that records the calls of a judge, under keys of their own, and nothing else."""

    tracker: Tracker
    round: int
    made: list[Record] = field(default_factory=list)

    async def record(self, *lines: Record) -> None:
        for line in lines:
            if isinstance(line, Call):
                key = f"{AGAIN}{line.key.removeprefix(JUDGE_ASK)}/{self.round}"
                self.made.append(structs.replace(line, key=key))
                await self.tracker.record(self.made[-1])

    def text(self, text: Text) -> str:
        return read_text(text, self.tracker.folder)


async def ask_again(
    folder: Path,
    experiments: Sequence[str],
    rounds: int,
    *,
    max_cost: float | None = None,
    trust_config: bool = False,
    environ: Mapping[str, str] = os.environ,
    tell: Callable[[int], None] = lambda done: None,  # noqa: ARG005
) -> Repeats:
    """Asks the judge `rounds` times more about the answers of each experiment; its calls are recorded and paid.

    The solver runs again over its recorded replies, so that the judge is asked as it was.

    `max_cost`: US dollars that these calls may cost. Raises Unreachable where the judge can't be asked.
    """
    async with _session(folder) as tracker:
        settings = restored_settings(tracker.plan)
        require_own(tracker, fields_in(settings), trust_config, environ)
        before = tracker.tally.cost
        cap = None if max_cost is None else before + max_cost
        plan = restore_plan(tracker.plan, replace(settings, max_cost=cap), accept_changes=False)
        tracker.select(judged=True)
        verdicts: dict[str, list[bool]] = {}
        stopped = ""
        async with open_resources(plan, environ) as (resources, _):
            await model_facts(plan, resources.models)
            caller = Caller(
                plan.settings, resources.models, spent=before, baseline=resources.baseline
            )
            wanted = {*experiments}
            for identity in (each for each in plan.experiments() if each.experiment_id in wanted):
                recorded = tracker.recorded(identity.experiment_id)
                passed = next(
                    (line.success for line in reversed(recorded) if isinstance(line, Experiment)),
                    False,
                )
                found = verdicts.setdefault(identity.experiment_id, [passed])
                for number in range(1, rounds + 1):
                    book = _Calls(tracker, number)
                    runner = ExperimentRunner(resources, caller, book, _ANEW)
                    outcome = await runner.perform(PendingExperiment(identity, recorded))
                    recorded += book.made
                    if isinstance(outcome.record, Experiment):
                        found.append(outcome.record.success)
                    else:
                        stopped = str(outcome.fault)
                        break
                if stopped:
                    break
                tell(len(verdicts))
        spent = tracker.tally.cost - before
    write_results(folder)
    return _repeats(verdicts, rounds, spent, stopped)


def _repeats(
    verdicts: Mapping[str, Sequence[bool]], rounds: int, spent: float, stopped: str
) -> Repeats:
    pairs = equal = 0
    for found in verdicts.values():
        passed, n = sum(found), len(found)
        pairs += n * (n - 1) // 2
        equal += passed * (passed - 1) // 2 + (n - passed) * (n - passed - 1) // 2
    flipped = sum(len({*found}) > 1 for found in verdicts.values())
    return Repeats(len(verdicts), rounds, equal / pairs if pairs else None, flipped, spent, stopped)
