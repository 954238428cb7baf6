"""Rollouts in the formats of ATIF, by its rules and Harbor's own model, and of skill-creator, by what reads them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from koderz.analysis.export import own_format, write_own
from koderz.errors import KoderzError
from koderz.testing import a_journal
from koderz_tracker.records import Arm, Plan, Record
from tests.koderz.analysis.test_conversation import COMMAND, OUTPUT, RULES, calls, each_wire
from tests.tracker.builders import RUN, attempt, call, fault, judged

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


PLAIN, WITH = "zero-shot", "iterative"  # the names of arms that the builders have
SKILL = [{"kind": "skill", "name": "codes", "digest": "0"}]


def plan(additions: dict[str, Any], tasks: tuple[str, ...] = ("codes/1", "codes/2")) -> Plan:
    settings: dict[str, dict[str, str | None]] = {PLAIN: {"arm": "plain"}, WITH: {"arm": "with codes"}}
    models = {"main": "m", "judge": "j"}
    arms = [Arm(name=name, solver="agent:x", models=models, settings=own) for name, own in settings.items()]
    details = {"suite": {"additions": additions}}
    return Plan(
        run_id=RUN, mode="rollouts", samples=1, config={}, environment={}, arms=arms, tasks=[*tasks], details=details
    )


def verdict(task: int, arm: str, *holds: bool, **more: Any) -> list[Record]:
    """A rollout of which so many expectations hold, as the judge says."""
    said = [
        {"rubric_id": str(number), "expectation": f"E{number}", "score": float(each), "evidence": f"line {number}"}
        for number, each in enumerate(holds, 1)
    ]
    found = {"graded": "judge", "prompt": "Write it.", "lm_evaluation": {"rubric_scores": said}, **more}
    artifacts = {"evaluation_results.json": json.dumps(found)}
    ended = judged(task, all(holds), solver=arm, duration_seconds=2.0)
    return [attempt(task, solver=arm, call=None, program="+42", artifacts=artifacts), ended]


def exported(tmp_path: Path, of: Plan, *records: Record) -> tuple[dict[str, Any], Path]:
    names = dict(enumerate(of.tasks))

    def named(record: Any) -> Any:
        own = getattr(record, "problem_id", "")
        return structs.replace(record, problem_id=names[int(own.removeprefix("T/"))]) if own else record

    run = a_journal(tmp_path, *map(named, records), plan=of)
    found = own_format("skill-creator")
    assert found is not None
    write_own(found, [run], tmp_path / "out")
    return json.loads((tmp_path / "out/benchmark.json").read_bytes()), tmp_path / "out"


def test_difference_is_of_the_skill_against_the_plain_arm(tmp_path: Path) -> None:
    records = [
        *(*verdict(0, PLAIN, True, False), *verdict(1, PLAIN, False)),
        *(*verdict(0, WITH, True, True), *verdict(1, WITH, False)),
    ]
    found, out = exported(tmp_path, plan({"with codes": SKILL}), *records)
    assert [*found["run_summary"]] == ["with_skill", "without_skill", "delta"]
    assert found["run_summary"]["with_skill"]["pass_rate"]["mean"] == 0.5
    assert found["run_summary"]["delta"]["pass_rate"] == "+0.25"
    about = [(run["eval_id"], run["configuration"], run["result"]["pass_rate"]) for run in found["runs"]]
    rates = [("with_skill", 1.0, 0.0), ("without_skill", 0.5, 0.0)]
    assert about == [(number, name, rate) for name, *both in rates for number, rate in enumerate(both, 1)]
    grading = json.loads((out / "eval-1/without_skill/run-1/grading.json").read_bytes())
    assert grading["expectations"] == [
        {"text": "E1", "passed": True, "evidence": "line 1"},
        {"text": "E2", "passed": False, "evidence": "line 2"},
    ]
    assert grading["summary"] == {"passed": 1, "failed": 1, "total": 2, "pass_rate": 0.5}
    metadata = json.loads((out / "eval-1/eval_metadata.json").read_bytes())
    assert metadata == {"eval_id": 1, "prompt": "Write it.", "assertions": ["E1", "E2"]}
    assert "+42" in (out / "eval-1/with_skill/run-1/outputs/changes.md").read_text()
    assert found["metadata"]["skill_name"] == "codes"
    assert (found["metadata"]["executor_model"], found["metadata"]["analyzer_model"]) == ("m", "j")
    assert "Expectations were judged by j, not corrected for its errors." in found["notes"]


def test_fault_is_no_rate_of_nothing(tmp_path: Path) -> None:
    found, out = exported(tmp_path, plan({"with codes": SKILL}), *verdict(0, PLAIN, True), fault(0, solver=WITH))
    assert [run["configuration"] for run in found["runs"]] == ["without_skill"]
    assert found["run_summary"] == {
        "with_skill": {},
        "without_skill": found["run_summary"]["without_skill"],
        "delta": {},
    }
    assert "1 of 2 runs ended in a fault, and are in no figure here." in found["notes"]
    assert not (out / "eval-1/with_skill").exists()


def test_tokens_are_the_agents_and_left_out_where_unknown(tmp_path: Path) -> None:
    asked = [call(0, 1, solver=PLAIN), call(0, 2, solver=PLAIN, role="judge", tokens_in=1000)]
    records = [*asked, *verdict(0, PLAIN, True), *verdict(0, WITH, True)]
    found, out = exported(tmp_path, plan({"with codes": SKILL}), *records)
    without, with_skill = found["runs"][1], found["runs"][0]
    assert without["result"]["tokens"] == 10
    assert "tokens" not in with_skill["result"]
    assert "tokens" not in found["run_summary"]["with_skill"]
    assert "tokens" not in found["run_summary"]["delta"]
    timing = json.loads((out / "eval-1/without_skill/run-1/timing.json").read_bytes())
    assert timing == {"total_tokens": 10, "duration_ms": 2000, "total_duration_seconds": 2.0}
    grading = json.loads((out / "eval-1/with_skill/run-1/grading.json").read_bytes())
    assert "output_chars" not in grading["execution_metrics"]


def test_tests_are_expectations_and_ids_are_numbers(tmp_path: Path) -> None:
    tests = {"test_a.py": {"success": True, "output": ""}}
    records = verdict(0, PLAIN, False, graded="fresh", test_results=tests)
    found, _ = exported(tmp_path, plan({}, ("org/one", "org/two")), *records)
    (run,) = found["runs"]
    assert (run["eval_id"], run["eval_name"], run["result"]["passed"], run["result"]["total"]) == (1, "org/one", 1, 2)
    assert run["expectations"][1]["text"] == "test_a.py passes"
    assert run["notes"] == ["failed, by tests"]
    assert found["metadata"]["evals_run"] == [1]


def test_plain_arm_is_the_second_of_three_and_names_differ(tmp_path: Path) -> None:
    of = plan({"with codes": SKILL, "b": SKILL})
    long = "x" * 80
    arms = [*of.arms, *(Arm(name=f"{long}{n}", solver="agent:x", settings={"arm": "b"}) for n in (1, 2))]
    found, _ = exported(tmp_path, structs.replace(of, arms=arms), *verdict(0, PLAIN, False), *verdict(0, WITH, True))
    assert [*found["run_summary"]] == ["iterative", "zero_shot", f"{'x' * 60}_3", f"{'x' * 60}_4", "delta"]
    assert found["run_summary"]["delta"]["pass_rate"] == "+1.00"


def test_two_additions_keep_the_names_of_their_arms(tmp_path: Path) -> None:
    both = {"with codes": SKILL, "plain": [{**SKILL[0], "name": "codes@v1"}]}
    found, _ = exported(tmp_path, plan(both), *verdict(0, PLAIN, True), *verdict(0, WITH, False))
    assert [*found["run_summary"]] == ["zero_shot", "iterative", "delta"]
    assert found["run_summary"]["delta"]["pass_rate"] == "+1.00"
