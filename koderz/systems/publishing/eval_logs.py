"""Runs as `.eval` logs of inspect_ai, which its reader, its viewer and `koderz.analysis.logs` take: one an arm.

What a run doesn't hold is absent, such as the target of a task that is judged by tests.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from koderz._version import __version__
from koderz.analysis.export import folder_format
from koderz.analysis.story import Story, chat_of, chat_reply, planned_of, told_frames
from koderz.systems.publishing.logs.inspect_ai import ASKED, OWN
from koderz.systems.publishing.logs.log import zip_module
from koderz_tracker.basis import PASSING
from koderz_tracker.files import whole_file
from koderz_tracker.records import Call, Experiment, Fault, Plan

_PASSED = "passed"  # the scorer whose values say whether an experiment passed
_STOPS = {
    "stop": "stop",
    "length": "max_tokens",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
}
_LONGEST = 1000  # characters of a text in summaries, as in inspect's own


@folder_format
def inspect(stories: Iterable[tuple[Plan, Story]], folder: Path) -> None:
    """Writes `RUN_ARM.eval` for each arm of each run. A fault is a sample with an error, which has no score."""
    arms: dict[tuple[str | None, str], tuple[Plan, list[Story]]] = {}
    for plan, story in stories:
        if story.problem_id not in plan.apart:
            arms.setdefault((plan.run_id, story.arm), (plan, []))[1].append(story)
    taken: set[str] = set()
    for (run, arm), (plan, found) in arms.items():
        word = re.sub(r"[^\w.-]+", "-", arm).strip("-.")
        name = f"{run or 'experiment'}_{word}"
        while name in taken:
            name += "-2"
        taken.add(name)
        _write(plan, arm, found, folder / f"{name}.eval")


def _write(plan: Plan, arm: str, stories: Sequence[Story], path: Path) -> None:
    zipfile = zip_module()
    about = _spec(plan, arm, stories)
    steps = {"name": "plan", "steps": [{"solver": plan.arm(arm).solver, "params": {}}]}
    with whole_file(path, durable=False) as file, zipfile.ZipFile(file, "w") as archive:

        def add(name: str, value: Any) -> None:
            # "replace", since lone surrogates have no bytes
            data = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
            archive.writestr(zipfile.ZipInfo(name), data, compress_type=zipfile.ZIP_ZSTANDARD)

        add("_journal/start.json", {"version": 2, "eval": about, "plan": steps})
        summaries = []
        for story in stories:
            sample = _sample(plan, story)
            add(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", sample)
            summaries.append(_summary(sample))
        add("_journal/summaries/1.json", summaries)
        add("summaries.json", summaries)
        whole = len(stories) >= planned_of(plan, arm)
        add("header.json", {
            "version": 2,
            "status": "success" if whole else "started",
            "eval": about,
            "plan": steps,
            "results": _results(planned_of(plan, arm), about, stories, summaries),
            "stats": {
                "started_at": _moment(plan.time),
                "completed_at": _moment(max(story.outcome.time for story in stories)) if whole else "",
                "model_usage": _usage([call for story in stories for call in story.calls]),
            },
        })  # fmt: skip


def _spec(plan: Plan, arm: str, stories: Sequence[Story]) -> dict[str, Any]:
    """The `eval` of a log: what was asked of whom."""
    names = list(dict.fromkeys(name for story in stories for name in _values(plan, story.outcome)))
    headline = _PASSED if (plan.headline or PASSING).passed else (plan.headline or PASSING).measure
    tasks = list(dict.fromkeys(story.problem_id for story in stories))
    config = {
        name: plan.config[name]
        for name in ("temperature", "top_p", "max_tokens", "seed")
        if name in plan.config
    }
    own = {
        "arm": arm,
        "simulated": plan.is_simulated(arm),
        "lower_is_better": any(
            each.name == headline and each.direction == "lower" for each in plan.measures
        ),
        "dataset_digest": plan.environment.get("dataset_digest"),
    }
    return {
        "eval_id": uuid.uuid5(uuid.NAMESPACE_URL, f"{plan.run_id}/{arm}").hex,
        "run_id": plan.run_id or "",
        "created": _moment(plan.time),
        "task": plan.suite,
        "task_id": plan.suite,
        "solver": plan.arm(arm).solver,
        "dataset": {
            "name": plan.suite,
            "samples": len(tasks),
            "sample_ids": tasks,
            "shuffled": False,
        },
        "model": plan.model_of(arm) or "none/none",
        "model_generate_config": {
            name: value for name, value in config.items() if value is not None
        },
        "config": {"epochs": plan.samples},
        "packages": {"koderz": str(plan.environment.get("koderz") or __version__)},
        "scorers": [{"name": name} for name in sorted(names, key=lambda name: name != headline)],
        "metadata": {OWN: {name: value for name, value in own.items() if value is not None}},
    }


def _values(plan: Plan, ended: Experiment | Fault) -> dict[str, Any]:
    """The values of an experiment by scorer: whether it passed, its score, and its metrics; the headline's first."""
    if isinstance(ended, Fault):
        return {}
    headline = plan.headline or PASSING
    grade = "C" if ended.success else "I"
    passed = {_PASSED: grade} if headline.passed else {}
    score = {} if ended.score is None else {"score": ended.score}
    found = {**(ended.metrics or {}), **score, **passed}
    first = _PASSED if passed else headline.measure
    return {name: found[name] for name in sorted(found, key=lambda name: name != first)}


def _sample(plan: Plan, story: Story) -> dict[str, Any]:
    ended, calls = story.outcome, story.calls
    messages = _messages(story)
    first = [*chat_of(next((step.asked for step in story.steps if step.call), ()))]
    asked = dict(zip(plan.tasks, plan.asked, strict=False)).get(story.problem_id)
    known = {
        ASKED: asked,
        "experiment_id": story.experiment_id,
        "verdict": getattr(ended, "verdict", ""),
        "cause": ended.cause,
        "note": getattr(ended, "note", ""),
        "sample": story.sample_name,
    }
    told = {"metadata": {"iterations": ended.iterations}} if isinstance(ended, Experiment) else {}
    answer = {"answer": story.program} if story.program is not None else {}
    sample: dict[str, Any] = {
        "id": story.problem_id,
        "epoch": story.sample + 1,
        "uuid": uuid.uuid5(uuid.NAMESPACE_URL, f"{plan.run_id}/{story.experiment_id}").hex,
        "input": [*map(_message, first)]
        if len(first) > 1
        else "".join(each["content"] for each in first),
        "target": str(
            plan.basis.expectations.get(story.problem_id, {}).get("expected_response") or ""
        ),
        "messages": messages,
        "scores": {
            name: {"value": value, **answer, **told} for name, value in _values(plan, ended).items()
        },
        "metadata": {name: value for name, value in known.items() if value},
        "model_usage": _usage(calls),
        "completed_at": _moment(ended.time),
    }
    sample["events"], sample["events_data"] = _transcript(story, sample["scores"])
    if calls:
        sample["output"] = _output(calls[-1])
    if isinstance(ended, Fault):
        frames = told_frames(ended.frames)
        sample["error"] = {"message": ended.reason, "traceback": frames, "traceback_ansi": frames}
    else:
        sample["total_time"] = ended.duration_seconds
    return sample


def _output(call: Call) -> dict[str, Any]:
    """The reply of a call in inspect's form."""
    message = _message({**chat_reply(call), "model": call.model})
    choice = {"message": message, "stop_reason": _STOPS.get(call.finish_reason, "unknown")}
    return {
        "model": call.model,
        "choices": [choice],
        "usage": _usage([call])[call.model],
        "time": call.latency,
    }


def _transcript(
    story: Story, scores: Mapping[str, Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], dict[str, list[Any]]]:
    """The calls, verdicts and scores of an experiment as events, and the pool of the messages that calls refer to.

    A message that many calls were sent is in the pool once, or a long conversation would grow with its square.
    """
    events: list[dict[str, Any]] = []
    pool: dict[str, int] = {}
    functions: dict[str, str] = {}
    for step in story.steps:
        if call := step.call:
            converted = _converted(chat_of(call.messages), functions)
            sent = [pool.setdefault(json.dumps(message), len(pool)) for message in converted]
            model = {
                "model": call.model,
                "tools": [],
                "tool_choice": "auto",
                "config": {},
                "output": _output(call),
            }
            refs = [[number, number + 1] for number in sent]
            events.append(
                {
                    "event": "model",
                    **model,
                    "input": [],
                    "input_refs": refs,
                    "timestamp": _moment(call.time),
                }
            )
        if attempt := step.attempt:
            judged = {
                "verdict": attempt.verdict,
                "cause": attempt.cause,
                "feedback": attempt.feedback,
            }
            events.append(
                {
                    "event": "info",
                    "source": "judge",
                    "data": judged,
                    "timestamp": _moment(attempt.time),
                }
            )
    ended = _moment(story.outcome.time)
    events += [
        {"event": "score", "scorer": name, "score": score, "timestamp": ended}
        for name, score in scores.items()
    ]
    numbered = [
        {"uuid": f"{story.experiment_id}-{number}", **event}
        for number, event in enumerate(events, 1)
    ]
    return numbered, {"messages": [*map(json.loads, pool)], "calls": []}


def _messages(story: Story) -> list[dict[str, Any]]:
    """The conversations of an experiment after each other, each message once."""
    found: list[dict[str, Any]] = []
    functions: dict[str, str] = {}
    for step in story.steps:
        if step.call:
            told = [*chat_of(step.asked), {**chat_reply(step.call), "model": step.call.model}]
            for message in _converted(told, functions):
                found.append({"id": f"{story.experiment_id}-{len(found) + 1}", **message})
    return found


def _converted(
    messages: Iterable[Mapping[str, Any]], functions: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """Messages in inspect's form. `functions`, the names of the functions by call, is added to on the way."""
    for message in messages:
        functions |= {call["id"]: call["name"] for call in message.get("tool_calls") or ()}
        yield _message(message, functions)


def _message(message: Mapping[str, Any], functions: Mapping[str, str] = {}) -> dict[str, Any]:
    """A message in inspect's form."""
    role, content = message["role"], message["content"]
    if role == "tool":
        answered = {
            "tool_call_id": message["tool_call_id"],
            "function": functions.get(message["tool_call_id"]),
        }
        return {"role": role, "content": content} | {
            name: value for name, value in answered.items() if value
        }
    if role != "assistant":
        return {"role": role, "content": content}
    if message.get("reasoning"):
        content = [
            {"type": "reasoning", "reasoning": message["reasoning"]},
            {"type": "text", "text": content},
        ]
    calls = [
        {
            "id": call["id"],
            "function": call["name"],
            "arguments": call["arguments"],
            "type": "function",
        }
        | ({"parse_error": call["error"]} if call["error"] else {})
        for call in message.get("tool_calls") or ()
    ]
    written = {"source": "generate", "model": message["model"]} if "model" in message else {}
    return {"role": role, "content": content, **written, **({"tool_calls": calls} if calls else {})}


def _usage(calls: Iterable[Call]) -> dict[str, dict[str, Any]]:
    """The tokens and costs of calls by model; no cost where a price isn't known."""
    by_model: dict[str, list[Call]] = {}
    for call in calls:
        by_model.setdefault(call.model, []).append(call)
    found = {}
    for model, own in by_model.items():
        tokens = sum(call.tokens_in for call in own), sum(call.tokens_out for call in own)
        thought = [call.tokens_reasoning for call in own if call.tokens_reasoning is not None]
        found[model] = {
            "input_tokens": tokens[0],
            "output_tokens": tokens[1],
            "total_tokens": sum(tokens),
            **({"reasoning_tokens": sum(thought)} if thought else {}),
            **(
                {"total_cost": sum(call.cost for call in own)}
                if all(call.cost_known for call in own)
                else {}
            ),
        }
    return found


def _summary(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A sample's entry in `summaries.json`, by which logs are listed and compared."""
    asked = sample["input"]
    if not isinstance(asked, str):
        asked = [{**message, "content": str(message["content"])[:_LONGEST]} for message in asked]
    cut = {"answer"}
    scores = {
        name: {key: value[:_LONGEST] if key in cut else value for key, value in score.items()}
        for name, score in sample["scores"].items()
    }
    kept = (
        "id",
        "epoch",
        "uuid",
        "target",
        "metadata",
        "model_usage",
        "completed_at",
        "total_time",
    )
    return {
        **{name: sample[name] for name in kept if name in sample},
        "input": asked[:_LONGEST] if isinstance(asked, str) else asked,
        "scores": scores,
        "completed": True,
        "message_count": len(sample["messages"]),
        **({"error": sample["error"]["message"]} if "error" in sample else {}),
    }


def _results(
    planned: int,
    about: Mapping[str, Any],
    stories: Sequence[Story],
    summaries: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The figures of a log: the mean of each score over the samples that have it."""
    scores = []
    for name in (scorer["name"] for scorer in about["scorers"]):
        values = [
            summary["scores"][name]["value"] for summary in summaries if name in summary["scores"]
        ]
        numbers = [float(value == "C") if isinstance(value, str) else value for value in values]
        metric = "accuracy" if name == _PASSED else "mean"
        scores.append({
            "name": name,
            "scorer": name,
            "scored_samples": len(values),
            "unscored_samples": len(summaries) - len(values),
            "metrics": {metric: {"name": metric, "value": sum(numbers) / len(numbers)}},
        })  # fmt: skip
    judged = sum(isinstance(story.outcome, Experiment) for story in stories)
    found: dict[str, Any] = {
        "total_samples": planned,
        "completed_samples": judged,
        "scores": scores,
    }
    if scores:
        first = scores[0]
        found["headline"] = {
            "scorer": first["name"],
            "score": first["name"],
            "metric": next(iter(first["metrics"])),
        }
    return found


def _moment(time: str) -> str:
    """A recorded local time, with its offset."""
    return datetime.fromisoformat(time).astimezone().isoformat()
