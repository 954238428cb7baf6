"""Resources of rollouts by the command line: overridden, recorded, and compared only where they are equal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Shell

pytestmark = pytest.mark.slow


@pytest.fixture
def config(koderz: Shell) -> Path:
    koderz("rollouts", "sample", "tasks")
    path = koderz.folder / "one.toml"
    path.write_text('[[tasks]]\nprepared_dir = "tasks/greeting"\nagent = "oracle"\n')
    return path


def _results(koderz: Shell) -> list[dict[str, Any]]:
    paths = sorted((koderz.folder / "benchmark_results").glob("bench_*.json"), key=lambda path: path.stat().st_mtime)
    return [json.loads(path.read_bytes())["results"][0] for path in paths]


def test_resources_are_recorded_and_unequal_ones_are_not_compared(koderz: Shell, config: Path) -> None:
    given = ("--sandbox", "local", "--no-sink", "mlflow", "--no-sink", "memory")
    koderz("rollouts", "run", config, *given)
    koderz("rollouts", "run", config, *given, "--memory-mb", "700", "--cpus", "1", "--timeout-multiplier", "2")
    usual, own = (each["resources"] for each in _results(koderz))
    assert (usual["memory_mb"], usual["cpus"], usual["multiplier"], usual["enforced"]["cpus"]) == (4096, None, 1, "no")
    assert (own["memory_mb"], own["cpus"], own["multiplier"], own["enforced"]["cpus"]) == (700, 1, 2, "affinity")
    assert own["agent_seconds"] == 2 * usual["agent_seconds"] == 2 * own["asked"]["agent_seconds"]
    (evaluation,) = [
        json.loads(path.read_bytes())
        for path in (koderz.folder / "data/runs").glob("*/evaluation_results.json")
        if json.loads(path.read_bytes())["resources"]["memory_mb"] == 700
    ]
    assert evaluation["resources"] == own
    two = ("benchmark", "compare", "latest~1", "latest", "--allow-simulated")
    said = koderz(*two, code=2).err
    assert "unequal resources: cpus, memory_mb, agent_seconds, verifier_seconds (cpus of sample/greeting is " in said
    assert "unlimited in bench_" in said
    assert "--unequal-resources" in said
    said = koderz(*two, "--unequal-resources").out
    assert "Success rate (unequal resources)" in said
    assert "Unequal resources: agent_seconds of sample/greeting is 600 in " in said
    found = json.loads(koderz(*two, "--unequal-resources", "--json").out)
    assert [phrase.partition(" ")[0] for phrase in found["unequal_resources"]] == [
        "cpus",
        "memory_mb",
        "agent_seconds",
        "verifier_seconds",
    ]


def test_network_that_local_can_not_give_is_refused_before_anything_starts(koderz: Shell, config: Path) -> None:
    said = koderz("rollouts", "run", config, "--sandbox", "local", "--network", "task", code=2).err
    assert "network_mode = public needs --sandbox docker or podman or modal" in said
    assert said.count("\n") == 1
    assert not [*(koderz.folder / "benchmark_results").glob("bench_*")]
