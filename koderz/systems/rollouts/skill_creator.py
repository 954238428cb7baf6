"""Rollouts as the results of the skill skill-creator: a folder that its viewer and its scripts read."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from koderz.analysis.formats import Stories, folder_format
from koderz.analysis.story import Story
from koderz.systems.rollouts.harbor import evaluation_of, moment
from koderz.types import JUDGE
from koderz_tracker.files import write_whole
from koderz_tracker.records import Experiment, Plan

_MEASURES = {"pass_rate": "+.2f", "time_seconds": "+.1f", "tokens": "+.0f"}


@folder_format
def skill_creator(stories: Stories, folder: Path) -> None:
    """Writes benchmark.json, and `eval-ID/CONFIGURATION/run-N/` for each judged rollout.

    What ended in a fault is in no figure, since a missing pass rate is read as 0 there; a note has the number.
    """
    every = [(plan, story) for plan, story in stories if story.problem_id not in plan.apart]
    plans = list({plan.run_id: plan for plan, _ in every}.values())
    tasks, names = list(dict.fromkeys(story.problem_id for _, story in every)), _configurations(plans)
    lasts = [task.rpartition("/")[2] for task in tasks]  # the viewer sorts by numbers
    own = len({*lasts}) == len(lasts) and all(re.fullmatch(r"0|[1-9]\d{0,8}", last, re.ASCII) for last in lasts)
    ids = {task: int(last) if own else number for number, (task, last) in enumerate(zip(tasks, lasts, strict=True), 1)}
    runs: list[dict[str, Any]] = []
    for name in dict.fromkeys(names.values()):
        numbers = Counter[str]()
        for _, story in every:
            if names[story.arm] == name and isinstance(story.outcome, Experiment):
                numbers[story.problem_id] += 1
                about = {"eval_id": ids[story.problem_id], "eval_name": story.problem_id, "configuration": name}
                runs.append({**about, "run_number": numbers[story.problem_id], **_judged(story, story.outcome)})
                _write_run(folder, story, runs[-1])
    judges = {plan.arm(story.arm).models.get(JUDGE, "") for plan, story in every} - {""}
    faults = sum(not isinstance(story.outcome, Experiment) for _, story in every)
    notes = [f"koderz compare {plan.run_id} has the difference with its interval." for plan in plans]
    notes += [f"Expectations were judged by {judge}, not corrected for its errors." for judge in sorted(judges)]
    notes += [f"{faults} of {len(every)} runs ended in a fault, and are in no figure here."] if faults else []
    notes += ["SIMULATED MODEL: nothing here is of a real one."] if any(plan.simulated for plan in plans) else []
    metadata = {
        "skill_name": next((task.rpartition("/")[0] for task in tasks if "/" in task), ""),
        "skill_path": "",
        "executor_model": ", ".join(dict.fromkeys(plan.model_of(story.arm) for plan, story in every)),
        "analyzer_model": ", ".join(sorted(judges)),
        "timestamp": max((moment(story.outcome.time) for _, story in every), default=""),
        "evals_run": sorted(ids.values()),
        "runs_per_configuration": max((run["run_number"] for run in runs), default=0),
    }
    summary = _summary(runs, list(dict.fromkeys(names.values())))
    _write(folder / "benchmark.json", {"metadata": metadata, "runs": runs, "run_summary": summary, "notes": notes})


def _configurations(plans: Sequence[Plan]) -> dict[str, str]:
    """The name of each arm's configuration there; the plain arm is second, since the first two are compared."""
    kinds: dict[str, list[str]] = {}
    for plan in plans:
        added = (plan.details.get("suite") or {}).get("additions") or {}
        for arm in plan.arms:
            kinds[arm.name] = [each["kind"] for each in added.get((arm.settings or {}).get("arm") or "", ())]
    plain, others = [name for name in kinds if not kinds[name]], [name for name in kinds if kinds[name]]
    if len(plain) <= 1 and len(others) == 1 and {*kinds[others[0]]} == {"skill"}:
        return {others[0]: "with_skill", **dict.fromkeys(plain, "without_skill")}
    slugs = {name: re.sub(r"\W+", "_", name).strip("_").lower()[:60] for name in (*others[:1], *plain, *others[1:])}
    counts = Counter(slugs.values())
    numbered = enumerate(slugs.items(), 1)
    return {name: slug if counts[slug] == 1 else f"{slug}_{number}" for number, (name, slug) in numbered}


def _judged(story: Story, ended: Experiment) -> dict[str, Any]:
    """The figures of a rollout, and what was expected of it: what the judge said of, and its tests."""
    found = evaluation_of(story)
    expected = [
        {"text": each["expectation"], "passed": each["score"] == 1, "evidence": each["evidence"]}
        for each in (found.get("lm_evaluation") or {}).get("rubric_scores", ())
        if "expectation" in each and each["score"] is not None
    ]
    for path, result in (found.get("test_results") or {}).items():
        expected.append({"text": f"{path} passes", "passed": result["success"], "evidence": "a hidden test of koderz"})
    holds = [each["passed"] for each in expected] or [ended.success]
    own = [call for call in story.calls if call.role != JUDGE]
    times = [float(each["elapsed"]) for each in story.made.values() if isinstance(each, dict) and "elapsed" in each]
    result = {
        "pass_rate": sum(holds) / len(holds),
        "passed": sum(holds),
        "failed": len(holds) - sum(holds),
        "total": len(holds),
        "time_seconds": max(times, default=ended.duration_seconds),
        **({"tokens": sum(call.tokens_in + call.tokens_out for call in own)} if own else {}),
        "tool_calls": sum(len(call.tool_calls) for call in own),
    }
    by = "the judge" if found.get("graded") == "judge" else "tests"
    return {"result": result, "expectations": expected, "notes": [f"{ended.verdict}, by {by}"]}


def _write_run(folder: Path, story: Story, run: Mapping[str, Any]) -> None:
    place, result, expected = folder / f"eval-{run['eval_id']}", run["result"], run["expectations"]
    about = {"eval_id": run["eval_id"], "prompt": evaluation_of(story).get("prompt", story.problem_id)}
    _write(place / "eval_metadata.json", {**about, "assertions": [each["text"] for each in expected]})
    place /= f"{run['configuration']}/run-{run['run_number']}"
    # No output_chars, which would be taken for tokens. timing.json is read where grading.json has no time.
    summary = {name: result[name] for name in ("passed", "failed", "total", "pass_rate")}
    used = {"total_tool_calls": result["tool_calls"]}
    _write(place / "grading.json", {"expectations": expected, "summary": summary, "execution_metrics": used})
    seconds, tokens = result["time_seconds"], {"total_tokens": result["tokens"]} if "tokens" in result else {}
    _write(place / "timing.json", {**tokens, "duration_ms": round(1000 * seconds), "total_duration_seconds": seconds})
    _write(place / "outputs/changes.md", f"```diff\n{story.program or ''}\n```\n")


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    is_text = isinstance(value, str)
    data = value.encode("utf-8", "replace") if is_text else orjson.dumps(value, option=orjson.OPT_INDENT_2)
    write_whole(path, [data], durable=False)


def _summary(runs: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """The figures of each configuration, and the first's less the second's; without what isn't known."""
    found: dict[str, Any] = {name: {} for name in names}
    for name, measure in ((name, measure) for name in names for measure in _MEASURES):
        own = [run["result"] for run in runs if run["configuration"] == name]
        values = [result[measure] for result in own if measure in result]
        if values and len(values) == len(own):
            spread = {"stddev": statistics.stdev(values) if len(values) > 1 else 0.0}
            found[name][measure] = {"mean": statistics.fmean(values), **spread, "min": min(values), "max": max(values)}
    if len(names) > 1:
        first, second = found[names[0]], found[names[1]]
        known = [measure for measure in _MEASURES if measure in first and measure in second]
        less = {measure: first[measure]["mean"] - second[measure]["mean"] for measure in known}
        found["delta"] = {measure: f"{value:{_MEASURES[measure]}}" for measure, value in less.items()}
    return found
