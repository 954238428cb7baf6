"""The Python API: as much as the command line, for whoever writes `import koderz`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import koderz
from koderz import KoderzError, Unreachable
from koderz.testing import ModelServer
from koderz.testing.wire import Request
from koderz_tracker.journal import NAME
from tests.conftest import PATIENCE
from tests.koderz.world import write_tasks


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speed: Path) -> Path:
    """A folder of three tasks, which a variable names, and a koderz.toml; nothing of the user's is about."""
    for name in [name for name in os.environ if name.startswith("KODERZ_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KODERZ_SINKS", "json")
    monkeypatch.setenv("KODERZ_DATASET", "tasks.jsonl")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")
    shutil.copytree(speed, tmp_path / "cache")
    write_tasks(tmp_path, 3)
    (tmp_path / "koderz.toml").write_text('model = "simulated"\nmode = "zero-shot"\njudges = 1\n')
    return tmp_path


def benchmark(*problems: Any, **settings: Any) -> koderz.Run:
    return asyncio.run(koderz.benchmark(*problems, **settings))


def journals() -> list[Path]:
    return list(Path().glob(f"benchmark_results/*/{NAME}"))


def cut_short(left_out: str) -> None:
    """Takes the lines that hold a text out of the only journal."""
    (path,) = journals()
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if left_out not in line))


# Running


def test_benchmark_returns_the_summary_of_a_range() -> None:
    summary = benchmark(range(2), mode="comparative", model="simulated")

    assert (summary.status, summary.mode, summary.planned) == ("complete", "comparative", 4)
    assert summary.comparison is not None
    assert {name: len(arm.results) for name, arm in summary.arms.items()} == {"zero-shot": 2, "iterative": 2}
    assert summary.simulated
    saved = json.loads((Path("benchmark_results") / f"{summary.run_id}.json").read_text())
    assert (saved["run_id"], saved["config"]["problem_range"]) == (summary.run_id, "0-2")


@pytest.mark.parametrize(
    ("problems", "ids"), [(["T/2", "T/0"], ["T/0", "T/2"]), (("T/1",), ["T/1"]), (None, ["T/0", "T/1", "T/2"])]
)
def test_problems_may_be_named_or_be_all(problems: Any, ids: list[str]) -> None:
    assert [result.problem_id for result in benchmark(problems).results] == ids


def test_benchmark_of_an_empty_choice_runs_nothing() -> None:
    with pytest.raises(KoderzError):
        benchmark([])


def test_environment_and_file_count_as_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KODERZ_SAMPLES", "2")
    monkeypatch.setenv("KODERZ_SEED", "5")

    summary = benchmark(["T/0"], seed=6)

    assert (summary.config["samples"], summary.config["seed"], summary.config["mode"]) == (2, 6, "zero-shot")
    assert len(summary.results) == 2


def test_settings_take_paths_and_plain_values(folder: Path) -> None:
    summary = benchmark(
        range(1), results=folder / "elsewhere", temperature=0, max_cost=1, dataset=folder / "tasks.jsonl"
    )

    assert list((folder / "elsewhere").glob("*.json"))
    assert summary.config["temperature"] == 0


def test_users_solver_gets_its_arguments() -> None:
    Path("own.py").write_text(
        "async def solve(task, ask, judge, *, times=1, loud=False, word='x'):\n"
        "    assert (times, loud, word) == (3, True, 'a b')\n"
        "    return await judge(task, await ask(task.messages))\n"
    )

    summary = benchmark(["T/0"], solver="own.py:solve", solver_args={"times": 3, "loud": True, "word": "a b"})

    assert (summary.mode, len(summary.results), summary.faults) == ("solve", 1, [])


def test_solver_file_is_executed_once_though_its_model_is_found_later() -> None:
    Path("koderz.toml").write_text("judges = 1\n")
    Path("own.py").write_text(
        "with open('executed', 'a') as file:\n    file.write('x')\n\n\n"
        "async def solve(task, ask, judge, *, local_model):\n"
        "    assert local_model == 'simulated'\n"
        "    return await judge(task, await ask(task.messages))\n"
    )

    summary = benchmark(["T/0"], solver="own.py:solve")

    assert summary.faults == []
    assert Path("executed").read_text() == "x"


@pytest.mark.parametrize(
    ("problems", "settings", "said"),
    [
        (range(0, 4, 2), {}, "a range of tasks goes up by one, not by 2"),
        (range(4), {}, "the suite has 3 tasks"),
        (range(0), {}, "END has to be above START"),
        (["T/9"], {}, "no task 'T/9'"),
        (range(1), {"colour": 1}, "there is no setting 'colour'"),
        (range(1), {"concurrency": 0}, "--concurrency: invalid value 0"),
        (range(1), {"model": ""}, "not a model's name"),
        (range(1), {"mode": "fast"}, "choose from"),
        (range(1), {"suite": "nope"}, "there is no suite 'nope'"),
        (range(1), {"base_url": "http://127.0.0.1:9", "model": "openai/x", "api_key_env": "NOPE"}, "set NOPE"),
    ],
)
def test_invalid_arguments_are_told_before_anything_is_created(problems: Any, settings: Any, said: str) -> None:
    with pytest.raises(KoderzError, match=said):
        benchmark(problems, **settings)
    assert not Path("benchmark_results").exists()


def test_unreachable_model_is_an_error_and_never_another() -> None:
    with pytest.raises((Unreachable, koderz.Fault), match=r"127\.0\.0\.1:9"):
        benchmark(range(1), model="openai/gpt", base_url="http://127.0.0.1:9/v1", max_retries=0)


def test_benchmark_runs_beside_another_and_outside_the_main_thread() -> None:
    found: list[koderz.Summary] = []

    async def both() -> None:
        found.extend(await asyncio.gather(koderz.benchmark(["T/0"]), koderz.benchmark(["T/1"])))

    thread = threading.Thread(target=lambda: asyncio.run(both()))
    thread.start()
    thread.join()
    assert [summary.status for summary in found] == ["complete", "complete"]
    assert len({summary.run_id for summary in found}) == 2


def test_decide_stops_and_resume_goes_past_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    write_tasks(Path(), 20)

    def reply(request: Request) -> str:
        name = re.findall(r"def (f\d+)\(\)", str(request.messages[-1]["content"]))[0]
        return f"```python\ndef {name}():\n    return {name[1:] if request.model == 'good' else 'None'}\n```"

    async def go() -> tuple[koderz.Summary, koderz.Summary, koderz.Summary]:
        async with ModelServer(reply, models=("good", "bad")) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
            monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
            first = await koderz.decide("openai/bad", "openai/good", concurrency=2)
            return first, await koderz.resume(), await koderz.resume(past_decision=True)

    first, again, whole = asyncio.run(go())
    assert first.decision
    assert (first.status, first.decision["outcome"], first.decision["tasks"]) == ("decided", "shown", 8)
    assert len(first.arms["zero-shot · openai/good"].results) < 20
    assert (again.decision, len(again.results)) == (first.decision, len(first.results))
    assert (whole.status, whole.decision) == ("complete", first.decision)
    with pytest.raises(KoderzError, match="name two models"):
        asyncio.run(koderz.decide("simulated", "simulated"))


# One experiment


def test_single_experiment_has_a_journal_and_no_run() -> None:
    summary = asyncio.run(koderz.run("T/1"))

    assert (summary.run_id, [result.problem_id for result in summary.results]) == (None, ["T/1"])
    (journal,) = journals()
    assert journal.parent.name == summary.results[0].experiment_id
    assert not list(Path("benchmark_results").glob("*.json"))


def test_single_experiment_ignores_other_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KODERZ_SAMPLES", "4")

    assert len(asyncio.run(koderz.run("T/1")).results) == 1


def test_single_experiment_has_one_solver() -> None:
    with pytest.raises(KoderzError, match="one experiment has one solver"):
        asyncio.run(koderz.run("T/1", mode="comparative"))


# Picking up


def test_resume_of_a_finished_run_returns_its_summary() -> None:
    first = benchmark(range(2))
    (journal,), summary = journals(), Path("benchmark_results") / f"{first.run_id}.json"
    before, saved = journal.read_bytes(), summary.read_bytes()
    summary.unlink()

    again = asyncio.run(koderz.resume())

    assert (again, journal.read_bytes(), summary.read_bytes()) == (first, before, saved)


def test_resume_completes_a_run_wherever_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = benchmark(range(3), dataset=folder / "tasks.jsonl")
    cut_short('"problem_id":"T/1"')
    (folder / "other").mkdir()
    monkeypatch.chdir(folder / "other")

    again = asyncio.run(koderz.resume(str(first.run_id), results=folder / "benchmark_results", concurrency=1))

    assert [result.problem_id for result in again.results] == ["T/0", "T/1", "T/2"]
    assert again.status == "complete"


def test_retry_runs_what_ended_in_a_fault() -> None:
    first = benchmark(range(3), simulated_fault_rate=1.0)
    assert (len(first.faults), first.status) == (3, "incomplete")

    again = asyncio.run(koderz.retry())

    assert len(again.faults) == 3  # the plan's fault rate is settled; each was tried again
    (path,) = journals()
    assert path.read_text().count('{"kind":"fault"') == 6


def test_rescoring_asks_nothing() -> None:
    first = benchmark(range(3))

    again = asyncio.run(koderz.rescore())

    assert [result.success for result in again.results] == [result.success for result in first.results]
    (path,) = journals()
    assert path.read_text().count('{"kind":"call"') == 3
    assert path.read_text().count('{"kind":"experiment"') == 6


def test_resume_keeps_planned_settings_and_checks_others() -> None:
    benchmark(range(1))

    for name in ("model", "seed", "samples", "results_folder"):
        changes: dict[str, Any] = {name: 1}
        with pytest.raises(KoderzError, match=rf"{name} is settled by the plan; only .*concurrency, "):
            asyncio.run(koderz.resume("latest", results=None, past_decision=False, **changes))
    with pytest.raises(KoderzError, match="--concurrency: invalid value 0"):
        asyncio.run(koderz.resume(concurrency=0))


def test_resume_of_a_users_solver_needs_the_folder_where_it_began(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("own.py").write_text(
        "async def solve(task, ask, judge):\n    return await judge(task, await ask(task.messages))\n"
    )
    benchmark(range(2), solver="own.py:solve")
    cut_short('"problem_id":"T/1"')
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "another user"))

    with pytest.raises(KoderzError, match=r"it wasn't begun here, and its (dataset|solver) could run code"):
        asyncio.run(koderz.resume())
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    assert asyncio.run(koderz.resume()).status == "complete"


# The module


def test_public_names_are_complete_and_sorted() -> None:
    assert list(koderz.__all__) == sorted(koderz.__all__)
    assert all(getattr(koderz, name) is not None for name in koderz.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = koderz.nothing


def test_importing_it_loads_nothing_heavy() -> None:
    script = "import sys, koderz; koderz.__version__; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=PATIENCE)

    heavy = {"aiohttp", "httpx", "typer", "rich", "orjson", "msgspec", "asyncio", "mlflow", "modal", "genai_prices"}
    assert not heavy & set(done.stdout.split())
