"""Canaries of rollouts: mixed in, tried beforehand, and never in a score."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Shell

pytestmark = pytest.mark.slow

GIVEN = ("--sandbox", "local", "--no-sink", "mlflow", "--no-sink", "memory")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_canaries_stand_beside_the_score_and_never_in_it(koderz: Shell) -> None:
    koderz("rollouts", "sample", "tasks")
    said = koderz("rollouts", "run", "tasks/sample.toml", "--agent", "oracle", *GIVEN, "--canaries", "50%").out
    assert "Starting 5 tasks" in said
    assert "Successes: 3 (100.0%)" in said
    assert "canaries: 0 of 2 passed, 0.0% (95% interval 0.0 to 65.8); nobody passes one without cheating" in said
    summary = koderz.summary()
    assert (summary["planned"], len(summary["results"]), summary["summary"]["success_rate"]) == (3, 3, 100)
    canaries = summary["canaries"]
    assert (canaries["tried"], canaries["passed"], canaries["rate"]) == (2, 0, 0)
    assert canaries["interval"][1] == pytest.approx(0.6576, abs=1e-4)
    assert all(task.endswith("#canary") for task in canaries["tasks"])
    assert not any(result["problem_id"].endswith("#canary") for result in summary["results"])
    assert summary["rollouts"]["oracle"]["rollouts"] == 3
    (manifest,) = (koderz.folder / "data/rollouts/sample").glob("*/manifest.json")
    assert sum(each.get("canary", False) for each in json.loads(manifest.read_bytes())["results"]) == 2
    found = json.loads(koderz("rollouts", "summarize", "sample", "--json").out)
    assert len(found["results"]) == 3
    assert found["aggregates"]["unit_mean"] > 0.9
    koderz("benchmark", "rescore", "latest", "--quiet")
    assert koderz.summary()["canaries"] == canaries


def test_canaries_shown_lays_their_tests_into_the_checkout(koderz: Shell) -> None:
    koderz("rollouts", "sample", "tasks")
    (koderz.folder / "look.sh").write_text("find . -name 'test*' -not -path './.git/*' > seen.txt\n")
    config = koderz.folder / "one.toml"
    config.write_text('[[tasks]]\nprepared_dir = "tasks/median"\nagent = "scripted"\nscript = "look.sh"\n')
    koderz("rollouts", "run", config, *GIVEN, "--canaries", "1", "--canaries-shown")
    seen = {
        line["problem_id"]: {each for each in line["artifacts"]["diff.patch"].splitlines() if each.startswith("+./")}
        for line in koderz.journal()
        if line["kind"] == "attempt"
    }
    assert seen["sample/median"] < seen["sample/median#canary"]
    assert koderz.summary()["canaries"]["tried"] == 1


def test_canaries_that_can_not_be_made_are_one_line(koderz: Shell) -> None:
    koderz("rollouts", "sample", "tasks")
    config = koderz.folder / "one.toml"
    config.write_text('[[tasks]]\nprepared_dir = "tasks/greeting"\nagent = "oracle"\n')
    said = koderz("rollouts", "run", config, *GIVEN, "--canaries", "1", code=2).err
    assert "--canaries 1: 0 of 1 can be made of these 1 tasks" in said
    said = koderz("rollouts", "run", config, *GIVEN, "--canaries", "some", code=2).err
    assert "'some' is neither a number of canaries nor a share" in said
    assert not [*(koderz.folder / "benchmark_results").glob("bench_*")]
