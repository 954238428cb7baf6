"""A dataset in an experiment: items in three splits, the initial prompt, and the metric."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from koderz.suites.metrics import Metric
from koderz.suites.tables import fill
from koderz.types import Message

SplitName = Literal["train", "validation", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")

OnLeak = Literal["drop", "refuse", "keep"]


@dataclass(frozen=True, slots=True)
class Item:
    """One row of a dataset."""

    id: str  # DATASET/SOURCE SPLIT/ROW, the row from 0 in its source file
    columns: Mapping[str, str]  # what a prompt may show of it, by placeholder
    gold: str  # what is right, as the source says it
    options: Mapping[str, str] = field(default_factory=dict)  # of a choice: texts by label
    kind: str = ""  # of a generated item, for the simulated model alone
    # passages and the like that it may have in common with other items
    shares: tuple[str, ...] = ()

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
    # of the test items that share a passage or the like with others
    clusters: Mapping[str, str] = {}


DatasetRecords = dict[str, DatasetRecord]
"""The suite's entry in a plan's details: its datasets by name."""


NO_RECORD = DatasetRecord()
"""The record of a dataset of which a plan says nothing."""


@dataclass(frozen=True, slots=True)
class Leakage:
    """The numbers of items dropped since their text is in another row, each counted once."""

    policy: OnLeak
    exact: Mapping[SplitName, int]  # equal after normalising
    # not equal, but with at least 0.8 of their 5-word shingles in common
    near: Mapping[SplitName, int]

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
    # the initial prompt with {column} placeholders, without the format line
    messages: tuple[Message, ...]
    # what the metric looks for, said at the end of every prompt's system message; may be empty
    format_line: str
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


def items_digest(items: Iterable[Item]) -> str:
    """A digest of everything about the items that a prompt or score may depend on, 16 hex digits."""
    digest = hashlib.sha256()
    for item in items:
        known = [item.id, dict(item.columns), item.gold, dict(item.options)]
        digest.update(json.dumps(known).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]
