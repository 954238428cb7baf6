"""The conversations of agents as trajectories in ATIF v1.7, a file each, where Harbor has them in its trials."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from koderz.analysis.conversation import chat_of, chat_reply
from koderz.analysis.formats import Stories, folder_format
from koderz.analysis.story import Story, agent_version
from koderz.errors import KoderzError
from koderz.systems.rollouts.harbor import moment, trial_name
from koderz_tracker.files import write_whole
from koderz_tracker.records import Call, Experiment, Plan

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
        write_whole(path, [text.encode("utf-8", "replace"), b"\n"], durable=False)  # of lone surrogates
        written += 1
    if not written:
        raise KoderzError("no call to a model is on record, so there is no trajectory to write")


def _trajectory(plan: Plan, story: Story) -> dict[str, Any]:
    steps, ended, calls = _steps(story), story.outcome, story.calls
    tools = next((m["content"] for call in calls for m in call.messages if m["role"] == "tools"), None)
    offered = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    told = {"task": story.problem_id, "arm": story.arm, "sample": story.sample, "experiment_id": story.experiment_id}
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
            **({"total_cost_usd": sum(call.cost for call in calls)} if all(c.cost_known for c in calls) else {}),
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
            steps.append({"step_id": len(steps) + 1, "source": source, "message": message["content"]})
            if source == "agent":
                steps[-1] |= _of_agent(message)
                callers |= {call["id"]: steps[-1] for call in message["tool_calls"] if call["id"]}
    return steps


def _of_agent(message: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an agent's step alone: thoughts, calls of tools and, of a recorded reply, tokens and costs."""
    found: dict[str, Any] = {"reasoning_content": message["reasoning"]} if message["reasoning"] else {}
    if message["tool_calls"]:
        found["tool_calls"] = [
            {"tool_call_id": call["id"], "function_name": call["name"], "arguments": call["arguments"]}
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
