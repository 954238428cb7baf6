"""Rules: how the answer is read off a reply, and when it is right; those of published sets, too."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from koderz.errors import KoderzError
from koderz.suites.metrics import Graded, LabelMetric, Metric, NumberMetric, TextMetric
from koderz.suites.scorers import decimal_in
from koderz.suites.suite import AskJudge
from koderz.systems.questions.question import Question

# Answers in LaTeX are compared as the authors of MATH do: Hendrycks et al., "Measuring mathematical problem solving
# with the MATH dataset" (2021), modeling/math_equivalence.py.

_UNITS = "\\text{ "
_END_OF_FORMULA = re.compile(r"(?<!\\)\$|\\[)\]]")
_MOST_CHARACTERS = 100_000  # of an answer that is compared


def boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{…}`, else of the last `\fbox{…}`; None if there is none that is closed.

    The braces may stand after spaces. Of a box without braces, as in `$\boxed 5$`, the content is
    what stands between the space and the end of the formula, as in the `last_boxed_only_string` of
    EleutherAI's lm-evaluation-harness; the one of MATH's authors reads braces alone.
    """
    for command in ("\\boxed", "\\fbox"):
        start = text.rfind(command)
        if start < 0:
            continue
        after = text[start + len(command) :]
        inner = after.lstrip()
        if inner.startswith("{"):
            return _braced(inner, 0)
        # Without a space the command would have another name, such as `\boxedminipage`.
        return (
            _END_OF_FORMULA.split(inner, maxsplit=1)[0].strip() or None if after != inner else None
        )
    return None


def _braced(text: str, start: int) -> str | None:
    """The content of the braces that begin at `start`; None if none do, or they aren't closed."""
    if text[start : start + 1] != "{":
        return None
    depth = 0
    for found in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if found[0] == "{" else -1
        if depth == 0:
            return text[start + 1 : found.start()]
    return None


def equivalent(one: str, other: str) -> bool:
    """Whether two answers are the same when normalised; where that fails for one, whether they are the same text."""
    if max(len(one), len(other)) > _MOST_CHARACTERS:
        return one == other
    try:
        return normalised(one) == normalised(other)
    except ValueError:
        return one == other


def normalised(answer: str) -> str:
    """The answer in MATH's normal form. Raises ValueError where the authors' code fails."""
    text = answer.replace("\n", "").replace("\\!", "").replace("\\\\", "\\")
    text = text.replace("tfrac", "frac").replace("dfrac", "frac")
    for absent in ("\\left", "\\right", "^{\\circ}", "^\\circ", "\\$"):
        text = text.replace(absent, "")
    before, *after = text.split(_UNITS)
    if len(after) > 1:
        raise ValueError("two units")
    text = before.replace("\\%", "")
    text = text.replace(" .", " 0.").replace("{.", "{0.")
    if not text:
        return text
    if text.startswith("."):
        text = f"0{text}"
    left, *right = text.split("=")
    if len(right) == 1 and len(left) <= 2:
        text = right[0]
    text = _with_fractions(_with_roots(text).replace(" ", ""))
    return _as_fraction("\\frac{1}{2}" if text == "0.5" else text)


def _with_roots(text: str) -> str:
    r"""The text with `\sqrt{3}` for `\sqrt3`."""
    first, *others = text.split("\\sqrt")
    if not all(others):
        raise ValueError("a root of nothing")
    return first + "".join(
        f"\\sqrt{each if each[0] == '{' else f'{{{each[0]}}}{each[1:]}'}" for each in others
    )


def _with_fractions(text: str) -> str:
    r"""The text with `\frac{1}{2}` for `\frac12` and `\frac1{2}`."""
    first, *others = text.split("\\frac")
    made = first
    for each in others:
        if not each:
            raise ValueError("a fraction of nothing")
        if each[0] == "{":
            made += f"\\frac{each}"
        elif len(each) < 2:
            return text
        else:
            below = each[1:] if each[1] == "{" else f"{{{each[1]}}}{each[2:]}"
            made += f"\\frac{{{each[0]}}}{below}"
    return made


def _as_fraction(text: str) -> str:
    r"""`\frac{a}{b}` for the text `a/b` of two whole numbers; else the text."""
    above, *below = text.split("/")
    if len(below) != 1:
        return text
    try:
        a, b = int(above), int(below[0])
    except ValueError:
        return text
    return f"\\frac{{{a}}}{{{b}}}" if text == f"{a}/{b}" else text


class ScoringRule(Protocol):
    """A way to score replies to questions."""

    @property
    def name(self) -> str:
        """The scorer's name, or that of the set whose rule it is."""
        ...

    @property
    def about(self) -> str:
        """The rule in words, for the record."""
        ...

    @property
    def format_line(self) -> str:
        """The line that tells models the form that the rule reads; empty: the prompt says it."""
        ...

    @property
    def asks_judge(self) -> bool:
        """Whether a model in the role `judge` grades."""
        ...

    @property
    def is_graded(self) -> bool:
        """Whether there are scores between 0 and 1."""
        ...

    @property
    def is_bounded(self) -> bool:
        """Whether reading any reply may take for ever, so that it needs a limit of time."""
        ...

    async def grade(self, question: Question, reply: str, ask: AskJudge | None = None) -> Graded:
        """The score of a reply, and the answer that was read. Raises Fault for a judge that can't be read twice."""
        ...

    def prepare(self) -> None:
        """Load what reading needs, before its time is counted."""
        ...

    def demonstrated(self, question: Question) -> str:
        """A right reply in the form that the rule reads; empty if none is known."""
        ...


@dataclass(frozen=True)
class ReadingRule:
    """The defaults of rules that read an answer without a model."""

    name: str
    about: str
    format_line: str = ""
    asks_judge: bool = field(default=False, init=False)
    is_graded: bool = False
    is_bounded: bool = False

    def prepare(self) -> None:
        """Load nothing."""

    def demonstrated(self, question: Question) -> str:
        """The first right answer."""
        return question.gold


@dataclass(frozen=True)
class ByMetric(ReadingRule):
    """A rule that is one of the metrics which optimizers have too; of several right answers the best counts."""

    metric: Metric = field(kw_only=True)

    async def grade(self, question: Question, reply: str, ask: AskJudge | None = None) -> Graded:  # noqa: ARG002
        if not reply.strip():
            return nothing_read("the reply is empty")
        best = Graded(-1.0, {})
        for target in question.targets or ("",):
            found = await self.metric(replace(question, targets=(target,)), reply)
            if found.score > best.score:
                best = found
            if best.score == 1:
                break
        return best

    def demonstrated(self, question: Question) -> str:
        return self.metric.demonstrated(question)


@dataclass(frozen=True)
class Includes(ReadingRule):
    """Whether a right answer stands in the reply, whatever the case; digits aren't part of longer numbers."""

    async def grade(self, question: Question, reply: str, ask: AskJudge | None = None) -> Graded:  # noqa: ARG002
        if not reply.strip():
            return nothing_read("the reply is empty")
        said = _flat(reply)
        for target in question.targets:
            wanted = re.escape(_flat(target))
            before = r"(?<![\d])(?<!\d[.,])" if target[:1].isdigit() else ""
            after = r"(?![\d]|[.,]\d)" if target[-1:].isdigit() else ""
            if wanted and re.search(f"{before}{wanted}{after}", said):
                return Graded(1.0, {}, answer=target)
        return Graded(
            0.0, {}, f"the reply includes none of {_listed(question.targets)}", reply, "wrong"
        )


@dataclass(frozen=True)
class Pattern(ReadingRule):
    """The first group of the first match of a pattern, compared without regard to case, numbers as numbers."""

    pattern: str = field(kw_only=True)

    async def grade(self, question: Question, reply: str, ask: AskJudge | None = None) -> Graded:  # noqa: ARG002
        answer = None
        if found := re.search(self.pattern, reply):
            answer = found[1] if found.re.groups else found[0]
        if answer is None or not answer.strip():
            return nothing_read("the pattern finds no answer in the reply")
        return compared(
            answer.strip(), any(_same(answer, target) for target in question.targets), question
        )


@dataclass(frozen=True)
class Boxed(ReadingRule):
    """MATH's rule: the last box, compared after its authors' normalising."""

    async def grade(self, question: Question, reply: str, ask: AskJudge | None = None) -> Graded:  # noqa: ARG002
        answer = boxed(reply)
        if answer is None:
            return nothing_read("the reply has no closed box")
        golds = [
            target if (inner := boxed(target)) is None else inner for target in question.targets
        ]
        return compared(answer, any(equivalent(answer, gold) for gold in golds), question)

    def demonstrated(self, question: Question) -> str:
        return question.worked or (
            question.gold
            if boxed(question.gold) is not None
            else f"The answer is $\\boxed{{{question.gold}}}$."
        )


def rule_named(name: str, questions: Sequence[Question], pattern: str | None) -> ScoringRule:
    """The rule that `--scorer` names. Raises KoderzError if it can't score these questions."""
    if name == "regex":
        if not pattern:
            raise KoderzError("--scorer regex needs a --pattern, whose first group is the answer")
        return Pattern(
            "regex",
            f"the first group of the first match of {pattern!r}; case is ignored, numbers are compared as numbers",
            is_bounded=True,
            pattern=pattern,
        )
    if name in ("choice", "label"):
        return _of_labels(name, questions)
    if name in _PLAIN:
        about, metric, is_graded = _PLAIN[name]
        return ByMetric(name, about, metric.format_line, is_graded=is_graded, metric=metric)
    if name == "includes":
        return Includes(
            name,
            "a right answer stands in the reply, whatever the case; digits aren't part of longer numbers",
        )
    return Boxed(name, MATH, "Put the final answer in \\boxed{}.")


MATH = (
    r"the last \boxed{…}, else the last \fbox{…}, with balanced braces; no such box: unread; compared after the "
    "normalising of MATH's authors"
)
_MOST_LABELS = 50
_PLAIN: Mapping[str, tuple[str, Metric, bool]] = {
    "number": (
        "the number after the last ####, else in the last box, else the reply's last number; compared as decimals",
        NumberMetric(),
        False,
    ),
    "exact_match": (
        "the whole reply, equal after SQuAD's normalising",
        TextMetric("exact_match", ("f1",), "Reply with the answer alone."),
        False,
    ),
    "f1": (
        "the whole reply's words against those of the right answer, after SQuAD's normalising",
        TextMetric("f1", ("exact_match",), "Reply with the answer alone."),
        True,
    ),
    "rougeL": ("F1 of the longest common subsequence of words", TextMetric("rougeL"), True),
    "levenshtein_ratio": (
        "how near the whole reply is to the right answer",
        TextMetric("levenshtein_ratio"),
        True,
    ),
}
CHOICE = (
    "the label that the reply states: alone, in the last box, after `answer is` and its like, in brackets, else the "
    "only one; several: unread"
)


def _of_labels(name: str, questions: Sequence[Question]) -> ScoringRule:
    if all(question.options for question in questions):
        metric = LabelMetric()
        return ByMetric(name, CHOICE, metric.format_line, metric=metric)
    from koderz.suites.scorers import Labels

    labels = sorted({target for question in questions for target in question.targets})
    if len(labels) > _MOST_LABELS or not labels:
        raise KoderzError(
            f"--scorer {name}: there may be {_MOST_LABELS} labels, not the {len(labels)} here"
        )
    metric = LabelMetric(Labels({label: (label,) for label in labels}, is_cased=name == "choice"))
    return ByMetric(name, CHOICE, metric.format_line, metric=metric)


def nothing_read(reason: str) -> Graded:
    return Graded(0.0, {}, reason, cause="no_answer")


def compared(answer: str, is_right: bool, question: Question) -> Graded:
    if is_right:
        return Graded(1.0, {}, answer=answer)
    return Graded(
        0.0, {}, f"expected {_listed(question.targets)}, found {answer!r:.200}", answer, "wrong"
    )


def _listed(targets: Sequence[Any]) -> str:
    return " or ".join(f"{target!r:.200}" for target in targets[:5])


def _flat(text: str) -> str:
    return " ".join(text.casefold().split())


def _same(one: str, other: str) -> bool:
    if _flat(one) == _flat(other):
        return True
    try:
        return decimal_in(one.strip().replace(",", "")) == decimal_in(
            other.strip().replace(",", "")
        )
    except ValueError:
        return False


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
