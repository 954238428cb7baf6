"""Saved rollouts of verifiers, and records of Every Eval Ever with their instances."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.systems.publishing.logs.log import (
    Log,
    LoggedSample,
    count,
    listed,
    number,
    read_json,
    read_lines,
    table,
    text,
)

_OF_RESULTS = {
    "example_id",
    "prompt",
    "completion",
    "answer",
    "task",
    "reward",
    "info",
    "error",
    "stop_condition",
}


def read_traces(path: Path) -> Log:
    """The log of verifiers' `traces.jsonl`: an episode a line, whose reward is the weighted sum of its traces'."""
    place = path / "traces.jsonl" if path.is_dir() else path
    episodes = [table(line) for line in read_lines(place)]
    rows = [_episode(each) for each in episodes]
    environments = dict.fromkeys(
        text(table(each.get("env")).get("name")) or "verifiers" for each in episodes
    )
    return Log(
        tool="verifiers",
        suite="+".join(environments),
        model=_named(place),
        rows=rows,
        scorer="reward",
    )


def _episode(episode: Mapping[str, Any]) -> LoggedSample:
    traces = [table(each) for each in listed(episode.get("traces"))]
    rewards = [table(each.get("rewards")) for each in traces]
    parts = [
        (number(table(each).get("weight")), number(table(each).get("value")))
        for own in rewards
        for each in own.values()
    ]
    known = [
        (1.0 if weight is None else weight) * value for weight, value in parts if value is not None
    ]
    errors = [
        *listed(episode.get("errors")),
        *(error for each in traces for error in listed(each.get("errors"))),
    ]
    task = table(episode.get("task"))
    return LoggedSample(
        task=text(task.get("id") if task else episode.get("task")),
        value=None if errors or not known else sum(known),
        error=text(errors[0])[:200] if errors else "no reward",
        model=text(table(traces[0].get("agent")).get("model")) if traces else "",
        note="timeout" if episode.get("is_timeout") else "",
    )


def read_saved(path: Path) -> Log:
    """The log of a folder of verifiers before 0.2: `results.jsonl` with `metadata.json`."""
    place = path / "results.jsonl" if path.is_dir() else path
    beside = place.with_name("metadata.json")
    about = table(read_json(beside)) if beside.exists() else {}
    rows = []
    for line in read_lines(place):
        sample = table(line)
        metrics = {name: number(value) for name, value in sample.items() if name not in _OF_RESULTS}
        value = number(sample.get("reward"))
        rows.append(
            LoggedSample(
                task=text(sample.get("example_id")),
                value=None if sample.get("error") else value,
                error=text(sample.get("error"))[:200] or "no reward",
                metrics={name: each for name, each in metrics.items() if each is not None},
                asks=text(sample.get("prompt")) or None,
            )
        )
    return Log(
        tool="verifiers",
        suite=text(about.get("env_id")) or "verifiers",
        model=text(about.get("model")) or _named(place),
        rows=rows,
        scorer="reward",
        settings={
            "sampling_args": table(about.get("sampling_args")),
            "env_args": table(about.get("env_args")),
        },
    )


def read_every_eval_ever(path: Path) -> Log:
    """The log of an Every Eval Ever record with its instances, or of a file of instances alone.

    Raises KoderzError for a record of averages, of which no task can be paired.
    """
    record: dict[str, Any] = {}
    if path.suffix == ".json":
        record = table(read_json(path))
        named = table(record.get("detailed_evaluation_results")).get("file_path")
        beside = path.parent / Path(text(named)).name if named else path.with_suffix(".jsonl")
        if not beside.exists():
            raise KoderzError(
                f"{path} has averages alone; give the file of its instances, {beside.name}"
            )
        path = beside
    rows, models, suites = [], dict[str, None](), dict[str, None]()
    for line in read_lines(path):
        sample = table(line)
        judged, usage = table(sample.get("evaluation")), table(sample.get("token_usage"))
        models[text(sample.get("model_id"))] = None
        suites[text(sample.get("evaluation_name"))] = None
        is_correct = judged.get("is_correct")
        value = number(judged.get("score"))
        if value is None and isinstance(is_correct, bool):
            value = float(is_correct)
        rows.append(
            LoggedSample(
                task=text(sample.get("sample_id")),
                value=None if sample.get("error") else value,
                error=text(sample.get("error"))[:200] or "no score",
                tokens_in=count(usage.get("input_tokens")),
                tokens_out=count(usage.get("output_tokens")),
                asks=text(sample.get("sample_hash")) or None,
            )
        )
    told = table(record.get("model_info"))
    return Log(
        tool="Every Eval Ever",
        suite="+".join(suites) or "every-eval-ever",
        model=text(told.get("id")) or "+".join(models) or "unknown",
        rows=rows,
    )


def _named(place: Path) -> str:
    return place.resolve().parent.name
