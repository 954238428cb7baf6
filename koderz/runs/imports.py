"""Imports of samples files: programs written elsewhere become a run and are judged here."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from msgspec import UNSET

from koderz._version import __version__
from koderz.errors import KoderzError
from koderz.experiments.recording import Answer, Ask
from koderz.experiments.replay import Handles
from koderz.experiments.runner import experiment_of, fault_of
from koderz.plans.arms import make_arms
from koderz.plans.ids import NumberOfSamples
from koderz.plans.plan import Identity, Plan, load_subject, make_plan
from koderz.runs.judge import Judge, Sample, Samples, open_judge, read_samples
from koderz.runs.orchestrator import SessionEnd
from koderz.runs.session import SessionResult, close, trust_own
from koderz.sandbox import NoSandbox
from koderz.settings.schema import Settings
from koderz.suites import load_suite
from koderz.suites.references import ReferenceFault
from koderz.types import MAIN, Completion, Sampling, Verdict
from koderz_tracker import records
from koderz_tracker.basis import Arm, Cell
from koderz_tracker.blobs import read_text
from koderz_tracker.merge import Merged
from koderz_tracker.records import Record, Text
from koderz_tracker.results import ANSWER, Result
from koderz_tracker.runs import run_folders
from koderz_tracker.sinks import JSON
from koderz_tracker.sinks.json import write_summary
from koderz_tracker.sinks.standing import mark_up_to_date
from koderz_tracker.summary import Summary
from koderz_tracker.tracker import Tracker


async def import_samples(
    path: Path, settings: Settings, *, tell: Callable[[int], None]
) -> tuple[SessionResult, Samples]:
    """Makes a new run of the programs in a file, and judges each here.

    `settings.local_model` is who wrote them; None: as the file says. `tell` hears how many are judged. The run is
    whole, or isn't there: a task that can't be judged here is a fault of its samples. Raises KoderzError for a file
    without samples, Unreachable without a sandbox.
    """
    suite = load_suite(settings.suite, settings.dataset, settings)
    samples = read_samples(path, suite.tasks)
    plan = _plan(samples, settings)
    async with open_judge(suite, plan.settings, own_programs=plan.record.simulated) as judge:
        sandbox = judge.context.sandbox
        is_run = not isinstance(sandbox, NoSandbox)
        facts = {"sandbox": sandbox.isolation, "cpu_scale": sandbox.speed} if is_run else {}
        plan = plan.having(environment=plan.record.environment | facts)
        trust_own(plan)
        with Tracker.create(settings.results, plan.name, plan.record) as tracker:
            tracker.privacy = plan.privacy
            try:
                await _judge_all(plan, samples, tracker, judge, tell)
            except BaseException:
                shutil.rmtree(tracker.folder, ignore_errors=True)
                raise
            # The file holds no more, so the session is complete unless there are faults.
            if faults := tracker.tally.faults:
                ended = SessionEnd("incomplete", f"{faults} experiments ended in a fault")
            else:
                missing = plan.record.planned - len(samples.samples)
                ended = SessionEnd(
                    "complete",
                    f"the file has {missing} less than {plan.record.samples} samples a task"
                    if missing
                    else "",
                )
            await tracker.finish(ended.status, ended.reason)
            return close(plan, tracker, ended, None), samples


_OF_FAULT = ("problem_id", "arm", "sample", "reason", "cause", "cost")
_OF_RESULT = tuple(
    {*Result.__struct_fields__}
    & {*records.Experiment.__struct_fields__} - {"experiment_id", "facts"}
)


async def import_log(log: Summary, path: Path, results: Path, *, summary: bool) -> Merged:
    """Makes a run of another tool's log, with its verdicts as they are: nothing is judged again.

    Its id follows from what the log holds, so that the same log becomes one run however often it is imported.
    `summary`: with its summary file.
    """
    digest = hashlib.sha256(repr((log.config, log.results, log.faults)).encode()).hexdigest()
    if same := [
        folder.name
        for folder in run_folders(results)
        if folder.name.startswith(f"bench_{digest[:8]}_")
    ]:
        return Merged(same[0], "there already")
    written = datetime.fromtimestamp((await asyncio.to_thread(path.stat)).st_mtime)
    try:
        begun = datetime.fromisoformat(log.start_time) if log.start_time else written
    except ValueError:
        begun = written
    run_id = f"bench_{digest[:8]}_{begun:%Y%m%d_%H%M%S}"
    counts = Counter((result.problem_id, result.arm) for result in log.results)
    counts.update((fault["problem_id"], fault["arm"]) for fault in log.faults)
    models = {result.arm: result.model for result in log.results}
    tasks = list(dict.fromkeys(task for task, _ in counts))
    plan = records.Plan(
        run_id=run_id,
        mode=log.mode,
        arms=[Arm(name=arm, solver=arm, models={"main": models.get(arm, "")}) for arm in log.arms],
        tasks=tasks,
        samples=max(counts.values()),
        cells=[Cell(task, arm, samples) for (task, arm), samples in counts.items()],
        config=dict(log.config),
        environment={"imported": {"file": path.name, "digest": digest}, "koderz": __version__},
        measures=log.measures,
        headline=log.headline,
        notes=log.notes,
        asked=[log.asked.get(task, "") for task in tasks],
    )
    number_of = {cell: NumberOfSamples(run_id, *cell, plan.basis.digest) for cell in counts}
    with Tracker.create(results, run_id, plan) as tracker:
        try:
            for result in log.results:
                own = {name: getattr(result, name) for name in _OF_RESULT}
                facts = {"untold": list(result.untold)} | (
                    {} if result.answer is UNSET else {ANSWER: result.answer}
                )
                named = number_of[result.problem_id, result.arm](result.sample)
                await tracker.record(
                    records.Experiment(**own, experiment_id=f"exp_{named:016x}", facts=facts)
                )
            for fault in log.faults:
                own = {name: fault[name] for name in _OF_FAULT}
                named = number_of[fault["problem_id"], fault["arm"]](fault["sample"])
                await tracker.record(
                    records.Fault(**own, solver=fault["arm"], experiment_id=f"exp_{named:016x}")
                )
            await tracker.finish(
                "incomplete" if log.faults and log.status == "complete" else log.status, log.reason
            )
        except BaseException:
            shutil.rmtree(tracker.folder, ignore_errors=True)
            raise
    if summary:
        write_summary(results / run_id)
        mark_up_to_date(results / run_id, JSON)
    return Merged(run_id, "added")


def _plan(samples: Samples, settings: Settings) -> Plan:
    solvers = samples.solvers
    most = max(Counter((sample.task.id, sample.solver) for sample in samples.samples).values())
    mode: Any = "comparative" if len(solvers) > 1 else solvers[0]
    settings = replace(
        settings, local_model=settings.local_model or samples.model, mode=mode, samples=most
    )
    named = {sample.task.id for sample in samples.samples}
    subject = load_subject(settings, lambda tasks: [task for task in tasks if task.id in named])
    plan = make_plan(settings, subject, make_arms(settings, {}))
    source = {
        "file": samples.path.name,
        "sha256": hashlib.sha256(samples.path.read_bytes()).hexdigest(),
    }
    kinds = {sample.is_reply for sample in samples.samples}
    if len(kinds) > 1:
        raise KoderzError(f"{samples.path} has programs and replies; import them from a file each")
    return plan.having(
        config=plan.record.config | {"imported": "replies" if True in kinds else True},
        environment=plan.record.environment | {"imported": source},
    )


async def _judge_all(
    plan: Plan, samples: Samples, tracker: Tracker, judge: Judge, tell: Callable[[int], None]
) -> None:
    known = {(sample.task.id, sample.solver, sample.number): sample for sample in samples.samples}
    experiments = (
        (experiment, known[key])
        for experiment in plan.experiments()
        if (key := (experiment.task.id, experiment.arm.name, experiment.sample)) in known
    )
    done = count(1)

    async def work(pair: tuple[Identity, Sample]) -> None:
        """Runs an experiment with a page in place of a model, so that its journal is like that of any other run."""
        (identity, sample), started = pair, time.monotonic()
        async with Handles(identity, [], _Page(sample, tracker, judge)) as handles:
            try:
                verdict = await handles.judge(
                    identity.task, await handles.ask(identity.task.messages)
                )
            except ReferenceFault as fault:
                await tracker.record(
                    fault_of(identity, fault, cost=0.0, calls=handles.totals.calls)
                )
            else:
                await tracker.record(experiment_of(handles, verdict, time.monotonic() - started))
        tell(next(done))

    await judge.each(experiments, work)


@dataclass(frozen=True, slots=True)
class _Page:
    """The backend of one experiment whose program comes from a file and costs nothing."""

    sample: Sample
    tracker: Tracker
    own_judge: Judge

    async def complete(self, ask: Ask, identity: Identity) -> Answer:  # noqa: ARG002
        model = identity.arm.model
        return Answer(
            Completion(self.sample.program, finish_reason="imported", model=model),
            MAIN,
            model,
            Sampling(),
        )

    async def judge(self, *_: Any) -> Verdict:
        return await self.own_judge.verdict(self.sample)

    async def record(self, *lines: Record) -> None:
        await self.tracker.record(*lines)

    def text(self, text: Text) -> str:
        return read_text(text, self.tracker.folder)
