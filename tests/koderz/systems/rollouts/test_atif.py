"""Conversations of agents as trajectories, by the rules of ATIF and, where it is there, by Harbor's own model."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from koderz.analysis.formats import own_format, write_own
from koderz.errors import KoderzError
from koderz.testing import a_journal
from tests.koderz.analysis.test_conversation import COMMAND, OUTPUT, RULES, calls, each_wire
from tests.tracker.builders import call, fault, judged

HARBOR = os.environ.get("KODERZ_HARBOR_PYTHON")
READ = """
import sys
from harbor.models.trajectories import Trajectory
for path in sys.argv[1:]:
    found = Trajectory.model_validate_json(open(path).read())
    print([step.source for step in found.steps], found.final_metrics.total_cost_usd)
"""


def written(run: Path, to: Path) -> list[Path]:
    found = own_format("atif")
    assert found is not None
    write_own(found, [run], to)
    return sorted(to.glob("*/agent/trajectory.json"))


def trajectory(tmp_path: Path, *records: Any) -> dict[str, Any]:
    (path,) = written(a_journal(tmp_path, *records), tmp_path / "trials")
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


@each_wire
def test_results_of_tools_stand_with_their_calls_on_every_wire(tmp_path: Path, wire: str) -> None:
    found = trajectory(tmp_path, *calls(wire), judged(0, score=0.5))

    assert found["schema_version"] == "ATIF-v1.7"
    assert [step["step_id"] for step in found["steps"]] == [1, 2, 3, 4]
    rules, asked, acted, ended = found["steps"]
    assert (rules["source"], rules["message"]) == ("system", RULES)
    assert asked["source"] == "user"
    assert "mend it" in asked["message"]
    assert acted["tool_calls"] == [
        {"tool_call_id": "c1", "function_name": "exec_command", "arguments": {"cmd": COMMAND}}
    ]
    assert acted["observation"] == {"results": [{"source_call_id": "c1", "content": OUTPUT}]}
    assert (ended["source"], ended["message"]) == ("agent", "reply 2")
    assert acted["metrics"] == {"prompt_tokens": 7, "completion_tokens": 3, "cost_usd": 0.25}
    assert found["final_metrics"]["total_prompt_tokens"] == 14
    assert found["agent"]["tool_definitions"]
    assert (found["extra"]["success"], found["extra"]["score"]) == (True, 0.5)


def test_cost_that_nobody_knows_is_absent(tmp_path: Path) -> None:
    found = trajectory(tmp_path, call(0, cost_known=False, cost=0.0), fault(0))

    assert "cost_usd" not in found["steps"][-1]["metrics"]
    assert "total_cost_usd" not in found["final_metrics"]
    assert found["extra"]["fault"] == "gone"
    assert "success" not in found["extra"]


def test_run_without_calls_is_refused(tmp_path: Path) -> None:
    run = a_journal(tmp_path, judged(0))
    with pytest.raises(KoderzError, match="no call to a model is on record"):
        written(run, tmp_path / "trials")


@pytest.mark.skipif(not HARBOR, reason="KODERZ_HARBOR_PYTHON names no Python that has Harbor")
def test_harbor_reads_the_trajectories(tmp_path: Path) -> None:
    paths = [
        path
        for wire in ("chat", "responses", "messages")
        for path in written(a_journal(tmp_path / wire, *calls(wire), judged(0)), tmp_path / f"{wire} trials")
    ]
    done = subprocess.run([str(HARBOR), "-c", READ, *map(str, paths)], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["['system', 'user', 'agent', 'agent'] 0.5"] * 3, done.stderr
