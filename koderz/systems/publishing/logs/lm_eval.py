"""Results of lm-evaluation-harness: `results_DATE.json` with a `samples_TASK_DATE.jsonl` for each task beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.systems.publishing.logs.log import (
    Log,
    LoggedSample,
    listed,
    number,
    read_json,
    read_lines,
    table,
    text,
)

_NAME = re.compile(r"samples_(.+)_(\d{4}-\d\d-\d\dT\d\d[-:]\d\d[-:]\d\d\.\d+)\.jsonl")
_TOLD = ("limit", "gen_kwargs", "random_seed", "fewshot_seed", "model_args")


def read_results(path: Path) -> Log:
    """The log of a `results_….json`, or of a folder that holds one with its samples; of several, the newest.

    Each task's documents are tasks of the run.
    Raises KoderzError where the samples, which --log_samples writes, aren't there.
    """
    if path.is_dir():
        path = max(path.glob("results_*.json"))
    results = table(read_json(path))
    date = path.stem.removeprefix("results_")
    found = [
        (each[1], place)
        for place in sorted(path.parent.glob("samples_*.jsonl"))
        if (each := _NAME.fullmatch(place.name)) and each[2] == date
    ]
    if not found:
        raise KoderzError(
            f"{path} has averages alone, and no samples_…_{date}.jsonl beside it; run lm_eval with --log_samples"
        )
    config = table(results.get("config"))
    higher = table(results.get("higher_is_better"))
    scorers: set[str] = set()
    rows = [
        row for task, place in found for row in _rows(task, place, table(higher.get(task)), scorers)
    ]
    lower = {
        metric
        for each in higher.values()
        for metric, is_higher in table(each).items()
        if is_higher is False
    }
    names = {scorer.partition(",")[0] for scorer in scorers}
    scorer = " or ".join(sorted(scorers))
    when = number(results.get("date"))
    return Log(
        tool=f"lm_eval {text(results.get('lm_eval_version'))}".strip(),
        suite="+".join(task for task, _ in found),
        model=text(results.get("model_name")) or text(config.get("model")) or "unknown",
        rows=rows,
        scorer=scorer,
        lower_is_better=bool(names) and names <= lower,
        settings={
            **{name: config[name] for name in _TOLD if config.get(name) is not None},
            "n-shot": table(results.get("n-shot")),
            "versions": table(results.get("versions")),
            "task_hashes": table(results.get("task_hashes")),
            "chat_template_sha": results.get("chat_template_sha"),
            "scorer": scorer,
        },
        started=datetime.fromtimestamp(when, UTC).isoformat() if when else "",
    )


def _rows(
    task: str, path: Path, higher: Mapping[str, Any], scorers: set[str]
) -> Iterator[LoggedSample]:
    """A row for each document: its score is the first metric by the first filter, the others are its metrics.

    A document has a line for each filter. Older versions write these after each other without their names.
    """
    documents: dict[str, list[dict[str, Any]]] = {}
    for line in read_lines(path):
        documents.setdefault(text(table(line).get("doc_id")), []).append(table(line))
    for document, lines in documents.items():
        values: dict[str, float] = {}
        for place, sample in enumerate(lines, 1):
            by = text(sample.get("filter")) or f"filter {place}"
            for name in [text(name) for name in listed(sample.get("metrics"))] or [*higher]:
                if (found := _value(sample.get(name))) is not None:
                    values[f"{name},{by}"] = found
        headline, value = next(iter(values.items()), ("", None))
        scorers.update(filter(None, [headline]))
        first = lines[0]
        answer = next(iter(listed(first.get("filtered_resps"))), None)
        yield LoggedSample(
            task=f"{task}/{document}",
            value=value,
            error="" if values else "no number by any metric",
            metrics={name: each for name, each in values.items() if name != headline},
            answer=answer if isinstance(answer, str) else None,
            asks=text(first.get("doc_hash")) + text(first.get("prompt_hash")) or None,
            fields=table(first.get("doc")),
        )


def _value(value: Any) -> float | None:
    return float(value) if isinstance(value, bool) else number(value)
