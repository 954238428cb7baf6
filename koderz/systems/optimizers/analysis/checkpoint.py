"""`checkpoint.json` and a log for each task, in the format of the original benchmark runner, made from the journal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

import orjson
from msgspec import to_builtins

from koderz.systems.optimizers.analysis.gains import gain_of
from koderz.systems.optimizers.analysis.trials import (
    SEARCHING,
    PlannedTrial,
    Trial,
    cells_of,
    differences,
    seconds_of,
)
from koderz.systems.optimizers.datasets import BASELINE
from koderz.systems.optimizers.datasets.payload import NO_RECORD, DatasetRecord, DatasetRecords
from koderz_tracker import records
from koderz_tracker.files import write_whole
from koderz_tracker.records import Record
from koderz_tracker.sinks import Sink, Source

NAME = "checkpoint.json"
_SPLITS = ("train", "validation", "test")
_INDENT = 3  # spaces, as the original has it


class CheckpointSink(Sink):
    """Keeps `checkpoint.json` and the tasks' logs of one run up to date with its journal."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._state = State(source.plan)
        # what was recorded before is folded first, since the sink may be new and the run old
        self._has_begun = False

    def take(self, records: Sequence[Record]) -> None:
        """Takes in records; writes logs that have news, and the checkpoint after every outcome."""
        ended: set[str] = set()
        if not self._has_begun:
            self._has_begun = True
            records = [
                *chain.from_iterable(map(self.source.stories.of, self._state.cells)),
                *records,
            ]
        for line in records:
            if self._state.fold(line):
                ended.add(getattr(line, "experiment_id", ""))
        for experiment_id in ended - {""}:
            self._write_log(experiment_id)
        if (
            any(isinstance(line, _NEWS) for line in records)
            or not (self.source.folder / NAME).exists()
        ):
            write_whole(self.source.folder / NAME, [encoded(self._state.document())], durable=False)

    def _write_log(self, experiment_id: str) -> None:
        cell, trial = self._state.cells[experiment_id], self._state.trials[experiment_id]
        lines = (f"{line}\n".encode("utf-8", "replace") for line in (cell.id, *trial.lines()))
        write_whole(self.source.folder / cell.log, lines, durable=False)


_NEWS = (records.Experiment, records.Fault, records.Resumed, records.Finished)


def encoded(document: Mapping[str, Any]) -> bytes:
    """The document as JSON, indented like the original's."""
    import json

    return json.dumps(
        orjson.loads(orjson.dumps(document)), indent=_INDENT, ensure_ascii=False
    ).encode("utf-8", "replace")


@dataclass
class State:
    """The state of a run, computed from its lines."""

    plan: records.Plan
    trials: dict[str, Trial] = field(default_factory=dict)
    status: str = "running"

    def __post_init__(self) -> None:
        self.cells: Mapping[str, PlannedTrial] = {
            cell.experiment_id: cell for cell in cells_of(self.plan)
        }

    def fold(self, line: Record) -> bool:
        """Takes in a line; returns whether there is news to show."""
        if isinstance(line, records.Finished):
            self.status = line.status
            return True
        if isinstance(line, records.Resumed):
            self.status = "running"
            for trial in self.trials.values():
                trial.take_up(line)
            return True
        experiment_id = getattr(line, "experiment_id", "")
        return experiment_id in self.cells and self.trials.setdefault(experiment_id, Trial()).fold(
            line
        )

    def status_of(self, cell: PlannedTrial) -> str:
        """Pending, Running, Success or Failed."""
        trial = self.trials.get(cell.experiment_id)
        if trial is None:
            return "Pending"
        if trial.outcome is None:
            return "Running" if self.status == "running" else "Pending"
        return "Failed" if isinstance(trial.outcome, records.Fault) else "Success"

    def document(self) -> dict[str, Any]:
        """The content of `checkpoint.json`: the original's fields, with ours beside them."""
        config, cells = self.plan.config, [*self.cells.values()]
        optimizers = dict.fromkeys(cell.optimizer for cell in cells if cell.optimizer != BASELINE)
        return {
            "run_id": self.plan.run_id,
            "test_mode": bool(config.get("test_mode")),
            "demo_datasets": list(self.plan.tasks),
            "optimizers": [*optimizers],
            "models": list(dict.fromkeys(cell.model for cell in cells)),
            "tasks": [self._task(cell) for cell in cells],
            "task_results": [self._task_result(cell) for cell in cells],
            "schema_version": self.plan.schema_version,
            "status": self.status,
            "simulated": self.plan.simulated,
            "seeds": sorted({cell.seed for cell in cells if cell.seed is not None}),
            "splits": {name: to_builtins(each.splits) for name, each in self._datasets.items()},
        }

    @cached_property
    def _datasets(self) -> Mapping[str, DatasetRecord]:
        return self.plan.suite_details(DatasetRecords)

    def _about(self, cell: PlannedTrial) -> DatasetRecord:
        return self._datasets.get(cell.dataset, NO_RECORD)

    def _task(self, cell: PlannedTrial) -> dict[str, Any]:
        about = self._about(cell)
        return {
            "dataset_name": cell.dataset,
            "optimizer_name": cell.optimizer,
            "model_name": cell.model,
            "test_mode": bool(self.plan.config.get("test_mode")),
            "model_parameters": self._model_parameters(),
            "optimizer_params": self.plan.arm(cell.arm).parameters,
            "optimizer_prompt_params": {},
            "differs_from_original": differences(self.plan).get(self.plan.arm(cell.arm).solver, ""),
            "datasets": {split: self._dataset(cell, split) for split in _SPLITS},
            "metrics": [about.metric or None, *about.metrics],
            "prompt_messages": list(about.messages) or None,
        }

    def _model_parameters(self) -> dict[str, Any]:
        return {name: self.plan.config.get(name) for name in ("temperature", "max_tokens", "top_p")}

    def _dataset(self, cell: PlannedTrial, split: str) -> dict[str, Any]:
        known = self._about(cell).splits.get(split)
        return {
            "name": f"{cell.dataset}_{split}",
            "id": known.digest if known else None,
            "split": split,
        }

    def _task_result(self, cell: PlannedTrial) -> dict[str, Any]:
        trial, base = self.trials.get(cell.experiment_id) or Trial(), self._baseline(cell)
        is_kept = cell.optimizer == BASELINE or bool(trial.result.get("kept_initial"))
        evaluations = self._evaluations(cell, trial, base, is_kept=is_kept)
        prompts = {"initial": self._prompt(cell), "final": None}
        if trial.result:
            prompts["final"] = prompts["initial"] if is_kept else self._prompt(cell, trial)
        return {
            "id": cell.id,
            "dataset_name": cell.dataset,
            "optimizer_name": cell.optimizer,
            "model_name": cell.model,
            "model_parameters": self._model_parameters(),
            "timestamp_start": trial.begun,
            "timestamp_end": trial.ended,
            "status": self.status_of(cell),
            "initial_prompt": prompts["initial"],
            "optimized_prompt": prompts["final"],
            "initial_evaluation": _older(evaluations["initial"]["test"]),
            "optimized_evaluation": _older(evaluations["final"]["test"]),
            "evaluations": evaluations,
            "stages": [*_stages(evaluations, prompts)] if trial.result else [],
            "optimization_history": {},
            "error_message": trial.outcome.reason
            if isinstance(trial.outcome, records.Fault)
            else None,
            "llm_calls_total_optimization": sum(trial.calls[purpose] for purpose in SEARCHING),
            "optimization_raw_result": None,
            "optimization_summary": dict(trial.search) or None,
            "dataset_metadata": {split: self._dataset(cell, split) for split in _SPLITS},
            "evaluation_split": "validation",
            "requested_split": "test",
            "optimizer_prompt_params_used": {},
            "optimizer_params_used": self.plan.arm(cell.arm).parameters,
            **self._ours(cell, trial, base, is_kept=is_kept),
        }

    def _evaluations(
        self, cell: PlannedTrial, trial: Trial, base: Trial, *, is_kept: bool
    ) -> dict[str, dict[str, Any]]:
        """The evaluations by stage and split. The initial prompt's test is the baseline's, which alone asked for it."""
        initial, winner = str(trial.result.get("initial", "")), str(trial.result.get("winner", ""))
        before = self._evaluation(cell, base, "test", initial)
        after = before if is_kept else self._evaluation(cell, trial, "test", winner)
        return {
            "initial": {**self._searched(cell, trial, initial), "test": before},
            "final": {**self._searched(cell, trial, winner), "test": after},
        }

    def _ours(
        self, cell: PlannedTrial, trial: Trial, base: Trial, *, is_kept: bool
    ) -> dict[str, Any]:
        """The fields that the original doesn't have."""
        result, outcome = trial.result, trial.outcome
        gain = None
        if cell.optimizer != BASELINE and result and base.result:
            before = _scores(base, str(base.result["winner"]))
            after = before if is_kept else _scores(trial, str(result["winner"]))
            gain = gain_of([before], [after], self._about(cell).clusters or None, is_fixed=True)
        return {
            "experiment_id": cell.experiment_id,
            "seed": cell.seed,
            "metric_calls": (result or trial.search).get("metric_calls"),
            "budget_calls": self.plan.config.get("budget_calls"),
            "reasoning_calls": (result or trial.search).get("reasoning_calls"),
            "cost_usd": sum(trial.costs.values()),
            "tokens_in": getattr(outcome, "tokens_in", None),
            "tokens_out": getattr(outcome, "tokens_out", None),
            "gain": gain.gain if gain else None,
            "interval": gain.interval if gain else None,
            "finish_reason": result.get("finish_reason") or None,
            "faults": result.get("faults"),
        }

    def _baseline(self, cell: PlannedTrial) -> Trial:
        """The baseline experiment for the same dataset and model."""
        for other in self.cells.values():
            if other.optimizer == BASELINE and (other.dataset, other.model) == (
                cell.dataset,
                cell.model,
            ):
                return self.trials.get(other.experiment_id) or Trial()
        return Trial()

    def _prompt(self, cell: PlannedTrial, trial: Trial | None = None) -> dict[str, Any] | None:
        """The initial prompt, or the winner of a search with its examples, both without the format line."""
        if trial is None:
            messages = list(self._about(cell).messages)
            return {"messages": messages} if messages else None
        return {"messages": trial.prompt} if trial.prompt else None

    def _searched(self, cell: PlannedTrial, trial: Trial, digest: str) -> dict[str, Any]:
        return {
            split: self._evaluation(cell, trial, split, digest) for split in ("train", "validation")
        }

    def _evaluation(
        self, cell: PlannedTrial, trial: Trial, split: str, digest: str
    ) -> dict[str, Any] | None:
        """A candidate's score on a split; None if it wasn't asked there."""
        grades = trial.judged(split, digest or str(trial.result.get("winner", "")))
        found = trial.mean(split, digest or str(trial.result.get("winner", "")))
        if found is None:
            return None
        about = self._about(cell)
        moments = [seconds_of(grade) for grade in grades.values()]
        named = {about.metric or "score": {item: grade.score for item, grade in grades.items()}}
        named |= {
            name: {
                item: grade.metrics[name] for item, grade in grades.items() if name in grade.metrics
            }
            for name in about.metrics
        }
        metrics = [
            {
                "metric_name": name,
                "score": sum(scores.values()) / len(scores),
                "timestamp": max(moments),
                "sample_size": len(scores),
                "dataset_item_ids": [*scores],
                "item_scores": scores,
            }
            for name, scores in named.items()
            if scores
        ]
        result = {
            "metrics": metrics,
            "duration_seconds": max(moments) - min(moments),
            "dataset": self._dataset(cell, split),
            "eval_id": f"{split}/{digest}",
            "experiment_id": cell.experiment_id,
        }
        return {"step_id": f"{split}/{digest}", "result": result}


def _scores(trial: Trial, digest: str) -> dict[str, float]:
    return {item: grade.score for item, grade in trial.judged("test", digest).items()}


def _older(evaluation: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """An evaluation in the original's earlier format."""
    if evaluation is None:
        return None
    result = evaluation["result"]
    names = ("metric_name", "score", "timestamp")
    metrics = [{name: metric[name] for name in names} for metric in result["metrics"]]
    return {"metrics": metrics, "duration_seconds": result["duration_seconds"]}


def _stages(evaluations: Mapping[str, Any], prompts: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for stage, by_split in evaluations.items():
        for split, evaluation in by_split.items():
            if evaluation:
                yield {
                    "stage": stage,
                    "split": split,
                    "evaluation": evaluation["result"],
                    "prompt_snapshot": prompts[stage],
                    "step_ref": evaluation["step_id"],
                    "notes": None,
                }
