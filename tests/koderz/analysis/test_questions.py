"""Questions of a researcher on a memory store: rates with n and interval, ties said as ties, all counted once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from koderz.analysis.compare import compare_runs
from koderz.analysis.memories import Chosen, recalled_runs
from koderz.analysis.questions import best, compare, find, hardest, lessons, tried
from koderz.errors import KoderzError
from koderz.systems.memory.tools import TOOLS, read_arguments
from koderz_tracker.memory import open_cortex
from koderz_tracker.memory.cortex import QUESTIONS
from koderz_tracker.memory.memories import draft_of
from koderz_tracker.memory.store import Store
from tests.koderz.analysis.builders import write
from tests.koderz.analysis.remembered import experiment, remember, run_id


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "memory.db") as opened:
        yield opened


def passing(passed: int, of: int = 24, first: int = 0) -> list[bool]:
    """So many of `of` tasks pass, beginning with the `first`."""
    return [(task - first) % of < passed for task in range(of)]


def test_best_says_a_tie_of_22_and_21_of_24(store: Store) -> None:
    remember(store, 1, {"zero-shot": passing(21), "iterative": passing(22)})

    found = best(store)

    assert found.sentence.startswith("A tie on humaneval: m iterative (91.7%, 22 of 24) can't be told from m zero-shot")
    assert "a difference shows from about" in found.sentence
    assert [(row["arm"], row["n"], row["verdict"]) for row in found.rows] == [
        ("iterative", 24, "level"),
        ("zero-shot", 24, "level"),
    ]
    assert all(row["interval"][0] < row["success_rate"] < row["interval"][1] for row in found.rows)


def test_best_takes_repeats_together_and_keeps_simulated_models_out(store: Store) -> None:
    for number in (1, 2, 3):
        remember(store, number, {"zero-shot": passing(6)})
    remember(store, 4, {"iterative": passing(23)}, model="n")
    remember(store, 5, {"zero-shot": passing(24)}, model="simulated")

    found = best(store)
    both = best(store, allow_simulated=True)

    assert [(row["model"], row["n"], row["verdict"]) for row in found.rows] == [("n", 24, "best"), ("m", 72, "worse")]
    assert found.rows[1]["runs"] == [run_id(1), run_id(2), run_id(3)]
    assert any("SIMULATED" in note for note in found.notes)
    assert {row["model"] for row in both.rows} == {"m", "n", "simulated"}


def test_best_by_cost_a_success_has_intervals(store: Store) -> None:
    remember(store, 1, {"zero-shot": passing(12), "iterative": passing(24)})

    found = best(store, by="cost-per-success")

    assert [row["arm"] for row in found.rows] == ["iterative", "zero-shot"]
    assert found.rows[0]["cost_per_success"] == pytest.approx(0.01)
    low, high = found.rows[1]["cost_per_success_interval"]
    assert low < 0.02 < high


def test_rates_count_the_newest_outcome_of_each_experiment_once(store: Store) -> None:
    remember(store, 1, {"zero-shot": passing(11, 22)})
    remember(store, 1, {"zero-shot": passing(12, 22)}, minute=5)  # rescored
    going = remember(store, 2, {"iterative": passing(3, 6)}, ended=False)
    remember(store, 2, {"iterative": passing(4, 6)}, ended=False, minute=9)

    runs, _ = recalled_runs(store, Chosen())

    counts = {run.name: [(a.summary.successes, a.summary.total_problems) for a in run.arms.values()] for run in runs}
    assert counts == {run_id(1): [(12, 22)], going: [(4, 6)]}


def test_experiments_newer_than_the_memory_of_their_run_count(store: Store) -> None:
    remember(store, 1, {"zero-shot": passing(6, 12)})
    remember(store, 1, {"zero-shot": [*passing(6, 12), True, None]}, minute=5, ended=False)

    (run,), _ = recalled_runs(store, Chosen())

    assert (run.arms["zero-shot"].summary.successes, len(run.results), len(run.faults)) == (7, 13, 1)


def test_compare_gives_the_verdict_of_benchmark_compare(store: Store, tmp_path: Path) -> None:
    a = remember(store, 1, {"zero-shot": passing(10), "iterative": passing(20)})
    b = remember(store, 2, {"zero-shot": passing(20), "iterative": passing(21)})
    for run in (a, b):
        memory = store.get(run)
        assert memory
        write(tmp_path / "benchmark_results" / f"{run}.json", orjson.loads(memory.content))

    same = compare_runs([a, b], tmp_path / "benchmark_results").document()
    found = compare(store, a, b)

    assert [row["verdict"] for row in found.rows] == [arm["headline"] for arm in same["arms"].values()]
    assert [row["interval"] for row in found.rows] == [arm["interval_holm"] for arm in same["arms"].values()]
    assert compare(store, "latest~1").rows[0]["b"] == f"{a} iterative"
    assert compare(store, "zero-shot", "iterative").rows[0]["n"] == 24


def test_compare_says_where_nothing_could_have_been_seen(store: Store) -> None:
    remember(store, 1, {"zero-shot": passing(1, 4), "iterative": passing(3, 4)})

    assert "no difference could have been shown" in compare(store, "latest").sentence


def test_compare_refuses_what_means_nothing(store: Store) -> None:
    remember(store, 1, {"zero-shot": passing(3, 8)})
    remember(store, 2, {"zero-shot": passing(3, 8)}, model="simulated")

    with pytest.raises(KoderzError, match="give no two arms to compare; there are"):
        compare(store, "m", "nobody")
    with pytest.raises(KoderzError, match="name two runs"):
        compare(store, "m")
    with pytest.raises(KoderzError, match="SIMULATED"):
        compare(store, "latest~1", "latest")


def test_hardest_lists_what_never_passes_with_causes(store: Store) -> None:
    remember(store, 1, {"zero-shot": [True, "timeout", False], "iterative": [True, "timeout", True]})

    found = hardest(store)
    alone = hardest(store, arm="zero-shot")

    assert found.sentence == "1 of 3 tasks of humaneval never passed, tried 2 to 2 times."
    assert (found.rows[0]["task"], found.rows[0]["passed"], found.rows[0]["causes"]) == (
        "T/1",
        "0 of 2",
        {"timeout": 2},
    )
    assert found.rows[0]["interval"][1] > 50  # two tries show little
    assert alone.sentence.startswith("2 of 3")
    assert [row["task"] for row in hardest(store, cause="assertion").rows] == ["T/2"]


def test_tried_names_what_differed_and_what_could_be_shown(store: Store) -> None:
    run = remember(store, 1, {"zero-shot": passing(12), "iterative": passing(20)})

    found = tried(store, "m iterative on humaneval at temperature 0.7 with gpt-9")
    same = tried(store, model="m", solver="iterative", settings={"temperature": "0"})

    assert found.sentence.startswith(f"Not tried as planned; the nearest: m iterative in {run} (temperature was 0.0)")
    assert found.rows[0]["differs"] == {"temperature": 0.0}
    assert found.rows[0]["could_show"] > 10
    assert any("gpt-9" in note for note in found.notes)
    assert same.sentence == f"Tried before: m iterative in {run} passed 20 of 24."


def test_find_and_lessons_filter_and_say_how_many_fit(store: Store) -> None:
    remember(store, 1, {"iterative": [True]}, own={"lesson": "T/0: mind it", "lesson_cause": "assertion"})
    remember(store, 2, {"zero-shot": ["exception:KeyError", None, True]}, minute=3)

    assert [row["outcome"] for row in find(store, outcome="failed").rows] == ["failed (exception:KeyError)"]
    assert [row["outcome"] for row in find(store, outcome="fault").rows] == ["fault (unreachable)"]
    assert len(find(store, cause="exception").rows) == 1
    assert len(find(store, since="2026-02-01T12:02:00").rows) == 3
    assert find(store, order="telling", limit=1).rows[0]["lesson"] == "T/0: mind it"
    assert [row["cause"] for row in lessons(store, task="T/0").rows] == ["assertion"]
    assert find(store, model="nobody").sentence == "No experiment in this store fits."
    with pytest.raises(KoderzError, match="choose from passed, failed"):
        find(store, outcome="good")


def test_rates_refuse_a_choice_by_outcome(store: Store) -> None:
    remember(store, 1, {"zero-shot": passing(3, 8)})

    with pytest.raises(KoderzError, match="means nothing"):
        best(store, outcome="passed")


@pytest.mark.parametrize("question", QUESTIONS)
def test_questions_are_methods_of_the_store_and_tools(tmp_path: Path, question: str) -> None:
    with Store(tmp_path / "memory.db") as opened:
        remember(opened, 1, {"zero-shot": passing(12), "iterative": passing(20)})
    every: dict[str, dict[str, Any]] = {
        "compare": {"a": "latest"},
        "tried": {"plan": "iterative"},
        "claim": {"sentence": "iterating helps", "runs": ["latest"]},
    }
    arguments = every.get(question, {})

    async def ask() -> tuple[Any, Any]:
        async with open_cortex(tmp_path / "memory.db") as cortex:
            given = dict(arguments)
            by_name = [given.pop("sentence")] if question == "claim" else []
            return (
                await getattr(cortex, question)(*by_name, **given),
                await read_arguments(question, arguments).call(cortex),
            )

    by_method, by_tool = asyncio.run(ask())

    assert by_method["answer"] == by_tool["answer"]
    assert len(orjson.dumps(by_tool)) < 25_000
    assert question in TOOLS


def test_answers_are_small_in_a_store_of_many_runs(store: Store) -> None:
    for number in range(1, 13):
        remember(
            store, number, {"zero-shot": passing(number, 24, number), "iterative": passing(20)}, model=f"m{number}"
        )

    for answer in (best(store), hardest(store), tried(store, "iterative"), find(store), compare(store, "m1", "m2")):
        assert len(orjson.dumps(answer.document())) < 8_000
        assert len(list(answer.rows)) <= 10
    assert experiment(run_id(1), "zero-shot", 0) == find(store, run=run_id(1), task="T/0").rows[-1]["experiment_id"]


def test_memories_that_make_no_sense_are_left_out(store: Store) -> None:
    remember(store, 1, {"zero-shot": passing(3, 6)}, ended=False)
    remember(store, 2, {"zero-shot": [True]}, ended=False, own={"success": "yes", "cost": -1})
    remember(store, 3, {"zero-shot": [True]}, ended=False, own={"sample": ["x"]})
    remember(store, 4, {"zero-shot": passing(1, 2)}, own={"suite": None})
    store.remember(
        [replace(draft_of(memory), content="{", key=memory.key) for memory in [store.get(run_id(4))] if memory]
    )

    assert [(row["successes"], row["n"]) for row in best(store).rows] == [(3 + 1, 6 + 2)]
