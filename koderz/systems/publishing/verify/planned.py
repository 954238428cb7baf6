"""The comparison of a recorded plan with the one that koderz' own suite yields."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from koderz._version import __version__
from koderz.errors import KoderzError
from koderz.plans.arms import MODES, Arm
from koderz.plans.deciding import until_decided
from koderz.plans.plan import Subject, following_fields
from koderz.plans.selection import select_tasks
from koderz.settings.schema import Settings
from koderz.systems.publishing.verify.findings import Verification, as_json
from koderz.systems.publishing.verify.trust import ON_TRUST
from koderz.types import JUDGE, MAIN
from koderz_tracker import records

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
    words: dict[str, Any] = {"solver": config.get("solver"), "matrix": config.get("matrix"), "mode": mode}
    words |= {name: tuple(config.get(name) or ()) for name in ("solvers", "roles", "models")}
    return replace(restored.settings, **words, local_model=config.get("local_model"))


def _compare(
    where: str, recorded: Mapping[str, Any], made: Mapping[str, Any], restored: Restored, result: Verification
) -> None:
    version = restored.record.environment.get("koderz")
    if where == "details.matches." and (more := recorded.keys() - made.keys()):
        result.differs("plan", f"{where}{min(more)}", recorded[min(more)], "none")
    for name, value in made.items():
        path, before = f"{where}{name}", recorded.get(name)
        if (restored.foreign and name in _OF_ARMS) or (restored.record.config.get("imported") and name in _OF_SOLVERS):
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
            result.differs("plan", f"the arm {arm.name}, simulated", arm.simulated, made.record.simulated)
        roles = {role for role in arm.models if not made.solver.has_role(role)} - {MAIN}
        strange = [*(roles - ({JUDGE} if restored.subject.suite.asks_judge else set()))]
        strange += arm.parameters.keys() - made.solver.parameters.keys()
        if strange and arm.name not in restored.foreign and not restored.record.config.get("imported"):
            result.differs("plan", f"the arm {arm.name}", strange, f"roles and parameters of {arm.solver}")
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
        ways = [f"{span} in its order" if span else "", f"by seed {restored.settings.seed}" if drawn else ""]
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
        return [task.id for task in select_tasks(replace(restored.settings, problems=()), span, every)]
    except (KoderzError, ValueError):
        return []
