"""Rows of GSO and ISO-Bench, measured by the command line."""

from __future__ import annotations

import json
import os
import venv
from pathlib import Path
from typing import Any

import pytest

from koderz.systems.patches.gso import status_of, times_of
from tests.conftest import NOISY, Shell
from tests.koderz.systems.patches import rows

PUBLISHED = Path(os.environ.get("KODERZ_TEST_DATA", "nowhere")) / "perf"

pytestmark = [pytest.mark.slow, pytest.mark.others(NOISY)]


@pytest.fixture
def both(koderz: Shell) -> dict[str, dict[str, Any]]:
    """The rows, which are in rows.jsonl then."""
    made = rows.made(koderz.folder)
    rows.written(koderz.folder, *made.values())
    return made


def _predictions(folder: Path, row: dict[str, Any], *kinds: str, model: str = "org/m") -> str:
    lines = [
        {
            "instance_id": row["instance_id"],
            "model_patch": rows.patch(rows.PATCHES[kind]),
            "model_name_or_path": model,
        }
        for kind in kinds
    ]
    path = folder / f"{'-'.join(kinds)}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path.name


def test_gso_row_is_measured_and_tricks_are_found(koderz: Shell, both: dict[str, dict[str, Any]]) -> None:
    row = both["gso"]
    file = _predictions(koderz.folder, row, "clock", "import often")
    own = ("--dataset", "rows.jsonl", "--predictions", file, "--mode", "agent", "--max-blocks", 17)
    koderz("perf", "run", row["instance_id"], *own, "--quiet")
    found = [(each["status"], each["opt"], each["hack"]) for each in koderz.summary()["arms"]["agent"]["results"]]
    assert found == [("test_failed", "not", "timer"), ("passed", "not", "moved")]
    koderz("benchmark", "rescore", "latest", "--threshold", 0.5, "--quiet")
    assert koderz.summary()["arms"]["agent"]["results"][1]["hack"] == "moved"
    koderz("benchmark", "export", "latest", "--format", "gso", "--output", "out")
    logs = {path.parts[-3]: path for path in (koderz.folder / "out/logs").rglob("test_output.txt")}
    assert [status_of(path.read_text()) for _, path in sorted(logs.items())] == ["test_failed", "passed"]
    times = times_of(logs["org__m-run_1"].read_text())  # what was moved is among its times
    base, moved = (sum((times[side] or [])[0]) for side in ("base", "patch"))
    assert moved > base / 2  # or next to nothing


def test_rows_are_measured_in_an_environment_prepared_here(koderz: Shell) -> None:
    made = rows.made(koderz.folder)
    published = {
        "repo": "own/tallies",
        "setup_commands": ["sudo apt-get install -y gcc"],
        "install_commands": ["uv venv --python 3.9", "source .venv/bin/activate", "uv pip install . --reinstall"],
    }
    gso = {**made["gso"], **published, "tests": ["import tallied\n" + rows.GSO_SCRIPT]}
    iso = {**made["iso"], **published}
    rows.written(koderz.folder, gso, iso)
    venv.create(koderz.folder / "env")
    (packages,) = koderz.folder.glob("env/lib/python*/site-packages")
    (packages / "tallied.py").touch()
    (koderz.folder / "own.toml").write_text(
        '[[environments]]\nrepo = "*/own/tallies"\nsource = "repository"\npython = "env/bin/python"\n'
        'install = ["sh build.sh"]\n'
    )
    own = ("--dataset", "rows.jsonl", "--max-blocks", 17)
    run = ("perf", "run", gso["instance_id"], *own, "--mode", "human")
    assert "or in an environment that --overrides names" in koderz(*run, code=4).err
    checked = koderz("perf", "check", iso["instance_id"], *own, "--overrides", "own.toml").out
    assert checked.startswith(f"ok      {iso['instance_id']}: opt: ")
    koderz(*run, "--overrides", "own.toml", "--quiet")
    (human,) = koderz.summary()["arms"]["human"]["results"]
    assert (human["status"], human["opt"]) == ("passed", "opt")


def test_predictions_for_a_row_are_measured_once_and_graded(koderz: Shell, both: dict[str, dict[str, Any]]) -> None:
    row = both["gso"]
    file = _predictions(koderz.folder, row, "good")
    own = ("perf", "opt-at-k", "--run_id", "r", "--dataset_name", "rows.jsonl", "--prediction_paths", file)
    env = {"KODERZ_MAX_BLOCKS": "1", "KODERZ_GSO_STRICT": "true"}  # GSO's points ask for no more
    for _ in range(2):
        out = koderz(*own, "--model", "m", env=env).out
    assert "Instances that improved over base: 1" in out
    assert len([*koderz.results.glob("bench_*/journal.jsonl")]) == 1
    log = koderz.folder / "logs/run_evaluation/r/org__m" / row["instance_id"] / "test_output.txt"
    assert status_of(log.read_text()) == "passed"
    merged = json.loads((koderz.folder / "reports/m.opt@1.r.report.json").read_text())
    assert merged["summary"]["exact"]["opt_base"] == {"1": 0.5}
    assert merged["summary"]["total_instances"] == 2


def test_base_that_fails_is_a_fault_and_an_error_instance(koderz: Shell, both: dict[str, dict[str, Any]]) -> None:
    row = {**both["gso"], "tests": [rows.GSO_SCRIPT.replace("from tallies import", "from nothing import")]}
    rows.written(koderz.folder, row)
    file = _predictions(koderz.folder, row, "good")
    koderz("perf", "run", "--dataset", "rows.jsonl", "--predictions", file, "--mode", "agent", "--quiet", code=3)
    (fault,) = koderz.summary()["faults"]
    assert fault["reason"].startswith("base_failed: base: test_0: ")
    assert "No module named 'nothing'" in fault["reason"]
    own = ("perf", "opt-at-k", "--run_id", "r", "--dataset_name", "rows.jsonl", "--prediction_paths", file)
    assert "Instances with base errors: 1" in koderz(*own).out


@pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason="KODERZ_TEST_DATA has no perf/ with rows.jsonl and environments.toml"
)
def test_published_rows_are_fit_and_human_patches_equal_their_commits(koderz: Shell) -> None:
    found = [json.loads(line) for line in (PUBLISHED / "rows.jsonl").read_text().splitlines()]
    given = [{"instance_id": row["instance_id"], "model_patch": row["gt_diff"]} for row in found]
    (koderz.folder / "given.jsonl").write_text("".join(json.dumps(line) + "\n" for line in given))
    own = ("--dataset", PUBLISHED / "rows.jsonl", "--overrides", PUBLISHED / "environments.toml", "--max-blocks", 7)
    checked = koderz("perf", "check", *own).out.splitlines()
    assert [line[:8] for line in checked] == ["ok      "] * len(found)
    koderz("perf", "run", *own, "--mode", "agent", "--predictions", "given.jsonl", "--quiet")
    results = koderz.summary()["arms"]["agent"]["results"]
    assert [each["status"] for each in results] == ["passed"] * len(found)
    for metrics in (each["metrics"] for each in results):
        assert metrics["speedup_base_low"] > 1
        assert metrics["speedup_human_low"] < 1.05
        assert metrics["speedup_human_high"] > 0.95
