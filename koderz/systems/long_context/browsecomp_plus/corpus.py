"""The corpus of BrowseComp-Plus, which adds documents to questions, and made-up documents about a made-up world."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from koderz.errors import Fault, KoderzError
from koderz.systems.long_context.contexts import Reading, in_characters, recipe_digest
from koderz.systems.long_context.published import Layout, Place, files_in, listed, rows_at
from koderz.systems.long_context.words import VERSION, words_of

_LAYOUT = Layout({"text": str}, {"docid": int | str})


@dataclass(frozen=True)
class Corpus:
    """The documents {docid, text, url} of a file or folder, in parquet or JSON lines, read only when needed."""

    path: Path

    @property
    def digest(self) -> str:
        """A digest of the files' names and sizes. Raises KoderzError if there are none."""
        try:
            return recipe_digest(
                *((file.name, file.stat().st_size) for file in files_in(self.path))
            )
        except OSError as error:
            raise KoderzError(f"--corpus {self.path} can't be read: {error.strerror}") from None

    def others(self, count: int, known: Collection[str], draw: random.Random) -> list[Document]:
        """A number of drawn documents other than the known ones. Raises Fault if there are too few."""
        left = [docid for docid in self._places if docid not in known]
        if len(left) < count:
            raise Fault(
                f"--corpus {self.path} has {len(left):,} other documents, and {count:,} are wanted",
                cause="data",
            )
        chosen = draw.sample(left, count)
        found = {each.docid: each for each in self._read(chosen)}
        return [found[docid] for docid in chosen]

    @cached_property
    def _places(self) -> dict[str, tuple[Path, Place]]:
        """The place of each document, by its docid."""
        return {
            str(fields["docid"]): (file, place)
            for file in files_in(self.path)
            for place, fields, _ in listed(file, _LAYOUT)
        }

    def _read(self, docids: Collection[str]) -> Iterator[Document]:
        places: dict[Path, list[Place]] = {}
        for file, place in map(self._places.__getitem__, docids):
            places.setdefault(file, []).append(place)
        for file, here in places.items():
            for row in rows_at(file, here, ("docid", "text", "url")):
                yield Document(str(row["docid"]), str(row["text"]), str(row.get("url") or ""))


FORM = """

Answer from the documents alone. They are many, and it takes several of them. Reply with these three lines:
Explanation: how you know it, with the numbers of the documents that say so in brackets, such as [10001]
Exact Answer: the answer alone
Confidence: how sure you are, from 0% to 100%"""


class Document(NamedTuple):
    """One of the searched texts."""

    docid: str
    text: str
    url: str = ""


class Sought(NamedTuple):
    """The expected answer and evidence, by which a reply is judged."""

    query: str
    answer: str
    evidence: frozenset[str]  # docids


def read_about(
    documents: Sequence[Document], query: str, answer: str, evidence: frozenset[str], **more: Any
) -> tuple[Reading, Sought]:
    """The documents as one text with the question, and the expected answer. `more` goes into the record."""
    context = "".join(f"[{each.docid}] {each.url}\n{each.text}\n\n" for each in documents)
    made = in_characters(context, f"{query}{FORM}", documents=len(documents), **more)
    return made, Sought(query, answer, evidence)


# Every thing of the made-up world has a document of its own, which names others: its founder, its birthplace, its
# river. A question goes from one to the next (the birthplace of the founder of the institute that awards a prize), so
# that the answer follows from the world and stands in no model's memory. Names are unlike each other and never
# described by other words: its questions are easier than those of BrowseComp-Plus.

HOPS = (2, 3, 4)
LEAST = 20  # documents of a world

_FORMAT = "research-generated 1"
ASKED = "What is the name of {}?"


class Relation(NamedTuple):
    """A statement that documents of one kind make about a thing of another kind."""

    of: str
    to: str
    phrase: str  # before a name
    sentences: tuple[str, ...]


RELATIONS = (
    Relation(
        "prize",
        "institute",
        "the institute that awards ",
        ("It is awarded by {}.", "{} awards it every year."),
    ),
    Relation("book", "person", "the author of ", ("It was written by {}.", "Its author was {}.")),
    Relation(
        "ship", "person", "the captain of ", ("Her only captain was {}.", "She sailed under {}.")
    ),
    Relation(
        "ship", "town", "the home port of ", ("Her home port was {}.", "She was registered in {}.")
    ),
    Relation(
        "institute", "person", "the founder of ", ("It was founded by {}.", "Its founder was {}.")
    ),
    Relation(
        "institute",
        "town",
        "the seat of ",
        ("Its seat is in {}.", "Its archive is kept in {}, its only seat."),
    ),
    Relation(
        "person",
        "town",
        "the birthplace of ",
        ("The family lived in {} at the birth.", "{} is the birthplace."),
    ),
    Relation(
        "person",
        "person",
        "the teacher of ",
        ("The only teacher was {}.", "{} was the only teacher."),
    ),
    Relation(
        "town",
        "river",
        "the river that flows through ",
        ("Through the town flows {}.", "It lies on {}."),
    ),
    Relation(
        "river", "lake", "the lake that is fed by ", ("It feeds {}.", "Its waters end in {}.")
    ),
)
_NAMES = {
    "prize": "the {} Prize",
    "book": "the {} Chronicle",
    "ship": "the {} Star",
    "institute": "the {} Institute",
    "person": "{} {}",
    "town": "{}",
    "river": "the river {}",
    "lake": "Lake {}",
}
# the rest: people
_SHARES = {"town": 0.2, "institute": 0.15, "prize": 0.1, "book": 0.1, "ship": 0.1, "river": 0.05}
_ABOUT = {
    "prize": "a prize for work on the {adjective} {noun}",
    "book": "a book about a {adjective} {noun}",
    "ship": "a ship that carried {noun} and {other}",
    "institute": "an institute for the study of the {noun}",
    "person": "a student of the {adjective} {noun}",
    "town": "a town known for its {noun}",
    "river": "a river between the hills of {noun} and {other}",
}
_FILLERS = (
    "Since {year} a {noun} has been kept beside the {adjective} {other}.",
    "In {year} much was written about a {adjective} {noun}.",
    "Visitors ask about the {noun}, seldom about the {other}.",
    "It is often mentioned together with {name}, with which it has nothing to do.",
    "A report of {year} counts {number} {noun} and {number} {other}.",
    "Whoever looks for {name} comes upon it by mistake.",
)
_SYLLABLES = (
    "bar",
    "del",
    "fen",
    "gor",
    "hul",
    "jas",
    "kem",
    "lor",
    "mir",
    "nev",
    "pol",
    "quin",
    "ras",
    "sel",
    "tov",
)
_ENDS = ("ack", "eth", "ind", "ova", "une", "ymp", "asz", "ebri", "olda", "uvi")


class Thing(NamedTuple):
    """A thing of a world, with the statements of its document."""

    kind: str
    name: str
    says: Mapping[str, str]  # the names of others, by the phrase of their relation


class World:
    """A world of things that name each other, one for each document; lakes have none."""

    def __init__(self, draw: random.Random, size: int) -> None:
        self._draw = draw
        self._words = _words(draw)
        counts = {kind: max(2, int(share * size)) for kind, share in _SHARES.items()}
        counts["person"] = size - sum(counts.values())
        names = {kind: [self._name(kind) for _ in range(count)] for kind, count in counts.items()}
        names["lake"] = [self._name("lake") for _ in names["river"]]
        self.things = {
            name: Thing(
                kind, name, {each.phrase: self._other(names[each.to], name) for each in _of(kind)}
            )
            for kind in counts
            for name in names[kind]
        }

    def chain(self, hops: int) -> tuple[str, str, list[str]]:
        """A question of a number of hops, its answer, and the things whose documents it needs."""
        starts = [
            name for name, thing in self.things.items() if thing.kind not in ("town", "river")
        ]
        while True:
            at = start = self._draw.choice(starts)
            phrases, passed = "", list[str]()
            for _ in range(hops):
                if not (thing := self.things.get(at)) or at in passed:
                    break
                phrase, to = self._draw.choice([*thing.says.items()])
                phrases = f"{phrase}{phrases}"
                passed.append(at)
                at = to
            if len(passed) == hops and at not in passed:
                return ASKED.format(f"{phrases}{start}"), at, passed

    def text(self, thing: Thing) -> str:
        """The text of a thing's document: its kind, the things it names, and filler."""
        draw = self._draw
        sentences = [
            draw.choice(each.sentences).format(thing.says[each.phrase]) for each in _of(thing.kind)
        ]
        others = [*self.things]
        for _ in range(draw.randint(3, 5)):
            filler = draw.choice(_FILLERS)
            sentences.append(filler.format(name=draw.choice(others), **self._some()))
        draw.shuffle(sentences)
        about = _ABOUT[thing.kind].format(**self._some())
        return " ".join(
            each[0].upper() + each[1:] for each in (f"{thing.name} is {about}.", *sentences)
        )

    def _name(self, kind: str) -> str:
        return _NAMES[kind].format(*(next(self._words) for _ in range(_NAMES[kind].count("{}"))))

    def _other(self, names: Sequence[str], name: str) -> str:
        return self._draw.choice([each for each in names if each != name])

    def _some(self) -> dict[str, Any]:
        draw, nouns = self._draw, words_of("nounlist")
        return {
            "noun": draw.choice(nouns),
            "other": draw.choice(nouns),
            "adjective": draw.choice(words_of("adjectivelist")),
            "year": draw.randint(1700, 1990),
            "number": draw.randint(11, 990),
        }


@dataclass(frozen=True, slots=True)
class GeneratedResearch:
    """A recipe: a world with a number of documents, and a question about it."""

    seed: int
    documents: int
    number: int

    @property
    def digest(self) -> str:
        return recipe_digest(_FORMAT, VERSION, self.seed, self.documents, self.number)

    @property
    def hops(self) -> int:
        return HOPS[self.number % len(HOPS)]

    def make(self) -> tuple[Reading, Sought]:
        draw = random.Random(self.digest)  # noqa: S311 repeatable on purpose
        world = World(draw, self.documents)
        query, answer, passed = world.chain(self.hops)
        numbers = iter(draw.sample(range(10000, 100000), self.documents))
        documents = {
            name: self._document(world, thing, next(numbers))
            for name, thing in world.things.items()
        }
        evidence = frozenset(documents[name].docid for name in passed)
        shuffled = draw.sample([*documents.values()], len(documents))
        return read_about(shuffled, query, answer, evidence, generator="generated", hops=self.hops)

    def _document(self, world: World, thing: Thing, number: int) -> Document:
        place = re.sub(r"\W+", "-", thing.name.removeprefix("the ")).lower()
        return Document(str(number), world.text(thing), f"https://{thing.kind}.example/{place}")


def _words(draw: random.Random) -> Iterator[str]:
    """Made-up words, none within another: a batch in random order, then the next longer ones."""
    beginnings = list(_SYLLABLES)
    while True:
        words = [f"{start}{end}".capitalize() for start in beginnings for end in _ENDS]
        yield from draw.sample(words, len(words))
        beginnings = [f"{start}{syllable}" for start in beginnings for syllable in _SYLLABLES]


def _of(kind: str) -> Iterator[Relation]:
    return (each for each in RELATIONS if each.of == kind)
