"""What koderz first promised its users, line by line: commands, screens, JSON, tags, titles and queries.

Scripts depend on these, so they only ever grow. The screens are compared whole; `…` stands for what may come between.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from glob import glob
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from koderz_tracker import open_cortex
from tests.conftest import Done, Shell, servers

MODEL = "qwen2.5-coder:32b"
RUN_ID = r"bench_[0-9a-f]{8}_\d{8}_\d{6}"
SINKS = {"KODERZ_SINKS": "json,memory"}

SINGLE_SCREEN = """
Benchmark Run ID: {run}
Range: 0 to 5
Local model: qwen2.5-coder:32b
Mode: iterative
…
BENCHMARK COMPLETE
Mode: iterative
Problems: 5
Successes: {successes} ({success_rate:.1f}%)
Total Cost: ${total_cost:.4f}
Avg Cost per Problem: ${avg_cost:.5f}
Avg Iterations per Problem: {avg_iterations:.1f}
…
BENCHMARK SUMMARY SAVED
Cortex: tags=['benchmark_run', '{run}']
File: benchmark_results/{run}.json
"""

COMPARATIVE_SCREEN = """
Benchmark Run ID: {run}
Range: 0 to 3
Local model: qwen2.5-coder:32b
Testing both zero-shot and iterative modes
…
COMPARATIVE BENCHMARK RESULTS
Mode            | Success Rate    | Avg Cost     | Avg Iterations
----------------+-----------------+--------------+----------------
Zero-Shot       | {zero_shot}
Iterative       | {iterative}
----------------+-----------------+--------------+----------------
Improvement     | {improvement}
…
BENCHMARK SUMMARY SAVED
Cortex: tags=['benchmark_run', '{run}']
File: benchmark_results/{run}.json
"""


@dataclass(frozen=True)
class World:
    """A folder in which a model was benchmarked in each mode, with what the commands printed."""

    shell: Shell
    zero_shot: Done
    iterative: Done
    comparative: Done

    def run_id(self, mode: str) -> str:
        (found,) = re.findall(rf"^Benchmark Run ID: ({RUN_ID})$", getattr(self, mode).out, re.MULTILINE)
        return str(found)

    def summary(self, mode: str) -> dict[str, Any]:
        return dict(json.loads((self.shell.results / f"{self.run_id(mode)}.json").read_text()))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, speed: Path) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("contract")
    shutil.copytree(speed, folder / "cache")
    shell = Shell(folder)
    with servers(folder) as serve:
        env = {**SINKS, **serve("--model", MODEL, "--skill", "0.5").env()}
        begun = ("--local-model", MODEL)
        yield World(
            shell,
            zero_shot=shell("benchmark", 0, 10, *begun, "--mode", "zero-shot", env=env),
            iterative=shell("benchmark", 0, 5, *begun, "--mode", "iterative", env=env),
            comparative=shell("benchmark", 0, 3, *begun, "--mode", "comparative", env=env),
        )


# The screen


def assert_screen(printed: str, template: str, **values: object) -> None:
    """The lines of the template are there in their order; without `…` between two, nothing is between them."""
    parts = template.strip().format(**values).split("\n…\n")
    at = 0
    for part in parts:
        found = printed.find(f"{part}\n", at)
        assert found >= 0, f"not on the screen, or not in this place:\n{part}\n\nthe screen:\n{printed}"
        at = found + len(part)
    assert printed.startswith(parts[0])


def test_screen_of_a_single_mode(world: World) -> None:
    figures = world.summary("iterative")["summary"]

    assert_screen(world.iterative.out, SINGLE_SCREEN, run=world.run_id("iterative"), **figures)


def test_screen_of_a_comparison(world: World) -> None:
    summary = world.summary("comparative")
    rows = {}
    for arm in ("zero_shot", "iterative"):
        figures = summary[arm]["summary"]
        rate = f"{figures['success_rate']:5.1f}% ({figures['successes']:2d}/ 3)"
        rows[arm] = f"{rate}  | $ {figures['avg_cost']:7.4f}    | {figures['avg_iterations']:14.1f}"
    found = summary["comparison"]
    cost = summary["iterative"]["summary"]["avg_cost"] - summary["zero_shot"]["summary"]["avg_cost"]
    points, iterations = found["success_rate_improvement"], found["iteration_difference"]
    improvement = f"{points:+5.1f}% points".ljust(15) + f" | $ {cost:+8.4f}   | {iterations:+14.1f}"

    assert_screen(
        world.comparative.out, COMPARATIVE_SCREEN, run=world.run_id("comparative"), improvement=improvement, **rows
    )


# The summary


NUMBER = (int, float)
CONFIG = {"local_model": str, "problem_range": str, "problems": list, "max_iterations": int}
RESULT = {"experiment_id": str, "problem_id": str, "success": bool, "iterations": int, "cost": NUMBER}
FIGURES = {
    "total_problems": int,
    "successes": int,
    "success_rate": NUMBER,
    "total_cost": NUMBER,
    "avg_cost": NUMBER,
    "avg_iterations": NUMBER,
}
COMPARISON = {"success_rate_improvement": NUMBER, "cost_difference": NUMBER, "iteration_difference": NUMBER}


def assert_shape(found: dict[str, Any], shape: dict[str, Any]) -> None:
    """The fields of the shape are there, each of its type."""
    for name, kind in shape.items():
        assert isinstance(found[name], kind), name


def assert_arm(arm: dict[str, Any], n: int) -> None:
    results, figures = arm["results"], arm["summary"]
    assert len(results) == n
    for result in results:
        assert_shape(result, RESULT)
        assert re.fullmatch(r"exp_[0-9a-f]+", result["experiment_id"])
    assert_shape(figures, FIGURES)
    successes = sum(result["success"] for result in results)
    assert figures["total_problems"] == n
    assert figures["successes"] == successes
    assert figures["success_rate"] == pytest.approx(100 * successes / n)
    assert figures["total_cost"] == pytest.approx(sum(result["cost"] for result in results))
    assert figures["avg_cost"] == pytest.approx(figures["total_cost"] / n)
    assert figures["avg_iterations"] == pytest.approx(mean(result["iterations"] for result in results))


@pytest.mark.parametrize(("mode", "n"), [("zero_shot", 10), ("iterative", 5), ("comparative", 3)])
def test_summary_head(world: World, mode: str, n: int) -> None:
    summary = world.summary(mode)

    assert list(summary)[:5] == ["run_id", "mode", "start_time", "end_time", "duration_seconds"]
    assert summary["run_id"] == world.run_id(mode)
    assert summary["mode"] == mode.replace("_", "-")
    begun, ended = (datetime.fromisoformat(summary[name]) for name in ("start_time", "end_time"))
    assert begun.tzinfo is ended.tzinfo is None
    assert summary["start_time"] == begun.isoformat(timespec="microseconds")
    assert 0 < summary["duration_seconds"] <= (ended - begun).total_seconds() + 1
    assert_shape(summary["config"], CONFIG)
    assert summary["config"]["local_model"] == MODEL
    assert summary["config"]["problem_range"] == f"0-{n}"
    assert summary["config"]["problems"] == [f"HumanEval/{i}" for i in range(n)]
    assert summary["config"]["max_iterations"] == 10


@pytest.mark.parametrize(("mode", "n"), [("zero_shot", 10), ("iterative", 5)])
def test_summary_results_of_a_single_mode(world: World, mode: str, n: int) -> None:
    summary = world.summary(mode)

    assert_arm(summary, n)
    assert not {"zero_shot", "iterative", "comparison"} & set(summary)


def test_summary_results_of_a_comparison(world: World) -> None:
    summary = world.summary("comparative")

    zero_shot, iterative = summary["zero_shot"], summary["iterative"]
    assert_arm(zero_shot, 3)
    assert_arm(iterative, 3)
    assert not {"results", "summary"} & set(summary)
    assert_shape(summary["comparison"], COMPARISON)
    before, after = zero_shot["summary"], iterative["summary"]
    assert {name: summary["comparison"][name] for name in COMPARISON} == pytest.approx(
        {
            "success_rate_improvement": after["success_rate"] - before["success_rate"],
            "cost_difference": after["total_cost"] - before["total_cost"],
            "iteration_difference": after["avg_iterations"] - before["avg_iterations"],
        }
    )


def test_results_folder_holds_one_json_file_per_run(world: World) -> None:
    names = {f"{world.run_id(mode)}.json" for mode in ("zero_shot", "iterative", "comparative")}

    assert {path.name for path in world.shell.results.glob("*.json")} == names


# The memory store


async def exported(world: World, *tags: str) -> Sequence[dict[str, Any]]:
    async with open_cortex(world.shell.results / "memory.db", create=False) as cortex:
        return list(await cortex.export_memories(tags=list(tags)))


def titles(world: World, *tags: str) -> set[str]:
    return {memory["title"] for memory in asyncio.run(exported(world, *tags))}


def test_memory_of_a_run_is_found_by_its_tags(world: World) -> None:
    title = {mode: f"Benchmark Run {world.run_id(mode)}" for mode in ("zero_shot", "iterative", "comparative")}

    assert titles(world, "benchmark_run") == set(title.values())
    assert titles(world, "benchmark_run", MODEL) == set(title.values())
    assert titles(world, "benchmark_run", "zero-shot") == {title["zero_shot"]}
    for mode in title:
        assert titles(world, "benchmark_run", world.run_id(mode)) == {title[mode]}


@pytest.mark.parametrize("mode", ["zero_shot", "comparative"])
def test_memory_of_a_run_keeps_its_summary(world: World, mode: str) -> None:
    run = world.run_id(mode)
    (memory,) = asyncio.run(exported(world, "benchmark_run", run))

    assert memory["title"] == f"Benchmark Run {run}"
    assert memory["category"] == "architecture"
    assert memory["importance"] == "critical"
    assert memory["tags"] == ["benchmark_run", run, mode.replace("_", "-"), MODEL]
    assert json.loads(memory["content"]) == world.summary(mode)


@pytest.mark.parametrize("mode", ["zero_shot", "comparative"])
def test_memory_of_an_experiment_is_linked_to_its_run(world: World, mode: str) -> None:
    run, summary = world.run_id(mode), world.summary(mode)
    arms = [summary] if "results" in summary else [summary["zero_shot"], summary["iterative"]]
    results = {result["experiment_id"]: result for arm in arms for result in arm["results"]}

    experiments = asyncio.run(exported(world, "result", "completed", run))

    assert {exp["metadata"]["experiment_id"] for exp in experiments} == set(results)
    for exp in experiments:
        result = results[exp["metadata"]["experiment_id"]]
        assert exp["tags"] == ["result", result["experiment_id"], result["problem_id"], "completed", run]
        assert exp["metadata"]["benchmark_run_id"] == run
        assert exp["metadata"]["problem_id"] == result["problem_id"]
        assert exp["metadata"]["success"] is result["success"]


def test_memory_of_a_single_experiment_has_no_run(koderz: Shell) -> None:
    done = koderz("run", "HumanEval/2", "--model", "simulated", "--simulated-skill", 1, "--json")

    assert json.loads(done.out)["run_id"] is None
    assert list(koderz.results.glob("*.json")) == []


# Queries on the files


COMMANDS = (
    "ls benchmark_results/",
    "cat benchmark_results/{run}.json",
    "jq '.summary.success_rate' benchmark_results/{run}.json",
    "diff <(jq '.summary' benchmark_results/{run}.json) <(jq '.summary' benchmark_results/{run}.json)",
    "jq '.summary' benchmark_results/bench_*.json",
    "jq '.results[] | select(.success == false) | .problem_id' benchmark_results/{run}.json",
    "jq '[.summary.total_cost] | add' benchmark_results/*.json",
    r"""jq -r '.results | sort_by(-.cost) | .[0:5] | .[] | "\(.problem_id): $\(.cost)"' benchmark_results/{run}.json""",
)


@pytest.mark.skipif(not shutil.which("jq") and not os.environ.get("CI"), reason="jq is not installed")
@pytest.mark.parametrize("command", COMMANDS)
def test_shell_queries_have_results(world: World, command: str) -> None:
    script = command.format(run=world.run_id("zero_shot"))

    done = subprocess.run(["bash", "-c", script], cwd=world.shell.folder, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout or command.startswith("diff")


def test_python_queries_have_results(world: World) -> None:
    run_files = sorted(glob(f"{world.shell.results}/*.json"), key=os.path.getmtime)  # noqa: PTH207 as it was promised
    summaries = [data for file in run_files if "results" in (data := json.loads(Path(file).read_text()))]
    rates = [data["summary"]["success_rate"] for data in summaries]
    by_model: dict[str, list[float]] = defaultdict(list)
    by_problem: dict[str, list[bool]] = defaultdict(list)
    for data in summaries:
        by_model[data["config"]["local_model"]].append(data["summary"]["success_rate"])
        for result in data["results"]:
            by_problem[result["problem_id"]].append(result["success"])

    assert [data["mode"] for data in summaries] == ["zero-shot", "iterative"]
    assert by_model == {MODEL: rates}
    assert len(by_problem) == 10
    assert {len(found) for found in by_problem.values()} == {1, 2}
    for data in summaries:
        if data["summary"]["successes"] > 0:
            assert data["summary"]["total_cost"] / data["summary"]["successes"] >= 0


# Commands


@pytest.mark.parametrize(
    "words",
    [
        "benchmark list",
        "benchmark show {short}",
        "benchmark show {run}",
        "benchmark compare {run} {other}",
        "benchmark compare baseline.json latest.json",
        "benchmark export {run} --format csv",
        "benchmark report --output report.html",
    ],
)
def test_commands_on_runs(world: World, words: str) -> None:
    run, other = world.run_id("zero_shot"), world.run_id("iterative")
    for name, which in (("baseline", run), ("latest", other)):
        shutil.copy(world.shell.results / f"{which}.json", world.shell.folder / f"{name}.json")

    done = world.shell(*words.format(run=run, other=other, short=run[:14]).split())

    assert done.out
    assert (world.shell.folder / "report.html").exists() or "report" not in words


@pytest.mark.parametrize("words", ["0 10 --mode iterative", "0 164 --mode zero-shot", "0 10 --local-model m:33b"])
def test_commands_that_begin_runs(koderz: Shell, words: str) -> None:
    begun = koderz("benchmark", *words.split(), "--model", "simulated", "--dry-run")

    assert f"Tasks: {words.split()[1]} (HumanEval/0 …" in begun.out
