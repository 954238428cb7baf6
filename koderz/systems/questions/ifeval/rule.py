"""IFEval's rule, and its rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from koderz.suites.dataset import Row
from koderz.suites.metrics import Graded
from koderz.suites.suite import AskJudge
from koderz.systems.questions.ifeval.checks import CHECKS, LISTS, NUMBERS, PATTERNS, RELATIONS, forms_of, is_followed
from koderz.systems.questions.ifeval.words import load_libraries
from koderz.systems.questions.question import Instruction, Question
from koderz.systems.questions.rules import ReadingRule, nothing_read


@dataclass(frozen=True)
class Followed(ReadingRule):
    """Whether a reply follows all instructions of its prompt; strictly decides, loosely stands beside."""

    def prepare(self) -> None:
        """Load NLTK, its model and langdetect."""
        load_libraries()

    async def grade(self, question: Question, reply: str, ask: AskJudge | None = None) -> Graded:  # noqa: ARG002
        forms = forms_of(reply)
        strict = [is_followed(each.id, each.arguments, reply) for each in question.instructions]
        loose = [
            done or any(is_followed(each.id, each.arguments, form) for form in forms[1:])
            for each, done in zip(question.instructions, strict, strict=True)
        ]
        metrics = {
            "instructions": float(len(strict)),
            "strict": float(sum(strict)),
            "loose": float(sum(loose)),
            "prompt_loose": float(all(loose)),
        }
        if not reply.strip():
            return nothing_read("the reply is empty")._replace(metrics=metrics)
        missed = [each.id for each, done in zip(question.instructions, strict, strict=True) if not done]
        if not missed:
            return Graded(1.0, metrics, answer=reply)
        return Graded(0.0, metrics, f"not followed: {', '.join(missed)}", reply, "wrong")

    def demonstrated(self, question: Question) -> str:  # noqa: ARG002
        return ""


def instructions_in(row: Row) -> tuple[Instruction, ...]:
    """The instructions of a row of IFEval. Raises KoderzError, naming the line, for one that can't be verified."""
    ids, given = row.texts("instruction_id_list"), row.fields.get("kwargs")
    if not ids:
        raise row.error("the field 'instruction_id_list' has to be a list of instructions")
    if not isinstance(given, list) or len(given) != len(ids) or not all(isinstance(each, Mapping) for each in given):
        raise row.error(f"the field 'kwargs' has to hold the arguments of each of the {len(ids)} instructions")
    return tuple(Instruction(name, _arguments(row, name, each)) for name, each in zip(ids, given, strict=True))


def _arguments(row: Row, instruction: str, given: Mapping[str, Any]) -> dict[str, Any]:
    if instruction not in CHECKS:
        raise row.error(f"there is no instruction {instruction!r:.80}")
    return {name: _argument(row, instruction, name, given.get(name)) for name in CHECKS[instruction].needs}


def _argument(row: Row, instruction: str, name: str, value: Any) -> Any:
    where = f"the argument {name!r} of {instruction}"
    if name in NUMBERS:
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise row.error(f"{where} has to be a number from 0 up")
        return value
    texts = value if name in LISTS else [value]
    if not isinstance(texts, list) or not texts or not all(isinstance(each, str) and each.strip() for each in texts):
        raise row.error(f"{where} has to be {'a list of texts' if name in LISTS else 'text'}")
    if name.endswith("relation") and value not in RELATIONS:
        raise row.error(f"{where} has to be one of {', '.join(RELATIONS)}")
    if name in PATTERNS:
        for each in texts:
            try:
                re.compile(each)
            except (re.error, RecursionError, OverflowError) as error:
                raise row.error(f"{where} is no regular expression: {error}") from None
    return value
