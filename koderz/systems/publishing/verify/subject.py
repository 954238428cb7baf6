"""The plan of a stranger's run, restored without opening or importing what it names.

Suites and solvers are koderz' own or left out. A setting that names a file, an address or a program is dropped,
whatever its value. Prompts are the recorded texts, which are templates without code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from msgspec import structs

from koderz._version import __version__
from koderz.engines.sources import schema_of_plan
from koderz.errors import KoderzError
from koderz.plans.arms import MODES, Arm, restore_arms
from koderz.plans.deciding import until_decided
from koderz.plans.plan import Plan, Subject, decisive_digest, following_fields, load_subject
from koderz.plans.selection import select_tasks
from koderz.prompts import PLACEHOLDERS, Prompts, load_prompts
from koderz.settings.schema import Settings
from koderz.settings.systems import own_names
from koderz.settings.trust import risks_of_plan
from koderz.solvers import SOLVERS
from koderz.solvers.definition import OPENED
from koderz.suites import SUITES, load_suite, suite_digest
from koderz.systems.publishing.share import PUBLISHED
from koderz.systems.publishing.verify.findings import ON_TRUST, Verification, as_json
from koderz.types import EXCLUSIVE, JUDGE, MAIN, Task
from koderz_tracker import records
from koderz_tracker.parts import KNOWN

_WORDS = (
    "dataset",
    "prompt_dir",
    "matrix",
    "results",
    "engine",
    "sandbox",
    "base_url",
    "api_key_env",
)
"""Settings that name something outside of the run, whatever their value."""

_REPLAYED = OPENED - {"workspace"}
"""The handles that an experiment may open when its solver runs again."""

# seconds and MB that a stranger's program gets at most
_LONGEST_LIMIT, _LARGEST_LIMIT = 600, 16_384


@dataclass(frozen=True, slots=True)
class RestoredRun:
    """A plan that was restored, and the arms whose solver can run again over the record."""

    plan: Plan
    replayable: frozenset[str]
    is_redacted: bool = False  # whether texts may have been taken out of the record


def restored_run(
    record: records.Plan, dataset: Path | None, result: Verification
) -> RestoredRun | None:
    """The run's plan with koderz' own suite; None where that can't be had here, which the result says."""
    published = record.environment.get(PUBLISHED) or {}
    if published.get("replies") is False:
        result.lacks("verdicts and experiments: replies were left out of this published copy")
        return None
    suite = str(record.config.get("suite") or "humaneval")
    if suite not in SUITES.known:
        result.lacks(f"verdicts: the suite {suite} is no part of koderz")
        return None
    foreign = {arm.name for arm in record.arms if arm.source or arm.solver not in SOLVERS.known}
    plain = _plain(record, foreign)
    try:
        settings = _settings(plain, dataset, result)
        subject = load_subject(settings, partial(_known, record), _prompts(record, result))
        _note_limits(record, subject, dataset, result)
        versions = {name: about.version for name, about in record.basis.solvers.items()}
        arms = restore_arms(plain.arms, settings, {}, record.basis.at_hand, None, versions)
        restored = Plan(plain, settings, subject.suite, subject.tasks, arms, subject.prompts)
    except KoderzError as error:
        result.lacks(f"verdicts: {error}")
        return None
    if not _check_digests(record, subject, dataset, result):
        return None
    check_plan_anew(Restored(record, settings, subject, arms, foreign), result)
    for arm in record.arms:
        if arm.name in foreign:
            result.lacks(
                f"experiments of {arm.name}: the solver {arm.source or arm.solver} isn't koderz' own"
            )
    replayable = frozenset(_replayable(restored, arms, foreign, result))
    return RestoredRun(restored, replayable, bool(published.get("redacted")))


def check_plan(record: records.Plan, result: Verification) -> bool:
    """Compares a plan's digest, and those of its prompts, with what they are digests of.

    False where its parts don't fit each other, so that nothing can be made of it.
    """
    if misfits := _misfits(record):
        result.differs("plan", "what its parts name", misfits, "parts of the plan")
        return False
    if (
        record.run_id is not None
        and record.basis.digest
        and decisive_digest(record) != record.basis.digest
    ):
        result.differs(
            "plan",
            "the digest of what decides on results",
            record.basis.digest,
            decisive_digest(record),
        )
    if record.schema_version != records.SCHEMA_VERSION:
        result.differs("plan", "schema_version", record.schema_version, records.SCHEMA_VERSION)
    if unknown := foreign_parts(record):
        result.lacks(
            f"figures: {', '.join(unknown)}, parts of the summary that koderz doesn't have"
        )
    texts = Prompts(record.basis.prompts).digests()
    for name, digest in record.basis.matches.get("prompt", {}).items():
        if texts.get(name) != digest:
            result.differs("prompt", f"the prompt {name}", digest, texts.get(name, "no text"))
    return True


def _misfits(record: records.Plan) -> list[str]:
    """The parts that a plan names and does not have, so that nothing can be made of it."""
    tasks, arms = {*record.tasks}, [arm.name for arm in record.arms]
    found = [
        f"the cell of {cell.task} in {cell.arm}"
        for cell in record.cells or ()
        if cell.task not in tasks
    ]
    found += [
        f"the cell of {cell.task} in {cell.arm}"
        for cell in record.cells or ()
        if cell.arm not in arms
    ]
    found += [
        f"the arm {arm.name}, which has no model" for arm in record.arms if MAIN not in arm.models
    ]
    found += (
        ["a task or an arm twice"]
        if len(tasks) < len(record.tasks) or len({*arms}) < len(arms)
        else []
    )
    found += [f"{len(record.compared)} compared arms"] if len(record.compared) not in (0, 2) else []
    return found + ([] if record.planned >= 0 and record.arms else ["no arm"])


def foreign_parts(record: records.Plan) -> list[str]:
    """The parts of the summary that no system of koderz adds, which are not asked."""
    return sorted({*record.parts} - {*KNOWN, *own_names("summaries")})


def _plain(record: records.Plan, foreign: set[str]) -> records.Plan:
    """The plan with words that name nothing: no file, no model, and a solver of koderz for each arm."""
    others = {arm.name for arm in record.arms} if record.config.get("imported") else foreign
    arms = [
        structs.replace(arm, source="", parameters={}, solver="zero-shot")
        if arm.name in others
        else arm
        for arm in record.arms
    ]
    config = {name: value for name, value in record.config.items() if name not in _WORDS}
    return structs.replace(record, arms=arms, config=config)


def _settings(record: records.Plan, dataset: Path | None, result: Verification) -> Settings:
    nameless = structs.replace(
        record, arms=[structs.replace(arm, models={}) for arm in record.arms]
    )
    nameless = structs.replace(
        nameless, config={**record.config, "local_model": None, "models": [], "roles": []}
    )
    schema = schema_of_plan(nameless)
    fields = schema.fields
    risky = {*risks_of_plan(fields, record.config)}
    risky |= {
        name
        for name, field in fields.items()
        if name in record.config and field.files(record.config[name])
    }
    config = {name: value for name, value in nameless.config.items() if name not in risky}
    settings = schema.from_config({**config, "mode": "iterative", "solver": None, "solvers": []})
    for name in sorted((risky & {*fields}) - {"suite", "solver", "solvers"}):
        result.note(
            f"--{name.replace('_', '-')} {record.config[name]} is left out: it isn't the run's own"
        )
    return replace(settings, dataset=dataset, sandbox="contained", engine="local")


def _note_limits(
    record: records.Plan, subject: Subject, dataset: Path | None, result: Verification
) -> None:
    """Notes limits that aren't the suite's own. Raises KoderzError for some that a stranger's program isn't given."""
    own, limits = type(subject.suite).limits, subject.suite.limits
    if limits is not own:  # of a suite that options may give others: what it has without them
        own = load_suite(str(record.config.get("suite")), dataset).limits
    for flag, recorded, usual in (
        ("--test-timeout", limits.timeout, own.timeout),
        ("--test-memory", limits.memory_mb, own.memory_mb),
        ("--feedback", limits.feedback, own.feedback),
    ):
        if recorded != usual:
            result.note(f"{flag} {recorded} isn't the suite's own, which is {usual}")
    if (sandbox := record.config.get("sandbox", "contained")) != "contained":
        result.note(f"programs ran in the sandbox {sandbox}; here they run contained")
    if limits.timeout > _LONGEST_LIMIT or limits.memory_mb > _LARGEST_LIMIT:
        raise KoderzError(
            f"programs had {limits.timeout:g} s and {limits.memory_mb} MB; koderz gives a stranger's at most "
            f"{_LONGEST_LIMIT} s and {_LARGEST_LIMIT} MB"
        )


def _prompts(record: records.Plan, result: Verification) -> Prompts:
    """koderz' prompts, with the recorded texts in place of those that they differ from."""
    own, texts = load_prompts().texts, dict[str, str]()
    for name, text in record.basis.prompts.items():
        template = Template(text)
        if (
            name in PLACEHOLDERS
            and template.is_valid()
            and {*template.get_identifiers()} <= PLACEHOLDERS[name]
        ):
            texts[name] = text
        else:
            result.differs(
                "prompt", f"the prompt {name}", text, "a prompt that koderz could render"
            )
    if changed := sorted(name for name, text in texts.items() if own[name] != text):
        result.note(f"the prompts {', '.join(changed)} aren't koderz' own")
    return Prompts({**own, **texts})


def _known(record: records.Plan, tasks: tuple[Task, ...]) -> list[Task]:
    known = {task.id: task for task in tasks}
    gone = [name for name in record.tasks if name not in known]
    if gone:
        where = (
            "; name the file that has its tasks with --dataset" if _names_dataset(record) else ""
        )
        raise KoderzError(
            f"koderz' suite {record.config.get('suite')} has no task {gone[0]!r:.80}{where}"
        )
    return [known[name] for name in record.tasks]


def _names_dataset(record: records.Plan) -> bool:
    return record.config.get("dataset") is not None


def _check_digests(
    record: records.Plan, subject: Subject, dataset: Path | None, result: Verification
) -> bool:
    """Whether the tasks are those of the run. Where the run named a file of its own, other tasks are no finding."""
    own = {task.id: task.digest for task in subject.tasks}
    before = record.basis.matches.get("task", {})
    changed = [name for name in own if before.get(name) != own[name]]
    digest, recorded = suite_digest(subject.suite), record.environment.get("dataset_digest")
    if _names_dataset(record) and dataset is None and (changed or digest != recorded):
        result.lacks(
            f"verdicts: the tasks are of {record.config['dataset']}, which isn't here; name it with --dataset"
        )
        return False
    for name in changed:
        result.differs("digest", f"the task {name}", before.get(name), own[name])
    if digest != recorded:
        result.differs("digest", "environment.dataset_digest", recorded, digest)
    result.lines["tasks"] = (
        f"{subject.suite.name}, digest {digest}, as {'--dataset' if dataset else 'koderz'} has it"
    )
    return True


def _replayable(
    plan: Plan, arms: tuple[Arm, ...], foreign: set[str], result: Verification
) -> Iterator[str]:
    needs = set[Any]().union(*(task.needs for task in plan.tasks))
    for arm in arms:
        opens = (OPENED | {EXCLUSIVE}) & needs & arm.solver.wants
        if arm.name in foreign:
            continue
        if arm.solver.restarts:
            result.lacks(
                f"experiments of {arm.name}: {arm.solver.name} starts over, and can't run again from a record"
            )
        elif opens - _REPLAYED:
            result.lacks(
                f"experiments of {arm.name}: they need {', '.join(sorted(opens - _REPLAYED))}"
            )
        else:
            yield arm.name


_OF_SOLVERS = frozenset({"parts", "prompts", "prompt", "solvers", "solver"})
_OF_ARMS = _OF_SOLVERS | {"mode", "simulated", "notes", "judge", "local_model"}
"""What depends on solvers and arms, and can't be made anew where a solver isn't koderz' own."""

_EMPTY: tuple[Any, ...] = (None, "", [], {}, False)
"""The values of fields that a plan of an older koderz doesn't have."""


class Restored(NamedTuple):
    """The parts that a plan is made anew from."""

    record: records.Plan
    settings: Settings  # those that name nothing outside of the run
    subject: Subject
    arms: tuple[Arm, ...]
    foreign: Collection[str]  # arms whose solver isn't koderz' own, for which another stands


def check_plan_anew(restored: Restored, result: Verification) -> None:
    """Makes the plan anew and compares each field that follows from suite, tasks, arms and settings."""
    record, settings = restored.record, _with_solvers(restored)
    try:
        made = following_fields(settings, restored.subject, restored.arms, record.cells)
        made = as_json({**made, "until_decided": until_decided(record, settings)})
    except KoderzError as error:
        result.differs("plan", "what follows from its suite", "a plan", str(error))
        return
    made["details"]["matches"].pop("task")  # whose digests are compared by themselves
    own = as_json(record)
    own["details"].get("matches", {}).pop("task", None)
    _compare("", own, made, restored, result)
    _check_arms(restored, result)
    _say_choice(restored, result)


def _with_solvers(restored: Restored) -> Settings:
    """The settings with the recorded words from which a run's mode and its suite's details follow."""
    config = restored.record.config
    solvers = tuple(dict.fromkeys(arm.solver for arm in restored.record.arms))
    mode: Any = next((mode for mode, named in MODES.items() if named == solvers), "iterative")
    words: dict[str, Any] = {
        "solver": config.get("solver"),
        "matrix": config.get("matrix"),
        "mode": mode,
    }
    words |= {name: tuple(config.get(name) or ()) for name in ("solvers", "roles", "models")}
    return replace(restored.settings, **words, local_model=config.get("local_model"))


def _compare(
    where: str,
    recorded: Mapping[str, Any],
    made: Mapping[str, Any],
    restored: Restored,
    result: Verification,
) -> None:
    version = restored.record.environment.get("koderz")
    if where == "details.matches." and (more := recorded.keys() - made.keys()):
        result.differs("plan", f"{where}{min(more)}", recorded[min(more)], "none")
    for name, value in made.items():
        path, before = f"{where}{name}", recorded.get(name)
        if (restored.foreign and name in _OF_ARMS) or (
            restored.record.config.get("imported") and name in _OF_SOLVERS
        ):
            continue
        if where in ("", "details.") and name in ("config", "details", "matches"):
            _compare(f"{path}.", before or {}, value, restored, result)
        elif before == value or (before in _EMPTY and value in _EMPTY):
            continue
        elif before in _EMPTY and version != __version__:
            result.lacks(f"the plan's {path}: koderz {version} recorded none")
        else:
            result.differs("plan", path, before, value)


def _check_arms(restored: Restored, result: Verification) -> None:
    """Compares each arm with its solver and models. Names and baselines that aren't the usual ones are on trust."""
    models, renamed = {arm.models.get("main") for arm in restored.record.arms}, list[str]()
    for arm, made in zip(restored.record.arms, restored.arms, strict=True):
        if arm.name not in restored.foreign and arm.simulated != made.record.simulated:
            result.differs(
                "plan", f"the arm {arm.name}, simulated", arm.simulated, made.record.simulated
            )
        roles = {role for role in arm.models if not made.solver.has_role(role)} - {MAIN}
        strange = [*(roles - ({JUDGE} if restored.subject.suite.asks_judge else set()))]
        strange += arm.parameters.keys() - made.solver.parameters.keys()
        if (
            strange
            and arm.name not in restored.foreign
            and not restored.record.config.get("imported")
        ):
            result.differs(
                "plan", f"the arm {arm.name}", strange, f"roles and parameters of {arm.solver}"
            )
        usual = arm.solver + ("" if len(models) == 1 else f" · {arm.models.get('main')}")
        renamed += [f"{arm.name} for {usual}"] if arm.name != usual else []
    if renamed:
        result.trusts(f"the names of arms: {', '.join(renamed)}")
    if any(arm.baseline for arm in restored.record.arms):
        result.trusts(ON_TRUST[records.Arm]["baseline"])


def _say_choice(restored: Restored, result: Verification) -> None:
    """Says how many of the suite's tasks the run is about, and who has chosen them."""
    names, every = list(restored.record.tasks), restored.subject.suite.tasks
    total = f"the suite's {len(every)} task{'' if len(every) == 1 else 's'}"
    if names == [task.id for task in every]:
        how = f"all of {total}"
    elif names == _selected(restored, every):
        drawn = restored.settings.shuffle
        span = restored.record.config.get("problem_range")
        ways = [
            f"{span} in its order" if span else "",
            f"by seed {restored.settings.seed}" if drawn else "",
        ]
        how = f"{len(names)} of {total}, {', '.join(filter(None, ways)) or 'the first ones'}"
    else:
        how = result.chosen = f"{len(names)} of {total}, chosen by their author"
    if not is_even(restored.record):
        how = result.chosen = f"{how}; each in arms and with samples that their author chose"
    result.lines["tasks"] = f"{how}; {result.lines['tasks']}" if "tasks" in result.lines else how


def is_even(record: records.Plan) -> bool:
    """Whether each task is in each arm with as many samples; a baseline, such as an initial prompt, may have one."""
    if record.cells is None:
        return True
    pairs = {(cell.task, cell.arm): cell.samples for cell in record.cells}
    baselines = {arm.baseline for arm in record.arms}
    own = {samples for (_, arm), samples in pairs.items() if arm not in baselines}
    of_baselines = {samples for (_, arm), samples in pairs.items() if arm in baselines}
    is_whole = len(pairs) == len(record.cells) == len(record.tasks) * len(record.arms)
    return is_whole and len(own) <= 1 and of_baselines in (set(), {1}, own)


def _selected(restored: Restored, every: Sequence[Any]) -> list[str]:
    """The tasks that the recorded range, limit and seed select; none where these select nothing."""
    low, _, high = str(restored.record.config.get("problem_range") or "").partition("-")
    try:
        span = range(int(low), int(high)) if low else None
        return [
            task.id for task in select_tasks(replace(restored.settings, problems=()), span, every)
        ]
    except (KoderzError, ValueError):
        return []
