"""`koderz verify` on honest runs of every system: nothing differs, and what can't be done anew is named."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MEASUREMENT, Shell

RUNS: dict[str, tuple[list[object], int, str]] = {
    "code": (["benchmark", 0, 3, "--mode", "comparative", "--model", "simulated"], 0, ""),
    "samples": (["benchmark", 0, 2, "--samples", 2, "--model", "simulated"], 0, ""),
    "long context": (["rlm", "run", "--benchmark", "ruler", "--simulated", "--max-tasks", 1, "--no-save"], 0, ""),
    "optimizers": (["optimize", "run", "--test-mode", "--demo-datasets", "labels", "--models", "simulated"], 0, ""),
    "rollouts": (["rollouts", "run", "--agent", "oracle"], 3, "isn't here"),
    "performance": ([*MEASUREMENT], 3, "need exclusive, workspace"),
}


def verified(koderz: Shell, run: object = "latest", code: int = 0, *options: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(koderz("verify", run, "--json", *options, code=code).out)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("system", RUNS)
def test_verify_passes_honest_runs_of_every_system(koderz: Shell, system: str) -> None:
    words, code, lacking = RUNS[system]
    koderz(*words)

    found = verified(koderz, code=code)

    assert found["verified"], found["findings"]
    assert lacking in "; ".join(found["not_derived"])
    assert bool(found["not_derived"]) == bool(lacking)
    assert found["figures"] > 50


@pytest.mark.slow
def test_verify_takes_tasks_of_a_file_that_is_handed_in(koderz: Shell) -> None:
    tasks = koderz.folder / "tasks.jsonl"
    row = {"task_id": "own/0", "prompt": "def one():\n", "entry_point": "one", "canonical_solution": "    return 1\n"}
    row["test"] = "def check(candidate):\n    assert candidate() == 1\n"
    tasks.write_text(json.dumps(row) + "\n")
    koderz("benchmark", 0, 1, "--dataset", tasks, "--model", "simulated", "--mode", "zero-shot")

    assert "--dataset" in verified(koderz, "latest", 3)["not_derived"][0]
    assert verified(koderz, "latest", 0, "--dataset", tasks)["verified"]


@pytest.mark.slow
def test_verify_runs_no_solver_of_the_run(koderz: Shell) -> None:
    solver = koderz.folder / "mine.py"
    solver.write_text(
        "import pathlib\n"
        "pathlib.Path('imported').touch()\n"
        "async def once(task, ask, judge):\n"
        "    return await judge(task, await ask(task.messages))\n"
    )
    koderz("benchmark", 0, 2, "--solver", f"{solver}:once", "--model", "simulated")
    (koderz.folder / "imported").unlink()

    found = verified(koderz, code=3)

    assert not (koderz.folder / "imported").exists()
    assert found["verdicts"]["judged"] == found["verdicts"]["same"] == 2
    assert "isn't koderz' own" in found["not_derived"][0]


@pytest.mark.slow
def test_verify_takes_runs_as_folder_summary_archive_and_address(koderz: Shell, tmp_path: Path) -> None:
    koderz("benchmark", 0, 1, "--mode", "zero-shot", "--model", "simulated")
    (folder,) = (path for path in koderz.results.iterdir() if path.is_dir())
    archive = tmp_path / "run.tar.gz"
    with tarfile.open(archive, "w:gz") as tarred:
        tarred.add(koderz.results, "results")

    for name in (folder, folder.with_suffix(".json"), archive, f"file://{archive}", folder.name):
        assert verified(koderz, name)["run_id"] == folder.name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nothing", "there is no run"),
        ("http://127.0.0.1/run.zip", "an address begins with https://"),
        ("file:///nothing/run.zip", "is no run"),
    ],
)
def test_verify_names_what_is_no_run(koderz: Shell, name: str, reason: str) -> None:
    done = koderz("verify", name, code=2)

    assert reason in done.err
    assert len(done.err.splitlines()) == 1


def test_verify_exits_with_1_where_something_differs(koderz: Shell) -> None:
    koderz("benchmark", 0, 1, "--mode", "zero-shot", "--model", "simulated")
    (summary,) = koderz.results.glob("*.json")
    summary.write_text(summary.read_text().replace('"planned": 1', '"planned": 2'))

    done = koderz("verify", "latest", code=1)

    assert "DIFFERS    figure: planned: recorded 2, derived 1" in done.out
    assert done.out.endswith("NOT VERIFIED: 1 differences\n")
