"""Runs of patches in the form of GSO's evaluations, and of ISO-Bench's records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import orjson

from koderz.analysis.export import Stories, folder_format
from koderz.analysis.story import Story, worker_of
from koderz.errors import KoderzError
from koderz.systems.patches.gso import LOG, folder_of
from koderz.systems.patches.machines import TasksRecord
from koderz.systems.patches.measuring.services import is_lower
from koderz_tracker.files import write_whole
from koderz_tracker.records import Experiment, Fault, Plan

# `koderz perf opt-at-k --run_id RUN --prediction_paths predictions*.jsonl --reformat_reports` grades them where they
# lie.

_NO_PATCHES = ("patch:base", "patch:human")
_SIDES = {"Base": "base", "Patch": "agent", "Commit": "human"}


@folder_format
def gso(stories: Stories, folder: Path) -> None:
    """Writes a file of predictions a sample, and logs/run_evaluation/RUN/MODEL/INSTANCE/test_output.txt of each.

    An experiment that ended in a fault has no log, unless it was the task's own. Raises KoderzError for other runs.
    """
    predictions: dict[int, list[bytes]] = {}
    for plan, story in stories:
        if plan.mode != "perf":
            raise KoderzError(f"{plan.run_id} is no run of koderz perf: GSO's form is for patches")
        if story.solver in _NO_PATCHES:
            continue
        name = worker_of(plan, story.arm) + (f"-run_{story.sample}" if plan.samples > 1 else "")
        row = {
            "instance_id": story.problem_id,
            "model_patch": story.program or "",
            "model_name_or_path": name,
        }
        marked = {"needs_review": why} if (why := _review(story)) else {}
        predictions.setdefault(story.sample, []).append(orjson.dumps(row | marked) + b"\n")
        if (log := log_of(plan, story)) is not None:
            place = folder / folder_of(plan.run_id or story.experiment_id, row)
            place.mkdir(parents=True, exist_ok=True)
            write_whole(place / LOG, [log.encode()])
    if not predictions:
        raise KoderzError("no experiment here is about a patch")
    for sample, rows in predictions.items():
        write_whole(
            folder / f"predictions{f'_run_{sample}' if len(predictions) > 1 else ''}.jsonl", rows
        )


def _review(story: Story) -> str:
    """The reason why a person should read the patch before its result is trusted; empty if there is none."""
    return (
        ""
        if isinstance(story.outcome, Fault)
        else str(story.outcome.facts.get("needs_review") or "")
    )


def log_of(plan: Plan, story: Story) -> str | None:
    """The log of an experiment in the format of GSO's parser; None if it has none."""
    if isinstance(story.outcome, Fault):
        return "" if story.outcome.cause == "base_failed" else None
    attempt = story.attempts[-1] if story.attempts else None
    status = attempt.facts.get("status") if attempt else None
    if attempt is None or status == "empty_patch":
        return None
    if status == "patch_failed":
        return "Applying patch...\n>>>>> Patch Apply Failed\n"
    begun = "Applying patch...\n>>>>> Applied Patch\n"
    if status != "passed":
        return f"{begun}>>>>> Tests Errored\n"
    count = int((attempt.metrics or {}).get("blocks", 0))
    blocks = _blocks(story.made, attempt.number, count)
    clock, metric = str(plan.config.get("clock", "cpu")), str(attempt.facts.get("metric") or "")
    if (attempt.facts.get("hack") or attempt.facts.get("beside")) and not metric:
        blocks = [_whole(block) for block in blocks]
    return begun + "".join(_sections(blocks, clock, metric)) + ">>>>> Tests Passed\n"


def _blocks(made: Mapping[str, Any], patch: int, count: int) -> list[Mapping[str, Any]]:
    """The legs of `count` blocks of a patch, from the last time it was measured."""
    begins = f"patch/{patch}/" if patch > 1 else ""
    places = [
        place
        for name in made
        for place, block, last in [name.rpartition("block/")]
        if block and last == f"{count}"
    ]
    place = next(
        (each for each in reversed(places) if each == begins or each.startswith(f"{begins}try/")),
        begins,
    )
    return [made[f"{place}block/{number}"]["legs"] for number in range(1, count + 1)]


def _whole(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """The block with the work of the agent's process outside the timed calls that base doesn't do."""
    agent, base = (block[leg] for leg in ("agent", "base"))
    timed, before = (sum(each["total"] for each in leg["work"].values()) for leg in (agent, base))
    moved = max(0.0, agent["cpu"] - timed - (base["cpu"] - before))
    work = {
        name: {clock: each[clock] * (1 + moved / timed) for clock in ("cpu", "wall")}
        for name, each in agent["work"].items()
    }
    return {**block, "agent": {**agent, "work": work}}


def _sections(blocks: list[Mapping[str, Any]], clock: str, metric: str) -> Iterator[str]:
    for side, leg in _SIDES.items():
        yield f">>>>> Start {side} Output\n"
        legs = [block[leg] for block in blocks]
        tests = [[each["figures"][metric] for each in legs]] if metric else []
        if metric and not is_lower(metric):  # GSO knows only times
            tests = [[1 / figure for figure in tests[0]]]
        tests += [
            [each["work"][name][clock] for each in legs]
            for name in (legs[0]["work"] if legs else ())
        ]
        for number, times in enumerate(tests):
            yield f">>>>> Test {number}\n"
            yield from (f"Execution time: {time:.9f}s\n" for time in times)
        yield f">>>>> End {side} Output\n"


# of ISO's record, and what its legs are called
_ARMS = {"baseline": "base", "human": "human", "agent": "agent"}
_METRICS = {
    "cpu_seconds": "cpu_seconds",
    "wall_seconds": "wall_seconds",
    **{
        f"{how}_{name}_ms": f"{name}_{how}"
        for name in ("ttft", "tpot", "itl")
        for how in ("mean", "median", "p99")
    },
    "request_throughput": "throughput_req_s",
    "output_throughput": "throughput_tok_s",
    "requests_per_second": "throughput_req_s",
    "tokens_per_second": "throughput_tok_s",
    "avg_latency": "latency_avg",
}
"""ISO-Bench's names of figures, by koderz' own."""


def iso(stories: Iterable[tuple[Plan, Story]], file: IO[bytes]) -> None:
    """Writes a line for each patch, as ISO-Bench's runners do; without a load, metrics are seconds of a call."""
    for plan, story in stories:
        # neither base nor the human's answer, which have no patch
        if isinstance(story.outcome, Experiment) and story.program is not None:
            file.write(orjson.dumps(_record(plan, story)) + b"\n")


def _record(plan: Plan, story: Story) -> Mapping[str, Any]:
    outcome = story.outcome
    assert isinstance(outcome, Experiment)
    base, human = plan.suite_details(TasksRecord).commits.get(story.problem_id, ("", ""))
    metrics = outcome.metrics or {}
    return {
        "commit": (human or story.problem_id)[:8],
        "full_commit": human,
        "parent_commit": base,
        "model": plan.model_of(story.arm),
        "gpu_config": "",
        "subject": story.problem_id,
        "has_agent_patch": bool(story.program),
        "status": outcome.facts.get("status"),
        "needs_review": outcome.facts.get("needs_review"),
        **{
            f"{arm}_metrics": {
                theirs: metrics[f"{ours}_{leg}"]
                for ours, theirs in _METRICS.items()
                if f"{ours}_{leg}" in metrics
            }
            for arm, leg in _ARMS.items()
        },
        "duration_s": outcome.duration_seconds,
    }
