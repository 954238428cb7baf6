"""How a model judges an answer: what it is asked, what its reply says, and how the simulated model does it."""

from __future__ import annotations

import re
from typing import NamedTuple

from koderz.errors import Fault
from koderz.suites.long_context.browsecomp_plus.documents import Sought
from koderz.suites.long_context.browsecomp_plus.scoring import is_exact
from koderz.types import Message

_ASKED = """Judge whether a response gives the correct answer to a question. The correct answer below is right: don't \
solve the question, and don't argue for another answer. Small differences count for nothing where the same is meant; \
anything else that is inconsistent, ambiguous or not the same is wrong.

Question: {query}

Response: {reply}

Correct answer: {answer}

Reply with these lines:
extracted_final_answer: the final answer of the response, or None where it gives none
reasoning: why it means the same as the correct answer, or not
correct: yes or no
confidence: how sure the response says it is, from 0% to 100%; 100% where it doesn't say"""
_BEGIN = _ASKED.partition("\n")[0]
_PARTS = re.compile(r"\nResponse: (.*)\n\nCorrect answer: (.*)\n\nReply with these lines:", re.DOTALL)
_CLAIMED = re.compile(r"Confidence: (\d+)%")


class Judgement(NamedTuple):
    """What a judge's reply says."""

    correct: bool
    confidence: float | None  # per cent, that the answer claims


def question_for(sought: Sought, reply: str) -> Message:
    """What the judge is asked of a reply."""
    return {"role": "user", "content": _ASKED.format(query=sought.query, answer=sought.answer, reply=reply)}


def judgement_of(reply: str) -> Judgement:
    """Raises Fault for a reply that doesn't say whether the answer is correct."""
    correct = _named("correct", "(yes|no)", reply)
    if correct is None:
        raise Fault("the judge's reply has no readable line with correct, yes or no; retry, or name another judge")
    confidence = _named("confidence", r"(\d+(?:\.\d+)?)", reply)
    return Judgement(correct.lower() == "yes", None if confidence is None else min(100.0, float(confidence)))


def is_for_judge(asked: str) -> bool:
    """Whether a prompt is one of `question_for`."""
    return asked.startswith(_BEGIN)


def simulated_judgement(asked: str) -> str:
    """What the simulated model says as a judge: whether the answers are the same text."""
    reply, answer = _PARTS.findall(asked)[0]
    claimed = _CLAIMED.findall(reply)
    correct = "yes" if is_exact(answer, reply) else "no"
    return f"reasoning: compared as texts\ncorrect: {correct}\nconfidence: {claimed[-1] if claimed else 100}%"


def _named(name: str, value: str, reply: str) -> str | None:
    """What follows a name: `**name:**` before `**name**:` before `name:`, the first of each."""
    for form in (rf"\*\*{name}:\*\*", rf"\*\*{name}\*\*:", f"{name}:"):
        if found := re.search(rf"{form}\s*{value}", reply, re.IGNORECASE):
            return found[1]
    return None
