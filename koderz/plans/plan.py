"""A run's plan: its cells of task, arm and samples, made, recorded and restored."""

from __future__ import annotations

import platform
import secrets
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs, to_builtins

from koderz._version import __version__
from koderz.errors import KoderzError
from koderz.plans.arms import Arm, restore_arms
from koderz.plans.commit import commit_of
from koderz.plans.deciding import until_decided
from koderz.plans.ids import NumberOfSamples, digest_of
from koderz.plans.selection import clusters_of, equal_prompts, notes_on
from koderz.prompts import Prompts, load_prompts
from koderz.settings.layers import as_config
from koderz.settings.options import fields_of, plain
from koderz.settings.registry import digest_of_file
from koderz.settings.requests import OF_REQUESTS
from koderz.settings.schema import CLUSTER_COLUMN, OF_DECIDING, OF_REUSE, OF_SINKS, Settings
from koderz.solvers import load_solver
from koderz.solvers.definition import NEEDED, OPENED
from koderz.suites import (
    SUITES,
    checked_measures,
    load_suite,
    modes_of,
    questions_of,
    require_recordable,
    suite_digest,
    task_digest,
)
from koderz.suites.suite import ProgramSuite, Suite
from koderz.types import JUDGE, Judging, Task
from koderz_tracker import records
from koderz_tracker.parts import part_of
from koderz_tracker.privacy import Privacy
from koderz_tracker.recorded import rewarded_in


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan with all objects that carrying it out takes."""

    record: records.Plan
    settings: Settings
    suite: Suite
    tasks: tuple[Task, ...]
    arms: tuple[Arm, ...]
    prompts: Prompts

    @property
    def judging(self) -> Judging:
        """The limits under which answers are judged."""
        return self.suite.limits

    @property
    def privacy(self) -> Privacy | None:
        """The encryption of the tasks' texts in the record, if the suite declares them private."""
        return Privacy(self.suite.privacy_key) if self.suite.privacy_key else None

    @property
    def own_sinks(self) -> tuple[str, ...]:
        """The sinks of the suite and the solvers, which run besides those that the user chooses."""
        return _each_once(self.suite.sinks, *(arm.solver.sinks for arm in self.arms))

    @property
    def name(self) -> str:
        """The run's id; for a single experiment, its id."""
        return self.record.run_id or next(self.experiments()).experiment_id

    def having(self, **changes: Any) -> Plan:
        """The plan with these fields of its record changed."""
        return replace(self, record=structs.replace(self.record, **changes))

    def experiments(self, ended: Container[int] = ()) -> Iterator[Identity]:
        """The experiments whose id, as a number, isn't in `ended`; arms alternate, so that load hits all alike.

        In a run that is decided on, task after task in its `order`.
        """
        digest = self.record.basis.digest
        begun = [
            (NumberOfSamples(self.record.run_id, task.id, arm.name, digest), task, arm, samples)
            for task, arm, samples in self.cells()
        ]
        for together in self._asked_together(begun):
            for sample in range(self.record.samples):
                for number_of, task, arm, samples in together:
                    if sample < samples and (number := number_of(sample)) not in ended:
                        yield Identity(f"exp_{number:016x}", task, arm, sample)

    def _asked_together(self, cells: list[_Begun]) -> Iterable[list[_Begun]]:
        """The cells whose first samples are asked before any second one: all, or those of a task to be decided on."""
        if not self.record.until_decided:
            return [cells]
        places = {task: place for place, task in enumerate(self.record.until_decided.order)}
        cells.sort(key=lambda cell: places.get(cell[1].id, len(places)))
        return (list(same) for _, same in groupby(cells, key=lambda cell: cell[1].id))

    def arm(self, name: str) -> Arm:
        """The arm with this name."""
        return next(arm for arm in self.arms if arm.name == name)

    def cells(self) -> Iterator[tuple[Task, Arm, int]]:
        """Each task in each of its arms, with its settings there and the number of samples."""
        if self.record.cells is None:
            every = ((task, arm, self.record.samples) for task in self.tasks for arm in self.arms)
        else:
            tasks = {task.id: task for task in self.tasks}
            arms = {arm.name: arm for arm in self.arms}
            every = ((tasks[cell.task], arms[cell.arm], cell.samples) for cell in self.record.cells)
        yield from ((in_arm(self.suite, task, arm), arm, samples) for task, arm, samples in every)


_Begun = tuple[NumberOfSamples, Task, Arm, int]


class Identity(NamedTuple):
    """The identity of an experiment: its id, task, arm and sample."""

    experiment_id: str
    task: Task
    arm: Arm
    sample: int

    @property
    def of_line(self) -> dict[str, Any]:
        """The identity as fields of a journal line."""
        return {
            "experiment_id": self.experiment_id,
            "problem_id": self.task.id,
            "solver": self.arm.solver.name,
            "arm": self.arm.name,
            "sample": self.sample,
        }


def in_arm(suite: Suite, task: Task, arm: Arm) -> Task:
    """The task with this arm's own settings. Raises KoderzError if the suite has no such settings for it."""
    if arm.settings is None:
        return task
    return suite.set_up(task, arm.settings)


class Subject(NamedTuple):
    """The subject of a plan: a suite, the tasks chosen from it, and the prompts."""

    suite: Suite
    tasks: tuple[Task, ...]
    prompts: Prompts
    # the prompts that the tasks' messages were made of, by name
    prompt_names: frozenset[str] = frozenset()
    # of the file that defines the suite; empty: it is koderz' or an installed package's
    file_digest: str = ""


def load_subject(
    settings: Settings,
    select: Callable[[Sequence[Task]], Sequence[Task]],
    prompts: Prompts | None = None,
    suite: Suite | None = None,
) -> Subject:
    """Loads a plan's suite, tasks and prompts. Raises KoderzError for settings that don't fit them.

    `prompts`: those that take the place of koderz' own and of the settings' folder; `suite`: that of the settings, if
    it is loaded already.
    """
    if suite is None:
        suite = load_suite(settings.suite, settings.dataset, settings)
    prompts = prompts or load_prompts(settings.prompt_dir)
    told: set[str] = set()
    noting = Prompts(prompts.texts, told.add)
    chosen = select(suite.tasks)
    require_recordable(suite, chosen)
    tasks = tuple(replace(task, messages=suite.messages(task, noting)) for task in chosen)
    digest = digest_of_file(settings.suite) if SUITES.is_file(settings.suite) else ""
    return Subject(suite, tasks, prompts, frozenset(told), digest)


def make_plan(
    settings: Settings,
    subject: Subject,
    arms: tuple[Arm, ...],
    *,
    cells: Sequence[records.Cell] | None = None,
    problem_range: str | None = None,
    details: Mapping[str, Any] | None = None,
    single: bool = False,
) -> Plan:
    """Makes a new plan. `details` are recorded as they are; with `single`, it is one experiment and no run."""
    settings = settings.having(subject.suite.configuration)
    following = following_fields(settings, subject, arms, cells)
    config = as_config(settings) | following.pop("config") | {"problem_range": problem_range}
    stated, added = [arm.record for arm in arms], following.pop("details")
    given = dict(details or {})
    digest = (
        secrets.token_hex(16) if single else _digest(config, stated, cells, added["matches"], given)
    )
    record = records.Plan(
        run_id=None if single else f"bench_{secrets.token_hex(4)}_{datetime.now():%Y%m%d_%H%M%S}",
        arms=stated,
        cells=cells,
        config=config,
        environment=describe_environment() | {"dataset_digest": suite_digest(subject.suite)},
        rewarded_in=rewarded_in(settings.results, (task.digest for task in subject.tasks)),
        details={**given, "digest": digest, **added},
        **following,
    )
    if not single:
        record = structs.replace(record, until_decided=until_decided(record, settings))
    return _plan(record, settings, subject, arms)


def following_fields(
    settings: Settings, subject: Subject, arms: Sequence[Arm], cells: Sequence[records.Cell] | None
) -> dict[str, Any]:
    """The fields of a plan's record that follow from its suite, tasks, arms and settings.

    Of `config` and `details` only the entries that do. Whoever verifies a run makes all of them anew.
    """
    prompts = _used_prompts(subject, arms, settings)
    alike = equal_prompts(subject.tasks)
    asked = [" ".join(subject.suite.pairing_text(task).split()) for task in subject.tasks]
    samples = (
        max((cell.samples for cell in cells), default=1) if cells is not None else settings.samples
    )
    mode, tasks = _mode(settings, subject.suite, arms), [task.id for task in subject.tasks]
    return {
        "mode": mode,
        "tasks": tasks,
        "samples": samples,
        "config": {
            "mode": mode,
            "local_model": ", ".join(dict.fromkeys(arm.model for arm in arms if arm.solver.asks))
            or arms[0].model,
            "temperature": settings.sampling_temperature,
            "problems": tasks,
        },
        "simulated": _is_simulated(arms),
        "generated": _generated(subject),
        "parts": _checked_parts(
            _each_once(subject.suite.parts, *(arm.solver.parts for arm in arms))
        ),
        "groups": _groups(subject.tasks),
        "clusters": clusters_of(subject.tasks, alike),
        "notes": notes_on(settings, len(subject.tasks), alike, arms, samples) or (),
        "asked": [text and task_digest(text)[:12] for text in asked] if any(asked) else (),
        "apart": tuple(task.id for task in subject.tasks if task.apart),
        "compared": (modes_of(settings.suite) or {}).get("comparative", ()),
        "measures": checked_measures(subject.suite),
        "headline": subject.suite.headline,
        "details": {
            "matches": _matches(subject, arms, prompts, cells),
            "prompts": dict(prompts.texts),
            "expectations": expectations_of(subject),
            "questions": questions_of(subject.suite, subject.tasks),
            "judge": dict(subject.suite.judge_record) if _has_judge(arms) else {},
            "solvers": {arm.solver.name: arm.solver.about for arm in arms if arm.solver.about},
            **(
                {"suite": about}
                if (about := subject.suite.details(subject.tasks, settings))
                else {}
            ),
        },
    }


def sample_of(plan: Plan, count: int) -> Plan:
    """A plan of its own for so many of the plan's tasks, spread over all of them, each asked once by every arm."""
    at = range(min(count, len(plan.tasks)))
    tasks = tuple(plan.tasks[number * len(plan.tasks) // len(at)] for number in at)
    ids = {task.id for task in tasks}
    cells = plan.record.cells
    if cells is not None:
        cells = [
            structs.replace(cell, samples=1, names=cell.names[:1])
            for cell in cells
            if cell.task in ids
        ]
    return make_plan(
        replace(
            plan.settings, samples=1, until_decided=None, tags=(*plan.settings.tags, "dry-run")
        ),
        Subject(plan.suite, tasks, plan.prompts, frozenset(plan.record.details["prompts"])),
        plan.arms,
        cells=cells,
        details={name: value for name, value in plan.record.details.items() if name not in _ADDED},
    )


def _is_simulated(arms: Sequence[Arm]) -> bool:
    """Whether some arm asks a model, and all such arms ask the simulated one."""
    asking = [arm.record.simulated for arm in arms if arm.solver.asks]
    return bool(asking) and all(asking)


def _mode(settings: Settings, suite: Suite, arms: Sequence[Arm]) -> str:
    """The run's mode: named by its suite, which does so where it states arms, else by how its arms were chosen."""
    if suite.mode:
        return suite.mode
    if settings.matrix:
        return "matrix"
    if len(settings.solvers) > 1:
        return "comparative"
    if settings.solver or settings.solvers:
        return arms[0].solver.name
    return suite.name if suite.overrides("arms") else settings.mode


def _groups(tasks: Sequence[Task]) -> dict[str, Sequence[str]]:
    """The properties that group the tasks, each with its value for every task, in the order of appearance."""
    keys = dict.fromkeys(key for task in tasks for key in task.groups)
    return {key: [task.groups.get(key, "") for task in tasks] for key in keys}


def _generated(subject: Subject) -> str:
    """The name of generated data; empty for published tasks. Raises KoderzError if only some are generated."""
    made_up = [task.id for task in subject.tasks if task.generated]
    if not made_up:
        return ""
    if published := [task.id for task in subject.tasks if not task.generated]:
        raise KoderzError(
            f"{made_up[0]} is generated and {published[0]} isn't, so their figures don't belong into one table: "
            "run them apart"
        )
    return f"{subject.suite.name.removesuffix('-generated')}-generated"


def _each_once(*names: Sequence[str]) -> tuple[str, ...]:
    """The names of all these, each once."""
    return tuple(dict.fromkeys(chain(*names)))


def _checked_parts(names: tuple[str, ...]) -> tuple[str, ...]:
    """Raises KoderzError for an unknown part of a summary, or one whose key the summary has already."""
    for name in names:
        from koderz_tracker.summary import KEYS  # most runs have no such part

        if name in KEYS:
            raise KoderzError(
                f"a part of the summary can't be called {name!r}, which the summary has already"
            )
        part_of(name)
    return names


def _plan(
    record: records.Plan, settings: Settings, subject: Subject, arms: tuple[Arm, ...]
) -> Plan:
    plan = Plan(record, settings, subject.suite, subject.tasks, arms, subject.prompts)
    _require_handles(plan)
    return plan


def needs_of(plan: Plan) -> frozenset[str]:
    """The needs of the plan's tasks, as far as their solvers ask for them by name.

    These are handles such as `judge` or `session`, and what an engine has to have, such as `gpu`.
    """
    pairs = {(task.needs, arm.solver.wants) for task, arm, _ in plan.cells()}
    return frozenset(
        need
        for needs, wants in pairs
        for need in needs
        if need in wants or need not in OPENED | {JUDGE}
    )


def _require_handles(plan: Plan) -> None:
    """Raises KoderzError if a solver asks for a handle that one of its tasks doesn't provide or nobody can open."""
    for arm in plan.arms:
        for name in sorted(plan.suite.required - arm.solver.wants):
            asked = f"the suite {plan.suite.name} is for solvers that name the handle {name}"
            raise KoderzError(f"{asked}; {arm.solver.name} doesn't")
    if not any(NEEDED & arm.solver.wants for arm in plan.arms):
        return
    for task, arm, _ in plan.cells():
        plan.suite.require_fit(task, arm.solver)
        for name in sorted(NEEDED & arm.solver.wants):
            if name in OPENED & task.needs and not plan.suite.overrides(f"open_{name}"):
                raise KoderzError(
                    f"the suite {plan.suite.name} says that {task.id} needs a {name}, but can't open one"
                )
            if name not in task.needs and arm.solver.requires(name):
                raise KoderzError(
                    f"the solver {arm.solver.name} asks for a {name}, which {task.id} doesn't provide; "
                    f"choose a suite whose tasks do, or give the parameter {name} a default"
                )


def expectations_of(subject: Subject) -> dict[str, dict[str, str]]:
    """The reference answer of each task, if the suite has one."""
    if not isinstance(subject.suite, ProgramSuite):
        return {}
    references = {task.id: subject.suite.reference(task) for task in subject.tasks}
    return {
        task: {"expected_response": text.strip("\n")} for task, text in references.items() if text
    }


def _used_prompts(subject: Subject, arms: Sequence[Arm], settings: Settings) -> Prompts:
    """The prompts that models may see: those in the tasks' messages, and those that each arm's solver may add."""
    recalled = {"recall"} if settings.use_memory != "off" else set()
    added = (arm.solver.rendered(subject.prompts, {*arm.models, *recalled}) for arm in arms)
    names = subject.prompt_names.union(
        *added, subject.suite.judge_prompts if _has_judge(arms) else ()
    )
    return Prompts({name: text for name, text in subject.prompts.texts.items() if name in names})


def _has_judge(arms: Sequence[Arm]) -> bool:
    return any(JUDGE in arm.models for arm in arms)


_SHOWN = 5  # changes that are told
_ADDED = frozenset(
    {
        "digest",
        "matches",
        "prompts",
        "expectations",
        "questions",
        "judge",
        "solvers",
        "suite",
        "documents",
    }
)
"""The details of a plan that are added to those that it is made with."""


def decisive_digest(record: records.Plan) -> str:
    """The digest of everything that decides on the results, computed from a recorded plan."""
    details = {name: value for name, value in record.details.items() if name not in _ADDED}
    config = {name: value for name, value in record.config.items() if name != "imported"}
    return _digest(config, record.arms, record.cells, record.details.get("matches", {}), details)


def _digest(
    config: Mapping[str, Any],
    arms: Sequence[records.Arm],
    cells: Sequence[records.Cell] | None,
    matches: Mapping[str, Any],
    details: Mapping[str, Any],
) -> str:
    # Arms without settings keep their older form, so that old runs resume.
    of_arms = [
        {
            name: value
            for name, value in to_builtins(arm).items()
            if (name, value) != ("settings", None)
        }
        for arm in arms
    ]
    return digest_of([_decisive(config), of_arms, to_builtins(cells), matches, details])


def _decisive(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that an experiment may depend on, which excludes those of sinks, and later ones that say nothing."""
    usual = fields_of(Settings)
    silent = {
        name
        for name in (*OF_REQUESTS, *OF_DECIDING)
        if config.get(name) in (None, plain(usual[name].default))
    }
    # the suite datasets has had it from the start
    if config.get(CLUSTER_COLUMN) is None and config.get("suite") != "datasets":
        silent.add(CLUSTER_COLUMN)
    return {
        name: value for name, value in config.items() if name not in {*OF_SINKS, *OF_REUSE, *silent}
    }


def restore_plan(
    record: records.Plan,
    settings: Settings,
    *,
    accept_changes: bool,
    solver_files: Path | None = None,
) -> Plan:
    """The plan of a resumed run, with its settings, of which few may differ from the recorded ones.

    `solver_files`: the folder where the user's own solvers lie by now, if not where they were.
    Raises KoderzError where the suite, the prompts or a solver are no longer what they were.
    """
    subject = load_subject(settings, partial(_same_tasks, record))
    basis = record.basis
    versions = {name: about.version for name, about in basis.solvers.items()}
    arms = restore_arms(
        record.arms, settings, basis.solver_arguments, basis.at_hand, solver_files, versions
    )
    # whatever an arm is called, each experiment has one reply on record
    if record.config.get("imported"):
        arms = tuple(replace(arm, solver=load_solver("zero-shot", {}, {})) for arm in arms)
    prompts = _used_prompts(subject, arms, settings)
    now = _matches(subject, arms, prompts, record.cells)
    changed = [
        (kind, name)
        for kind, digests in basis.matches.items()
        for name, digest in digests.items()
        if now.get(kind, {}).get(name) != digest
    ]
    if changed and not accept_changes:
        files = [name for kind, name in changed if kind == "option"]
        named = [f"{name} {record.config.get(name[2:].replace('-', '_'))}" for name in files]
        named += [name for kind, name in changed if kind == "mounted"]
        # digests of tasks and settings include what is named
        others = {"option", "mounted"} | ({"task", "settings of"} if named else set())
        named += [f"{kind} {name}" for kind, name in changed if kind not in others]
        anew = (
            f"; koderz benchmark rescore {record.run_id} --accept-changes judges all answers by it"
            if files
            else ""
        )
        raise KoderzError(
            f"{record.run_id}: not what it was when the run began: {', '.join(named[:_SHOWN])}. "
            f"Put it back, or mix old and new with --accept-changes{anew}"
        )
    return _plan(record, settings, subject, arms)


def _same_tasks(record: records.Plan, tasks: Sequence[Task]) -> list[Task]:
    known = {task.id: task for task in tasks}
    if gone := [name for name in record.tasks if name not in known]:
        raise KoderzError(f"{record.run_id}: the suite has no task {gone[0]!r} any more")
    return [known[name] for name in record.tasks]


def _matches(
    subject: Subject, arms: Sequence[Arm], prompts: Prompts, cells: Sequence[records.Cell] | None
) -> dict[str, dict[str, str]]:
    """The digests that have to be unchanged when the run is resumed, by kind and name."""
    settings = _settings_digests(subject, arms, cells or ())
    return {
        "suite": {"name": subject.suite.name}
        | ({"file": subject.file_digest} if subject.file_digest else {}),
        "task": {task.id: task.digest for task in subject.tasks},
        "prompt": prompts.digests(),
        "solver": {arm.solver.name: arm.solver.digest for arm in arms if arm.solver.is_foreign},
        **({"settings of": settings} if settings else {}),
        **({"option": dict(subject.suite.own_files)} if subject.suite.own_files else {}),
        **({"mounted": dict(subject.suite.mounted)} if subject.suite.mounted else {}),
    }


def _settings_digests(
    subject: Subject, arms: Sequence[Arm], cells: Sequence[records.Cell]
) -> dict[str, str]:
    """For each arm with settings of its own, the digest of its tasks under these."""
    tasks = {task.id: task for task in subject.tasks}
    mine = {
        arm.name: [cell.task for cell in cells if cell.arm == arm.name]
        for arm in arms
        if arm.settings is not None
    }
    return {
        arm.name: task_digest(
            *(in_arm(subject.suite, tasks[name], arm).digest for name in mine[arm.name])
        )
        for arm in arms
        if arm.name in mine
    }


def describe_environment() -> dict[str, Any]:
    """The versions of koderz and Python, the platform, and the commit of the working directory."""
    commit, is_dirty = commit_of(Path())
    versions = {
        "koderz": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    return {**versions, "git_commit": commit, "git_dirty": is_dirty}
