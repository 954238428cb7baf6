"""Runs as entries of public registries of results: Every Eval Ever, and `.eval_results` of a model on the Hub.

No value is made up. What koderz can't know is asked for by an option, or `unknown` where the registry has that word.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, get_args

import orjson

from koderz._version import __version__
from koderz.analysis.export import Extent, Publication, RegistryFormat, Relationship, arms_of
from koderz.analysis.runs import FAULT, Run, load_run
from koderz.analysis.story import Experiments, Story, planned_of
from koderz.errors import KoderzError
from koderz_tracker.files import write_whole
from koderz_tracker.messages import text_of
from koderz_tracker.records import PASSES, Fault, Plan
from koderz_tracker.summary import Figures

_EEE = "0.3.0"  # the version of Every Eval Ever's schema
_UNKNOWN = {"deployment_type": "unknown", "model_availability": "unknown"}


def write_eee(folders: Sequence[Path], target: Path, about: Publication, extent: Extent) -> int:
    """Writes an aggregate and a samples file of Every Eval Ever for each arm of each run, below `target/data`.

    Returns the number of samples. Raises KoderzError where an option is missing, and as `_figures_of`.
    """
    if not about.organization or about.relationship not in get_args(Relationship):
        raise KoderzError(
            "--format eee needs --organization NAME, who publishes the result, and --relationship, what they are to "
            f"the model: {', '.join(get_args(Relationship))}"
        )
    count = 0
    for folder in folders:
        experiments, run = Experiments(folder), _run_in(folder, extent)
        for name in arms_of(experiments.plan, extent.arm):
            figures, counts = _figures_of(run, experiments.plan, name, extent)
            entry = _Entry(experiments.plan, run, name, about, figures, counts)
            rows = b"".join(
                orjson.dumps(entry.sample(story), option=orjson.OPT_APPEND_NEWLINE)
                for story in experiments.of({name})
                if extent.faults == "fail" or not isinstance(story.outcome, Fault)
            )
            path = target / entry.place
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path.with_name(f"{path.stem}_samples.jsonl"), [rows], durable=False)
            aggregate = entry.aggregate(rows)
            write_whole(path, [orjson.dumps(aggregate, option=orjson.OPT_INDENT_2)], durable=False)
            count += rows.count(b"\n")
    return count


def write_hub(folders: Sequence[Path], file: IO[bytes], about: Publication, extent: Extent) -> None:
    """Writes the runs' success rates as YAML for a model's `.eval_results` folder on the Hub, in per cent.

    Raises KoderzError without a dataset and task of the Hub, for a run of several arms, and as `_figures_of`.
    """
    if not (about.hf_dataset and about.hf_task):
        raise KoderzError(
            "--format hf needs --hf-dataset ID and --hf-task ID, which name a leaderboard of the Hub"
        )
    import yaml

    entries = []
    for folder in folders:
        experiments, run = Experiments(folder), _run_in(folder, extent)
        names = [*arms_of(experiments.plan, extent.arm)]
        if len(names) != 1:
            raise KoderzError(
                f"{folder.name} has {len(names)} arms; choose one with --arm: {', '.join(names)}"
            )
        figures, counts = _figures_of(run, experiments.plan, names[0], extent)
        number = str(figures.total_problems)
        if len(counts) > 3 or figures.total_problems < counts["planned"]:
            number = (
                ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
                + " of"
            )
        entry: dict[str, Any] = {
            "dataset": {"id": about.hf_dataset, "task_id": about.hf_task},
            "value": round(figures.rate, 4),
            "date": datetime.fromisoformat(run.end_time).astimezone().isoformat(timespec="seconds"),
            "notes": f"{names[0]}, {number} experiments, koderz {__version__}, {run.run_id}",
        }
        if about.source_url:
            entry["source"] = {"url": about.source_url, "name": "koderz run"}
        entries.append(entry)
    file.write(yaml.safe_dump(entries, sort_keys=False, allow_unicode=True).encode())


EEE, HF = RegistryFormat(write_eee, is_folder=True), RegistryFormat(write_hub)


def _run_in(folder: Path, extent: Extent) -> Run:
    """The run in a folder, with its faults as they are to count."""
    # this import takes longer than most commands
    from koderz.analysis.completion import with_faults_failed

    run = load_run(folder)
    return with_faults_failed(run) if extent.faults == "fail" else run


def _figures_of(run: Run, plan: Plan, arm: str, extent: Extent) -> tuple[Figures, dict[str, int]]:
    """The figures of an arm, and the numbers of its planned experiments, of those judged, and of faults.

    Raises KoderzError where nothing was judged, and for an incomplete arm unless that is asked for.
    """
    figures, results = run.arms[arm].summary, run.arms[arm].results
    if figures.success_rate is None:
        raise KoderzError(
            f"{run.run_id}: nothing of {arm} was judged, so there is no result to report"
        )
    planned = planned_of(plan, arm)
    counts = {"planned": planned, "judged": len(results), "faults": len(run.missing_of(arm))}
    is_whole = len(results) >= planned or (run.status == "decided" and not counts["faults"])
    if not is_whole and not extent.incomplete:
        way_out = "; --faults fail counts each fault as a failure" if counts["faults"] else ""
        raise KoderzError(
            f"{run.run_id}: {len(results)} of {planned} experiments of {arm} were judged "
            f"({counts['faults']} faults), and a registry has rates of all of them: end the run, or write what "
            f"there is with --incomplete{way_out}"
        )
    if failed := sum(result.verdict == FAULT for result in results):
        counts |= {"judged": len(results) - failed, "faults_as_failures": failed}
    return figures, counts


@dataclass(frozen=True, slots=True)
class _Entry:
    """One arm of a run, as Every Eval Ever has it."""

    plan: Plan
    run: Run
    arm: str
    about: Publication
    figures: Figures
    counts: Mapping[str, int]  # planned experiments, those that were judged, and faults

    @property
    def model(self) -> str:
        """The model's id, which begins with who made it."""
        name = self.about.model_id or self.plan.model_of(self.arm)
        return name if "/" in name else f"unknown/{name}"

    @property
    def place(self) -> str:
        """The path of the aggregate in the registry's store."""
        developer, _, name = self.model.partition("/")
        digest = hashlib.sha256(f"{self.plan.run_id} {self.arm}".encode()).digest()[:16]
        words = [_word(word) for word in (self.plan.suite, developer, name)]
        return f"data/{'/'.join(words)}/{uuid.UUID(bytes=digest, version=4)}.json"

    @property
    def name(self) -> str:
        """The name of the evaluation."""
        return f"{self.plan.suite}, {self.plan.arm(self.arm).title}"

    @property
    def identifier(self) -> str:
        return f"{self.name}/{self.model}/{_epoch(self.run.end_time)}"

    def aggregate(self, rows: bytes) -> dict[str, Any]:
        """The aggregate, which names the file that holds these rows."""
        samples = self.place.removesuffix(".json") + "_samples.jsonl"
        details = {
            "run_id": str(self.plan.run_id),
            "arm": self.arm,
            "solver": self.plan.arm(self.arm).solver,
        }
        details |= {name: str(count) for name, count in self.counts.items()}
        if bounds := self.figures.success_rate_bounds:
            details["success_rate_bounds"] = "{:.4g} to {:.4g} %".format(*bounds)
        return {
            "schema_version": _EEE,
            "evaluation_id": self.identifier,
            "evaluation_timestamp": _epoch(self.run.start_time),
            "retrieved_timestamp": _epoch(self.run.end_time),
            "source_metadata": {
                "source_name": "koderz run",
                "source_type": "evaluation_run",
                "source_organization_name": self.about.organization,
                "evaluator_relationship": self.about.relationship,
                "additional_details": details
                | ({"run_url": self.about.source_url} if self.about.source_url else {}),
            },
            "eval_library": {
                "name": "koderz",
                "version": str(self.plan.environment.get("koderz", "unknown")),
            },
            "model_info": {
                "name": self.plan.model_of(self.arm),
                "id": self.model,
                "additional_details": {
                    **_UNKNOWN,
                    "simulated": str(self.plan.is_simulated(self.arm)).lower(),
                },
            },
            "evaluation_results": [*self._results()],
            "detailed_evaluation_results": {
                "format": "jsonl",
                "file_path": samples,
                "hash_algorithm": "sha256",
                "checksum": hashlib.sha256(rows).hexdigest(),
                "total_rows": rows.count(b"\n"),
            },
        }

    def sample(self, story: Story) -> dict[str, Any]:
        """One experiment as a line of the samples file."""
        outcome, calls = story.outcome, story.calls
        # of a fault, as a failure
        success, score, verdict, tokens, latency = False, 0.0, FAULT, (0, 0), 0.0
        if not isinstance(outcome, Fault):
            success, verdict, latency = outcome.success, outcome.verdict, outcome.latency
            score = float(success) if outcome.score is None else outcome.score
            tokens = outcome.tokens_in, outcome.tokens_out
        first = next((text_of(message) for call in calls[:1] for message in call.messages[-1:]), "")
        expected = self.plan.basis.expectations.get(story.problem_id, {}).get("expected_response")
        row: dict[str, Any] = {
            "schema_version": _EEE,
            "evaluation_id": self.identifier,
            "model_id": self.model,
            "evaluation_name": self.name,
            "evaluation_result_id": PASSES,
            "sample_id": story.problem_id
            if self.plan.samples == 1
            else f"{story.problem_id}, sample {story.sample}",
            "interaction_type": "single_turn" if len(calls) == 1 else "multi_turn",
            "input": {"raw": first, "reference": [str(expected)] if expected else []},
            "answer_attribution": _attribution(story),
            "evaluation": {
                "score": score,
                "is_correct": success,
                "num_turns": max(1, len(calls)),
            },
            "token_usage": {
                "input_tokens": tokens[0],
                "output_tokens": tokens[1],
                "total_tokens": sum(tokens),
            },
            "performance": {"latency_ms": 1000 * latency},
            "metadata": {
                "experiment_id": story.experiment_id,
                "verdict": verdict,
                "cause": outcome.cause,
            },
        }
        if len(calls) == 1:
            return row | {"output": {"raw": [str(calls[0].reply)]}, "messages": None}
        return row | {"output": None, "messages": [*_transcript(story)]}

    def _results(self) -> Iterator[dict[str, Any]]:
        figures = self.figures
        uncertainty: dict[str, Any] = {"num_samples": figures.total_problems}
        if interval := figures.success_rate_interval:
            low, high = interval
            uncertainty["confidence_interval"] = {
                "lower": low / 100, "upper": high / 100, "confidence_level": 0.95,
                "method": str(figures.success_rate_interval_method),
            }  # fmt: skip
        yield {
            "evaluation_result_id": PASSES,
            "evaluation_name": self.name,
            "source_data": self._source(),
            "metric_config": {
                "metric_id": "pass_rate", "metric_name": "pass@1", "metric_kind": "pass_rate",
                "metric_unit": "proportion", "lower_is_better": False, "score_type": "continuous",
                "min_score": 0, "max_score": 1,
            },
            "score_details": {"score": figures.rate / 100, "uncertainty": uncertainty},
            "generation_config": {"generation_args": self._arguments()},
        }  # fmt: skip
        directions = {measure.name: measure.direction for measure in self.run.measures}
        for name, mean in figures.measures.items():
            if name in directions:
                yield {
                    "evaluation_result_id": name,
                    "evaluation_name": self.name,
                    "source_data": self._source(),
                    "metric_config": {
                        "metric_name": name,
                        "lower_is_better": directions[name] == "lower",
                    },
                    "score_details": {
                        "score": mean.mean,
                        "uncertainty": {"num_samples": mean.results},
                    },
                }

    def _source(self) -> dict[str, Any]:
        about = {"digest": str(self.plan.environment.get("dataset_digest", "unknown"))}
        return {
            "dataset_name": self.plan.suite,
            "source_type": "other",
            "additional_details": about,
        }

    def _arguments(self) -> dict[str, Any]:
        config = self.plan.config
        found = {name: config.get(name) for name in ("temperature", "top_p", "max_tokens")}
        return {name: value for name, value in found.items() if value is not None}


def _attribution(story: Story) -> list[dict[str, Any]]:
    attempt = story.attempts[-1] if story.attempts else None
    text = attempt.program if attempt and isinstance(attempt.program, str) else None
    if text is None:
        return []
    several = len(story.calls) != 1
    return [
        {
            "turn_idx": max(0, len(story.calls) - 1),
            "source": "messages[turn_idx].content" if several else "output.raw",
            "extracted_value": text,
            "extraction_method": "koderz",
            "is_terminal": True,
        }
    ]


def _transcript(story: Story) -> Iterator[Mapping[str, Any]]:
    turn = 0
    for step in story.steps:
        if step.call:
            asked = [(str(message.get("role", "user")), text_of(message)) for message in step.asked]
            for role, text in [*asked, ("assistant", str(step.call.reply))]:
                yield {"turn_idx": turn, "role": role, "content": text}
                turn += 1


def _epoch(time: str) -> str:
    return str(int(datetime.fromisoformat(time).timestamp()))


def _word(text: str) -> str:
    """A text as one part of a path."""
    return re.sub(r"[^\w.-]+", "-", text).strip(".-") or "unknown"
