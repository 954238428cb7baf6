"""Recall: finds and ranks the things that answer a question. Ranks are computed on demand; reading changes none."""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, NamedTuple

from koderz_tracker.memory import database
from koderz_tracker.memory.detail import about_of, apart, happened_in, name_of, statement_of
from koderz_tracker.memory.memories import Memory
from koderz_tracker.memory.store import Filter, Narrowed, Store
from koderz_tracker.memory.vectors import Vectors

Ranking = Literal["full", "newest"]
Ranks = Mapping[str, Mapping[int, int]]
"""The ranks of things by words and by meaning, from 1 on."""

# a word that more things hold than this says little, and ranking all of them takes long
COMMON = 2000
_FEW = 5  # things: below so many, a word that all of them hold may still tell something
# things above the limit that are looked at, since salience changes their order a little
_SPARE = 10
_FADING = 1000  # things that are looked at where faded ones are left out
_WORDS, _SAID = 24, 100  # of a question, and of a statement; more make it no clearer
# the share of trigrams from which on one word may be meant by another; for want of any
_ALIKE, _AT_ALL = 0.4, 0.3
# things at most whose words are compared, which takes as long as there are words
_COMPARED = 50_000
_SPELLED = 4  # letters of words that are compared by their spelling
_HALF_LIFE = {"short_term": 14.0, "long_term": 180.0, "episodic": 180.0}  # days
_DECAYED = 0.1  # a salience below this, after decay, counts as faded
# the part of a score that salience decides, of words; by fused ranks, where it's a tie
_SALIENT, _HARDLY = 0.1, 0.001
_FUSED = 60  # of reciprocal ranks: how little the very first count more than those behind
_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a about all an and any are as at be been but by can could did do does for from had has have how i if in into "
        "is it its me my no not of on or our out should so some than that the their them then there these they this "
        "to up us was we were what when where which who why will with would you your",
    )
)
"""English words that carry no information about the subject of a question."""
_ACCENTS = re.compile("[\u0300-\u036f]+")  # once a letter is taken apart from them


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A memory found by recall, with its score; where things were searched, the newest of one of them."""

    memory: Memory
    score: float  # of relevance, and of salience after decay, 0..1
    ranking: Ranking  # "newest": only the newest things with these very common words were ranked
    tried: int | None = None  # how many memories of the thing fit
    passed: int | None = None  # how many of these passed
    best: int | None = None  # the id of the best of them
    # that another word was looked for, since nothing holds the one that was asked for
    note: str | None = None
    why: Mapping[str, Any] | None = None  # what the score is made of

    def as_dict(self) -> dict[str, Any]:
        more = {name: getattr(self, name) for name in ("tried", "passed", "best", "note", "why")}
        more["thing"] = None if self.tried is None else name_of(self.memory)
        told = {name: value for name, value in more.items() if value is not None}
        return {
            **self.memory.as_dict(),
            "score": round(self.score, 4),
            "ranking": self.ranking,
            **told,
        }


class _Cell(NamedTuple):
    """The memories of a thing that are alike in arm, outcome and more, as far as they fit."""

    id: int
    outcome: str
    n: int
    newest: str
    best: float | None

    @property
    def merit(self) -> tuple[bool, float, str]:
        return (
            self.outcome == "passed",
            float("-inf") if self.best is None else self.best,
            self.newest,
        )


def search(
    store: Store,
    query: str,
    wanted: Filter,
    *,
    limit: int,
    include_decayed: bool = True,
    explain: bool = False,
    vectors: Vectors | None = None,
) -> list[SearchHit]:
    """The things that answer a query best, by full text over what they are about and what happened; each is one hit.

    A thing has to hold one of the query's telling words, see `_telling`; a query that has none is about its common
    ones. Where these are very common, the newest things that hold all of them are found, and `ranking` says so. What
    is called by its name, such as HumanEval/3 or the id of an experiment, comes first. A word that nothing holds is
    looked for by the nearest spelling. Memories too new for full text, which it can't be told of while nobody may
    write, are looked through one by one. With `vectors`, ranks are fused with those of the things that mean the like.
    """
    asked = words_of(apart(query))
    if not asked:
        return []
    store.index_newest()
    meant = vectors.meant_by(store, apart(query)) if vectors else None
    ranks: Ranks = {}
    with store.snapshot():
        unknown = [word for word in asked if word not in _STOP_WORDS and not _hits(store, word)]
        things = int(store.rows(database.LAST_THING)[0][0])
        is_lost = len(unknown) == sum(word not in _STOP_WORDS for word in asked)
        share = _AT_ALL if is_lost else _ALIKE
        spelled = {
            w: near for w in unknown if things <= _COMPARED and (near := _nearest(store, w, share))
        }
        hits = {
            word: _hits(store, word)
            for word in dict.fromkeys(spelled.get(word, word) for word in asked)
        }
        telling = _telling(hits, things)
        found: list[SearchHit] = []
        ranking: Ranking = "full"
        if (narrowed := store.narrowed(wanted)) is not None:
            relevance, ranking = _by_text(store, hits, telling, narrowed)
            if meant:
                ranks = {
                    "words": _ranked(relevance),
                    "meaning": _ranked(meant.likeness(store, narrowed)),
                }
                relevance = fused(ranks.values())
            names = [name for name in query.split() if name.isprintable()]
            if named := {
                thing for name in names for (thing,) in store.rows(database.NAMED, (name,))
            }:
                relevance = {
                    **{thing: share / 2 for thing, share in relevance.items()},
                    **dict.fromkeys(named, 1.0),
                }
            best = sorted(relevance, key=lambda thing: (-relevance[thing], thing))
            best = best[: limit + _SPARE if include_decayed else _FADING]
            found = [*_collapsed(store, {thing: relevance[thing] for thing in best}, narrowed)]
        sought = [word for word in asked if word in telling or word in unknown]
        newer = [
            SearchHit(*each, "full") for each in _holding(store.unindexed(wanted), asked, sought)
        ]
    salient = _HARDLY if meant else _SALIENT
    distinct = {
        name_of(hit.memory): hit for hit in sorted([*found, *newer], key=lambda hit: hit.memory.id)
    }
    notes = [
        f"nothing holds {word}: {other} was looked for instead" for word, other in spelled.items()
    ]
    if vectors and vectors.trouble:
        notes.append(vectors.trouble)
    ordered = _in_order(distinct.values(), limit, salient, include_decayed=include_decayed)
    why = (lambda hit: _why(store, hit, [*hits], ranks, salient)) if explain else lambda _: None
    return [
        replace(hit, ranking=ranking, note="; ".join(notes) or None, why=why(hit))
        for hit in ordered
    ]


def fused(rankings: Iterable[Mapping[int, int]]) -> dict[int, float]:
    """Things by their ranks in several rankings: the sum of reciprocal ranks, 1 for what leads each."""
    shares: defaultdict[int, float] = defaultdict(float)
    for among in (several := [*rankings]):
        for thing, rank in among.items():
            shares[thing] += (_FUSED + 1) / (_FUSED + rank) / len(several)
    return shares


def _ranked(relevance: Mapping[int, float]) -> dict[int, int]:
    """The ranks of things from 1 on; those alike share one."""
    first: dict[float, int] = {}
    for rank, value in enumerate(sorted(relevance.values(), reverse=True), 1):
        first.setdefault(value, rank)
    return {thing: first[value] for thing, value in relevance.items()}


def _why(
    store: Store, hit: SearchHit, words: Sequence[str], ranks: Ranks, salient: float
) -> dict[str, Any]:
    """The places where a hit holds the words that were looked for, with the parts of its score, and its ranks."""
    salience = decayed_salience(hit.memory, datetime.now())
    places = {
        word: [
            place
            for place in ("about", "content")
            if store.rows(database.HELD, (name_of(hit.memory), _quoted(word, place)))
        ]
        for word in words
    }
    told = {
        "words": places,
        "relevance": round(hit.score / _faded(salience, salient), 4),
        "salience": round(salience, 4),
    }
    thing = next((id for (id,) in store.rows(database.THING, (name_of(hit.memory),))), 0)
    return told | (
        {"ranks": {name: among.get(thing) for name, among in ranks.items()}} if ranks else {}
    )


def _faded(salience: float, salient: float) -> float:
    """The factor of a score for salience."""
    return 1 - salient + salient * salience


def ranked(
    found: Iterable[tuple[Memory, float]], limit: int, ranking: Ranking = "full"
) -> list[SearchHit]:
    """Memories in order of relevance (0..1), salience and age, the best first."""
    return _in_order((SearchHit(memory, relevance, ranking) for memory, relevance in found), limit)


def _in_order(
    found: Iterable[SearchHit],
    limit: int,
    salient: float = _SALIENT,
    *,
    include_decayed: bool = True,
) -> list[SearchHit]:
    """Hits whose score is their relevance so far, by relevance, salience and age, the best first."""
    today = datetime.now()
    scored = [
        replace(hit, score=hit.score * _faded(salience, salient))
        for hit in found
        if (salience := decayed_salience(hit.memory, today)) >= _DECAYED or include_decayed
    ]
    return sorted(scored, key=lambda hit: (-hit.score, -hit.memory.id))[:limit]


def by_likeness(memories: Sequence[Memory], statement: str) -> list[Memory]:
    """The memories, one of each thing, by how nearly it is about what a statement says; those alike as they come.

    They are ranked among themselves, so that no memory but these changes their order.
    """
    distinct: dict[str, Memory] = {}
    for memory in memories:
        distinct.setdefault(name_of(memory), memory)
    found = [*distinct.values()]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(database.LIKENESS)
        connection.executemany(
            database.LIKE, ((at, about_of(memory)) for at, memory in enumerate(found))
        )
        said = [
            word
            for word in words_of(apart(statement_of(statement)), _SAID)
            if word not in _STOP_WORDS
        ]
        held = {
            word: connection.execute(database.HOLD, (_quoted(word),)).fetchone()[0] for word in said
        }
        query = " OR ".join(_quoted(word) for word, n in held.items() if n * 2 <= len(found))
        alike = (
            [row[0] for row in connection.execute(database.MOST_ALIKE, (query,))] if query else []
        )
    return [found[at] for at in dict.fromkeys([*alike, *range(len(found))])]


def decayed_salience(memory: Memory, today: datetime) -> float:
    """The salience (0..1), halved every 14 days (short-term) or 180; protected memories keep theirs."""
    if memory.is_protected:
        return memory.salience
    days = max(0.0, (today - datetime.fromisoformat(memory.updated_at)).total_seconds() / 86400)
    return memory.salience * float(0.5 ** (days / _HALF_LIFE.get(memory.type, 180.0)))


def words_of(text: str, most: int = _WORDS) -> list[str]:
    """The distinct words of a query, folded and split as by the full-text index."""
    return list(dict.fromkeys(re.findall(r"\w+", folded(text))))[:most]


def _telling(hits: Mapping[str, int], things: int) -> list[str]:
    """The informative words of a query: no stop words, and none that more than half of all things hold."""
    common = min(COMMON, max(_FEW, things // 2))
    return [word for word, found in hits.items() if word not in _STOP_WORDS and found <= common]


def _by_text(
    store: Store, hits: Mapping[str, int], telling: Sequence[str], narrowed: Narrowed
) -> tuple[dict[int, float], Ranking]:
    """The things that hold a telling word, by id, with their relevance, 0..1."""
    known = [word for word, found in hits.items() if found]
    rare = [word for word in known if (word in telling if telling else hits[word] <= COMMON)]
    if not known or (telling and not rare):
        return {}, "full"
    condition, values = narrowed.condition()
    if not rare:
        query = " AND ".join(map(_quoted, known))
        newest = store.rows(
            database.NEWEST_MATCHES.format(narrowed=condition), (query, *values, _FADING)
        )
        return {thing: 1.0 for (thing,) in newest}, "newest"
    query = " OR ".join(map(_quoted, rare))
    rows = store.rows(database.MATCHES.format(narrowed=condition), (query, *values, _FADING))
    return {thing: rank / rows[0][1] for thing, rank in rows}, "full"


def _collapsed(
    store: Store, relevance: Mapping[int, float], narrowed: Narrowed
) -> Iterator[SearchHit]:
    """One hit a thing: the newest of its memories that fit, with their number, and the best of them."""
    cells: defaultdict[int, list[_Cell]] = defaultdict(list)
    things = ", ".join(map(str, relevance))
    for thing, *cell in store.rows(*narrowed.query(database.TRIED, f"c.thing IN ({things})")):
        cells[thing].append(_Cell(*cell))
    for thing, among in cells.items():
        newest, best = (
            max(among, key=lambda cell: (cell.newest, cell.id)),
            max(among, key=lambda cell: cell.merit),
        )
        ((id,),) = store.rows(
            *narrowed.query(database.NEWEST_TRIAL, f"c.id = {newest.id}", newest.newest)
        )
        ((best_id,),) = store.rows(
            *narrowed.query(database.BEST_TRIAL, f"c.id = {best.id}", best.best)
        )
        memory = store.get(int(id))
        assert memory is not None, "it is in the same snapshot"
        passed = sum(cell.n for cell in among if cell.outcome == "passed")
        yield SearchHit(
            memory, relevance[thing], "full", sum(cell.n for cell in among), passed, best_id
        )


def _holding(
    memories: Iterable[Memory], words: Sequence[str], telling: Sequence[str]
) -> Iterator[tuple[Memory, float]]:
    """The memories that hold a telling word, or any if none is, with the share of all words that they hold."""
    for memory in memories:
        text = folded(
            "\n".join((about_of(memory), memory.title, *memory.tags, *happened_in(memory)))
        )
        held = [word for word in words if holds(text, word)]
        if not set(held).isdisjoint(telling or words):
            yield memory, len(held) / len(words)


def _nearest(store: Store, word: str, share: float) -> str | None:
    """The word in the index that shares most trigrams with one that nothing holds, at least such a share of them."""
    if len(word) < _SPELLED or not word.isascii() or not word.isalpha():
        return None
    mine = _trigrams(word)
    inner = sorted({word[start : start + 3] for start in range(len(word) - 2)})
    # few misspell the first letter
    begin, end = (word[0], chr(ord(word[0]) + 1)) if share >= _ALIKE else ("a", "{")
    rows = store.rows(
        database.NEAR.format(parts=" OR ".join(["instr(term, ?)"] * len(inner))),
        (begin, end, *inner),
    )
    alike = [
        (-2 * len(mine & theirs) / (len(mine) + len(theirs)), -n, term)
        for term, n, theirs in ((term, n, _trigrams(term)) for term, n in rows)
    ]
    if not alike or -min(alike)[0] < share:
        return None
    stem = min(alike)[2]
    for texts in store.rows(database.HOLDING, (_quoted(stem),)):  # to name it as it is written
        written: list[str] = re.findall(rf"\b{stem[:-1]}\w*", folded(" ".join(texts)))
        return min(written, key=len, default=stem)
    return None


def _trigrams(word: str) -> set[str]:
    padded = f"  {word} "
    return {padded[start : start + 3] for start in range(len(padded) - 2)}


def holds(text: str, word: str) -> bool:
    """Whether a folded text holds a folded word as a whole word."""
    return word in text and re.search(rf"\b{word}\b", text) is not None


def folded(text: str) -> str:
    """The text in lower case and without accents, as in the full-text index."""
    if text.isascii():
        return text.lower()
    return _ACCENTS.sub("", unicodedata.normalize("NFKD", text.lower()))


def _hits(store: Store, word: str) -> int:
    """The number of things that hold a word, counted only up to the limit for common words."""
    return int(store.rows(database.HITS, (_quoted(word), COMMON + 1))[0][0])


def _quoted(word: str, place: str = "") -> str:
    """A word quoted for a full-text query, in one of the columns if it is named."""
    return (f"{place} : " if place else "") + '"' + word.replace('"', '""') + '"'
