"""The official rules of published sets, as their authors' code or the code that most figures are made with has them."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass

from koderz.suites.metrics import Graded
from koderz.suites.suite import AskJudge
from koderz.systems.questions.question import Question
from koderz.systems.questions.rules import ReadingRule, boxed, compared, nothing_read

_CLEARED = (
    "**",
    "$\\boxed{",
    "}$",
    "\\$",
    "$\\text{",
    "$",
    "\\mathrm{",
    "\\{",
    "\\text",
    "\\(",
    "\\mathbf{",
    "{",
    "\\boxed",
)
"""Markup that is taken out of a reply before MMLU's answer is looked for, in this order."""

_WORDS = """
Answer: উত্তর: उत्तर: Antwort: 답변: 정답: 답: 答案： 答案: 答： 答: 答复： 答曰：
Respuesta: Risposta: 答え: 答え： 回答: 回答： 解答: Jawaban: Réponse: Resposta: Jibu:
Idahun: Ìdáhùn: Idáhùn: Àmọ̀nà: Àdáhùn: Ànúgọ: Àṣàyàn:
"""
"""The word for answer in the languages that simple-evals reads, with its colon."""

_PHRASES = """
উত্তরঃ|الإجابة:|الجواب:|إجابة:|الإجابة النهائية:|الإجابة الصحيحة:|الإجابة الصحيحة هي:|الإجابة هي:|الجواب النهائي:
"""
_STATED = tuple(
    re.compile(rf"(?i){each}[ \t]*([A-Dأ-دঅবডঢＡＢＣＤ])")
    for each in (
        *(rf"{word[:-1]}\s*{word[-1]}" for word in _WORDS.split()),
        *_PHRASES.strip().split("|"),
    )
)
_AS_LATIN = str.maketrans("أبجدঅবডঢＡＢＣＤ", "ABCDABCDABCD")


@dataclass(frozen=True)
class MmluLetter(ReadingRule):
    """MMLU as simple-evals reads it: the letter after `Answer:`, once the reply's markup is out."""

    async def grade(self, question: Question, reply: str, ask: AskJudge | None = None) -> Graded:  # noqa: ARG002
        text = reply
        for markup in _CLEARED:
            text = text.replace(markup, "")
        found = next((match for pattern in _STATED if (match := pattern.search(text))), None)
        return _chosen(found[1].translate(_AS_LATIN) if found else None, question)

    def demonstrated(self, question: Question) -> str:
        return f"Answer: {question.gold}"


@dataclass(frozen=True)
class GpqaLetter(ReadingRule):
    """GPQA as simple-evals reads it: the letter after `Answer:` in the raw reply."""

    async def grade(self, question: Question, reply: str, ask: AskJudge | None = None) -> Graded:  # noqa: ARG002
        found = re.search(r"(?i)Answer[ \t]*:[ \t]*\$?([A-D])\$?", reply)
        return _chosen(found[1] if found else None, question)

    def demonstrated(self, question: Question) -> str:
        return f"Answer: {question.gold}"


@dataclass(frozen=True)
class MmluProLetter(ReadingRule):
    """MMLU-Pro's three steps, without the letter that its code draws after them."""

    async def grade(self, question: Question, reply: str, ask: AskJudge | None = None) -> Graded:  # noqa: ARG002
        return _chosen(_mmlu_pro_letter(reply), question)

    def demonstrated(self, question: Question) -> str:
        return question.worked or f"The answer is ({question.gold})."


def _mmlu_pro_letter(reply: str) -> str | None:
    if found := re.search(r"answer is \(?([A-J])\)?", reply):
        return found[1]
    stated = [*re.finditer(r"(?=[aA]nswer:\s*([A-J]))", reply)]
    if stated:  # the last one on the first line that has any
        end = reply.find("\n", stated[0].start())
        return [each for each in stated if end < 0 or each.start() < end][-1][1]
    alone = re.findall(r"\b[A-J]\b", reply)
    return alone[-1] if alone else None


def _chosen(letter: str | None, question: Question) -> Graded:
    if letter is None:
        return nothing_read("the reply states no letter")
    return compared(letter, letter in question.targets, question)


@dataclass(frozen=True)
class AimeNumber(ReadingRule):
    """AIME: the whole number in the last box, else the reply's last."""

    async def grade(self, question: Question, reply: str, ask: AskJudge | None = None) -> Graded:  # noqa: ARG002
        inner = boxed(reply)
        plain = re.sub(
            r"(?<=[0-9])(?:,|\{,\}|\\,|\\!)(?=[0-9]{3}(?![0-9]))",
            "",
            reply if inner is None else inner,
        )
        numbers = [int(found[0]) for found in _WHOLE.finditer(plain)]
        if not numbers:
            return nothing_read("there is no whole number in the last box, or in the reply")
        if inner is not None and len({*numbers}) > 1:
            return Graded(
                0.0, {}, f"the last box holds several numbers: {inner!r:.80}", cause="ambiguous"
            )
        return compared(str(numbers[-1]), numbers[-1] == int(question.gold), question)

    def demonstrated(self, question: Question) -> str:
        return question.worked or f"The answer is $\\boxed{{{question.gold}}}$."


_WHOLE = re.compile(r"(?<![\w.])(?:(?<=\s)-|(?<=^)-)?[0-9]{1,30}(?![\w]|\.[0-9])")


@dataclass(frozen=True)
class DropSpan(ReadingRule):
    """DROP as simple-evals has it: what follows `Answer:`, within a right answer or around it; EM and F1 beside."""

    async def grade(self, question: Question, reply: str, ask: AskJudge | None = None) -> Graded:  # noqa: ARG002
        if not reply.strip():
            return nothing_read("the reply is empty")
        found = re.search(r"(?i)Answer\s*:\s*([^\n]+)", reply)
        answer = found[1] if found else reply
        scores = [_em_and_f1(answer, target) for target in question.targets if target.strip()]
        beside = {"em": max(em for em, _ in scores), "f1": max(f1 for _, f1 in scores)}
        is_right = any(_within(answer, target) for target in question.targets)
        return compared(answer, is_right, question)._replace(metrics=beside)

    def demonstrated(self, question: Question) -> str:
        return f"Answer: {question.gold}"


_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _within(one: str, other: str) -> bool:
    """Whether one text is part of the other, both in lower case, without punctuation and articles."""
    a, b = (
        " ".join(re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_NO_PUNCTUATION)).split())
        for text in (one, other)
    )
    return a == b if not a or not b else a in b or b in a


def _em_and_f1(answer: str, target: str) -> tuple[float, float]:
    """Exact match and F1 of single spans, after DROP's own evaluation (Dua et al. 2019, allennlp's drop_eval)."""
    said, wanted = _drop_words(answer), _drop_words(target)
    exact = float(said == wanted)
    ours, theirs = {*wanted.split()}, {*said.split()}
    numbers = {word for word in ours if _is_number(word)}
    if numbers and not numbers & theirs:
        return exact, 0.0
    shared = len(ours & theirs)
    precision = shared / len(theirs) if theirs else 1.0
    recall = shared / len(ours) if ours else 1.0
    f1 = 2 * precision * recall / (precision + recall) if precision or recall else 0.0
    return exact, round(100 * f1, 2) / 100


def _drop_words(text: str) -> str:
    """The words parted by blanks and hyphens, numbers as floats, others without punctuation and articles."""
    words = []
    for word in re.split("[ -]", text):
        plain = word.lower()
        plain = plain if _is_number(plain) else plain.translate(_NO_PUNCTUATION)
        plain = str(float(plain)) if _is_number(plain) else plain
        words.append(" ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split()))
    return " ".join(word for word in words if word)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
