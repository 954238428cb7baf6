"""Experiments as Harbor's trials: a folder each with its result.json, a TrialResult of Harbor 0.26."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from koderz.analysis.formats import Stories, folder_format
from koderz.analysis.story import Story, agent_version
from koderz.systems.rollouts.agents import EVALUATION
from koderz.systems.rollouts.files import DOCUMENT, RolloutsDocument
from koderz_tracker.files import write_whole
from koderz_tracker.records import Fault, Plan


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
    return re.sub(r"[^\w.-]+", "-", story.problem_id) + f"__{story.experiment_id.removeprefix('exp_')}"


def _task_folders(plan: Plan) -> dict[str, str]:
    """The folders of the tasks of a run, by experiment; empty if the run has no files of rollouts."""
    if DOCUMENT not in plan.basis.documents:
        return {}
    return {name: entry.task_dir for name, entry in plan.document(DOCUMENT, RolloutsDocument).runs.items()}


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
        "started_at": moment(min([ended.time, *(record.time for record in (*story.calls, *story.attempts))])),
        "finished_at": moment(ended.time),
    }
    if isinstance(ended, Fault):
        told = {"exception_type": "Fault", "exception_message": ended.reason, "exception_traceback": ""}
        return trial | {"exception_info": {**told, "occurred_at": moment(ended.time), "cause": ended.cause}}
    found = evaluation_of(story)
    rewards = found.get("rewards") or {"reward": ended.score if ended.score is not None else 0.0}
    trial |= {"verifier_result": {"rewards": rewards}}
    if steps := found.get("steps"):
        trial["step_results"] = [
            {"step_name": step["name"], "verifier_result": {"rewards": step["rewards"]} if step["rewards"] else None}
            for step in steps
        ]
    elif mode := found.get("verifier_environment_mode"):
        trial["verifier_environment_mode"] = mode
    return trial


def evaluation_of(story: Story) -> Mapping[str, Any]:
    """How the task's own verifier graded; empty if it has none. Of a task with steps for all of them."""
    if isinstance(of_steps := story.made.get("steps"), dict):
        return of_steps
    text = story.attempts[-1].artifacts.get(EVALUATION) if story.attempts else None
    try:
        found = json.loads(text) if isinstance(text, str) else {}
    except ValueError:  # where its file in blobs/ is lost
        found = {}
    return found if isinstance(found, dict) else {}


def moment(time: str) -> str:
    """A recorded local time, with its offset."""
    return datetime.fromisoformat(time).astimezone().isoformat()
