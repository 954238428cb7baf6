"""Prompt optimizers compared from the command line: what is planned, recorded, resumed and refused."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE, Shell, kill_after
from tests.e2e.answering import answering, labelled
from tests.loopback_modal import ModalServer

SMALL = ("--train-items", 20, "--validation-items", 20, "--test-items", 30, "--budget-calls", 80)
RUN = ("optimize", "run", "--demo-datasets", "labels", "--quiet", *SMALL)
SIMULATED = (*RUN, "--models", "simulated")


@pytest.mark.slow
def test_optimizers_are_planned_for_each_model_and_seed(koderz: Shell) -> None:
    koderz(*SIMULATED, "--optimizers", "few_shot,random_search", "--seeds", 2)

    summary = koderz.summary()
    assert (summary["mode"], summary["status"], summary["simulated"]) == ("optimize", "complete", True)
    arms = {name: len(arm["results"]) for name, arm in summary["arms"].items()}
    assert arms == {"none": 1, "few_shot": 2, "random_search": 2}
    for result in (result for arm in ("few_shot", "random_search") for result in summary["arms"][arm]["results"]):
        assert {"baseline", "gain", "validation", "metric_calls", "reasoning_calls"} <= result["metrics"].keys()
        assert result["score"] == pytest.approx(result["metrics"]["baseline"] + result["metrics"]["gain"])
    seeds = {
        call["sampling"]["seed"] for call in koderz.journal() if call["kind"] == "call" and call["purpose"] == "item"
    }
    assert seeds == {42, 43}


def test_baseline_is_there_for_each_model(koderz: Shell) -> None:
    done = koderz(
        *RUN, "--models", "openai/gpt-4o-mini", "openai/gpt-4o", "--dry-run", "--json", "--optimizers", "few_shot"
    )
    plan = json.loads(done.out)
    assert plan["planned"] == 2 * (1 + 5)  # seeds, the fewest that tell of an optimizer
    least, most = plan["estimate"]["calls"]
    assert (least, most) == (2 * (30 + 5 * 20), 2 * (30 + 5 * (80 + 30) + 5 * 8))


def test_baseline_may_be_alone(koderz: Shell) -> None:
    koderz(*SIMULATED, "--optimizers", "none")
    assert [call["purpose"] for call in koderz.journal() if call["kind"] == "call"] == ["test"] * 30


OF_THE_SUITE = ("benchmark", "--suite", "datasets", "--demo-datasets", "labels", "--model", "simulated",
                "--limit", 1, *SMALL)  # fmt: skip


def test_optimizers_are_the_arms_of_their_suite_in_any_command(koderz: Shell) -> None:
    of_benchmark = koderz(*OF_THE_SUITE, "--optimizers", "few_shot,gepa", "--samples", 3, "--dry-run", "--json").out
    assert json.loads(of_benchmark)["planned"] == 1 + 2 * 3
    said = koderz(*OF_THE_SUITE, "--optimizers", "few_shot", "--solver", "none", "--dry-run", code=2).err
    assert "--optimizers has no effect here" in said


OWN_SUITE = """
from koderz.extend import Suite
from koderz.suites.suite import SuiteSource
from koderz.systems.optimizers.datasets.options import DatasetOptions
from koderz.systems.optimizers.datasets.suite import DatasetSuite

inner = DatasetSuite.load(SuiteSource(None, DatasetOptions(demo_datasets=("labels",))))


class Own(Suite):
    name, source, tasks, mode = "own", "here", inner.tasks, "optimize"
    words, measures, messages, open_evaluator = inner.words, inner.measures, inner.messages, inner.open_evaluator
"""


@pytest.mark.parametrize(("given", "planned"), [((), 1 + 5 * 5), (("--optimizers", "few_shot, gepa"), 1 + 2 * 5)])
def test_optimizers_are_compared_on_a_suite_of_ones_own(koderz: Shell, given: tuple[str, ...], planned: int) -> None:
    (koderz.folder / "own.py").write_text(OWN_SUITE)
    plan = koderz(
        "optimize", "run", "--suite", "own.py:Own", "--models", "simulated", "--dry-run", "--json", *given
    ).out
    assert json.loads(plan)["planned"] == planned


def test_optimizers_of_a_file_are_run_only_where_they_are_trusted(koderz: Shell) -> None:
    (koderz.folder / "koderz.toml").write_text('[suite.datasets]\noptimizers = ["own.py:be_brief"]\n')
    said = koderz(*SIMULATED, "--dry-run", code=2).err
    assert "optimizers" in said
    assert "--trust-config" in said


def test_test_mode_is_one_seed_of_five_items_a_split(koderz: Shell) -> None:
    koderz("optimize", "run", "--test-mode", "--demo-datasets", "labels", "--models", "simulated", "--quiet",
           "--optimizers", "random_search")  # fmt: skip
    summary = koderz.summary()
    assert [len(arm["results"]) for arm in summary["arms"].values()] == [1, 1]
    assert summary["config"]["budget_calls"] == 150
    items = {line["item"] for line in koderz.journal() if line["kind"] == "grade" and line["labels"]["split"] == "test"}
    assert len(items) == 5


def test_parameters_come_from_a_file_and_are_on_record(koderz: Shell) -> None:
    (koderz.folder / "own.json").write_text('{"few_shot": {"max_trials": 2, "max_examples": 3, "n_threads": 4}}')
    done = koderz(*SIMULATED, "--optimizers", "few_shot", "--seeds", 1, "--optimizer-params", "own.json")
    assert "few_shot's n_threads gives way to --item-concurrency" in done.err
    (result,) = (line["value"] for line in koderz.journal() if line["kind"] == "once" and line["name"] == "result"
                 and line["value"]["finish_reason"])  # fmt: skip
    assert result["finish_reason"] == "limit"
    arm = next(arm for arm in koderz.journal()[0]["arms"] if arm["solver"] == "few_shot")
    assert arm["parameters"] == {"max_trials": 2, "max_examples": 3}
    assert arm["baseline"] == "none"


@pytest.mark.slow
def test_users_solver_is_an_optimizer(koderz: Shell) -> None:
    (koderz.folder / "own.py").write_text(
        "async def be_brief(evaluator):\n    await evaluator.score(evaluator.initial.with_system('Be brief.'))\n"
    )
    koderz(*SIMULATED, "--optimizers", "own.py:be_brief", "--seeds", 1)
    assert [*koderz.summary()["arms"]] == ["none", "be_brief"]


BAD = {
    "dataset": (("--demo-datasets", "nothing"), "there is no dataset 'nothing'"),
    "optimizer": (("--optimizers", "nothing"), "there is no optimizer 'nothing'; there are none, few_shot, "),
    "solver": (("--optimizers", "zero-shot"), "evaluator"),
    "budget": (("--budget-calls", "39"), "two passes"),
    "both": (("--resume-run-id", "bench_1", "--retry-failed-run-id", "bench_2"), "give one of them"),
    "run": (("--resume-run-id", "bench_1"), "bench_1"),
    "other": (("--resume-run-id", "run_20250423_153045"), "another program"),
    "key": (("--optimizers", "few_shot", "--optimizer-params", "key.json"), "has no parameter 'colour'"),
    "choice": (("--optimizers", "gepa", "--optimizer-params", "choice.json"), "'best' is not one of pareto, "),
    "option": (("--optimizers", "few_shot", "--optimizer-params", "option.json"), "'seed'; that is --seed"),
    "none": (("--optimizers", "meta_prompt", "--optimizer-params", "none.json"), "whole number from 1"),
    "value": (("--optimizers", "few_shot", "--optimizer-params", "value.json"), "whole number"),
    "table": (("--optimizers", "few_shot", "--optimizer-params", "table.json"), "by optimizer"),
    "absent": (("--optimizers", "few_shot", "--optimizer-params", "absent.json"), "can't be read"),
    "writer": (("--optimizers", "meta_prompt", "--no-reasoning"), "--reasoning-model"),
    "judge": (("--metric", "judge"), "--judge-model"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_input_ends_before_anything_is_created(koderz: Shell, name: str) -> None:
    (koderz.folder / "key.json").write_text('{"few_shot": {"colour": 1}}')
    (koderz.folder / "choice.json").write_text('{"gepa": {"candidate_selection": "best"}}')
    (koderz.folder / "option.json").write_text('{"few_shot": {"seed": 1}}')
    (koderz.folder / "none.json").write_text('{"meta_prompt": {"prompts_per_round": 0}}')
    (koderz.folder / "value.json").write_text('{"few_shot": {"max_examples": "many"}}')
    (koderz.folder / "table.json").write_text("[1]")
    arguments, said = BAD[name]
    given = [*SIMULATED, *arguments]
    if "--budget-calls" in arguments:
        del given[given.index("--budget-calls") : given.index("--budget-calls") + 2]
    done = koderz(*given, code=2)
    assert said in done.err
    assert "Traceback" not in done.err
    assert not koderz.results.exists()


SERVED = (*RUN, "--models", "openai/recorded", "--seeds", 1)


def content(koderz: Shell) -> Any:
    """What the run came to, whatever its ids and times."""
    lines = koderz.journal()
    arms = {line["experiment_id"]: line["arm"] for line in lines if line["kind"] == "experiment"}
    grades = {
        (arms[line["experiment_id"]], line["item"], line["labels"]["candidate"], line["score"])
        for line in lines
        if line["kind"] == "grade"
    }
    ended = {(arms[line["experiment_id"]], json.dumps(line["value"])) for line in lines if line["kind"] == "once"}
    return grades, ended


@pytest.mark.slow
def test_killed_search_pays_nothing_twice_and_ends_undisturbed(koderz: Shell) -> None:
    moments = random.Random(1)
    optimizers = ("--optimizers", "few_shot", "meta_prompt", "hierarchical_reflective", "gepa")
    with answering(labelled, latency=0.02) as (environ, asked):
        undisturbed = Shell(koderz.folder / "undisturbed")
        undisturbed.folder.mkdir()
        undisturbed(*SERVED, *optimizers, env=environ)
        asked.clear()
        running = koderz.start(*SERVED, *optimizers, env=environ)
        for _ in range(3):
            kill_after(moments.randint(1, 60), lambda: asked, running)
            running = koderz.start("optimize", "run", "--resume-run-id", "latest", env=environ)
        _, err = running.communicate(timeout=PATIENCE)

    calls = [line for line in koderz.journal() if line["kind"] == "call"]
    assert set(Counter((call["experiment_id"], call["key"]) for call in calls).values()) == {1}, err
    assert len(asked) <= len(calls) + 3 * 5 * 4  # kills, experiments, requests in flight of each
    assert koderz.summary()["status"] == "complete", err
    for ours, theirs in zip(content(koderz), content(undisturbed), strict=True):
        assert sorted(ours ^ theirs) == []


SCRIPTS = Path(__file__).parents[2] / "scripts"
SEED = {
    "quick": (
        "run_benchmark.py --demo-datasets labels --optimizers few_shot --models openai/gpt-4o-mini --test-mode "
        "--max-concurrent 1"
    ),
    "several": (
        "run_benchmark.py --demo-datasets labels arithmetic --optimizers few_shot meta_prompt --max-concurrent 4"
    ),
    "local": (
        "run_benchmark_local.py --demo-datasets labels --optimizers evolutionary_optimizer --seed 7 "
        "--checkpoint-dir here"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEED)
def test_scripts_take_the_originals_command_lines(koderz: Shell, name: str) -> None:
    script, *options = SEED[name].split()
    command = [sys.executable, str(SCRIPTS / script), *options, "--dry-run", "--json"]
    done = subprocess.run(
        command, cwd=koderz.folder, env=koderz.environment(), capture_output=True, text=True, check=True
    )
    plan = json.loads(done.stdout)
    config = plan["config"]
    assert plan["planned"] == {"quick": 2, "several": 2 * (1 + 2 * 5), "local": 6}[name]
    assert (config["suite"], config["concurrency"]) == ("datasets", {"quick": 1, "several": 4, "local": 5}[name])
    assert (config["seed"], config["results"]) == ((7, "here") if name == "local" else (42, "benchmark_results"))


@pytest.mark.slow
def test_scripts_submit_optimizers_to_modal_for_pickup_anywhere(koderz: Shell) -> None:
    with ModalServer(secrets={"llm-api-keys": {}}, max_containers=2) as server:
        environ = koderz.environment(server.environment)

        def modal(*words: str) -> subprocess.CompletedProcess[str]:
            command = [str(Path(sys.executable).with_name("modal")), *words]
            return subprocess.run(command, cwd=koderz.folder, env=environ, capture_output=True, text=True, check=False)

        deployed = modal("deploy", str(SCRIPTS / "benchmark_worker.py"))
        assert deployed.returncode == 0, deployed.stderr
        assert "the same as here" in koderz("modal", "status", env=server.environment).out
        rows, metric = koderz.folder / "mine.csv", koderz.folder / "own.py"
        rows.write_text("q,a\n" + "".join(f"what is item number {n}?,{n}\n" for n in range(90)))
        metric.write_text("def same(item, reply):\n    return item.gold == reply\n")
        options = (
            "--demo-datasets mine --dataset mine=mine.csv --input-column q --output-column a --metric own.py:same "
            "--models simulated --test-mode --optimizers few_shot"
        )
        command = [sys.executable, str(SCRIPTS / "run_benchmark_modal.py"), *options.split()]
        done = subprocess.run(command, cwd=koderz.folder, env=environ, capture_output=True, text=True, check=True)
        assert "your machine may disconnect" in done.stderr
        run = done.stdout.split()[3]
        assert f"Check it with: koderz optimize results --watch --run-id {run}\n" in done.stdout
        koderz("optimize", "run", "--modal", "--resume-run-id", "latest", env=server.environment)
        rows.unlink()
        metric.unlink()
        elsewhere = Shell(koderz.folder / "elsewhere")
        elsewhere.folder.mkdir()
        elsewhere("benchmark", "resume", run, "--trust-config", env=server.environment)
        summary = elsewhere.summary()
        assert (summary["status"], [*summary["arms"]]) == ("complete", ["none", "few_shot"])
        checked = modal("run", str(SCRIPTS / "check_results.py"), "--list-runs")
        assert (checked.returncode, run in checked.stdout) == (0, True), checked.stderr
