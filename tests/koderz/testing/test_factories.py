"""Factories make what a run leaves, and a model that answers as a test says."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import koderz
from koderz.models.providers import Model
from koderz.testing import ModelServer, a_journal, a_model, a_plan, a_run
from koderz.types import Completion, Sampling
from koderz_tracker.index import load_index
from koderz_tracker.journal import NAME
from koderz_tracker.records import Experiment, Record, decode
from koderz_tracker.runs import RUN_ID
from koderz_tracker.summary import summarize

ASKED = [{"role": "user", "content": "hello"}]


def lines_of(folder: Path) -> list[Record]:
    lines = [decode(line) for line in (folder / NAME).read_bytes().splitlines()]
    return [line for line in lines if line]


def test_run_has_the_outcomes_costs_and_times_that_are_given(tmp_path: Path) -> None:
    dear = {"success": True, "cost": 0.5, "latency": 3.0, "iterations": 3, "tokens_in": 20}
    folder = a_run(tmp_path, {"a": {"x": [True, False], "y": ["unreachable"]}, "b": {"x": [None, dear]}}, cost=0.25)

    run = koderz.load_summary(folder)
    assert run == koderz.load_summary(folder.with_suffix(".json"))
    assert {arm: [(r.problem_id, r.sample, r.success) for r in run.arms[arm].results] for arm in run.arms} == {
        "a": [("x", 0, True), ("x", 1, False)],
        "b": [("x", 1, True)],
    }
    (last,) = run.arms["b"].results
    assert (last.cost, last.latency, last.iterations, last.calls, last.tokens) == (0.5, 3.0, 3, 3, 29)
    assert [(fault["problem_id"], fault["cause"]) for fault in run.faults] == [("y", "unreachable")]
    assert run.paid == {"total": 1.25, "results": 1.0, "faults": 0.25, "unfinished": 0.0}
    assert (run.planned, run.duration_seconds, run.start_time) == (5, 2.5, "2026-01-31T12:00:00.000000")


def test_run_is_recorded_as_its_calls_and_attempts_say(tmp_path: Path) -> None:
    folder = a_run(tmp_path, [{"success": True, "iterations": 3, "tokens_in": 20}], cost=0.3)

    lines = lines_of(folder)
    assert [line.kind for line in lines] == ["plan", *["call"] * 3, *["attempt"] * 3, "experiment", "finished"]
    ended = next(line for line in lines if isinstance(line, Experiment))
    for name in ("cost", "latency", "tokens_in", "tokens_out"):
        assert sum(getattr(line, name) for line in lines[1:4]) == pytest.approx(getattr(ended, name)), name
    assert [getattr(line, "verdict", "") for line in lines[4:7]] == ["failed", "failed", "passed"]


def test_run_that_was_killed_has_no_summary(tmp_path: Path) -> None:
    folder = a_run(tmp_path, [True], status="")
    assert not folder.with_suffix(".json").exists()
    assert koderz.load_summary(folder).status == "unfinished"


def test_runs_of_a_folder_have_ids_that_count_up(tmp_path: Path) -> None:
    folders = [a_run(tmp_path), a_journal(tmp_path), a_run(tmp_path)]
    assert [folder.name[6:14] for folder in folders] == ["0a1b2c3d", "0a1b2c3e", "0a1b2c3f"]
    assert all(RUN_ID.fullmatch(folder.name) for folder in folders)
    assert koderz.compare(folders[0], folders[2]).difference == 0
    with pytest.raises(koderz.KoderzError, match="can't be written"):
        a_run(tmp_path, run_id=folders[0].name)


def test_plan_takes_fields_of_the_record() -> None:
    plan = a_plan(["x"], arms=("a", "b"), config={"suite": "qa"}, samples=2)
    assert (plan.mode, plan.planned, plan.suite, plan.model_of("b")) == ("comparative", 4, "qa", "m")
    with pytest.raises(TypeError, match="sample"):
        a_plan(sample=2)


@pytest.mark.parametrize(
    ("damage", "kinds", "lost"),
    [
        ({"lines": 2}, ["plan", "call"], 0),
        ({"lines": 2, "is_torn": True}, ["plan", "call"], 0),
        ({"is_torn": True}, ["plan", "call", "attempt"], 0),
        ({"damaged": [1]}, ["plan", "attempt", "experiment"], 1),
    ],
)
def test_journal_is_damaged_or_cut_off(tmp_path: Path, damage: dict[str, Any], kinds: list[str], lost: int) -> None:
    whole = a_run(tmp_path / "whole", [True], status="")
    records = lines_of(whole)

    async def made() -> Path:  # also while an event loop runs
        return a_journal(tmp_path, *records[1:], **damage)

    journal = asyncio.run(made()) / NAME
    index = load_index(journal)
    assert [entry.kind for entry in index if entry.kind] == kinds
    assert len(index.damaged) == lost
    assert journal.read_bytes().endswith(b"\n") is not damage.get("is_torn", False)
    assert summarize(journal.parent).status == "unfinished"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("yes", ["yes", "yes"]),
        (["no", Completion("yes")], ["no", "yes", "yes"]),
        (lambda messages, sampling: f"{messages[0]['content']} {sampling.seed}", ["hello 7"]),
    ],
)
def test_model_answers_what_it_is_told(answer: Any, said: list[str]) -> None:
    async def asked() -> list[str]:
        return [(await model.complete(ASKED, Sampling(seed=7))).text for _ in said]

    model = a_model(answer)
    as_any_other: Model = model
    assert as_any_other.price() == (0.0, 0.0, ())
    assert asyncio.run(asked()) == said
    assert [messages for messages, _ in model.asked] == [tuple(ASKED)] * len(said)


def test_model_raises_faults_and_needs_an_answer() -> None:
    with pytest.raises(koderz.Fault, match="gone"):
        asyncio.run(a_model(koderz.Fault("gone")).complete(ASKED, Sampling()))
    with pytest.raises(ValueError, match="name one at least"):
        a_model([])


def test_model_answers_a_whole_run_by_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> koderz.Run:
        async with ModelServer(model, models=["m"]) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
            monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
            return await koderz.benchmark(range(2), model="openai/m", mode="zero-shot", results=tmp_path)

    model = a_model(["    return 7", "    return 8"])
    assert asyncio.run(run()).summary.tokens_out == 10
    assert len(model.asked) == 2


def test_factories_load_no_server() -> None:
    script = "import sys; from koderz.testing import a_run; assert 'aiohttp' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
