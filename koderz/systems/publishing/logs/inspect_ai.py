"""Logs of inspect_ai: `.eval`, a zip of JSON, and the same as one `.json`. Read: log version 2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from koderz.systems.publishing.logs.log import (
    Log,
    LoggedSample,
    count,
    listed,
    number,
    read_json,
    table,
    text,
    unzipped,
)

_LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}  # inspect_ai.scorer.value_to_float
_STATUS = {
    "success": "complete",
    "started": "unfinished",
    "cancelled": "interrupted",
    "error": "failed",
}
_TOLD = (
    "epochs",
    "limit",
    "sample_id",
    "message_limit",
    "token_limit",
    "time_limit",
    "fail_on_error",
    "temperature",
)

ASKED = "koderz_asked"
"""The key of a sample's metadata under which koderz writes its digest of what the task asks."""

OWN = "koderz"
"""The key of a log's metadata under which koderz writes what inspect has no place for."""


def read_archive(path: Path) -> Log:
    """The log in a `.eval`. One that still goes on, or was killed, has only its journal, which is read then."""
    with unzipped(path) as archive:
        names = set(archive.names)
        header = archive.read("header.json" if "header.json" in names else "_journal/start.json")
        if "summaries.json" in names:
            samples = archive.read("summaries.json")
        elif parts := sorted(name for name in names if name.startswith("_journal/summaries/")):
            parts.sort(key=lambda name: (len(name), name))
            samples = [sample for part in parts for sample in listed(archive.read(part))]
        else:
            samples = [archive.read(name) for name in sorted(names) if name.startswith("samples/")]
        return _log(table(header), listed(samples), path)


def read_document(path: Path) -> Log:
    """The log in a `.json`."""
    document = table(read_json(path))
    return _log(document, listed(document.get("samples")), path)


def _log(header: Mapping[str, Any], samples: list[Any], path: Path) -> Log:
    about, config = table(header.get("eval")), table(table(header.get("eval")).get("config"))
    results, stats = table(header.get("results")), table(header.get("stats"))
    names = [
        text(table(each).get("name"))
        for each in listed(results.get("scores")) or listed(about.get("scorers"))
    ]
    headline = text(table(results.get("headline")).get("score")) or next(iter(names), "")
    dataset, own = table(about.get("dataset")), table(table(about.get("metadata")).get(OWN))
    version = text(table(about.get("packages")).get("inspect_ai"))
    config = {**config, **table(about.get("model_generate_config"))}
    told = {
        name: config[name]
        for name in (*_TOLD, "max_tokens", "top_p", "seed")
        if config.get(name) is not None
    }
    rows = [row for sample in samples if (row := _row(table(sample), headline))]
    reason = text(table(header.get("error")).get("message")).partition("\n")[0]
    is_numbered = all(isinstance(table(sample).get("id"), int) for sample in samples)
    notes = []
    if is_numbered and dataset.get("shuffled"):
        notes.append(
            f"{path.name}: its dataset was shuffled and has no ids of its own; tasks are matched by text, too."
        )
    if header.get("invalidated"):
        notes.append(f"{path.name} is marked as invalidated.")
    return Log(
        tool=f"inspect_ai {version}".strip(),
        suite=text(about.get("task")) or "inspect_ai",
        model=text(about.get("model")) or "unknown",
        rows=rows,
        scorer=headline or "score",
        settings={
            **told,
            "task_version": about.get("task_version"),
            "task_args": table(about.get("task_args")),
            "scorer": headline,
        },
        started=text(stats.get("started_at")) or text(about.get("created")),
        ended=text(stats.get("completed_at")),
        status=_STATUS.get(text(header.get("status")), "unfinished"),
        reason=reason,
        planned=count(results.get("total_samples"))
        or (count(dataset.get("samples")) or 0) * (config.get("epochs") or 1),
        simulated=own.get("simulated") is True,
        lower_is_better=own.get("lower_is_better") is True,
        notes=notes,
    )


def _row(sample: Mapping[str, Any], headline: str) -> LoggedSample | None:
    task = text(sample.get("id"))
    if not task:
        return None
    values = dict(_values(table(sample.get("scores"))))
    own = table(table(sample.get("scores")).get(headline))
    # A score of several values stands for them by its first, as no one says which is meant.
    value = values.get(
        headline, next((v for name, v in values.items() if name.startswith(f"{headline}.")), None)
    )
    error = sample.get("error")
    message = text(table(error).get("message") if isinstance(error, dict) else error).strip()
    reason = message.partition("\n")[0]
    if message:
        value = None  # as inspect's own figures leave it out, whatever was scored before
    elif value is None:
        reason = f"no score by {headline}"
    usage = [table(each) for each in table(sample.get("model_usage")).values()]
    costs = [number(each.get("total_cost")) for each in usage]
    tokens = [
        [count(each.get(name)) or 0 for each in usage] for name in ("input_tokens", "output_tokens")
    ]
    asked = sample.get("input")
    if isinstance(asked, list):
        asked = "\n".join(text(table(message).get("content")) for message in asked)
    limit = sample.get("limit")
    reached = text(table(limit).get("type") if isinstance(limit, dict) else limit)
    return LoggedSample(
        task=task,
        value=value,
        error=reason,
        metrics={name: each for name, each in values.items() if name != headline},
        answer=text(own["answer"]) if isinstance(own.get("answer"), str) else None,
        note=f"limit: {reached}" if reached else "",
        cost=sum(filter(None, costs)) if usage and None not in costs else None,
        tokens_in=sum(tokens[0]) if usage else None,
        tokens_out=sum(tokens[1]) if usage else None,
        seconds=number(sample.get("total_time")),
        asks=text(asked),
        fields=table(sample.get("metadata")),
        asked=text(table(sample.get("metadata")).get(ASKED)),
    )


def _values(scores: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Each score of a sample as a number, by its scorer, and by its key where a scorer gives several."""
    for name, score in scores.items():
        value = table(score).get("value")
        parts = value.items() if isinstance(value, dict) else [("", value)]
        for key, part in parts:
            if isinstance(part, bool):
                part = float(part)
            found = _LETTERS.get(part) if isinstance(part, str) else number(part)
            if found is not None:
                yield (f"{name}.{key}" if key else name), found
