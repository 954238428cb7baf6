"""Judging of an answer by a model: the prompt, the reading of its reply, and the simulated judge.

The prompt is koderz' own. BrowseComp-Plus' (`GRADER_TEMPLATE` in scripts_evaluation/evaluate_run.py) is in a repository
that names no licence, so it is none of koderz' files; `--prompt-dir` takes it from whoever has it.
"""

from __future__ import annotations

import hashlib
import re
import string
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from string import Template
from typing import Any, NamedTuple

from koderz.errors import Fault
from koderz.prompts import load_prompts
from koderz.systems.long_context.browsecomp_plus.corpus import Sought
from koderz.types import Message

PROMPT = "browsecomp_plus-judge"
"""The name of the judge's prompt."""

_OFFICIAL: Mapping[str, str] = {
    "71fb29f51a56cea9": "BrowseComp-Plus' own, as evaluate_run.py has it",
    "0f0023ee579b8c13": "BrowseComp's, as evaluate_with_openai.py has it",
}
"""The published prompts by 16 hex digits of the SHA-256 of their texts, at 97c637c of texttron/BrowseComp-Plus."""
_PLACES = re.compile(r"\$\{(question|response|correct_answer)\}")
_CLAIMED = re.compile(r"Confidence: (\d+)%")


@dataclass(frozen=True)
class JudgePrompt:
    """A judge's prompt with `${question}`, `${response}` and `${correct_answer}`."""

    text: str

    def question_for(self, sought: Sought, reply: str) -> Message:
        """The message that asks the judge about a reply."""
        values = {"question": sought.query, "response": reply, "correct_answer": sought.answer}
        return {"role": "user", "content": Template(self.text.strip()).substitute(values)}

    def parts(self, asked: str) -> Mapping[str, str] | None:
        """The values that a question of this prompt was made of; None for any other text."""
        found = self._pattern.fullmatch(asked)
        return found.groupdict() if found else None

    @property
    def record(self) -> dict[str, Any]:
        """The prompt in a plan's record: `prompt_digest`, `prompt`, and `caveats` if it isn't a published one."""
        digest = hashlib.sha256(_PLACES.sub(r"{\1}", self.text.strip()).encode()).hexdigest()[:16]
        if digest in _OFFICIAL:
            return {"prompt_digest": digest, "prompt": _OFFICIAL[digest], "caveats": []}
        whose = "koderz' own" if self == OWN_PROMPT else "one's own, of --prompt-dir"
        caveat = f"JUDGED BY ANOTHER PROMPT ({whose}, {digest}) than BrowseComp-Plus': not for its leaderboard"
        return {"prompt_digest": digest, "prompt": whose, "caveats": [caveat]}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        pattern, seen = "", set()
        for number, piece in enumerate(_PLACES.split(Template(self.text.strip()).safe_substitute())):
            if number % 2:
                pattern += f"(?P={piece})" if piece in seen else f"(?P<{piece}>.*)"
                seen.add(piece)
            else:
                pattern += re.escape(piece)
        return re.compile(pattern, re.DOTALL)


OWN_PROMPT = JudgePrompt(load_prompts().texts[PROMPT])


class Judgement(NamedTuple):
    """The content of a judge's reply."""

    correct: bool
    confidence: float | None  # per cent, that the answer claims


def judgement_of(reply: str) -> Judgement:
    """The judgement in a reply. Raises Fault if it doesn't say whether the answer is correct."""
    correct = _named("correct", "(yes|no)", reply)
    if correct is None:
        raise Fault(
            "the judge's reply has no readable line with correct, yes or no; retry, or name another judge",
            cause="judge",
        )
    confidence = _named("confidence", r"(\d+(?:\.\d+)?)", reply)
    return Judgement(correct.lower() == "yes", None if confidence is None else min(100.0, float(confidence)))


def simulated_judgement(answer: str, reply: str) -> str:
    """The simulated model's reply as a judge, by comparing the answers as texts."""
    claimed = _CLAIMED.findall(reply)
    correct = "yes" if is_exact(answer, reply) else "no"
    return f"reasoning: compared as texts\ncorrect: {correct}\nconfidence: {claimed[-1] if claimed else 100}%"


def _named(name: str, value: str, reply: str) -> str | None:
    """The value after a name: `**name:**` before `**name**:` before `name:`, the first of each."""
    for form in (rf"\*\*{name}:\*\*", rf"\*\*{name}\*\*:", f"{name}:"):
        if found := re.search(rf"{form}\s*{value}", reply, re.IGNORECASE):
            return found[1]
    return None


_CITED = re.compile(r"\[([^\[\]]*)\]"), re.compile(r"【([^【】]*)】")
_EXACT = re.compile(r"Exact Answer:[ \t]*(.*)", re.IGNORECASE)
_CONFIDENCE = re.compile(r"Confidence:\D{0,10}?(\d+(?:\.\d+)?)", re.IGNORECASE)
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def metrics_of(sought: Sought, reply: str) -> dict[str, float]:
    """`exact_match`, precision and recall of citations, and the `confidence` in per cent if the reply states one."""
    cited = {number for form in _CITED for inside in form.findall(reply) for number in re.findall(r"\d+", inside)}
    right = len(cited & sought.evidence)
    found = {
        "exact_match": float(is_exact(sought.answer, reply)),
        "citation_precision": right / len(cited) if cited else 0.0,
        "citation_recall": right / len(sought.evidence) if cited and sought.evidence else 0.0,
    }
    if claimed := _CONFIDENCE.findall(reply):
        found["confidence"] = min(100.0, float(claimed[-1]))
    return found


def is_exact(answer: str, reply: str) -> bool:
    """Whether the text after `Exact Answer:`, else the whole reply, equals the answer apart from spelling."""
    answers = _EXACT.findall(reply)
    return _normal(answers[-1] if answers else reply) == _normal(answer)


def _normal(text: str) -> str:
    """The text without case, punctuation, articles and extra blanks."""
    lower = unicodedata.normalize("NFKC", text).lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", lower).split())
