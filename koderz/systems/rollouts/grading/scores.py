"""Scores of work: by its tests, as in OneShot, by a task's own metrics, and by a model's opinion of the diff.

An opinion is reported beside the tests' verdict without changing it. Where a skill's eval has no tests, it is the
verdict: whether each of its expectations holds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import Backend, Command, Mount
from koderz.suites.reviews import LONGEST, reviewed
from koderz.systems.rollouts.task import Rollout, Rubric
from koderz.systems.workspaces.scripts import ScriptResult
from koderz.types import Reply


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores from results of scripts, or from a reward."""

    evaluation: Mapping[str, Any]  # rubrics, total_score, max_score
    # sum of weight × score over the sum of weights; a rubric without tests counts as 0
    total_score: float
    score_of_graded: float | None  # the same over the rubrics with tests; None where there is none
    success: bool  # every script of a rubric with a weight passed, and there is one


def scored(task: Rollout, results: Sequence[ScriptResult]) -> Scored:
    """The scores of a task from the `results` of its scripts, in their order."""
    scores: dict[str, tuple[float | None, int, int]] = {}
    for rubric in task.rubrics:
        own = [
            each
            for script, each in zip(task.scripts, results, strict=True)
            if script.rubric_id == rubric.id
        ]
        passed = sum(each.success for each in own)
        scores[rubric.id] = (passed / len(own) if own else None, len(own), passed)
    weights = {rubric.id: rubric.weight for rubric in task.rubrics}
    deciding = [
        each.success
        for script, each in zip(task.scripts, results, strict=True)
        if weights[script.rubric_id] > 0
    ]
    return _summed(task, scores, success=bool(deciding) and all(deciding))


def rewarded(task: Rollout, rewards: Mapping[str, float]) -> Scored:
    """The scores of a task whose verifier gives rewards: their mean. It succeeds if all are 1."""
    score = sum(rewards.values()) / len(rewards)
    passed = sum(reward == 1 for reward in rewards.values())
    return _summed(
        task, {task.rubrics[0].id: (score, len(rewards), passed)}, success=passed == len(rewards)
    )


def expected(task: Rollout, holds: Sequence[bool]) -> Scored:
    """The scores of a skill's eval by whether each of its expectations holds. It succeeds if all do."""
    scores = {
        rubric.id: (float(each), 0, 0) for rubric, each in zip(task.rubrics, holds, strict=True)
    }
    return _summed(task, scores, success=all(holds))


def _summed(
    task: Rollout, scores: Mapping[str, tuple[float | None, int, int]], *, success: bool
) -> Scored:
    rubrics: dict[str, dict[str, Any]] = {}
    for rubric in task.rubrics:
        score, tests, passed = scores[rubric.id]
        rubrics[rubric.id] = {
            "criterion": rubric.criterion,
            "weight": rubric.weight,
            "score": score,
            "max_score": 1.0,
            "weighted_score": None if score is None else score * rubric.weight,
            "test_count": tests,
            "tests_passed": passed,
        }
    gained = sum(each["weighted_score"] or 0.0 for each in rubrics.values())
    weight = sum(rubric.weight for rubric in task.rubrics)
    graded = [each for each in rubrics.values() if each["score"] is not None]
    of_graded = sum(each["weight"] for each in graded)
    total = gained / weight if weight else 0.0
    evaluation = {"rubrics": rubrics, "total_score": total, "max_score": 1.0}
    return Scored(evaluation, total, gained / of_graded if of_graded else None, success)


_SECONDS = 60.0
_FOLDER = "/opt/koderz/metrics"


@dataclass(frozen=True, slots=True)
class MetricValues:
    """The metrics that the command printed; None if it failed, or its last line is no such JSON."""

    standard: Mapping[str, Any] | None = None
    custom: Mapping[str, Any] | None = None
    log: str = ""

    @property
    def numbers(self) -> dict[str, float]:
        """The numeric metrics of both kinds, by name."""
        every = {**(self.standard or {}), **(self.custom or {})}
        return {str(name): float(value) for name, value in every.items() if _is_number(value)}


UNMEASURED = MetricValues()


async def measure(
    line: str, diff: str, place: Path, backend: Backend, wanted: Command
) -> MetricValues:
    """Runs `line` in bash in the checkout of `place`; KODERZ_DIFF names a file with the diff."""
    with scratch() as folder:
        (folder / "diff.patch").write_bytes(diff.encode("utf-8", "backslashreplace"))
        ended = await backend.run(
            replace(
                wanted,
                argv=["bash", "-c", line],
                environment={**wanted.environment, "KODERZ_DIFF": f"{_FOLDER}/diff.patch"},
                mounts=[*wanted.mounts, Mount(folder, _FOLDER)],
                limits=replace(wanted.limits, seconds=_SECONDS),
            ),
            place,
        )
    wrong = ended.cause or (f"exit code {ended.status}" if ended.status else "")
    found = None if wrong else _read(ended.output)
    log = f"==> evaluation.metrics\n{ended.output}"
    if found is None:
        return MetricValues(
            log=f"{log}\n[no metrics: {wrong or 'the last line is no JSON object of metrics'}]"
        )
    return MetricValues(found.get("standard_metrics"), found.get("custom_metrics"), log)


def _read(output: str) -> dict[str, Any] | None:
    """The metrics in the last line: by kind, or plain numbers, which are custom ones."""
    lines = output.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not found:
        return None
    kinds = {"standard_metrics", "custom_metrics"}
    if found.keys() <= kinds:
        return found if all(isinstance(each, dict | None) for each in found.values()) else None
    return {"custom_metrics": found} if all(map(_is_number, found.values())) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "score": {"type": "number", "minimum": 0, "maximum": 1},
        "reasoning": {"type": "string"},
        "evidence": {"type": "string"},
        "suggestions": {"type": "string"},
    },
    "required": ["score", "reasoning"],
}
_ASKED = "You grade what a programmer changed in a repository, by one criterion."
_EXPECTATION: Mapping[str, Any] = {
    "type": "object",
    "properties": {"passed": {"type": "boolean"}, "evidence": {"type": "string"}},
    "required": ["passed", "evidence"],
}
_ASKED_EXPECTATION = (
    "You judge whether an agent's work meets one criterion. It does only where the diff or the message show it, in "
    "substance and not in form alone; without evidence it doesn't. Quote the evidence."
)
_TEXTS = ("reasoning", "evidence", "suggestions")


async def opinions(
    task: Rollout, diff: str, ask: Callable[..., Awaitable[Reply]], message: str = ""
) -> dict[str, Any]:
    """The `lm_evaluation`: a score from 0 to 1 by rubric, and their weighted mean; null if the model gives none.

    Those of a skill's eval are 0 or 1 for each expectation, by the diff and the agent's last `message`.
    """
    rubrics, texts = task.rubrics, {"Diff": diff}
    if task.skill_eval:
        rubrics = tuple(
            Rubric(str(number), text) for number, text in enumerate(task.skill_eval.expectations, 1)
        )
        texts["Message"] = message
    scores = [await _opinion(task, rubric, texts, ask) for rubric in rubrics]
    scored = [(rubric.weight, each["score"]) for rubric, each in zip(rubrics, scores, strict=True)]
    known = [(weight, score) for weight, score in scored if score is not None]
    weight = sum(weight for weight, _ in known)
    return {
        "weighted_score": sum(weight * score for weight, score in known) / weight
        if weight
        else None,
        "rubric_scores": scores,
        "summary": f"{len(known)} of {len(scores)} rubrics have a score",
        "metadata": {"diff_cut": len(diff) > LONGEST},
    }


async def _opinion(
    task: Rollout, rubric: Rubric, texts: Mapping[str, str], ask: Callable[..., Awaitable[Reply]]
) -> dict[str, Any]:
    told = f"# Task\n{task.instructions}\n\n# Criterion\n{rubric.criterion or rubric.id}"
    asked, schema, about = _ASKED, _SCHEMA, dict[str, str]()
    if of := task.skill_eval:
        asked, schema, about = _ASKED_EXPECTATION, _EXPECTATION, {"expectation": rubric.criterion}
        told += f"\n\n# Expected output\n{of.expected_output}" if of.expected_output else ""
    said = await reviewed(ask, asked, texts, schema, told=told)
    score: Any = said.get("passed" if of else "score")
    is_of_kind = isinstance(score, int | float) and isinstance(score, bool) == bool(of)
    usable = is_of_kind and math.isfinite(score) and 0 <= score <= 1
    words = {name: said[name] if isinstance(said.get(name), str) else "" for name in _TEXTS}
    return {
        "rubric_id": rubric.id,
        "score": float(score or 0) if usable else None,
        **about,
        **words,
    }


def is_for_judge(text: str) -> bool:
    return text.startswith((_ASKED, _ASKED_EXPECTATION))


def simulated_opinion(text: str) -> str:
    """The simulated model's opinion in answer to a request that begins so, the same for every diff."""
    about: Mapping[str, Any] = (
        {"passed": True} if text.startswith(_ASKED_EXPECTATION) else {"score": 0.5}
    )
    return json.dumps({**about, "reasoning": "Made up by the simulated model."})
