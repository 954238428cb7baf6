"""Results in the form of skill-creator: what its viewer and its scripts read, and what they would read wrongly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec import structs

from koderz.analysis.formats import own_format, write_own
from koderz.testing import a_journal
from koderz_tracker.records import Arm, Plan, Record
from tests.tracker.builders import RUN, attempt, call, fault, judged

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
