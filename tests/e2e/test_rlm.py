"""`koderz rlm run`, and what a program has of it: the runner whose screen, files and names it keeps."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE, Shell, kill_after, whole_lines
from tests.e2e.answering import answering
from tests.e2e.test_recursion import deep

SCRIPTS = Path(__file__).parents[2] / "scripts"
RUN = ("rlm", "run", "--simulated", "--max-tasks", 2, "--context-lengths", "1K")
KEY = "sk-proj-7f3kd93jf0s9dkf3j4kf"


def documents(koderz: Shell, output: str = "results") -> dict[str, Any]:
    """The files of a run by their names."""
    return {path.name: json.loads(path.read_text()) for path in (koderz.folder / output).iterdir()}


def runs(koderz: Shell) -> dict[str, Path]:
    """The folders of the runs by their suite."""
    found = sorted(path for path in koderz.results.iterdir() if path.is_dir() and path.name.startswith("bench_"))
    return {whole_lines(path / "journal.jsonl")[0]["config"]["suite"]: path for path in found}


@pytest.mark.slow
def test_benchmarks_run_in_turn_and_write_the_files_of_the_original(koderz: Shell) -> None:
    out = koderz(*RUN, "--async", "--concurrency", 2, "--output-dir", "results/run1").out

    headings = re.findall(r"^(?:RLM BENCHMARK SUITE|[A-Z ]+ BENCHMARK$|BENCHMARK SUMMARY)", out, re.MULTILINE)
    assert headings == ["RLM BENCHMARK SUITE", *(f"{name} BENCHMARK" for name in ("OOLONG", "DEEP RESEARCH", "RULER")),
                        "BENCHMARK SUMMARY"]  # fmt: skip
    for line in ("  Model: simulated", "  Max Concurrency: 2", "  RLM Pool Size: 3", "  - Multi-hop reasoning",
                 "Running RULER benchmark with 2 examples...", "RULER Results:", "  Correct: 2/2",
                 "  Results saved to: results/run1/ruler_results.json", "  Status: COMPLETED",
                 "✓ Summary saved to: results/run1/summary.json", "Benchmark execution completed!"):  # fmt: skip
        assert line in out.splitlines(), line
    assert out.count("SIMULATED MODEL") == 3

    found = documents(koderz, "results/run1")
    assert {*found} == {"summary.json", *(f"{name}_results.json" for name in ("oolong", "deep_research", "ruler"))}
    summary, ruler = found["summary.json"], found["ruler_results.json"]
    assert summary["configuration"] == {"max_tasks": 2, "max_concurrency": 2, "rlm_pool_size": 3}
    assert [(name, part["metrics"]["total_tasks"]) for name, part in summary["benchmarks"].items()] == [
        *(("oolong", 2), ("deep_research", 1), ("ruler", 2)),
    ]
    part = summary["benchmarks"]["ruler"]
    assert (part["name"], part["metrics"]["overall_accuracy"], part["metrics"]["correct_tasks"]) == ("RULER", "1.00", 2)
    assert (part["generated"], summary["benchmarks"]["oolong"]["generated"]) == (False, True)
    (first, _) = ruler["results"]
    assert first["task_id"] == "niah_single_1/1024/0"
    assert first["query"].startswith("What is the special magic number for ")
    assert first["expected_answer"][0] in first["result"]
    assert (first["task_index"], first["is_correct"], first["success"], first["score"]) == (0, True, True, 1.0)


@pytest.mark.slow
def test_files_are_made_anew_with_their_run(koderz: Shell) -> None:
    koderz(*RUN, "--benchmark", "ruler", "--quiet")
    before = documents(koderz)
    for again in (("sync",), ("benchmark", "resume"), ("benchmark", "rescore")):
        for path in (koderz.folder / "results").iterdir():
            path.unlink()
        koderz(*again, runs(koderz)["ruler"].name)
        after = documents(koderz)
        assert after["ruler_results.json"]["metrics"]["correct_tasks"] == 2
        assert after["summary.json"].keys() == before["summary.json"].keys()
        assert len(after["ruler_results.json"]["results"]) == 2


def test_save_option_off_keeps_the_journal_alone(koderz: Shell) -> None:
    koderz(*RUN, "--benchmark", "ruler", "--no-save", "--quiet")

    assert not (koderz.folder / "results").exists()
    assert len(runs(koderz)) == 1


def test_missing_key_ends_it_before_any_call(koderz: Shell) -> None:
    done = koderz("rlm", "run", code=4)

    assert "API key is required. Use --api-key or set LLM_API_KEY environment variable." in done.err
    assert "--simulated tries it without a key" in done.err
    assert not koderz.results.exists()


@pytest.mark.slow
def test_hosted_model_answers_and_its_key_is_in_no_record(koderz: Shell) -> None:
    with answering(deep, latency=0.15) as (environ, asked):
        url = environ["OPENAI_BASE_URL"]
        own = ("--api-key", KEY, "--base-url", url, "--model", "recorded", "--benchmark", "ruler", "--max-tasks", 1)
        done = koderz("rlm", "run", *own, "--context-lengths", "1K", "--max-depth", 2, "--enable-logging")

    assert len(asked) == 18
    assert "  Model: recorded" in done.out
    assert documents(koderz)["summary.json"]["model"] == "recorded"
    steps = [line.partition(": ")[2] for line in done.err.splitlines() if line.startswith("niah_single_1/1024/0 rlm")]
    assert any(re.match(r"turn 3, depth 0 \(call \d+\): [\d,]+ tokens in, ", step) for step in steps)
    assert any(re.match(r"child, depth 1 \(call \d+\)", step) for step in steps)
    assert any(step.startswith("cell 1: ") and "3 sub-calls" in step for step in steps)
    kept = [path for path in koderz.folder.rglob("*") if path.is_file()]
    assert [path for path in kept if KEY.encode() in path.read_bytes()] == []
    assert KEY not in done.out + done.err

    told = koderz("benchmark", "show", "latest", "--problem", "niah_single_1/1024/0").out
    tree = told.partition("── the recursion\n")[2].split("\n\n")[0].splitlines()
    assert [len(line) - len(line.lstrip()) for line in tree].count(0) == 3
    assert sum(line.startswith("    sub ") for line in tree) == 3
    assert "turn 3, depth 0" in koderz("benchmark", "watch", "latest", "--detailed").out


def test_refused_key_is_a_failed_authentication(koderz: Shell, refusing: str) -> None:
    own = ("--api-key", KEY, "--base-url", refusing, "--benchmark", "ruler", "--max-tasks", 1)
    done = koderz("rlm", "run", *own, "--context-lengths", "1K", code=4)

    assert "Authentication failed" in done.out + done.err


@pytest.fixture
def refusing() -> Any:
    """The base URL of a server that refuses every key."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(401)
            self.end_headers()

        do_GET = do_POST  # noqa: N815 its name

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def test_missing_manager_ends_it_before_anything_is_created(koderz: Shell) -> None:
    done = koderz(*RUN, "--wasm-url", "http://127.0.0.1:9", code=4)

    assert "Failed to create WASM session" in done.err
    assert not koderz.results.exists()
    koderz(*RUN, code=4, env={"WASM_MANAGER_SERVICE_URL": "http://127.0.0.1:9"})


def test_manager_with_a_token_is_used_by_flag_and_by_variable(koderz: Shell) -> None:
    manager = koderz.start("wasm", "serve", "--port", 0, "--workers", 1, "--token", KEY)
    assert manager.stdout
    url = manager.stdout.readline().split()[-1]
    own = ("--benchmark", "ruler", "--wasm-url", url, "--quiet")
    try:
        assert "Authentication failed" in koderz(*RUN, *own, code=4).err
        out = koderz(*RUN, *own, "--wasm-token", KEY).out
        koderz("benchmark", 0, 1, "--suite", "ruler", "--model", "simulated", *own[2:], env={"KODERZ_WASM_TOKEN": KEY})
    finally:
        manager.terminate()
        manager.communicate(timeout=PATIENCE)
    assert f"  WASM: the manager at {url}" in out
    assert not [path for path in koderz.results.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


def test_options_that_no_benchmark_has_are_refused(koderz: Shell) -> None:
    run = (*RUN, "--benchmark", "oolong")
    assert (
        "--ruler-tasks: none of these benchmarks has such an option" in koderz(*run, "--ruler-tasks", "vt", code=2).err
    )
    assert "--dataset-dir nowhere" in koderz(*run, "--dataset-dir", "nowhere", code=2).err
    assert "--suite has no effect here: use --benchmark" in koderz(*run, "--suite", "mbpp", code=2).err


def test_files_of_data_sets_are_found_in_their_folder(koderz: Shell) -> None:
    fields = {"context_len": 1024, "dataset": "d", "context_window_text": "t", "question": "q", "answer": "[65]"}
    (koderz.folder / "data" / "oolong").mkdir(parents=True)
    row = json.dumps({"id": 7, **fields, "answer_type": "ANSWER_TYPE.NUMERIC"})
    (koderz.folder / "data" / "oolong" / "rows.jsonl").write_text(f"{row}\n")
    koderz(*RUN, "--benchmark", "oolong", "--dataset-dir", "data", "--quiet")

    (result,) = documents(koderz)["oolong_results.json"]["results"]
    assert (result["task_id"], result["query"], result["expected_answer"]) == ("oolong/7", "q", "[65]")


def test_plan_tells_calls_and_price_by_depth(koderz: Shell) -> None:
    out = koderz("rlm", "run", "--model", "gpt-4o", "--benchmark", "ruler", "--max-depth", 2, "--dry-run").out

    assert "Model: openai/gpt-4o: $2.5 in, $10 out" in out
    assert re.findall(r"^  at depth (\d): at most ([\d,]+) calls, at most \$\S+$", out, re.MULTILINE) == [
        *(("0", "310"), ("1", "6,000"), ("2", "6,000")),
    ]
    assert not koderz.results.exists()


def test_questions_are_generated_as_many_as_asked_for(koderz: Shell) -> None:
    out = koderz("rlm", "run", "--model", "gpt-4o", "--max-tasks", 30, "--dry-run").out

    assert re.findall(r"^Tasks: (\d+)", out, re.MULTILINE) == ["30", "15", "30"]
    out = koderz("rlm", "run", "--model", "gpt-4o", "--max-tasks", 30, "--tasks-per-length", 3, "--dry-run").out
    assert re.findall(r"^Tasks: (\d+)", out, re.MULTILINE) == ["3", "15", "15"]


@pytest.mark.slow
def test_ctrl_c_begins_no_other_benchmark(koderz: Shell) -> None:
    running = koderz.start(*RUN[:4], 1, *RUN[5:], "--simulated-latency", 0.5, "--enable-logging")
    assert running.stderr
    running.stderr.readline()  # a turn
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=PATIENCE)

    assert running.returncode == 130, err
    assert out.count("Status: COMPLETED") == 1
    assert out.count("Status: NOT RUN - resume bench_") == 2


@pytest.mark.slow
def test_interrupted_run_says_how_it_goes_on(koderz: Shell) -> None:
    running = koderz.start(*RUN[:4], 9, *RUN[5:], "--simulated-latency", 0.5, "--grace", 0, "--enable-logging")
    assert running.stderr
    running.stderr.readline()  # a turn
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=PATIENCE)

    assert running.returncode == 130, err
    assert "Benchmark execution stopped" in out
    assert out.count("Status: NOT RUN - resume bench_") == 2
    assert "koderz benchmark resume bench_" in err


@pytest.mark.slow
def test_killed_benchmarks_are_resumed_by_one_command(koderz: Shell) -> None:
    with answering(deep, latency=0.15) as (environ, asked):
        environ = {"LLM_BASE_URL": environ["OPENAI_BASE_URL"], "LLM_API_KEY": KEY, "LLM_MODEL": "recorded"}
        own = ("--max-tasks", 2, "--context-lengths", "1K", "--max-depth", 2, "--async", "--quiet")
        running = koderz.start("rlm", "run", *own, env=environ)
        _, err = kill_after(7, lambda: asked, running)
        assert len(runs(koderz)) == 3, err
        koderz("benchmark", "resume", "latest", "--quiet", env=environ)

    summary = documents(koderz)["summary.json"]
    assert [part["metrics"]["total_tasks"] for part in summary["benchmarks"].values()] == [2, 1, 2]
    calls = [line for folder in runs(koderz).values() for line in whole_lines(folder / "journal.jsonl")]
    recorded = sum(line["kind"] == "call" for line in calls)
    assert recorded == 5 * 18
    assert len(asked) <= recorded + 2 * 5


PROGRAM = """
import asyncio, json
from run_benchmarks import create_rlm_pool, create_rlm_repl_with_sidecar
from run_benchmarks import run_oolong_benchmark, run_ruler_benchmark_async
rlm = create_rlm_repl_with_sidecar(model="simulated", max_depth=2, wasm_timeout=20)
print(json.dumps(rlm.completion("one two three " * 1000, "What is said?")))
found = run_oolong_benchmark(rlm, {"max_tasks": 1, "context_lengths": [1024], "timeout": 60}, output_dir="custom")
pool = create_rlm_pool(model="simulated", pool_size=2)
other = asyncio.run(run_ruler_benchmark_async(pool, {"max_tasks": 2, "context_lengths": ["1K"]}, None, 2))
print(json.dumps([found, other]))
try:
    run_oolong_benchmark(rlm, {"max_taks": 1})
except Exception as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.slow
def test_programs_use_the_names_of_the_original(koderz: Shell) -> None:
    (koderz.folder / "program.py").write_text(PROGRAM)
    environ = koderz.environment({"PYTHONPATH": f"{SCRIPTS.parent}{os.pathsep}{SCRIPTS}"})
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=koderz.folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer, (oolong, ruler), error = map(json.loads, done.stdout.splitlines())

    assert answer == "I could not find it in the text."
    assert oolong.keys() >= {"name", "results", "metrics", "total_time", "avg_time_per_task"}
    assert (oolong["name"], len(oolong["results"]), oolong["metrics"]["total_tasks"]) == ("OOLONG", 1, 1)
    assert (ruler["metrics"]["correct_tasks"], ruler["metrics"]["overall_accuracy"]) == (2, "1.00")
    assert {*documents(koderz, "custom")} == {"summary.json", "oolong_results.json"}
    assert not (koderz.folder / "results").exists()
    assert "max_taks" in error or "max-taks" in error
    (experiment,) = koderz.results.glob("exp_*")
    assert whole_lines(experiment / "journal.jsonl")[0]["config"]["suite"] == "completion"


@pytest.mark.parametrize("command", [("run_benchmarks.py", "--help"), ("-m", "rlm.wasm.wasm_manager", "--help")])
def test_original_command_lines_run_from_scripts(koderz: Shell, command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, *command], cwd=SCRIPTS, env=koderz.environment(), capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "Usage: koderz " in done.stdout


@pytest.mark.slow
def test_original_manager_serves_the_runner(koderz: Shell) -> None:
    command = [sys.executable, "-m", "rlm.wasm.wasm_manager", "--port", "0", "--workers", "1"]
    manager = subprocess.Popen(
        command, cwd=SCRIPTS, env=koderz.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert manager.stdout
    url = manager.stdout.readline().removeprefix("WASM manager on ").strip()
    try:
        own = ("--benchmark", "ruler", "--max-tasks", "1", "--context-lengths", "1K", "--simulated", "--output-dir")
        done = subprocess.run(
            [sys.executable, "run_benchmarks.py", *own, str(koderz.folder / "out")],
            cwd=SCRIPTS,
            env=koderz.environment({"WASM_MANAGER_SERVICE_URL": url, "KODERZ_RESULTS": str(koderz.results)}),
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        manager.terminate()
        manager.communicate(timeout=PATIENCE)

    assert done.returncode == 0, done.stderr
    assert f"  WASM: the manager at {url}" in done.stdout
    assert (koderz.folder / "out" / "summary.json").exists()
