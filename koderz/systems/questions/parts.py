"""Parts of the summary of questions: the rule, IFEval's four rates, SimpleQA's rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from koderz_tracker.parts import Part

if TYPE_CHECKING:
    from koderz_tracker.records import Plan
    from koderz_tracker.results import Result


class QuestionsPart(Part):
    """The summary's key `questions`: how replies were scored, and the worked examples."""

    def summary(self, plan: Plan, results: Mapping[str, Sequence[Result]]) -> Mapping[str, Any]:  # noqa: ARG002
        """The plan's record of it: `scorer`, `rule`, `few_shot`, and what `file` the questions are from."""
        found = plan.details.get("suite") or {}
        return {
            name: found[name] for name in ("scorer", "rule", "few_shot", "file") if name in found
        }


class IfEvalPart(Part):
    """The key `ifeval` of each arm's summary: the shares of prompts and instructions that are followed."""

    def of_arm(self, plan: Plan, arm: str, results: Sequence[Result]) -> Mapping[str, Any]:  # noqa: ARG002
        """`prompt_strict`, `prompt_loose`, `instruction_strict` and `instruction_loose`, as fractions."""
        known = [
            (each, found) for each in results if "instructions" in (found := each.metrics or {})
        ]
        count = _sum(found["instructions"] for _, found in known)
        if not count:
            return {}
        return {
            "ifeval": {
                "prompt_strict": sum(each.success for each, _ in known) / len(known),
                "prompt_loose": _sum(found.get("prompt_loose") for _, found in known) / len(known),
                "instruction_strict": _sum(found.get("strict") for _, found in known) / count,
                "instruction_loose": _sum(found.get("loose") for _, found in known) / count,
            }
        }


class SimpleQaPart(Part):
    """The key `simpleqa` of each arm's summary: the shares of the three grades, and what follows from them."""

    def of_arm(self, plan: Plan, arm: str, results: Sequence[Result]) -> Mapping[str, Any]:  # noqa: ARG002
        """`correct`, `incorrect`, `not_attempted`, `accuracy_given_attempted` and `f1`, as fractions."""
        known = [each for each in results if "attempted" in (each.metrics or {})]
        if not known:
            return {}
        correct = sum(each.success for each in known) / len(known)
        attempted = _sum((each.metrics or {}).get("attempted") for each in known) / len(known)
        given = correct / attempted if attempted else 0.0
        return {
            "simpleqa": {
                "correct": correct,
                "incorrect": attempted - correct,
                "not_attempted": 1 - attempted,
                "accuracy_given_attempted": given,
                "f1": 2 * given * correct / (given + correct) if given + correct else 0.0,
            }
        }


def _sum(values: Any) -> float:
    return math.fsum(value or 0.0 for value in values)


QUESTIONS, IFEVAL, SIMPLEQA = QuestionsPart(), IfEvalPart(), SimpleQaPart()
