"""Functions and objects that a program hands over, and runs that functions take by whatever names them."""

from __future__ import annotations

import asyncio
import inspect
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import koderz
from koderz.engines.portable import files_of
from koderz.errors import KoderzError
from koderz.runs.prepare import prepare
from koderz.settings import registry
from koderz.settings.options import fields_of
from koderz_tracker.runs import read_plan
from tests.conftest import PATIENCE
from tests.koderz.test_api import benchmark, cut_short, folder, journals

__all__ = ["folder"]  # the fixture


async def answering(task: Any, ask: Any, judge: Any, *, times: int = 1) -> Any:
    verdict = await judge(task, await ask(task.messages))
    for _ in range(times - 1):
        verdict = await judge(task, await ask(task.messages))
    return verdict


def length(question: Any, reply: str) -> float:
    return min(1.0, len(reply) / 1000)


class Riddles:
    """A suite that is a plain object."""

    name, source = "riddles", "made up"

    def __init__(self) -> None:
        self.tasks = [koderz.Task(id=f"R/{number}", prompt="?", digest=str(number)) for number in range(2)]

    def messages(self, task: koderz.Task, prompts: Any) -> Any:
        return [{"role": "user", "content": task.prompt}]

    def simulate(self, messages: Any, sampling: Any) -> str:
        return "!"

    async def judge(self, task: koderz.Task, answer: Any, sandbox: Any, how: Any) -> Any:
        return koderz.Verdict("passed")


def program_of(run: koderz.Run) -> dict[str, Any]:
    found: dict[str, Any] = read_plan(run.path.with_suffix("")).details["program"]
    return found


def test_solver_may_be_a_function_whose_source_is_on_record() -> None:
    run = benchmark(range(2), solver=answering, solver_args={"times": 2})

    assert (run.mode, [result.calls for result in run.results]) == ("answering", [2, 2])
    assert run.config["solver"] == "program:answering"
    assert program_of(run)["program:answering"]["source"] == inspect.getsource(answering)


def test_resume_goes_on_where_the_function_is_and_says_what_is_missing_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = benchmark(range(2), solvers=(answering, "iterative"))
    cut_short('"problem_id":"T/1"')

    monkeypatch.setattr(registry, "_HANDED", {})
    with pytest.raises(KoderzError, match="program:answering: the program that began the run handed answering over"):
        asyncio.run(koderz.resume(run))
    whole = asyncio.run(koderz.resume(run, solvers=(answering,)))
    assert (whole.status, len(whole.results)) == ("complete", 4)


def test_changed_function_is_not_resumed_silently() -> None:
    benchmark(range(2), solver=answering)
    cut_short('"problem_id":"T/1"')
    scope: dict[str, Any] = {}
    exec("async def answering(task, ask, judge): return await judge(task, await ask(task.messages))", scope)

    with pytest.raises(KoderzError, match="not what it was when the run began: solver answering"):
        asyncio.run(koderz.resume(solver=scope["answering"]))
    asyncio.run(koderz.resume(solver=answering))


def test_suite_may_be_an_object_and_a_scorer_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KODERZ_DATASET")
    riddles = benchmark(suite=Riddles(), solver=answering)
    assert [result.problem_id for result in riddles.results] == ["R/0", "R/1"], riddles.faults[0]["reason"]
    assert "class Riddles" in program_of(riddles)["program:Riddles"]["source"]

    Path("rows.jsonl").write_text('{"input": "How long?", "target": "x"}\n')
    scored = benchmark(suite="qa", dataset="rows.jsonl", solver=answering, scorer=length)
    assert 0 < (scored.results[0].score or 0) <= 1
    assert scored.config["scorer"] == "program:length"


def test_what_has_no_name_or_must_go_elsewhere_is_refused() -> None:
    with pytest.raises(KoderzError, match="--solver: a lambda has no name"):
        benchmark(range(1), solver=lambda task, ask, judge: None)
    plan = asyncio.run(prepare(registry.hand_over({"solver": answering, "local_model": "simulated"}), range(1)))
    with pytest.raises(KoderzError, match="program:answering lives in this program alone"):
        files_of(plan)


def test_function_without_a_source_is_told_apart_by_its_code() -> None:
    script = (
        "import asyncio, koderz\n"
        "async def typed(task, ask, judge): return await judge(task, await ask(task.messages))\n"
        "run = asyncio.run(koderz.benchmark(range(1), solver=typed))\n"
        "print(run.mode, koderz.load_summary('latest').run_id == run.run_id)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False)

    assert done.stdout.split() == ["typed", "True"], done.stderr
    (journal,) = journals()
    about = read_plan(journal.parent).details["program"]["program:typed"]
    assert (about["source"] == "", len(about["digest"])) == (sys.version_info < (3, 13), 16)


def test_runs_are_named_by_id_prefix_latest_file_and_object() -> None:
    first, second = benchmark(range(3)), benchmark(range(3), mode="iterative")
    names: list[Any] = [second, second.run_id, str(second.run_id)[:14], "latest", second.path, str(second.path)]

    for name in names:
        assert koderz.compare(first, name).b.run.run_id == second.run_id
        assert set(koderz.to_dataframe(name)["run_id"]) == {second.run_id}
        if not isinstance(name, koderz.Summary):
            assert koderz.load_summary(name).run_id == second.run_id
        if not isinstance(name, Path):
            assert asyncio.run(koderz.resume(name)).run_id == second.run_id
    with pytest.raises(KoderzError, match="no run"):
        koderz.load_summary("bench_none")


def test_what_is_returned_is_a_table_in_a_notebook_and_a_frame_for_parquet() -> None:
    run = benchmark(range(2))

    assert "<table>" in run._repr_html_()
    assert len(repr(run)) < 1500
    frame = koderz.to_dataframe(run)
    assert not frame.map(lambda value: type(value).__name__ == "UnsetType").any(axis=None)
    frame.to_parquet(io.BytesIO())


def test_plan_says_what_a_run_would_cost_and_leaves_nothing(tmp_path: Path) -> None:
    forecast = asyncio.run(koderz.plan(range(3), mode="zero-shot", model="openai/gpt-6-luna", results=tmp_path / "r"))

    assert forecast.estimate.experiments == 3
    assert forecast.estimate.cost is not None
    assert 0 < forecast.estimate.cost[1] < 1
    assert "Tasks: 3 (T/0 … T/2)" in forecast.lines()
    assert "<td>Tasks</td><td>3 (T/0 … T/2)</td>" in forecast._repr_html_()
    assert not (tmp_path / "r").exists()
    with pytest.raises(KoderzError, match="an empty list of tasks"):
        asyncio.run(koderz.plan([], model="simulated"))


def test_public_names_complete_and_suggest_the_nearest() -> None:
    assert {*koderz.__all__} <= {*dir(koderz)}
    with pytest.raises(AttributeError, match=r"no attribute 'benchmrk'; did you mean koderz.benchmark\?"):
        _ = koderz.benchmrk


def test_keywords_are_the_settings() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/keywords.py", "--check"], cwd=Path(__file__).parents[2], check=False
    )

    assert done.returncode == 0
    signature = inspect.signature(koderz.benchmark)
    assert {"model", "concurrency", "max_cost"} <= signature.parameters.keys()
    assert signature.parameters["concurrency"].default == fields_of(koderz.Settings)["concurrency"].default
