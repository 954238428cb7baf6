"""Metrics that score a reply from 0 to 1; more is better."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple, Protocol

from koderz.errors import Fault, UserCodeFault
from koderz.suites.scorers import SCORERS, Labels, decimal_in, gold_number, number_in
from koderz.suites.suite import AskJudge


class Gradable(Protocol):
    """A question to which replies are scored."""

    @property
    def id(self) -> str:
        """Its name in messages."""
        ...

    @property
    def text(self) -> str:
        """The text that models are shown."""
        ...

    @property
    def gold(self) -> str:
        """The right answer."""
        ...

    @property
    def options(self) -> Mapping[str, str]:
        """Of a choice, the texts by label; else empty."""
        ...


class Graded(NamedTuple):
    """The result of a metric on a reply."""

    score: float  # 0 to 1
    metrics: Mapping[str, float]  # what is measured beside, by name
    reason: str = ""  # why it isn't 1, in words for whoever is to write a better prompt
    answer: str = ""  # what was read off the reply
    cause: str = ""  # of a score below 1: no_answer, ambiguous, wrong


class Metric(Protocol):
    """A way to score replies to the items of a dataset."""

    @property
    def name(self) -> str:
        """The name of its score in files and on screens."""
        ...

    @property
    def others(self) -> tuple[str, ...]:
        """The names of its further figures."""
        ...

    @property
    def asks_judge(self) -> bool:
        """Whether the metric asks a model."""
        ...

    @property
    def format_line(self) -> str:
        """The line that tells models the form of a reply that the metric reads."""
        ...

    async def __call__(
        self, item: Gradable, reply: str, ask_judge: AskJudge | None = None
    ) -> Graded:
        """The score of a reply without its reasoning blocks. Raises Unread if a judge's replies can't be read."""
        ...

    def demonstrated(self, item: Gradable) -> str:
        """A right reply, for an example."""
        ...

    def over(self, graded: Sequence[tuple[Gradable, Graded]]) -> Mapping[str, float]:
        """Figures over all items at once, such as `macro_f1`."""
        ...


UNREAD = ("no_answer", "ambiguous")
"""The causes of a score that mean an unreadable answer."""

_SHOWN = 200  # characters of what was read or wanted, in a reason


class Unread(Exception):
    """A judge model's replies can't be read. It is a fault of the item, which gets no score."""


@dataclass(frozen=True, slots=True)
class TextMetric:
    """A figure of the texts of the gold and the reply."""

    name: str
    others: tuple[str, ...] = ()
    format_line: str = ""
    asks_judge: bool = field(default=False, init=False)

    async def __call__(
        self,
        item: Gradable,
        reply: str,
        ask_judge: AskJudge | None = None,  # noqa: ARG002
    ) -> Graded:
        score = SCORERS[self.name](item.gold, reply)
        beside = {name: SCORERS[name](item.gold, reply) for name in self.others}
        if score == 1:
            return Graded(1.0, beside, answer=reply)
        if not reply.strip():
            return Graded(score, beside, "the reply is empty", cause="no_answer")
        return Graded(
            score, beside, f"{self.name} {score:.2f}; expected: {_short(item.gold)}", reply, "wrong"
        )

    def demonstrated(self, item: Gradable) -> str:
        return item.gold

    def over(self, graded: Sequence[tuple[Gradable, Graded]]) -> Mapping[str, float]:  # noqa: ARG002
        return {}


@dataclass(frozen=True, slots=True)
class NumberMetric:
    """Scores whether the reply's number is the gold's."""

    others: tuple[str, ...] = ()
    name: str = field(default="exact_match", init=False)
    format_line: str = field(
        default="End with a line `#### <number>` that holds the final answer alone.", init=False
    )
    asks_judge: bool = field(default=False, init=False)

    async def __call__(
        self,
        item: Gradable,
        reply: str,
        ask_judge: AskJudge | None = None,  # noqa: ARG002
    ) -> Graded:
        beside = {name: SCORERS[name](item.gold, reply) for name in self.others}
        wanted, found = gold_number(item.gold), number_in(reply)
        if found is None:
            return Graded(
                0.0, beside, f"expected {wanted}; the reply has no number", cause="no_answer"
            )
        if decimal_in(found) == decimal_in(wanted):
            return Graded(1.0, beside, answer=found)
        return Graded(0.0, beside, f"expected {wanted}, found {_short(found)}", found, "wrong")

    def demonstrated(self, item: Gradable) -> str:
        return item.gold if "####" in item.gold else f"#### {item.gold}"

    def over(self, graded: Sequence[tuple[Gradable, Graded]]) -> Mapping[str, float]:  # noqa: ARG002
        return {}


@dataclass(frozen=True, slots=True)
class LabelMetric:
    """Scores whether the reply names the right label, of the item's own options or of labels common to all items."""

    labels: Labels | None = None  # None: the items' options
    has_macro: bool = True
    others: tuple[str, ...] = field(default=(), init=False)
    name: str = field(default="accuracy", init=False)
    asks_judge: bool = field(default=False, init=False)

    @property
    def format_line(self) -> str:
        named = f": {', '.join(self.labels.names)}" if self.labels else ""
        return f"Answer with the label alone{named}."

    async def __call__(
        self,
        item: Gradable,
        reply: str,
        ask_judge: AskJudge | None = None,  # noqa: ARG002
    ) -> Graded:
        labels = self.labels or Labels.of_options(item.options)
        found = labels.read(reply)
        if len(found) == 1:
            label = found.pop()
            if label == item.gold:
                return Graded(1.0, {}, answer=label)
            return Graded(0.0, {}, f"expected {item.gold}, found {label}", label, "wrong")
        if found:
            return Graded(
                0.0,
                {},
                f"expected {item.gold}, found {' and '.join(sorted(found))}",
                cause="ambiguous",
            )
        return Graded(0.0, {}, f"expected {item.gold}; the reply names no label", cause="no_answer")

    def demonstrated(self, item: Gradable) -> str:
        return item.gold

    def over(self, graded: Sequence[tuple[Gradable, Graded]]) -> Mapping[str, float]:
        """The `macro_f1` of labels common to all items, over those that occur in golds or answers."""
        if self.labels is None or not self.has_macro or not graded:
            return {}
        return {"macro_f1": macro_f1([(item.gold, each.answer) for item, each in graded])}


@dataclass(frozen=True, slots=True)
class OwnMetric:
    """A user's function of item and reply that returns a number from 0 to 1, a bool, or `{score, answer, cause}`.

    An `answer` of None is one that can't be read; its cause is `no_answer` or `ambiguous`.
    """

    name: str
    function: Callable[[Any, str], Any] = field(repr=False)
    digest: str = ""  # of its file
    source: str = field(default="", repr=False)  # the file's text
    format_line: str = ""
    others: tuple[str, ...] = field(default=(), init=False)
    asks_judge: bool = field(default=False, init=False)

    async def __call__(
        self,
        item: Gradable,
        reply: str,
        ask_judge: AskJudge | None = None,  # noqa: ARG002
    ) -> Graded:
        try:
            said = self.function(item, reply)
            if inspect.isawaitable(said):
                said = await said
        except Exception as error:  # the user's own function may do anything
            raise UserCodeFault(
                f"the metric {self.name} failed on {item.id}: {type(error).__name__}: {error}"
            ) from error
        told = said if isinstance(said, Mapping) else {"score": said}
        score, answer, cause = told.get("score"), told.get("answer", reply), told.get("cause", "")
        if not isinstance(score, int | float) or not 0 <= score <= 1:
            raise self._unlike(item, said, "no number from 0 to 1")
        if (
            not isinstance(answer, str | None)
            or not isinstance(cause, str)
            or told.keys() - _OF_OWN
        ):
            raise self._unlike(
                item, said, "no {score, answer, cause} with a text or null, and a text"
            )
        if answer is None and score == 0:
            cause = cause if cause in UNREAD else "no_answer"
        if score == 1:
            return Graded(1.0, {}, answer=answer or "")
        reason = f"{self.name} {score:.2f}; expected: {_short(item.gold)}"
        return Graded(float(score), {}, reason, answer or "", cause or "wrong")

    def demonstrated(self, item: Gradable) -> str:
        return item.gold

    def over(self, graded: Sequence[tuple[Gradable, Graded]]) -> Mapping[str, float]:  # noqa: ARG002
        return {}

    def _unlike(self, item: Gradable, said: object, what: str) -> Fault:
        return Fault(
            f"the metric {self.name} said {said!r:.80} of {item.id}, which is {what}",
            cause="user_code",
        )


_OF_OWN = {"score", "answer", "cause"}


def macro_f1(pairs: Collection[tuple[str, str]]) -> float:
    """The mean of the labels' F1 over pairs of gold and answer; an answer that is no label counts only as a miss."""
    golds, answers = (
        Counter(gold for gold, _ in pairs),
        Counter(answer for _, answer in pairs if answer),
    )
    right = Counter(gold for gold, answer in pairs if gold == answer)
    labels = {*golds, *answers}
    # exact in any order
    return fmean(2 * right[label] / (golds[label] + answers[label]) for label in labels)


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _SHOWN else f"{flat[:_SHOWN]}…"
