"""A dataset in an experiment: items in three splits, the initial prompt, and the metric."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import msgspec

from koderz.types import Message, Reply

SplitName = Literal["train", "validation", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")

OnLeak = Literal["drop", "refuse", "keep"]

AskJudge = Callable[[Sequence[Message]], Awaitable[Reply]]

_PLACEHOLDER = re.compile(r"\{([^{}\n]{1,200})\}")


@dataclass(frozen=True, slots=True)
class Item:
    """One row of a dataset."""

    id: str  # DATASET/SOURCE SPLIT/ROW, the row from 0 in its source file
    columns: Mapping[str, str]  # what a prompt may show of it, by placeholder
    gold: str  # what is right, as the source says it
    options: Mapping[str, str] = field(default_factory=dict)  # of a choice: texts by label
    kind: str = ""  # of a generated item, for the simulated model alone
    shares: tuple[str, ...] = ()  # passages and the like that it may have in common with other items

    @property
    def text(self) -> str:
        """The item's input columns as one text."""
        return "\n".join(self.columns.values())


class SplitRecord(msgspec.Struct, frozen=True):
    """A split in a plan's record of its dataset."""

    digest: str
    n: int  # items
    dropped_exact: int = 0
    dropped_near: int = 0


class LeakageRecord(msgspec.Struct, frozen=True):
    """The items whose text stands in another split too, and what became of them."""

    exact: int = 0
    near: int = 0
    policy: str = "drop"  # as --on-leak has it


class DatasetRecord(msgspec.Struct, frozen=True):
    """A dataset in a plan's record; fields without which older plans were written have defaults."""

    source: str = ""
    licence: str = ""
    generated: bool = False
    metric: str = ""
    metrics: Sequence[str] = ()  # measured beside it
    messages: Sequence[Message] = ()  # the initial prompt
    format_line: str = ""
    splits: Mapping[str, SplitRecord] = {}
    leakage: LeakageRecord | None = None
    notes: Sequence[str] = ()
    clusters: Mapping[str, str] = {}  # of the test items that share a passage or the like with others


DatasetRecords = dict[str, DatasetRecord]
"""The suite's entry in a plan's details: its datasets by name."""


NO_RECORD = DatasetRecord()
"""The record of a dataset of which a plan says nothing."""


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

    async def __call__(self, item: Item, reply: str, ask_judge: AskJudge | None = None) -> Graded:
        """The score of a reply without its reasoning blocks. Raises Unread if a judge's replies can't be read."""
        ...

    def demonstrated(self, item: Item) -> str:
        """A right reply, for an example."""
        ...

    def over(self, graded: Sequence[tuple[Item, Graded]]) -> Mapping[str, float]:
        """Figures over all items at once, such as `macro_f1`."""
        ...


@dataclass(frozen=True, slots=True)
class Leakage:
    """The numbers of items dropped since their text is in another row, each counted once."""

    policy: OnLeak
    exact: Mapping[SplitName, int]  # equal after normalising
    near: Mapping[SplitName, int]  # not equal, but with at least 0.8 of their 5-word shingles in common

    @property
    def total(self) -> tuple[int, int]:
        """The exact and the near duplicates of all splits."""
        return sum(self.exact.values()), sum(self.near.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The payload of a task of the suite `datasets`."""

    name: str
    source: str  # where its rows come from
    licence: str
    splits: Mapping[SplitName, tuple[Item, ...]]
    messages: tuple[Message, ...]  # the initial prompt with {column} placeholders, without the format line
    format_line: str  # what the metric looks for, said at the end of every prompt's system message; may be empty
    metric: Metric
    leakage: Leakage
    generated: bool = False
    notes: tuple[str, ...] = ()  # what its user has to know of it

    @property
    def train(self) -> tuple[Item, ...]:
        return self.splits["train"]

    @property
    def validation(self) -> tuple[Item, ...]:
        return self.splits["validation"]

    @property
    def test(self) -> tuple[Item, ...]:
        return self.splits["test"]

    @property
    def digests(self) -> dict[SplitName, str]:
        """A digest of each split's items in order, 16 hex digits."""
        return {name: items_digest(items) for name, items in self.splits.items()}

    def demonstrate(self, item: Item) -> tuple[str, str]:
        """The user's message and the assistant's reply of an example."""
        return fill(self.messages[-1]["content"], item.columns), self.metric.demonstrated(item)


def fill(template: str, columns: Mapping[str, str]) -> str:
    """The template with the columns' values in place of their names in braces; other braces stay.

    Values are never looked at again, so that a `{question}` in one remains what it is.
    """
    return _PLACEHOLDER.sub(lambda found: columns.get(found[1], found[0]), template)


def placeholders(template: str, columns: Collection[str]) -> set[str]:
    """The columns whose placeholders a template has."""
    return {name for name in _PLACEHOLDER.findall(template) if name in columns}


def items_digest(items: Iterable[Item]) -> str:
    """A digest of everything about the items that a prompt or score may depend on, 16 hex digits."""
    digest = hashlib.sha256()
    for item in items:
        known = [item.id, dict(item.columns), item.gold, dict(item.options)]
        digest.update(json.dumps(known).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]
