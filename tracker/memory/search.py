"""Recall: which memories answer a question, and in which order. Computed when asked; reading changes no rank."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from tracker.memory import sql
from tracker.memory.database import indexed
from tracker.memory.memories import Memory
from tracker.memory.rows import as_memory
from tracker.memory.store import Filter, Store

Ranking = Literal["full", "newest"]

COMMON = 2000  # a word that more memories hold than this says little, and ranking all of them takes long
_CANDIDATES = 200  # the most relevant memories, whose rank is then worked out
_NEWEST = 500  # of those with common words only
_WORDS = 24  # of a question; more make it no clearer
_HALF_LIFE = {"short_term": 14.0, "long_term": 180.0, "episodic": 180.0}  # days
_DECAYED = 0.1  # a salience below this, after decay, counts as faded
_ACCENTS = re.compile("[\u0300-\u036f]+")  # once a letter is taken apart from them
_TITLE, _TAGS, _CONTENT = 4.0, 2.0, 1.0  # what a word is worth by where it stands


@dataclass(frozen=True, slots=True)
class Found:
    """A memory that was recalled."""

    memory: Memory
    score: float  # relevance × salience × decay, 0..1
    ranking: Ranking  # "newest": only the newest memories with these very common words were ranked

    def as_dict(self) -> dict[str, Any]:
        return {**self.memory.as_dict(), "score": round(self.score, 4), "ranking": self.ranking}


def search(store: Store, query: str, wanted: Filter, *, limit: int, include_decayed: bool = True) -> list[Found]:
    """The memories that answer a query best, by full text over title, tags and the first 8,192 characters.

    In two stages where words are very common: those only weigh among what the rarer words find; where a
    query has none but common words, the newest memories that hold all of them are ranked, and `ranking` says so.
    Memories too new for full text, which it can't be told of while nobody may write, are looked through one by one.
    """
    words = words_of(query)
    if not words:
        return []
    if wanted.tags:
        found, ranking = _among_tagged(store, words, wanted)
    else:
        found, ranking = _among_all(store, words, wanted)
    return ranked(found, limit, ranking, include_decayed=include_decayed)


def ranked(
    found: Iterable[tuple[Memory, float]], limit: int, ranking: Ranking = "full", *, include_decayed: bool = True
) -> list[Found]:
    """Memories with their relevance (0..1), the best first."""
    today = datetime.now()
    scored = [
        Found(memory, relevance * (0.4 + 0.6 * faded), ranking)
        for memory, relevance in found
        if (faded := decayed_salience(memory, today)) >= _DECAYED or include_decayed
    ]
    return sorted(scored, key=lambda each: (-each.score, -each.memory.id))[:limit]


def decayed_salience(memory: Memory, today: datetime) -> float:
    """The salience (0..1), halved every 14 days (short-term) or 180; protected memories keep theirs."""
    if memory.is_protected:
        return memory.salience
    days = max(0.0, (today - datetime.fromisoformat(memory.updated_at)).total_seconds() / 86400)
    return memory.salience * float(0.5 ** (days / _HALF_LIFE.get(memory.type, 180.0)))


def words_of(text: str) -> list[str]:
    """The distinct words of a query, folded, as full text tells words apart."""
    return list(dict.fromkeys(re.findall(r"\w+", folded(text))))[:_WORDS]


def _among_all(store: Store, words: Sequence[str], wanted: Filter) -> tuple[list[tuple[Memory, float]], Ranking]:
    store.index_newest()
    with store.snapshot():
        found, ranking = _by_text(store, words, wanted)
        return [*found, *_holding(store.unindexed(wanted), words)], ranking


def _by_text(store: Store, words: Sequence[str], wanted: Filter) -> tuple[list[tuple[Memory, float]], Ranking]:
    known = {word: hits for word in words if (hits := _hits(store, word))}
    rare = [word for word, hits in known.items() if hits <= COMMON]
    if not known:
        return [], "full"
    if not rare:
        return _among_newest(store, list(known), wanted), "newest"
    conditions, values = wanted.conditions()
    statement = sql.RELEVANT.format(filters=conditions)
    rows = store.rows(statement, (" OR ".join(map(_quoted, rare)), *values, _CANDIDATES))
    best = max((-row[-1] for row in rows), default=1.0) or 1.0
    common = [word for word in known if word not in rare]
    return [(memory := as_memory(row), _mixed(memory, -row[-1] / best, common, len(known))) for row in rows], "full"


def _mixed(memory: Memory, relevance: float, common: Sequence[str], words: int) -> float:
    """Relevance by the rare words, raised by those of the common ones that the memory holds too."""
    if not common:
        return relevance
    return (relevance * (words - len(common)) + _held(memory, common) * len(common)) / words


def _among_newest(store: Store, words: Sequence[str], wanted: Filter) -> list[tuple[Memory, float]]:
    rows = store.rows(sql.NEWEST_HITS, (" AND ".join(map(_quoted, words)), _NEWEST))
    return [(memory, _held(memory, words)) for memory in map(as_memory, rows) if _fits(memory, wanted)]


def _among_tagged(store: Store, words: Sequence[str], wanted: Filter) -> tuple[list[tuple[Memory, float]], Ranking]:
    tagged = store.select(wanted, limit=COMMON + 1, newest_first=True)
    return _holding(tagged[:COMMON], words), "newest" if len(tagged) > COMMON else "full"


def _holding(memories: Iterable[Memory], words: Sequence[str]) -> list[tuple[Memory, float]]:
    return [(memory, held) for memory in memories if (held := _held(memory, words)) > 0]


def _held(memory: Memory, words: Sequence[str]) -> float:
    """How much of the words a memory holds, 0..1: in its title most, then its tags, then its content."""
    places = (
        (_TITLE, folded(memory.title)),
        (_TAGS, folded(" ".join(memory.tags))),
        (_CONTENT, folded(indexed(memory.content))),
    )
    most = sum(weight for weight, _ in places)
    held = sum(weight for word in words for weight, text in places if holds(text, word))
    return held / (most * len(words))


def holds(text: str, word: str) -> bool:
    """Whether a folded text holds a folded word, and not only as a part of another."""
    return word in text and re.search(rf"\b{word}\b", text) is not None


def folded(text: str) -> str:
    """The text in lower case and without accents, as full text sees it."""
    if text.isascii():
        return text.lower()
    return _ACCENTS.sub("", unicodedata.normalize("NFKD", text.lower()))


def _fits(memory: Memory, wanted: Filter) -> bool:
    return (
        wanted.category in (None, memory.category)
        and wanted.type in (None, memory.type)
        and (wanted.project in (None, memory.project) or (wanted.or_no_project and memory.project is None))
        and (wanted.since or "") <= memory.created_at
    )


def _hits(store: Store, word: str) -> int:
    """How many memories hold a word, counted as far as it matters."""
    return int(store.rows(sql.HITS, (_quoted(word), COMMON + 1))[0][0])


def _quoted(word: str) -> str:
    """A word as full text takes it, whatever it means in its query language."""
    return '"' + word.replace('"', '""') + '"'
