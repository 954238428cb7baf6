"""RULER's thirteen tasks and `needles` by name, with their material and their rows."""

from __future__ import annotations

import hashlib
import json
import random
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.suites.tokens import MILLION, Tokenizer
from koderz.systems.long_context.contexts import Reading, recipe_digest
from koderz.systems.long_context.ruler.aggregation import CommonWordsFamily, FrequentWordsFamily
from koderz.systems.long_context.ruler.drawing import Family, Frame, NeedsMeasuring
from koderz.systems.long_context.ruler.niah import (
    KINDS,
    PLACES,
    NeedleFamily,
    Needles,
    NeedlesFamily,
    VariablesFamily,
)
from koderz.systems.long_context.ruler.questions import READERS, Collection, QuestionsFamily
from koderz.systems.long_context.words import VERSION, words_of

NEEDLES: Mapping[str, Needles] = {
    "niah_single_1": Needles("noise", "words", "numbers"),
    "niah_single_2": Needles("essay", "words", "numbers"),
    "niah_single_3": Needles("essay", "words", "uuids"),
    "niah_multikey_1": Needles("essay", "words", "numbers", keys=4),
    "niah_multikey_2": Needles("needle", "words", "numbers"),
    "niah_multikey_3": Needles("needle", "uuids", "uuids"),
    "niah_multivalue": Needles("essay", "words", "numbers", values=4),
    "niah_multiquery": Needles("essay", "words", "numbers", queries=4),
}
TASKS = (*NEEDLES, "vt", "cwe", "fwe", *READERS)
ALL = (*TASKS, "needles")

GENERATED = "[generated]"
"""The mark after the name of a task whose text isn't RULER's own."""

_FORMAT = "ruler 1"  # changes with what is made of the same settings


@dataclass(frozen=True)
class Material:
    """The material of rows, whatever their task and length."""

    seed: int
    tokenizer: Tokenizer
    haystack: Path | None = None
    qa_data: Path | None = None
    _collections: dict[str, Collection] = field(default_factory=dict, init=False, compare=False)
    _digests: dict[Path, str] = field(default_factory=dict, init=False, compare=False)

    @cached_property
    def essay(self) -> Sequence[str]:
        """The words of the user's file, or of made-up prose. Raises KoderzError for a file that can't be read."""
        if self.haystack is None:
            return prose(self.seed).split(" ")
        text = self.file(self.haystack, "--haystack").decode("utf-8", "replace")
        if self.haystack.suffix == ".json":
            try:
                text = json.loads(text)["text"]
            except (ValueError, KeyError, TypeError, RecursionError):
                raise KoderzError(
                    f"--haystack {self.haystack}: no JSON object with the field 'text'"
                ) from None
        words = re.sub(r"\s+", " ", text).split(" ")
        if not any(words):
            raise KoderzError(f"--haystack {self.haystack} holds no text")
        return words

    def collection(self, task: str) -> Collection:
        """The questions of a qa task. Raises KoderzError, which says what to fetch."""
        if self.qa_data is None:
            raise KoderzError(
                "qa_1 needs SQuAD's dev-v2.0.json and qa_2 HotpotQA's hotpot_dev_distractor_v1.json: "
                "fetch the one you ask for and name it with --qa-data FILE"
            )
        if task not in self._collections:
            self._collections[task] = READERS[task](self.qa_data)
        return self._collections[task]

    def digest_of(self, task: str) -> str:
        """A digest of the files that a task is made of."""
        if task in NEEDLES and NEEDLES[task].haystack == "essay":
            path, flag = self.haystack, "--haystack"
        elif task in READERS:
            path, flag = self.qa_data, "--qa-data"
        else:
            return ""
        if path is None:
            return ""
        if path not in self._digests:
            data = self.file(path, flag)
            self._digests[path] = hashlib.sha256(data).hexdigest()
        return self._digests[path]

    def file(self, path: Path, flag: str) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            raise KoderzError(f"{flag} {path} can't be read: {error.strerror}") from None


@dataclass(eq=False)
class Rows:
    """The rows of one task and length, each made on demand; the state before it is kept."""

    task: str
    length: int
    material: Material
    _states: list[Any] = field(default_factory=list)
    _family: Family | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_sized: bool = False

    def __post_init__(self) -> None:
        self._is_sized = self.length > MILLION or self._kind == "needles"
        self._digest = recipe_digest(
            _FORMAT,
            VERSION,
            self.task,
            self.length,
            self.material.seed,
            self.material.tokenizer.digest,
            self.material.digest_of(self.task),
        )

    @property
    def name(self) -> str:
        """The beginning of ids, with a mark if the text is not RULER's own."""
        kind, slash, rest = self.task.partition("/")
        return f"{kind}{GENERATED if self.is_generated else ''}{slash}{rest}"

    @property
    def is_generated(self) -> bool:
        """Whether the text is not RULER's own."""
        is_essay = self.task in NEEDLES and NEEDLES[self.task].haystack == "essay"
        return self._kind == "needles" or (is_essay and not self.material.haystack)

    def digest(self, index: int) -> str:
        return recipe_digest(self._digest, index)

    def row(self, index: int) -> dict[str, Any]:
        """A row in the layout of RULER's files."""
        with self._lock:
            if not self._is_sized:
                try:
                    return self._official(index)
                except NeedsMeasuring:
                    self._is_sized = True
            return self._sized(index)

    @property
    def generator(self) -> str:
        """The way in which rows are made: `official` as RULER does, or `sized`."""
        return "sized" if self._is_sized else "official"

    @property
    def _kind(self) -> str:
        return self.task.partition("/")[0]

    def _official(self, index: int) -> dict[str, Any]:
        """A row from one stream of random numbers for all rows, for which those before have to be drawn first."""
        if self._family is None:
            family = self._new_family(
                Frame(self.length, self.material.seed, self.material.tokenizer)
            )
            family.settle()
            self._family, self._states = family, [family.state()]
        family, states = self._family, self._states
        row: dict[str, Any] = {}
        for number in range(min(index, len(states) - 1), index + 1):
            family.restore(states[number])
            row = family.row(number)
            if number == len(states) - 1:
                states.append(family.state())
        return row

    def _sized(self, index: int) -> dict[str, Any]:
        """A row from random numbers of its own."""
        seed = int(recipe_digest(self.material.seed, self.task, self.length, index)[:8], 16)
        family = self._new_family(Frame(self.length, seed, self.material.tokenizer, measured=True))
        family.settle()
        return family.row(index)

    def _new_family(self, frame: Frame) -> Family:
        kind, _, rest = self.task.partition("/")
        if kind == "needles":
            return NeedleFamily(frame, *rest.split("/"))
        if kind in NEEDLES:
            task = NEEDLES[kind]
            return NeedlesFamily(
                task, frame, self.material.essay if task.haystack == "essay" else ()
            )
        if kind in READERS:
            return QuestionsFamily(frame, self.material.collection(kind))
        family: Any = {"vt": VariablesFamily, "cwe": CommonWordsFamily, "fwe": FrequentWordsFamily}[
            kind
        ]
        made: Family = family(frame)
        return made


@dataclass(frozen=True, slots=True)
class RulerRecipe:
    """A recipe for one row."""

    rows: Rows
    index: int

    @property
    def digest(self) -> str:
        return self.rows.digest(self.index)

    def make(self) -> tuple[Reading, list[str]]:
        row = self.rows.row(self.index)
        return reading_of(row, self.rows.material.tokenizer, self.rows.generator), row["outputs"]


def reading_of(row: Mapping[str, Any], tokenizer: Tokenizer, generator: str) -> Reading:
    """The text of a row: the last line of its input is the question, all before it the context."""
    context, between, question = row["input"].rpartition("\n")
    more = {"generator": generator, "answer_prefix": "not sent"}
    if "token_position_answer" in row:
        more["position"] = row["token_position_answer"] / max(1, row.get("length", 0))
    return Reading(context, question, tokenizer.count(row["input"]), tokenizer.name, between, more)


def kinds_of(task: str, positions: Sequence[str], types: Sequence[str]) -> list[str]:
    """The kinds of a task; `needles` has one for each type and position."""
    if task != "needles":
        return [task]
    return [
        f"needles/{kind}/{place}"
        for kind in KINDS
        if kind in types
        for place in PLACES
        if place in positions
    ]


_SENTENCES = 4000


def prose(seed: int) -> str:
    """Meaningless sentences of English words; longer texts repeat them."""
    draw = random.Random(seed)  # noqa: S311 repeatable on purpose
    nouns, adjectives, verbs = (
        words_of(name) for name in ("nounlist", "adjectivelist", "verblist")
    )

    def sentence() -> str:
        subject = f"the {draw.choice(adjectives)} {draw.choice(nouns)}"
        middle = draw.choice(("would often", "could hardly", "used to", "may never", "had to"))
        rest = f"{draw.choice(verbs)} a {draw.choice(nouns)}"
        end = draw.choice(
            (
                "",
                f" and a {draw.choice(nouns)}",
                f" beside the {draw.choice(adjectives)} {draw.choice(nouns)}",
            )
        )
        return f"{subject} {middle} {rest}{end}.".capitalize()

    return " ".join(sentence() for _ in range(_SENTENCES))
