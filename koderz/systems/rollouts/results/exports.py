"""Rollouts in the formats of other tools: SWE-bench's predictions, Harbor's trials, ATIF v1.7, and skill-creator's.

Predictions are JSON lines of {instance_id, model_name_or_path, model_patch}, which SWE-bench's harness takes. Harbor
0.26 has a folder for each trial with its result.json, a TrialResult; the conversation of its agent lies there as a
trajectory in ATIF. A folder of the skill skill-creator is one that its viewer and its scripts read.
"""

from __future__ import annotations

import json
import re
import statistics
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any, cast

import orjson

from koderz.analysis.export import Stories, folder_format
from koderz.analysis.story import Story, agent_version, chat_of, chat_reply, worker_of
from koderz.errors import KoderzError
from koderz.systems.rollouts.evaluation import Evaluation, evaluation_in
from koderz.systems.rollouts.results.files import DOCUMENT, RolloutsDocument
from koderz.types import JUDGE
from koderz_tracker.files import write_whole
from koderz_tracker.records import Call, Experiment, Fault, Plan


def predictions(stories: Iterable[tuple[Plan, Story]], file: IO[bytes]) -> None:
    """Writes a line for each judged experiment, with its last judged patch; empty if there was none."""
    for plan, story in stories:
        if isinstance(story.outcome, Experiment) and story.problem_id not in plan.apart:
            row = {
                "instance_id": story.problem_id,
                "model_name_or_path": worker_of(plan, story.arm),
                "model_patch": story.program or "",
            }
            file.write(orjson.dumps(row) + b"\n")


@folder_format
def harbor(stories: Stories, folder: Path) -> None:
    """Writes `TRIAL/result.json` for each experiment; one that ended in a fault has an exception and no reward."""
    folders: dict[str | None, Mapping[str, str]] = {}  # of tasks by experiment, of each run
    for plan, story in stories:
        if plan.run_id not in folders:
            folders[plan.run_id] = _task_folders(plan)
        if story.problem_id in plan.apart:
            continue
        name = trial_name(story)
        (folder / name).mkdir(exist_ok=True)
        options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        task = folders[plan.run_id].get(story.experiment_id, story.problem_id)
        trial = _trial(plan, story, task, folder / name)
        write_whole(folder / name / "result.json", [orjson.dumps(trial, option=options)])


def trial_name(story: Story) -> str:
    """The name of an experiment's folder among Harbor's trials."""
    return (
        re.sub(r"[^\w.-]+", "-", story.problem_id) + f"__{story.experiment_id.removeprefix('exp_')}"
    )


def _task_folders(plan: Plan) -> dict[str, str]:
    """The folders of the tasks of a run, by experiment; empty if the run has no files of rollouts."""
    if DOCUMENT not in plan.basis.documents:
        return {}
    return {
        name: entry.task_dir
        for name, entry in plan.document(DOCUMENT, RolloutsDocument).runs.items()
    }


def _trial(plan: Plan, story: Story, path: str, place: Path) -> dict[str, Any]:
    ended, name = story.outcome, place.name
    task = {"path": path}
    agent, model = story.solver.removeprefix("agent:"), plan.model_of(story.arm)
    provider, _, bare = model.rpartition("/")
    model_info = {"name": bare, "provider": provider or None} if story.calls else None
    trial: dict[str, Any] = {
        "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{plan.run_id}/{story.experiment_id}")),
        "task_name": story.problem_id,
        "trial_name": name,
        "trial_uri": place.absolute().as_uri(),
        "task_id": task,
        "source": plan.run_id,
        "task_checksum": plan.basis.matches.get("task", {}).get(story.problem_id, ""),
        "config": {"task": task, "trial_name": name, "agent": {"name": agent, "model_name": model}},
        "agent_info": {
            "name": agent,
            "version": agent_version(plan, story),
            "model_info": model_info,
        },
        "agent_result": {
            "n_input_tokens": sum(call.tokens_in for call in story.calls),
            "n_output_tokens": sum(call.tokens_out for call in story.calls),
            "cost_usd": ended.cost,
        },
        "verifier_result": None,
        "exception_info": None,
        "started_at": moment(
            min([ended.time, *(record.time for record in (*story.calls, *story.attempts))])
        ),
        "finished_at": moment(ended.time),
    }
    if isinstance(ended, Fault):
        told = {
            "exception_type": "Fault",
            "exception_message": ended.reason,
            "exception_traceback": "",
        }
        return trial | {
            "exception_info": {**told, "occurred_at": moment(ended.time), "cause": ended.cause}
        }
    found = evaluation_of(story)
    rewards = found.get("rewards") or {
        "reward": float(ended.success) if ended.score is None else ended.score
    }
    trial |= {"verifier_result": {"rewards": rewards}}
    if steps := found.get("steps"):
        trial["step_results"] = [
            {
                "step_name": step["name"],
                "verifier_result": {"rewards": step["rewards"]} if step["rewards"] else None,
            }
            for step in steps
        ]
    elif mode := found.get("verifier_environment_mode"):
        trial["verifier_environment_mode"] = mode
    return trial


def evaluation_of(story: Story) -> Evaluation:
    """How the task's own verifier graded; empty if it has none. Of a task with steps for all of them."""
    if isinstance(of_steps := story.made.get("steps"), dict):
        return cast("Evaluation", of_steps)
    return evaluation_in(story.attempts[-1].artifacts) if story.attempts else {}


def moment(time: str) -> str:
    """A recorded local time, with its offset."""
    return datetime.fromisoformat(time).astimezone().isoformat()


_SOURCES = {"system": "system", "assistant": "agent"}  # by role; anybody else is the user


@folder_format
def atif(stories: Stories, folder: Path) -> None:
    """Writes `TRIAL/agent/trajectory.json` for each experiment whose calls are on record.

    Raises KoderzError where no experiment has one, as of agents that ask no model through koderz.
    """
    written = 0
    for plan, story in stories:
        if story.problem_id in plan.apart or not story.calls:
            continue
        path = folder / trial_name(story) / "agent/trajectory.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(_trajectory(plan, story), ensure_ascii=False, indent=2)
        # "replace", since lone surrogates have no bytes
        write_whole(path, [text.encode("utf-8", "replace"), b"\n"], durable=False)
        written += 1
    if not written:
        raise KoderzError("no call to a model is on record, so there is no trajectory to write")


def _trajectory(plan: Plan, story: Story) -> dict[str, Any]:
    steps, ended, calls = _steps(story), story.outcome, story.calls
    tools = next(
        (m["content"] for call in calls for m in call.messages if m["role"] == "tools"), None
    )
    offered = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    told = {
        "task": story.problem_id,
        "arm": story.arm,
        "sample": story.sample,
        "experiment_id": story.experiment_id,
    }
    if isinstance(ended, Experiment):
        told |= {"verdict": ended.verdict, "success": ended.success}
        told |= {} if ended.score is None else {"score": ended.score}
    else:
        told |= {"fault": ended.reason, "cause": ended.cause}
    return {
        "schema_version": "ATIF-v1.7",
        "session_id": plan.run_id or story.experiment_id,
        "trajectory_id": story.experiment_id,
        "agent": {
            "name": story.solver.removeprefix("agent:"),
            "version": agent_version(plan, story),
            "model_name": plan.model_of(story.arm),
            **({"tool_definitions": offered} if offered else {}),
        },
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": sum(call.tokens_in for call in calls),
            "total_completion_tokens": sum(call.tokens_out for call in calls),
            **(
                {"total_cost_usd": sum(call.cost for call in calls)}
                if all(c.cost_known for c in calls)
                else {}
            ),
            "total_steps": len(steps),
        },
        "extra": told,
    }


def _steps(story: Story) -> list[dict[str, Any]]:
    """The steps of an experiment's conversations. A tool's result stands with the step that called the tool."""
    steps: list[dict[str, Any]] = []
    callers: dict[str, dict[str, Any]] = {}
    for step in story.steps:
        if not step.call:
            continue
        replied = {**chat_reply(step.call), "call": step.call}
        for message in [*chat_of(step.asked), replied]:
            caller = callers.get(message.get("tool_call_id", ""))
            if caller is not None:
                result = {"source_call_id": message["tool_call_id"], "content": message["content"]}
                caller.setdefault("observation", {"results": []})["results"].append(result)
                continue
            source = _SOURCES.get(message["role"], "user")
            steps.append(
                {"step_id": len(steps) + 1, "source": source, "message": message["content"]}
            )
            if source == "agent":
                steps[-1] |= _of_agent(message)
                callers |= {call["id"]: steps[-1] for call in message["tool_calls"] if call["id"]}
    return steps


def _of_agent(message: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an agent's step alone: thoughts, calls of tools and, of a recorded reply, tokens and costs."""
    found: dict[str, Any] = (
        {"reasoning_content": message["reasoning"]} if message["reasoning"] else {}
    )
    if message["tool_calls"]:
        found["tool_calls"] = [
            {
                "tool_call_id": call["id"],
                "function_name": call["name"],
                "arguments": call["arguments"],
            }
            for call in message["tool_calls"]
        ]
    call: Call | None = message.get("call")
    if call is None:
        return found
    return found | {
        "timestamp": moment(call.time),
        "model_name": call.model,
        "llm_call_count": 1,
        "metrics": {
            "prompt_tokens": call.tokens_in,
            "completion_tokens": call.tokens_out,
            **({"cost_usd": call.cost} if call.cost_known else {}),
        },
        "extra": {"finish_reason": call.finish_reason, "latency_seconds": call.latency},
    }


_MEASURES = {"pass_rate": "+.2f", "time_seconds": "+.1f", "tokens": "+.0f"}


@folder_format
def skill_creator(stories: Stories, folder: Path) -> None:
    """Writes benchmark.json, and `eval-ID/CONFIGURATION/run-N/` for each judged rollout.

    What ended in a fault is in no figure, since a missing pass rate is read as 0 there; a note has the number.
    """
    every = [(plan, story) for plan, story in stories if story.problem_id not in plan.apart]
    plans = list({plan.run_id: plan for plan, _ in every}.values())
    tasks, names = (
        list(dict.fromkeys(story.problem_id for _, story in every)),
        _configurations(plans),
    )
    lasts = [task.rpartition("/")[2] for task in tasks]  # the viewer sorts by numbers
    own = len({*lasts}) == len(lasts) and all(
        re.fullmatch(r"0|[1-9]\d{0,8}", last, re.ASCII) for last in lasts
    )
    ids = {
        task: int(last) if own else number
        for number, (task, last) in enumerate(zip(tasks, lasts, strict=True), 1)
    }
    runs: list[dict[str, Any]] = []
    for name in dict.fromkeys(names.values()):
        numbers = Counter[str]()
        for _, story in every:
            if names[story.arm] == name and isinstance(story.outcome, Experiment):
                numbers[story.problem_id] += 1
                about = {
                    "eval_id": ids[story.problem_id],
                    "eval_name": story.problem_id,
                    "configuration": name,
                }
                runs.append(
                    {
                        **about,
                        "run_number": numbers[story.problem_id],
                        **_judged(story, story.outcome),
                    }
                )
                _write_run(folder, story, runs[-1])
    judges = {plan.arm(story.arm).models.get(JUDGE, "") for plan, story in every} - {""}
    faults = sum(not isinstance(story.outcome, Experiment) for _, story in every)
    notes = [
        f"koderz compare {plan.run_id} has the difference with its interval." for plan in plans
    ]
    notes += [
        f"Expectations were judged by {judge}, not corrected for its errors."
        for judge in sorted(judges)
    ]
    notes += (
        [f"{faults} of {len(every)} runs ended in a fault, and are in no figure here."]
        if faults
        else []
    )
    notes += (
        ["SIMULATED MODEL: nothing here is of a real one."]
        if any(plan.simulated for plan in plans)
        else []
    )
    metadata = {
        "skill_name": next((task.rpartition("/")[0] for task in tasks if "/" in task), ""),
        "skill_path": "",
        "executor_model": ", ".join(
            dict.fromkeys(plan.model_of(story.arm) for plan, story in every)
        ),
        "analyzer_model": ", ".join(sorted(judges)),
        "timestamp": max((moment(story.outcome.time) for _, story in every), default=""),
        "evals_run": sorted(ids.values()),
        "runs_per_configuration": max((run["run_number"] for run in runs), default=0),
    }
    summary = _summary(runs, list(dict.fromkeys(names.values())))
    _write(
        folder / "benchmark.json",
        {"metadata": metadata, "runs": runs, "run_summary": summary, "notes": notes},
    )


def _configurations(plans: Sequence[Plan]) -> dict[str, str]:
    """The name of each arm's configuration there; the plain arm is second, since the first two are compared."""
    kinds: dict[str, list[str]] = {}
    for plan in plans:
        added = (plan.details.get("suite") or {}).get("additions") or {}
        for arm in plan.arms:
            kinds[arm.name] = [
                each["kind"] for each in added.get((arm.settings or {}).get("arm") or "", ())
            ]
    plain, others = (
        [name for name in kinds if not kinds[name]],
        [name for name in kinds if kinds[name]],
    )
    if len(plain) <= 1 and len(others) == 1 and {*kinds[others[0]]} == {"skill"}:
        return {others[0]: "with_skill", **dict.fromkeys(plain, "without_skill")}
    slugs = {
        name: re.sub(r"\W+", "_", name).strip("_").lower()[:60]
        for name in (*others[:1], *plain, *others[1:])
    }
    counts = Counter(slugs.values())
    numbered = enumerate(slugs.items(), 1)
    return {
        name: slug if counts[slug] == 1 else f"{slug}_{number}" for number, (name, slug) in numbered
    }


def _judged(story: Story, ended: Experiment) -> dict[str, Any]:
    """The figures of a rollout, and what was expected of it: what the judge said of, and its tests."""
    found = evaluation_of(story)
    expected = [
        {"text": each["expectation"], "passed": each["score"] == 1, "evidence": each["evidence"]}
        for each in (found.get("lm_evaluation") or {}).get("rubric_scores", ())
        if "expectation" in each and each["score"] is not None
    ]
    for path, result in (found.get("test_results") or {}).items():
        expected.append(
            {
                "text": f"{path} passes",
                "passed": result["success"],
                "evidence": "a hidden test of koderz",
            }
        )
    holds = [each["passed"] for each in expected] or [ended.success]
    own = [call for call in story.calls if call.role != JUDGE]
    times = [
        float(each["elapsed"])
        for each in story.made.values()
        if isinstance(each, dict) and "elapsed" in each
    ]
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
    about = {
        "eval_id": run["eval_id"],
        "prompt": evaluation_of(story).get("prompt", story.problem_id),
    }
    _write(
        place / "eval_metadata.json", {**about, "assertions": [each["text"] for each in expected]}
    )
    place /= f"{run['configuration']}/run-{run['run_number']}"
    # No output_chars, which would be taken for tokens. timing.json is read where grading.json has no time.
    summary = {name: result[name] for name in ("passed", "failed", "total", "pass_rate")}
    used = {"total_tool_calls": result["tool_calls"]}
    _write(
        place / "grading.json",
        {"expectations": expected, "summary": summary, "execution_metrics": used},
    )
    seconds, tokens = (
        result["time_seconds"],
        {"total_tokens": result["tokens"]} if "tokens" in result else {},
    )
    _write(
        place / "timing.json",
        {**tokens, "duration_ms": round(1000 * seconds), "total_duration_seconds": seconds},
    )
    _write(place / "outputs/changes.md", f"```diff\n{story.program or ''}\n```\n")


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    is_text = isinstance(value, str)
    data = (
        value.encode("utf-8", "replace")
        if is_text
        else orjson.dumps(value, option=orjson.OPT_INDENT_2)
    )
    write_whole(path, [data], durable=False)


def _summary(runs: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """The figures of each configuration, and the first's less the second's; without what isn't known."""
    found: dict[str, Any] = {name: {} for name in names}
    for name, measure in ((name, measure) for name in names for measure in _MEASURES):
        own = [run["result"] for run in runs if run["configuration"] == name]
        values = [result[measure] for result in own if measure in result]
        if values and len(values) == len(own):
            spread = {"stddev": statistics.stdev(values) if len(values) > 1 else 0.0}
            found[name][measure] = {
                "mean": statistics.fmean(values),
                **spread,
                "min": min(values),
                "max": max(values),
            }
    if len(names) > 1:
        first, second = found[names[0]], found[names[1]]
        known = [measure for measure in _MEASURES if measure in first and measure in second]
        less = {measure: first[measure]["mean"] - second[measure]["mean"] for measure in known}
        found["delta"] = {
            measure: f"{value:{_MEASURES[measure]}}" for measure, value in less.items()
        }
    return found
