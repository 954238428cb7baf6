"""The additions of optimizers to a run's summary, its memories, its traces, and the registry of prompts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from koderz.systems.optimizers.analysis.gains import gain_of, rows_of, searches_of
from koderz.systems.optimizers.analysis.trials import PlannedTrial, Trial, cells_of
from koderz.systems.optimizers.datasets import BASELINE
from koderz.systems.optimizers.datasets.payload import DatasetRecords
from koderz.types import Message
from koderz_tracker import records
from koderz_tracker.messages import text_of
from koderz_tracker.parts import CurvePoint, Data, FoundPrompt, Part, Step
from koderz_tracker.results import Result
from koderz_tracker.stories import Stories

_REMEMBERED = 2048  # bytes of a prompt


class OptimizerPart(Part):
    """The part `optimize` of a run."""

    completes = True
    scores = ("gain",)

    def summary(
        self,
        plan: records.Plan,
        results: Mapping[str, Sequence[Result]],  # noqa: ARG002
    ) -> Mapping[str, Any]:
        """The datasets' entries in a summary."""
        return plan.suite_details(dict[str, Any])

    def completed(
        self,
        plan: records.Plan,  # noqa: ARG002
        folder: Path,
        results: Sequence[Result],
    ) -> Sequence[Result]:
        """Results completed from the baseline: its score, the gain, and whether the own interval lies above 0."""
        searches = {search.experiment.experiment_id: search for search in searches_of(folder)}
        bases = {
            search.place: search
            for search in searches.values()
            if search.experiment.solver == BASELINE
        }

        def whole(result: Result) -> Result:
            search = searches.get(result.experiment_id)
            base = bases.get((result.problem_id, result.model))
            if search is None or base is None or search is base:
                return result
            found = gain_of(
                [base.scores], [search.scores or base.scores], search.clusters, is_fixed=True
            )
            if found is None:
                return result
            metrics = {**(result.metrics or {}), "baseline": found.a, "gain": found.gain}
            success = found.interval is not None and found.interval[0] > 0
            return replace(result, score=found.b, metrics=metrics, success=success)

        return [whole(result) for result in results]

    def excerpt(self, story: Sequence[records.Record]) -> str:
        """The first 2 KB of the winning prompt, for the experiment's memory."""
        trial = Trial()
        for line in story:
            trial.fold(line)
        prompt = "\n".join(f"{message['role']}: {text_of(message)}" for message in trial.prompt)
        if not prompt:
            return ""
        cut = prompt.encode("utf-8", "replace")[:_REMEMBERED].decode("utf-8", "ignore")
        return f"Prompt:\n{cut}{'' if cut == prompt else ' …'}"

    def steps(self, story: Sequence[records.Record]) -> Iterator[Step]:
        """The candidates of a search in the order of their first scoring, each with its means but without items."""
        trial = Trial()
        begun, ended = {}, {}
        for line in story:
            trial.fold(line)
            if isinstance(line, records.Once) and line.name.startswith("candidate/"):
                begun[line.name.removeprefix("candidate/")] = line.time
            elif isinstance(line, records.Grade):
                ended[line.labels.get("candidate", "")] = line.time
        for digest, candidate in trial.candidates.items():
            means = {split: trial.mean(split, digest) for split in ("train", "validation", "test")}
            scored = {
                split: {"mean": mean[0], "items": mean[1]} for split, mean in means.items() if mean
            }
            name = (
                f"candidate {candidate.get('number')}"
                if candidate.get("number")
                else "the initial prompt"
            )
            inputs = {key: candidate.get(key) for key in ("messages", "demos", "metric_calls")}
            is_winner = digest == trial.result.get("winner")
            yield Step(
                name,
                begun[digest],
                ended.get(digest, begun[digest]),
                inputs,
                {**scored, "kept": is_winner},
            )

    def curve(self, plan: records.Plan, story: Sequence[records.Record]) -> Iterator[CurvePoint]:
        """The best validation score so far, by metric calls."""
        trial = Trial()
        for line in story:
            trial.fold(line)
        if isinstance(end := trial.outcome, records.Experiment):
            seed = int(plan.config.get("seed") or 0) + end.sample
            for calls, mean in trial.best_so_far():
                yield CurvePoint(
                    f"best_validation/{end.problem_id}/{end.arm}/{seed}", calls, mean, end.time
                )

    def data(self, plan: records.Plan) -> Iterator[Data]:
        """The splits of its datasets."""
        for dataset, record in plan.suite_details(DatasetRecords).items():
            for split, known in record.splits.items():
                yield Data(f"{dataset}_{split}", known.digest, known.n, split)

    def prompts(self, plan: records.Plan, folder: Path) -> Iterator[FoundPrompt]:
        """The best prompt by validation, never by test, for each dataset and model whose searches have all ended."""
        stories = Stories(folder)
        stories.refresh()
        verdicts = {
            (row.dataset, row.model, row.optimizer): row.verdict
            for row in rows_of(plan, searches_of(folder))
        }
        places: dict[tuple[str, str], list[tuple[PlannedTrial, Trial]]] = defaultdict(list)
        for cell in cells_of(plan):
            trial = Trial()
            for line in stories.of(cell.experiment_id):
                trial.fold(line)
            places[cell.dataset, cell.model].append((cell, trial))
        for (dataset, model), tried in places.items():
            ended = [each for each in tried if each[0].optimizer != BASELINE and each[1].result]
            if not ended or any(trial.outcome is None for _, trial in tried):
                continue
            cell, best = max(
                ended,
                key=lambda each: each[1].result["validation"].get(each[1].result["winner"], 0.0),
            )
            tags = {
                "benchmark_run_id": str(plan.run_id),
                "koderz.optimizer": cell.optimizer,
                "koderz.seed": str(cell.seed),
                "koderz.verdict": verdicts.get((dataset, model, cell.optimizer), "not comparable"),
                "koderz.simulated": str(plan.simulated).lower(),
            }
            name = re.sub(r"[^A-Za-z0-9._-]", "-", f"koderz-{dataset}-{model}")
            yield FoundPrompt(name, [*_with_variables(best.prompt)], tags)


def _with_variables(messages: Sequence[Message]) -> Iterator[dict[str, str]]:
    """The template with `{column}` as MLflow's `{{column}}`; unchanged examples come before it."""
    for number, message in enumerate(messages, 1):
        text = text_of(message)
        text = re.sub(r"\{(\w+)\}", r"{{\1}}", text) if number == len(messages) else text
        yield {"role": str(message["role"]), "content": text}


OPTIMIZE = OptimizerPart()
