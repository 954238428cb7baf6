"""How much of a memory is shown: a line, what it teaches, or all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koderz_tracker.memory.detail import LESSON, LINE, lesson_of, line_of, shown


def memory(content: str = "", tags: tuple[str, ...] = (), **metadata: Any) -> dict[str, Any]:
    return {
        "id": 7,
        "title": "a title",
        "content": content,
        "category": "note",
        "tags": list(tags),
        "metadata": metadata,
        "created_at": "2026-01-31T12:00:01.000000",
    }


def experiment(content: str = "", **more: Any) -> dict[str, Any]:
    told = {"problem_id": "HumanEval/5", "arm": "iterative", "model": "qwen", "success": True, "iterations": 3}
    return memory(content, ("result",), **{**told, **more})


def run(summary: Any) -> dict[str, Any]:
    told = {"benchmark_run_id": "bench_1", "mode": "comparative", "model": "qwen", "status": "complete", "cost": 0.5}
    return memory(summary if isinstance(summary, str) else json.dumps(summary), ("benchmark_run",), **told)


def test_line_names_task_arm_model_outcome_score_and_time() -> None:
    assert line_of(experiment(verdict="passed", score=0.75)) == (
        "#7 · HumanEval/5 · iterative · qwen · passed after 3 attempts · score 0.75 · 2026-01-31 12:00"
    )
    fault = experiment(success=None, cause="unreachable", iterations=0)
    assert line_of(fault) == "#7 · HumanEval/5 · iterative · qwen · fault (unreachable) · 2026-01-31 12:00"
    assert line_of(memory("text")) == "#7 · a title · note · 2026-01-31 12:00"


def test_lesson_tells_what_failed_and_what_fixed_it() -> None:
    text = "HumanEval/5: passed\n\nAsked:\nWrite it.\n\nAttempts:\n1. failed (assertion)\n2. passed\n\nLesson: mind it"
    assert lesson_of(experiment(text, lesson="mind it")).splitlines()[1:] == [
        "Lesson: mind it",
        "Tried: 1. failed (assertion); 2. passed",
    ]
    assert "Not judged: the server is gone" in lesson_of(experiment(success=None, reason="the server is gone"))
    assert lesson_of(memory("mind\n  the empty list")).endswith("\nmind the empty list")


def test_run_is_told_by_rates_with_intervals_instead_of_its_summary() -> None:
    figures = {"total_problems": 30, "successes": 17, "success_rate_interval": [39.2, 72.6], "causes": {"assertion": 6}}
    paired = {"problems": 30, "both_passed": 17, "neither": 4, "arms": ["a", "b"], "only_iterative": 9}
    said = run({"arms": {"a": {"summary": figures, "results": []}, "b": {"summary": {}}}, "comparison": paired})

    assert "a 17 of 30 (39 to 73 %) · b 0 of 0 · 2026" in line_of(said)
    assert "a 17 of 30 (39 to 73 %); failed: assertion 6" in lesson_of(said)
    assert "17 passed in both, 9 in b alone, 0 in a alone, 4 in neither" in lesson_of(said)


@pytest.mark.parametrize(
    "odd",
    [
        run("no summary at all"),
        run({"arms": []}),
        run({"arms": {f"arm {n} of a long name": {} for n in range(40)}}),
        memory("word " * 9999),
        {**memory(), "title": "t" * 999, "id": 2**63 - 1},
        experiment("\n\nAttempts:\n" + "1. failed (assertion)\n" * 99, lesson="l" * 9999),
        experiment(problem_id={"a": "b" * 999}, arm="x" * 99, model="m" * 999, verdict="v" * 99, score="high"),
        experiment(success=["yes"], iterations="many", sample="s" * 99, cause=["c"] * 99),
        {**run("{}"), "metadata": {"benchmark_run_id": "b" * 99, "cost": "much", "status": "s" * 999}},
    ],
)
def test_detail_keeps_to_its_length_whatever_is_stored(odd: dict[str, Any]) -> None:
    assert len(line_of(odd)) <= LINE
    assert "\n" not in line_of(odd)
    assert len(lesson_of(odd)) <= LESSON
    assert lesson_of(odd).startswith(line_of(odd))


def test_hit_keeps_what_it_has_beside_the_memory() -> None:
    hit = {**memory("text"), "score": 0.5, "ranking": "full"}

    assert shown(hit, "line") == {"id": 7, "text": line_of(hit), "score": 0.5, "ranking": "full"}
    assert shown(hit, "full") == hit
