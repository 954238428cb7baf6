"""Rows of GSO and ISO-Bench are tasks, told apart by their fields."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.systems.patches.sources import refused, tasks_of
from koderz.systems.patches.tasks import service_of
from tests.conftest import Shell
from tests.koderz.systems.patches.rows import GSO_SCRIPT, ISO_SCRIPT

GSO = {
    "instance_id": "numpy__numpy-1b862eb",
    "repo": "numpy/numpy",
    "base_commit": "1b861a2f9b3c^",
    "opt_commit": "1b862eb11223",
    "api": "numpy.char.isalpha",
    "prob_script": "",
    "tests": [GSO_SCRIPT, GSO_SCRIPT],
    "setup_commands": ["apt-get update"],
    "install_commands": ["uv pip install ."],
    "gt_diff": "diff",
}
ISO = {
    "instance_id": "vllm-project__vllm-015069b",
    "repo": "vllm-project/vllm",
    "base_commit": "fb0acb6",
    "head_commit": "015069b01741e9ecb9e604c7fe87fbdfc306ebe5",
    "patch": "diff",
    "efficiency_test": [ISO_SCRIPT],
}


def _written(folder: Path, *rows: dict[str, Any]) -> Path:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "rows.jsonl"


def test_gso_row_is_a_task(tmp_path: Path) -> None:
    (task,) = tasks_of(_written(tmp_path, GSO))
    assert (task.format, task.kind, task.human_patch) == ("gso", "workload", "diff")
    assert (task.base_commit, task.human_commit) == ("1b861a2f9b3c^", "1b862eb11223")
    assert task.repo == "https://github.com/numpy/numpy"
    assert [*task.workloads] == ["test_0", "test_1"]
    assert task.install == ("bash -euo pipefail -c 'apt-get update\nuv pip install .'",)


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("", "workload"),
        ("vllm bench serve --model M", "serving"),
        ("python benchmarks/benchmark_serving.py --model M", "serving"),
        ("vllm bench throughput --model M", "throughput"),
        ("python benchmarks/benchmark_latency.py", "latency"),
    ],
)
def test_iso_bench_row_is_of_the_kind_of_its_command(tmp_path: Path, command: str, kind: str) -> None:
    (task,) = tasks_of(_written(tmp_path, {**ISO, "perf_command": command}))
    assert (task.format, task.kind, [*task.workloads]) == ("iso", kind, ["test_0"])
    assert ("needs a GPU" in refused([task])) == bool(command)


@pytest.mark.parametrize(
    ("install", "said"),
    [
        (["uv venv", "source .venv/bin/activate", "uv pip install . --reinstall"], "'pip install . --reinstall'"),
        (["apt-get install -y gcc"], "'apt-get install'"),
        (["python3 setup.py build_ext --inplace", "pip install --no-deps --no-build-isolation -e ."], ""),
        (["git clean -xfd", "pip install --no-index --find-links wheels ."], ""),
    ],
)
def test_row_whose_install_fetches_needs_its_image(tmp_path: Path, install: list[str], said: str) -> None:
    row = {**GSO, "tests": [GSO_SCRIPT], "setup_commands": [], "install_commands": install}
    (task,) = tasks_of(_written(tmp_path, row))
    assert "git clean" not in str(task.install)  # it would remove what a patch adds
    assert said in refused([task])
    assert bool(refused([task])) == bool(said)


def test_script_without_a_timed_part_is_no_task(tmp_path: Path) -> None:
    script = GSO_SCRIPT.replace("def experiment", "def another")
    (task,) = tasks_of(_written(tmp_path, {**GSO, "tests": [script]}))
    with pytest.raises(KoderzError, match="test_0 defines no experiment"):
        refused([task])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{**GSO, "opt_commit": ""}], "neither GSO's opt_commit nor ISO-Bench's head_commit"),
        ([{**GSO, "tests": 1}], "tests"),
        ([], "no tasks"),
        ([GSO, GSO], "two tasks have the id"),
    ],
)
def test_invalid_row_is_refused(tmp_path: Path, rows: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(KoderzError, match=said):
        tasks_of(_written(tmp_path, *rows))


def test_listing_tells_first_what_cannot_be_measured_here(koderz: Shell) -> None:
    path = _written(koderz.folder, GSO, {**ISO, "perf_command": "vllm bench latency"})
    listed = json.loads(koderz("perf", "tasks", "--dataset", path, "--json").out)
    assert [each["id"] for each in listed] == [GSO["instance_id"], ISO["instance_id"]]
    said = koderz("perf", "run", "--dataset", path, "--model", "simulated", code=4).err
    assert "numpy__numpy-1b862eb needs its image" in said
    assert "failed  numpy__numpy-1b862eb: " in koderz("perf", "check", "--dataset", path, code=1).out
    assert not [*koderz.results.glob("*.json")]


def test_tasks_are_found_by_suite_variable_and_folder(koderz: Shell) -> None:
    path = _written(koderz.folder, GSO)
    by_variable = json.loads(koderz("perf", "tasks", "--json", env={"KODERZ_DATASET": str(path)}).out)
    koderz("suites", "add", "gso", path)
    assert json.loads(koderz("perf", "tasks", "--suite", "gso", "--json").out) == by_variable
    assert [each["id"] for each in by_variable] == [GSO["instance_id"]]
    assert "numpy__numpy-1b862eb  1b861a2^ → 1b862eb" in koderz("perf", "tasks", "--suite", "gso").out
    patches = koderz.folder / "of_agents"
    patches.mkdir()
    own, env = ("perf", "run", "--suite", "gso", "--dry-run"), {"KODERZ_PATCHES": str(patches)}
    assert "there are no patches" in koderz(*own, env=env, code=2).err
    (patches / "codex.jsonl").write_text(json.dumps({"instance_id": GSO["instance_id"], "model_patch": "diff"}))
    assert "agent" in koderz(*own, env=env).out
    assert "its tasks are no commits" in koderz("perf", "run", "--suite", "humaneval", code=2).err


def test_tasks_file_is_recognized_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_text("# my own\n\n[[tasks]]\nrepo = 1\n")
    with pytest.raises(KoderzError, match=r"mine.* number 1"):
        tasks_of(path)


@pytest.mark.parametrize(
    ("command", "argv", "bench"),
    [
        (
            "vllm bench serve --model M/m --dataset-name sharegpt --num-prompts 100 -tp 4 --request-rate inf",
            "python3 -m vllm.entrypoints.openai.api_server --model M/m --port {port} --tensor-parallel-size 4",
            "--num-prompts 100 --request-rate inf",
        ),
        (
            "VLLM_USE_V1=1 python benchmark_serving.py --backend openai-chat --model M/m --random-input-len=9",
            "python3 -m vllm.entrypoints.openai.api_server --model M/m --port {port}",
            "--random-input-len 9 --backend openai-chat",
        ),
        (
            "python3 -m sglang.bench_serving --backend sglang --model M/m --num-prompts 5 --trust-remote-code",
            "python3 -m sglang.launch_server --model-path M/m --port {port} --trust-remote-code",
            "--num-prompts 5",
        ),
        (
            "vllm bench throughput --model M/m --input-len 9",
            "vllm bench throughput --model M/m --input-len 9 --output-json {output}",
            "",
        ),
    ],
)
def test_command_stands_for_a_server_and_its_load(command: str, argv: str, bench: str) -> None:
    service = service_of(command)
    assert not service.refused
    assert " ".join(service.argv) == argv
    assert " ".join(service.bench) == bench
    assert service.load().dataset_name == "random"
    assert service.notes == (("--dataset-name sharegpt → random",) if "sharegpt" in command else ())
    assert service.environment == ((("VLLM_USE_V1", "1"),) if "VLLM" in command else ())


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("vllm bench serve --model MODEL --num-prompts 1", "a placeholder: MODEL"),
        ("vllm bench latency --model M/m --batch-size BS", "a placeholder: BS"),
        ("vllm bench serve --model $MODEL", "a placeholder: $MODEL"),
        ("vllm bench serve --model M/m --dataset-path /home/u/sharegpt.json", "path of another machine: /home/u"),
        ("cd x && vllm bench serve --model M/m", "more than one"),
        ("vllm bench serve --num-prompts 1", "names no model"),
        ("vllm 'bench", "can't be read"),
    ],
)
def test_command_that_is_incomplete_is_refused(tmp_path: Path, command: str, said: str) -> None:
    (task,) = tasks_of(_written(tmp_path, {**ISO, "perf_command": command}))
    with pytest.raises(KoderzError, match=re.escape(said)):
        refused([task])
