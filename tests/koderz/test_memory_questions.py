"""Plain questions find the right task of HumanEval, after one run as after twenty."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from koderz.suites import load_suite
from koderz_tracker.memory import Draft
from koderz_tracker.memory.search import search
from koderz_tracker.memory.store import Filter, Store

QUESTIONS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "memory_questions.jsonl").read_text("utf-8").splitlines()
]
"""Questions in other words than the tasks', each with the one task that it is about."""

ENDINGS = {
    "assertion": "failed (assertion) after 2 attempts",
    "exception:NameError": "error (exception:NameError) after 3 attempts",
    "": "passed after 1 attempt",
}


def experiments(run: int) -> Iterator[Draft]:
    """The memories that a comparative run on HumanEval leaves."""
    for place, task in enumerate(load_suite("humaneval").tasks):
        for arm in ("zero-shot", "iterative"):
            cause = [*ENDINGS][(place * 7 + run + len(arm)) % 3]
            asked = f"Complete the following Python function.\n\n```python\n{task.prompt}```\n\nThink step by step."
            ending = (
                f"{ENDINGS[cause]}\n\nAsked:\n{asked}\n\nAttempts:\n1. failed (assertion)\n\nCost $0.0{run}; run {run}"
            )
            yield Draft(
                title=f"Experiment {run}/{place}/{arm}",
                content=f"{task.id} · {arm} · model-{run % 3}: {ending}",
                tags=["result", task.id, f"run-{run}"],
                metadata={
                    "problem_id": task.id,
                    "suite": "humaneval",
                    "arm": arm,
                    "success": not cause,
                    "cause": cause,
                },
                key=f"{run}/{place}/{arm}",
            )


@pytest.mark.parametrize("runs", [1, 20])
def test_plain_questions_find_the_right_task(tmp_path: Path, runs: int) -> None:
    with Store(tmp_path / "memory.db") as store:
        for run in range(runs):
            store.remember([*experiments(run)])
        found = [search(store, each["question"], Filter(), limit=10) for each in QUESTIONS]

    tasks = [[hit.memory.metadata["problem_id"] for hit in hits] for hits in found]
    right = [each["problem_id"] in ids[:5] for each, ids in zip(QUESTIONS, tasks, strict=True)]
    assert sum(right) / len(right) >= 0.75
    assert sum(not ids for ids in tasks) / len(tasks) <= 0.03
    assert all(len(set(ids)) == len(ids) for ids in tasks)
    assert {hit.tried for hits in found for hit in hits} == {2 * runs}
