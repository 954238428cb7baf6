"""The result files of `koderz rlm`: one for each benchmark, and one for all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import orjson

from koderz_tracker.files import write_whole
from koderz_tracker.journal import NAME
from koderz_tracker.records import Attempt, Experiment, Fault, Plan
from koderz_tracker.runs import read_plan
from koderz_tracker.stories import Stories
from koderz_tracker.summary import ArmResults, Summary, summarize

SUMMARY = "summary.json"


def file_of(benchmark: str) -> str:
    """The name of a benchmark's file."""
    return f"{benchmark}_results.json"


class LongContextDocument(msgspec.Struct, frozen=True):
    """A plan's record of the files of a benchmark's run, and of those planned with it."""

    benchmark: str
    runs: Mapping[str, str]  # by benchmark
    names: Mapping[str, str]  # of benchmarks, for users
    configuration: Mapping[str, Any]
    model: str
    max_depth: int
    output: str | None  # the folder of the files; None: there are none
    files: Sequence[str]


class LongContextResults:
    """The file of the run in `folder`, and that of all runs planned with it.

    `about` is a `LongContextDocument` as the plan has it.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self._folder, self._about = folder, msgspec.convert(about, LongContextDocument)

    def take(self, outcome: Experiment | Fault) -> None:
        """Does nothing, since the files are written at the end."""

    def write(self, summary: Summary) -> None:
        """Writes both, each as a whole. Raises OSError."""
        about, output = self._about, Path(self._about.output or ".")
        output.mkdir(parents=True, exist_ok=True)
        for name, document in (
            (file_of(about.benchmark), benchmark_document(self._folder, summary, about)),
            (SUMMARY, summary_document(self._folder.parent, about)),
        ):
            write_whole(
                output / name,
                [orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)],
            )


def benchmark_document(
    folder: Path, summary: Summary, about: LongContextDocument
) -> dict[str, Any]:
    """The results of a benchmark, task by task."""
    part = part_of(read_plan(folder), summary, about.names[about.benchmark])
    return {
        "benchmark": part["name"],
        "config": {**about.configuration, "model": about.model, "max_depth": about.max_depth},
        "results": list(_rows(folder, summary)),
        "metrics": part["metrics"],
        "total_time": part["total_time"],
    } | {
        name: part[name]
        for name in ("run_id", "suite", "generated", "simulated", "status", "faults")
    }


def summary_document(results: Path, about: LongContextDocument) -> dict[str, Any]:
    """The results of all benchmarks that have begun. Times are seconds."""
    begun = {}
    for benchmark, run in about.runs.items():
        if (results / run / NAME).exists():
            summary = summarize(results / run)
            if summary.results or summary.faults:
                begun[benchmark] = part_of(
                    read_plan(results / run), summary, about.names[benchmark]
                )
    return {
        "configuration": about.configuration,
        "model": about.model,
        "max_depth": about.max_depth,
        "total_time": round(sum(part["total_time"] for part in begun.values()), 2),
        "benchmarks": begun,
    }


def part_of(plan: Plan, summary: Summary, name: str) -> dict[str, Any]:
    """The result of one benchmark. Its accuracy is the mean score, as text with two decimals, or None."""
    figures = arm_of(summary).summary
    score, judged = figures.measures.get("score"), figures.total_problems
    seconds = round(summary.duration_seconds, 2)
    each = round(seconds / judged, 2) if judged else None
    low, high = figures.success_rate_interval or (None, None)
    return {
        "name": name,
        "metrics": {
            "overall_accuracy": f"{score.mean:.2f}" if score else None,
            "total_tasks": judged,
            "correct_tasks": figures.successes,
            "average_time_per_task": each,
            "accuracy_interval": score.interval if score else None,
            "success_rate_interval": None
            if low is None or high is None
            else (low / 100, high / 100),
            "success_rate_interval_method": figures.success_rate_interval_method,
            "clusters": figures.clusters,
            "cost": figures.total_cost,
            "cost_known": figures.cost_known,
        },
        "total_time": seconds,
        "avg_time_per_task": each,
        "run_id": summary.run_id,
        "suite": plan.config["suite"],
        "generated": is_generated(plan.tasks),
        "simulated": summary.simulated,
        "status": summary.status,
        "faults": len(summary.faults),
        "judge": dict(summary.judge),
    }


def arm_of(summary: Summary) -> ArmResults:
    """The arm that the files are about: the last one, by default the recursive one."""
    return list(summary.arms.values())[-1]


def is_generated(tasks: Sequence[str]) -> bool:
    """Whether the tasks were made up, by their ids."""
    return any("generated" in task.partition("/")[0] for task in tasks)


def _rows(folder: Path, summary: Summary) -> Iterator[dict[str, Any]]:
    stories = Stories(folder)
    stories.refresh()
    order = {task: number for number, task in enumerate(stories.plan.tasks)}
    arm = arm_of(summary)
    name = next(name for name, each in summary.arms.items() if each is arm)
    for result in arm.results:
        attempts = [
            record for record in stories.of(result.experiment_id) if isinstance(record, Attempt)
        ]
        artifacts = attempts[-1].artifacts if attempts else {}
        texts = {key: text for key, text in artifacts.items() if isinstance(text, str)}
        expected = texts.get("expected")
        artifact = {
            "query": texts.get("question"),
            "result": texts.get("answer"),
            "expected_answer": _value(expected) if expected else None,
        }
        yield {
            "task_index": order[result.problem_id],
            **artifact,
            "is_correct": result.success,
            "execution_time": result.duration_seconds,
            "success": True,
            "task_id": result.problem_id,
            "score": result.score,
            "experiment_id": result.experiment_id,
        }
    for fault in summary.faults:
        if fault["arm"] == name:
            yield {
                "task_index": order[fault["problem_id"]],
                **dict.fromkeys(("query", "result", "expected_answer", "execution_time", "score")),
                "is_correct": False,
                "success": False,
                "error": fault["reason"],
                "task_id": fault["problem_id"],
                "experiment_id": fault["experiment_id"],
            }


def _value(text: str) -> Any:
    """The JSON value; for a private suite, the marker in its place."""
    try:
        return json.loads(text)
    except ValueError:
        return text
