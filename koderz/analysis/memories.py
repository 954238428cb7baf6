"""Runs read back from a memory store alone, so that a team's store or an import is analysed like a results folder."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from koderz.analysis.pairs import Side, told_apart
from koderz.analysis.reader import parse_summary
from koderz.analysis.runs import FAULT, Run, of_summary
from koderz.errors import KoderzError
from koderz_tracker.memory.memories import InvalidMemory, Memory, choose, moment
from koderz_tracker.memory.store import Filter, Store
from koderz_tracker.results import Result
from koderz_tracker.runs import RUN_ID, named
from koderz_tracker.sequential import settled_order
from koderz_tracker.summary import ArmResults, Summary, figures, missing_of

OUTCOMES = ("passed", "failed", "timeout", "error", FAULT)
# of the metadata of a memory, which has other keys too
_COPIED = frozenset(Result.__struct_fields__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The experiments that a question is about: those that fit everything that is set."""

    suite: str | None = None
    task: str | None = None
    model: str | None = None
    arm: str | None = None
    solver: str | None = None
    outcome: str | None = None  # one of OUTCOMES; failed: whatever was judged and didn't pass
    cause: str | None = None  # of its end or of an attempt; `exception` is any exception
    tags: Sequence[str] = ()  # all of them
    since: str | None = None  # ended then or later; ISO 8601
    until: str | None = None  # ended earlier
    run: str | None = None  # an id, the unique beginning of one, `latest` or `latest~1`
    allow_simulated: bool = False  # beside real ones; simulated ones alone are always taken

    def __post_init__(self) -> None:
        if self.outcome is not None:
            choose("outcome", self.outcome, OUTCOMES)

    @property
    def by_end(self) -> bool:
        """Whether experiments are chosen by how they ended, so that no rate among them means anything."""
        return self.outcome is not None or self.cause is not None

    def fits(self, facts: Mapping[str, Any]) -> bool:
        """Whether the metadata of an experiment fits what no index is asked for."""
        for name in ("suite", "model", "arm", "solver"):
            wanted: str | None = getattr(self, name)
            if wanted is not None and str(facts.get(name)).replace("_", "-") != wanted.replace(
                "_", "-"
            ):
                return False
        if self.outcome == FAULT:
            is_meant = facts.get("success") is None
        elif self.outcome == "failed":
            is_meant = facts.get("success") is False
        else:
            is_meant = self.outcome in (None, facts.get("verdict"))
        causes = {str(facts.get("cause")), *map(str, facts.get("causes") or ())}
        causes |= {cause.partition(":")[0] for cause in causes}
        return is_meant and (self.cause is None or self.cause in causes)


def experiments(store: Store, chosen: Chosen) -> tuple[list[Memory], list[str]]:
    """The memories of experiments that are chosen, in the order of storing, and a note on those that are left out.

    Of the same task, sample and arm of a run, the newest. Without `allow_simulated`, simulated ones give way to real
    ones. Raises InvalidMemory for a run that the store doesn't have, and for a time that is none.
    """
    tags = [
        "result",
        *chosen.tags,
        *filter(None, [chosen.task, chosen.run and run_named(store, chosen.run)]),
    ]
    times = {
        name: value and moment(value, name)
        for name, value in (("since", chosen.since), ("until", chosen.until))
    }
    newest: dict[tuple[Any, ...], Memory] = {}
    for memory in store.select(Filter(tags=tags, since=times["since"], before=times["until"])):
        facts = memory.metadata
        if not isinstance(facts.get("sample"), int | None):
            continue
        place = (
            *(str(facts.get(name)) for name in ("benchmark_run_id", "arm", "problem_id")),
            facts.get("sample") or 0,
        )
        before = newest.get(place)
        if facts.get("benchmark_run_id") and (
            before is None or before.updated_at <= memory.updated_at
        ):
            newest[place] = memory
    found = [memory for memory in newest.values() if chosen.fits(memory.metadata)]
    real = [memory for memory in found if not memory.metadata.get("simulated")]
    if chosen.allow_simulated or not real or len(real) == len(found):
        return found, []
    return real, [f"{len(found) - len(real)} experiments of the SIMULATED model are left out"]


def recalled_runs(store: Store, chosen: Chosen) -> tuple[list[Run], list[str]]:
    """The chosen experiments as runs, oldest first, and a note on what is left out. Raises as `experiments` does."""
    found, notes = experiments(store, chosen)
    of_run: dict[str, list[Memory]] = defaultdict(list)
    for memory in found:
        of_run[str(memory.metadata["benchmark_run_id"])].append(memory)
    runs = [_run(run, store.get(run), memories) for run, memories in of_run.items()]
    return sorted(runs, key=lambda run: (run.start_time, run.name)), notes


def run_named(store: Store, name: str) -> str:
    """The id of the run with this name in the store. Raises InvalidMemory if it names none or several."""
    if RUN_ID.fullmatch(name):
        return name  # one that goes on has no memory of its own yet
    keys = [str(key) for (key,) in store.rows(_RUN_IDS)]
    if name in keys:
        return name
    ids = sorted(keys, key=lambda key: key.split("_", 2)[2:])  # by their time
    try:
        return named([Path(run) for run in ids], name, store.path).name
    except KoderzError as error:
        raise InvalidMemory(str(error)) from None


# by the index
_RUN_IDS = "SELECT key FROM memories WHERE key IS NOT NULL AND key >= 'bench_' AND key < 'bench`'"


def _run(run_id: str, recorded: Memory | None, memories: Sequence[Memory]) -> Run:
    """The run of these experiments: as its memory has them, unless one is newer than that."""
    whole = _summary(run_id, recorded) or _unended(run_id, memories)
    known = {(result.arm, result.problem_id, result.sample): result for result in whole.results}
    lacking = {str(fault.get("experiment_id")): fault for fault in whole.faults}
    results: dict[str, list[Result]] = {name: [] for name in whole.arms}
    faults: list[dict[str, Any]] = []
    for memory in memories:
        facts = memory.metadata
        arm, experiment = (
            str(facts.get("arm") or facts.get("solver") or ""),
            str(facts.get("experiment_id")),
        )
        before = known.get((arm, str(facts.get("problem_id")), facts.get("sample") or 0))
        if recorded is not None and whole.arms and memory.updated_at <= recorded.updated_at:
            # What a run's memory has neither as a result nor as a fault stands apart from its figures.
            if experiment in lacking:
                faults.append(lacking[experiment])
            elif before:
                results[arm].append(before)
        elif facts.get("success") is None:
            faults.append({name: facts.get(name) for name in _OF_FAULT} | {"arm": arm})
        elif result := _result(facts, arm, before):
            results.setdefault(arm, []).append(result)
    places = {place: number for number, place in enumerate(known)}
    last = len(places)
    for of_arm in results.values():
        of_arm.sort(key=lambda each: places.get((each.arm, each.problem_id, each.sample), last))
    arms = {name: _arm(whole, name, of_arm, faults) for name, of_arm in results.items()}
    kept = {name: arm for name, arm in arms.items() if arm.results or missing_of(faults, name)}
    return replace(of_summary(whole), arms=kept, faults=faults)


_OF_FAULT = ("experiment_id", "problem_id", "solver", "sample", "reason", "cause")


def _arm(
    whole: Summary, name: str, results: Sequence[Result], faults: Sequence[dict[str, Any]]
) -> ArmResults:
    recorded, about = whole.arms.get(name), whole.until_decided
    own = missing_of(faults, name)
    order = (
        settled_order(about, name, results, [str(each.get("problem_id")) for each in own])
        if about
        else None
    )
    if recorded and list(recorded.results) == list(results):
        return recorded
    baseline, simulated = (recorded.baseline, recorded.simulated) if recorded else ("", None)
    return ArmResults(
        results,
        figures(results, None, whole.measures, order, len(own)),
        baseline,
        simulated=simulated,
    )


def _summary(run_id: str, recorded: Memory | None) -> Summary | None:
    """The summary that is the content of a run's memory; None where there is none that can be read."""
    if recorded is None or not recorded.content:
        return None
    try:
        return parse_summary(recorded.content.encode(), Path(run_id))
    except KoderzError:  # of a memory that somebody else made; its experiments tell enough
        return None


def _unended(run_id: str, memories: Sequence[Memory]) -> Summary:
    """The summary, without results, of a run that has no memory of its own: it goes on, or wasn't imported."""
    facts = memories[0].metadata
    times = [memory.created_at for memory in memories]
    return Summary(
        run_id=run_id,
        mode=str(facts.get("mode") or ""),
        start_time=min(times),
        end_time=max(times),
        duration_seconds=0.0,
        status="unfinished",
        reason="",
        planned=len(memories),
        config={"suite": facts.get("suite"), "local_model": facts.get("model")},
        arms={},
        comparison=None,
        faults=[],
        paid={},
        simulated=all(memory.metadata.get("simulated") for memory in memories),
        environment={},
    )


def _result(facts: Mapping[str, Any], arm: str, before: Result | None) -> Result | None:
    """The result that the metadata of an experiment's memory tells; what it doesn't is as before.

    None where it makes no sense: an import may be anybody's.
    """
    told = {
        name: value for name, value in facts.items() if name in _COPIED and value is not None
    } | {"arm": arm}
    try:
        own = msgspec.convert({"sample": 0, "tokens_in": facts.get("tokens") or 0, **told}, Result)
    except msgspec.ValidationError:
        return None
    return (
        own
        if before is None
        else msgspec.structs.replace(before, **{name: getattr(own, name) for name in told})
    )


def pooled(runs: Sequence[Run]) -> tuple[dict[Side, list[str]], list[str]]:
    """One side for each model and arm of a suite's runs, with the names of its runs; repeats are further samples.

    A task that asked something else in an older run isn't counted there, and neither is a reply that a later one took
    from it. Runs that stopped once they were decided are no repeats, since they ended by what they found; alone they
    stay as they are, and a note says what is left out.
    """
    groups: dict[tuple[str, str], list[Side]] = defaultdict(list)
    for run in runs:
        for arm in run.arms:
            side = Side(run, arm)
            groups[side.model, arm].append(side)
    sides, left_out = {}, 0
    for (model, arm), group in groups.items():
        repeats = [side for side in group if not side.run.until_decided] or group[-1:]
        left_out += len(group) - len(repeats)
        newest = repeats[-1].run
        results: list[Result] = []
        samples: Counter[str] = Counter()
        asked: dict[str, str] = {}
        for side, result in told_apart(repeats[::-1]):
            task = result.problem_id
            digest = side.run.asked.get(task, "")
            if asked.setdefault(task, digest) == digest:
                results.append(msgspec.structs.replace(result, sample=samples[task]))
                samples[task] += 1
        faults = [fault for side in repeats for fault in side.missing]
        order = repeats[0].settled if len(repeats) == 1 else None
        found = figures(results, None, newest.measures, order, len(faults))
        arms = {arm: ArmResults(results, found, simulated=all(side.simulated for side in repeats))}
        run = replace(
            newest,
            run_id=f"{model} {arm}",
            arms=arms,
            faults=faults,
            asked=asked,
            status="complete",
            planned=len(results),
        )
        sides[Side(run, arm)] = [side.run.name for side in repeats]
    notes = [
        f"{left_out} arms of runs that stopped once they were decided are left out beside others"
    ]
    return sides, notes if left_out else []


def by_suite(runs: Sequence[Run]) -> Iterator[tuple[str, list[Run]]]:
    """The runs of each suite, with those of a dataset of somebody's own apart from the published one."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.source].append(run)
    yield from groups.items()
