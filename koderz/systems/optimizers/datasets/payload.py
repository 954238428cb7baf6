"""A dataset in an experiment: items, cut into three splits, the initial prompt, and the metric."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from koderz.errors import KoderzError
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


# rows behind what is cut that are read with it, since some may take the place of dropped ones
_MARGIN = 100

Source = Iterable[Item]
"""The items of a source split, the same ones on each iteration."""


class Piece(NamedTuple):
    """A split's piece of its source split after shuffling."""

    source: str
    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


Preset = Mapping[SplitName, Piece]


@dataclass(frozen=True, slots=True)
class SplitDataset:
    """The result of cutting a dataset."""

    splits: Mapping[SplitName, tuple[Item, ...]]
    leakage: Leakage
    notes: tuple[str, ...]


def cut(
    name: str, sources: Mapping[str, Source], preset: Preset, *, seed: int, policy: OnLeak
) -> SplitDataset:
    """The splits of a preset, test first; dropped items are replaced by later ones.

    One shuffle of a source split serves all that is cut from it. A row whose text an earlier one of its source has is
    dropped, but not of a source that serves test alone; then what validation shares with test, and train with either.
    Raises KoderzError for an empty split, and with `refuse` for any leak.
    """
    drawn = {
        source: _Split(items, seed, _is_of_test(preset, source))
        for source, items in sources.items()
    }
    preset = _fitting(preset, {source: each.count for source, each in drawn.items()})
    for source, each in drawn.items():
        each.read_on(
            _MARGIN + max(piece.end for piece in preset.values() if piece.source == source)
        )
    cutting = _Cutting(drawn, policy)
    splits = {split: cutting.cut(split, preset[split]) for split in reversed(SPLITS)}
    leakage = Leakage(policy, cutting.exact, cutting.near)
    if policy == "refuse" and cutting.first:
        exact, near = leakage.total
        raise KoderzError(
            f"{name}: {exact} items have the text of another one and {near} nearly so, such as {cutting.first}; "
            "clean the files, or leave them out with --on-leak drop"
        )
    for split in SPLITS:
        if not splits[split]:
            source = preset[split].source
            raise KoderzError(
                f"{name}: the split {split} is empty, as {source} has {drawn[source].count} rows in all; add rows, or "
                "ask for fewer with --train-items, --validation-items and --test-items"
            )
    notes = [
        f"{split} has {len(splits[split])} of {preset[split].size} items: {preset[split].source} has no more"
        for split in SPLITS
        if len(splits[split]) < preset[split].size
    ]
    if cutting.first:
        exact, near = leakage.total
        what = "dropped" if policy == "drop" else "kept"
        notes.append(
            f"{exact} items that have the text of another one, and {near} nearly so, were {what}"
        )
    return SplitDataset({split: splits[split] for split in SPLITS}, leakage, tuple(notes))


def _is_of_test(preset: Preset, source: str) -> bool:
    """Whether a source is used for test alone."""
    return {split for split, piece in preset.items() if piece.source == source} == {"test"}


def _fitting(preset: Preset, counts: Mapping[str, int]) -> Preset:
    """The preset; if a source is too small for a piece, its pieces follow each other from its first row."""
    small = {piece.source for piece in preset.values() if piece.start >= counts[piece.source]}
    ends = dict.fromkeys(small, 0)
    fitting = {}
    for split in SPLITS:
        piece = preset[split]
        if piece.source in small:
            piece = piece._replace(start=ends[piece.source])
            ends[piece.source] += piece.size
        fitting[split] = piece
    return fitting


class _Split:
    """A source split in shuffled order; only items that were asked for are in memory."""

    def __init__(self, items: Source, seed: int, is_of_test: bool) -> None:
        from numpy.random import default_rng

        self._items = items
        self.is_of_test = is_of_test
        self.repeats: set[int] = set()  # rows whose text an earlier one has
        self.count = 0
        seen: set[bytes] = set()
        for row, item in enumerate(items):
            self.count += 1
            digest = hashlib.blake2b(
                normalised(item.text).encode("utf-8", "surrogatepass"), digest_size=16
            ).digest()
            if digest in seen and not is_of_test:
                self.repeats.add(row)
            seen.add(digest)
        self.order: Sequence[int] = default_rng(seed).permutation(self.count).tolist()
        self.held: dict[int, Item] = {}
        self._read = 0  # places of the order

    def at(self, place: int) -> Item:
        """The item at a place of the shuffled order."""
        if place >= self._read:
            self.read_on(4 * place + _MARGIN)
        return self.held[self.order[place]]

    def read_on(self, end: int) -> None:
        """Reads the source for the items up to a place of the order."""
        wanted = {*self.order[self._read : end]}
        self.held |= {row: item for row, item in enumerate(self._items) if row in wanted}
        self._read = end


class _Cutting:
    """The splits cut so far."""

    def __init__(self, drawn: Mapping[str, _Split], policy: OnLeak) -> None:
        self._drawn, self._policy = drawn, policy
        self._texts = Texts(item.text for source in drawn.values() for item in source.held.values())
        self._taken: set[tuple[str, int]] = set()
        self.exact: dict[SplitName, int] = dict.fromkeys(SPLITS, 0)
        self.near: dict[SplitName, int] = dict.fromkeys(SPLITS, 0)
        self.first = ""  # the id of an item that leaks

    def cut(self, split: SplitName, piece: Piece) -> tuple[Item, ...]:
        source, items = self._drawn[piece.source], list[Item]()
        for place in range(piece.start, source.count):
            if len(items) == piece.size:
                break
            if (piece.source, place) in self._taken:
                continue
            self._taken.add((piece.source, place))
            item = source.at(place)
            if not (self._leaks(split, source, place, item) and self._policy == "drop"):
                self._texts.add(item.text)
                items.append(item)
        return tuple(items)

    def _leaks(self, split: SplitName, source: _Split, place: int, item: Item) -> bool:
        """Whether the text occurs elsewhere, which is counted. Test loses only repeated rows."""
        if self._policy == "drop" and source.order[place] in source.repeats:
            like = "exact"
        else:
            like = self._texts.like(item.text) or ""
        if split == "test" and (source.is_of_test or like == "near"):
            like = ""
        if like:
            counts = self.exact if like == "exact" else self.near
            counts[split] += 1
            self.first = self.first or item.id
        return bool(like)


# shingles that two texts have in common, of those of both (Jaccard), where they are nearly the same
COMMON, OF = 4, 5
WORDS = 5  # of a shingle


class _Spaces(dict[int, str]):
    """A translation table for normalising: punctuation becomes a space."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        self[code] = " " if unicodedata.category(character).startswith("P") else character
        return self[code]


_SPACES = _Spaces()


def normalised(text: str) -> str:
    """The text in NFKC, without case and punctuation, its words apart by one space."""
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text)
    return " ".join(plain.casefold().translate(_SPACES).split())


def shingles(text: str) -> frozenset[str]:
    """The runs of five words of a normalised text; the text itself if it has fewer."""
    words = text.split(" ")
    return frozenset(
        " ".join(words[at : at + WORDS]) for at in range(max(1, len(words) - WORDS + 1))
    )


class Texts:
    """Texts to be compared with those added before.

    Two sets of which 0.8 is common share one of the few rarest shingles of each, in any order of rarity: only texts
    that do are compared whole. Source: Chaudhuri et al., "A primitive operator for similarity joins" (2006).
    """

    def __init__(self, texts: Iterable[str]) -> None:
        """`texts` determine which shingles are rare."""
        known = {*map(normalised, texts)}
        self._frequency = Counter(shingle for text in known for shingle in shingles(text))
        self._added: set[str] = set()
        self._by_rarest: dict[str, list[frozenset[str]]] = defaultdict(list)

    def add(self, text: str) -> None:
        """Adds a text for later comparisons."""
        known = normalised(text)
        if known not in self._added:
            self._added.add(known)
            own = shingles(known)
            for shingle in self._rarest(own):
                self._by_rarest[shingle].append(own)

    def like(self, text: str) -> Literal["exact", "near"] | None:
        """Whether an added text is equal after normalising, or nearly so."""
        known = normalised(text)
        if known in self._added:
            return "exact"
        own = shingles(known)
        others = (
            other for shingle in self._rarest(own) for other in self._by_rarest.get(shingle, ())
        )
        return "near" if any(_are_near(own, other) for other in others) else None

    def _rarest(self, own: frozenset[str]) -> list[str]:
        """The rarest shingles, as many as two near sets can't both lack."""
        count = len(own) - -(-COMMON * len(own) // OF) + 1
        return sorted(own, key=lambda shingle: (self._frequency[shingle], shingle))[:count]


def _are_near(a: frozenset[str], b: frozenset[str]) -> bool:
    if OF * min(len(a), len(b)) < COMMON * max(len(a), len(b)):
        return False
    common = len(a & b)
    return OF * common >= COMMON * (len(a) + len(b) - common)
