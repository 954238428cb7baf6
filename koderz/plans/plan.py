"""What a run will do: tasks × solvers × model × samples, decided and written down before anything is spent."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

import orjson

from koderz.errors import KoderzError
from koderz.plans.environment import describe_environment
from koderz.plans.identity import Identity
from koderz.prompts import Prompts, load_prompts
from koderz.settings.schema import OF_SINKS, Settings, as_config, from_config
from koderz.solvers import Solver, load_solver
from koderz.suites import Suite, limits_of, load_suite, suite_digest
from koderz.types import Judging, Task
from tracker import records

MODES: Mapping[str, tuple[str, ...]] = {
    "zero-shot": ("zero-shot",),
    "iterative": ("iterative",),
    "comparative": ("zero-shot", "iterative"),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan with everything at hand that it takes to carry it out."""

    record: records.Plan
    settings: Settings
    suite: Suite
    tasks: tuple[Task, ...]
    solvers: tuple[Solver, ...]
    prompts: Prompts

    @property
    def judging(self) -> Judging:
        """How answers are judged: the suite's own limits where the settings have none."""
        return self.settings.judging(limits_of(self.suite))

    @property
    def name(self) -> str:
        """The run's id, or the id of the only experiment."""
        return self.record.run_id or next(self.experiments()).experiment_id

    def experiments(self, ended: Container[int] = ()) -> Iterator[Identity]:
        """Those whose id, as a number, isn't in `ended`: a task's solvers in turn, so that load hits all alike."""
        digest = self.record.details["digest"]
        begun = [
            (
                _NumberOfSamples(self.record.run_id, task.id, solver.name, self.settings.local_model, digest),
                task,
                solver,
            )
            for task in self.tasks
            for solver in self.solvers
        ]
        for sample in range(self.record.samples):
            for number_of, task, solver in begun:
                if (number := number_of(sample)) not in ended:
                    yield Identity(f"exp_{number:016x}", task, solver.name, sample)

    def solver(self, name: str) -> Solver:
        return next(solver for solver in self.solvers if solver.name == name)


@dataclass(frozen=True, slots=True)
class Subject:
    """What a plan is about: a suite, the tasks chosen from it, and what models are told of them."""

    suite: Suite
    tasks: tuple[Task, ...]
    prompts: Prompts


def load_subject(settings: Settings, select: Callable[[Sequence[Task]], Sequence[Task]]) -> Subject:
    """Raises KoderzError for what in the settings doesn't fit the suite or the prompts."""
    suite = load_suite(settings.suite, settings.dataset)
    prompts = load_prompts(settings.prompt_dir)
    return Subject(suite, _with_messages(select(suite.tasks), prompts, settings), prompts)


def make_plan(
    settings: Settings,
    subject: Subject,
    solvers: tuple[Solver, ...],
    *,
    problem_range: str | None = None,
    details: Mapping[str, Any] | None = None,
    single: bool = False,
) -> Plan:
    """A new plan. `details` go into the record as they are; `single`: one experiment, which is no run."""
    how = settings.judging(limits_of(subject.suite))
    settings = replace(settings, test_timeout=how.timeout, test_memory=how.memory_mb)
    config = as_config(settings) | {
        "mode": solvers[0].name if settings.solver else settings.mode,
        "temperature": settings.sampling_temperature,
        "problem_range": problem_range,
        "problems": [task.id for task in subject.tasks],
    }
    matches = _matches(subject, solvers)
    record = records.Plan(
        run_id=None if single else _run_id(),
        mode=config["mode"],
        solvers=[solver.name for solver in solvers],
        tasks=config["problems"],
        samples=settings.samples,
        config=config,
        environment=describe_environment() | {"dataset_digest": suite_digest(subject.suite)},
        simulated=settings.local_model == "simulated",
        details={
            **(details or {}),
            "digest": secrets.token_hex(16) if single else _digest([_decisive(config), matches, details or {}]),
            "matches": matches,
            "prompts": _used_prompts(subject.prompts, settings),
            "expectations": {
                task.id: {"expected_response": task.reference.strip("\n")} for task in subject.tasks if task.reference
            },
        },
    )
    return Plan(record, settings, subject.suite, subject.tasks, solvers, subject.prompts)


def _used_prompts(prompts: Prompts, settings: Settings) -> dict[str, str]:
    """The texts that models may be told in a run with these settings, by name."""
    used = {
        "reasoning": settings.cot,
        "feedback": settings.mode != "zero-shot" or settings.solver,
        "spec": settings.effective_spec_model,
        "specification": settings.effective_spec_model,
        "checkpoint": settings.effective_checkpoint_model,
        "guidance": settings.effective_checkpoint_model,
        "lessons": settings.use_memory != "off",
    }
    return {name: text for name, text in prompts.texts.items() if used.get(name, True)}


def _decisive(config: Mapping[str, Any]) -> dict[str, Any]:
    """What an experiment may depend on; where it is recorded is not of it."""
    return {name: value for name, value in config.items() if name not in OF_SINKS}


def restore_plan(record: records.Plan, overrides: Mapping[str, Any], *, accept_changes: bool) -> Plan:
    """The plan of a run that is picked up again, with the few settings in `overrides` that may differ.

    Raises KoderzError where the suite, the prompts or a solver are no longer what they were.
    """
    settings = replace(from_config(_known_mode(record.config)), **overrides)
    subject = load_subject(settings, partial(_same_tasks, record))
    details = record.details
    solvers = load_solvers(settings, details.get("solver_arguments", {}), details.get("specs", {}))
    if record.config.get("imported"):  # whatever an arm is called, each experiment has one reply on record
        solvers = tuple(replace(load_solver("zero-shot", {}, {}), name=solver.name) for solver in solvers)
    changed = _changed(details.get("matches", {}), _matches(subject, solvers))
    if changed and not accept_changes:
        raise KoderzError(
            f"{record.run_id}: not what it was when the run began: {', '.join(changed)}. "
            "Put it back, or mix old and new with --accept-changes"
        )
    return Plan(record, settings, subject.suite, subject.tasks, solvers, subject.prompts)


def _same_tasks(record: records.Plan, tasks: Sequence[Task]) -> list[Task]:
    known = {task.id: task for task in tasks}
    gone = [name for name in record.tasks if name not in known]
    if gone:
        raise KoderzError(f"{record.run_id}: the suite has no task {gone[0]!r} any more")
    return [known[name] for name in record.tasks]


def _with_messages(tasks: Sequence[Task], prompts: Prompts, settings: Settings) -> tuple[Task, ...]:
    return tuple(
        replace(task, messages=prompts.first_messages(task.prompt, task.entry_point, cot=settings.cot))
        for task in tasks
    )


def load_solvers(
    settings: Settings, arguments: Mapping[str, str], specs: Mapping[str, str] | None = None
) -> tuple[Solver, ...]:
    """The solvers of a mode, or the user's own, with their parameters settled."""
    offered = _offered(settings, specs or {})
    names = (settings.solver,) if settings.solver else MODES[settings.mode]
    return tuple(load_solver(name, offered, arguments) for name in names)


def settle_solvers(
    solvers: Sequence[Solver], settings: Settings, arguments: Mapping[str, str], specs: Mapping[str, str]
) -> tuple[Solver, ...]:
    """Loaded solvers with the parameters that these settings give: the file of one is not executed again."""
    offered = _offered(settings, specs)
    return tuple(solver.settled(offered, arguments) for solver in solvers)


def _offered(settings: Settings, specs: Mapping[str, str]) -> dict[str, Any]:
    return as_config(settings) | {
        "temperature": settings.sampling_temperature,
        "specs": dict(specs),
        "spec_model": settings.effective_spec_model,
        "checkpoint_model": settings.effective_checkpoint_model,
    }


def _known_mode(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with a mode that Settings knows: a user's solver goes by its own name there."""
    return {**config, "mode": config["mode"] if config.get("mode") in MODES else "iterative"}


def _matches(subject: Subject, solvers: Sequence[Solver]) -> dict[str, dict[str, str]]:
    """What has to be the same when the run is picked up again, by kind and name."""
    return {
        "suite": {"name": subject.suite.name},
        "task": {task.id: task.digest for task in subject.tasks},
        "prompt": subject.prompts.digests(),
        "solver": {solver.name: solver.digest for solver in solvers if solver.is_foreign},
    }


def _changed(before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> list[str]:
    return [
        f"{kind} {name}"
        for kind, digests in before.items()
        for name, digest in digests.items()
        if now.get(kind, {}).get(name) != digest
    ][:5]


def _run_id() -> str:
    return f"bench_{secrets.token_hex(4)}_{datetime.now():%Y%m%d_%H%M%S}"


class _NumberOfSamples:
    """The ids of one task's samples as numbers: what they have in common is hashed once, which resuming feels."""

    def __init__(self, *parts: object) -> None:
        self._begun = hashlib.blake2b(f"{repr(parts)[:-1]}, ".encode(), digest_size=8)

    def __call__(self, sample: int) -> int:
        digest = self._begun.copy()
        digest.update(b"%d)" % sample)
        return int.from_bytes(digest.digest(), "big")


def _digest(value: Any) -> str:
    return hashlib.blake2b(orjson.dumps(value, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()
