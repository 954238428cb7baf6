"""Recall: finds and ranks the memories that answer a question. Ranks are computed on demand; reading changes none."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from koderz_tracker.memory import sql
from koderz_tracker.memory.database import indexed
from koderz_tracker.memory.memories import Memory, as_memory
from koderz_tracker.memory.store import Filter, Store

Ranking = Literal["full", "newest"]

COMMON = 2000  # a word that more memories hold than this says little, and ranking all of them takes long
_FEW = 5  # memories: below so many, a word that all of them hold may still tell something
_CANDIDATES = 200  # the most relevant memories, whose rank is then worked out
_NEWEST = 500  # of those with common words only
_WORDS = 24  # of a question; more make it no clearer
_HALF_LIFE = {"short_term": 14.0, "long_term": 180.0, "episodic": 180.0}  # days
_DECAYED = 0.1  # a salience below this, after decay, counts as faded
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
_TITLE, _TAGS, _CONTENT = 4.0, 2.0, 1.0  # what a word is worth by where it stands


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A memory found by recall, with its score."""

    memory: Memory
    score: float  # relevance × salience × decay, 0..1
    ranking: Ranking  # "newest": only the newest memories with these very common words were ranked

    def as_dict(self) -> dict[str, Any]:
        return {**self.memory.as_dict(), "score": round(self.score, 4), "ranking": self.ranking}


def search(store: Store, query: str, wanted: Filter, *, limit: int, include_decayed: bool = True) -> list[SearchHit]:
    """The memories that answer a query best, by full text over title, tags and the first 8,192 characters.

    A memory has to hold one of the query's telling words, see `_telling`; a query that has none is about its common
    ones. In two stages where words are very common: those only weigh among what the rarer words find; where a
    query has none but common words, the newest memories that hold all of them are ranked, and `ranking` says so.
    Memories too new for full text, which it can't be told of while nobody may write, are looked through one by one.
    """
    words = words_of(query)
    if not words:
        return []
    found, ranking = (_among_tagged if wanted.tags else _among_all)(store, words, wanted)
    return ranked(found, limit, ranking, include_decayed=include_decayed)


def ranked(
    found: Iterable[tuple[Memory, float]], limit: int, ranking: Ranking = "full", *, include_decayed: bool = True
) -> list[SearchHit]:
    """Memories in order of relevance (0..1), salience and age, the best first."""
    today = datetime.now()
    scored = [
        SearchHit(memory, relevance * (0.4 + 0.6 * faded), ranking)
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
    """The distinct words of a query, folded and split as by the full-text index."""
    return list(dict.fromkeys(re.findall(r"\w+", folded(text))))[:_WORDS]


def _among_all(store: Store, words: Sequence[str], wanted: Filter) -> tuple[list[tuple[Memory, float]], Ranking]:
    store.index_newest()
    with store.snapshot():
        hits = {word: _hits(store, word) for word in words}
        telling = _telling(hits, store.last_id())
        found, ranking = _by_text(store, hits, telling, wanted)
        return [*found, *_holding(_weighed(store.unindexed(wanted), words), words, telling)], ranking


def _telling(hits: Mapping[str, int], memories: int) -> list[str]:
    """The informative words of a query: no stop words, and none that more than half of all memories hold."""
    common = min(COMMON, max(_FEW, memories // 2))
    return [word for word, found in hits.items() if word not in _STOP_WORDS and found <= common]


def _by_text(
    store: Store, hits: Mapping[str, int], telling: Sequence[str], wanted: Filter
) -> tuple[list[tuple[Memory, float]], Ranking]:
    known = [word for word, found in hits.items() if found]
    rare = [word for word in known if (word in telling if telling else hits[word] <= COMMON)]
    if not known or (telling and not rare):
        return [], "full"
    if not rare:
        return _among_newest(store, known, wanted), "newest"
    conditions, values = wanted.conditions()
    statement = sql.RELEVANT.format(filters=conditions)
    rows = store.rows(statement, (" OR ".join(map(_quoted, rare)), *values, _CANDIDATES))
    best = max((-row[-1] for row in rows), default=1.0) or 1.0
    common = [word for word in known if word not in rare]
    return [(memory := as_memory(row), _mixed(memory, -row[-1] / best, common, len(known))) for row in rows], "full"


def _mixed(memory: Memory, relevance: float, common: Sequence[str], words: int) -> float:
    """Relevance by the rare words, raised for each common word that the memory holds too."""
    if not common:
        return relevance
    return (relevance * (words - len(common)) + _held(memory, common) * len(common)) / words


def _among_newest(store: Store, words: Sequence[str], wanted: Filter) -> list[tuple[Memory, float]]:
    conditions, values = wanted.conditions()
    statement = sql.NEWEST_HITS.format(filters=conditions)
    rows = store.rows(statement, (" AND ".join(map(_quoted, words)), _NEWEST, *values))
    return [(memory, _held(memory, words)) for memory in map(as_memory, rows)]


def _among_tagged(store: Store, words: Sequence[str], wanted: Filter) -> tuple[list[tuple[Memory, float]], Ranking]:
    tagged = store.select(wanted, limit=COMMON + 1, newest_first=True)
    weighed = _weighed(tagged[:COMMON], words)
    hits = Counter(word for _, weights in weighed for word in weights)
    found = _holding(weighed, words, _telling({word: hits[word] for word in words}, len(weighed)))
    return found, "newest" if len(tagged) > COMMON else "full"


def _holding(
    weighed: Iterable[tuple[Memory, Mapping[str, float]]], words: Sequence[str], telling: Sequence[str]
) -> list[tuple[Memory, float]]:
    """The memories that hold an informative word (or any, if no word is one), with their share of all words."""
    return [
        (memory, sum(weights.values()) / len(words))
        for memory, weights in weighed
        if any(word in weights for word in telling or words)
    ]


def _weighed(memories: Iterable[Memory], words: Sequence[str]) -> list[tuple[Memory, dict[str, float]]]:
    return [(memory, _weights(memory, words)) for memory in memories]


def _held(memory: Memory, words: Sequence[str]) -> float:
    """The weighted share of the words that a memory holds, 0..1."""
    return sum(_weights(memory, words).values()) / len(words)


def _weights(memory: Memory, words: Sequence[str]) -> dict[str, float]:
    """The weight of each word that a memory holds, 0..1: most for its title, less for tags, least for its content."""
    places = (
        (_TITLE, folded(memory.title)),
        (_TAGS, folded(" ".join(memory.tags))),
        (_CONTENT, folded(indexed(memory.content))),
    )
    most = sum(weight for weight, _ in places)
    weights = {word: sum(weight for weight, text in places if holds(text, word)) / most for word in words}
    return {word: weight for word, weight in weights.items() if weight}


def holds(text: str, word: str) -> bool:
    """Whether a folded text holds a folded word as a whole word."""
    return word in text and re.search(rf"\b{word}\b", text) is not None


def folded(text: str) -> str:
    """The text in lower case and without accents, as in the full-text index."""
    if text.isascii():
        return text.lower()
    return _ACCENTS.sub("", unicodedata.normalize("NFKD", text.lower()))


def _hits(store: Store, word: str) -> int:
    """The number of memories that hold a word, counted only up to the limit for common words."""
    return int(store.rows(sql.HITS, (_quoted(word), COMMON + 1))[0][0])


def _quoted(word: str) -> str:
    """A word quoted for a full-text query."""
    return '"' + word.replace('"', '""') + '"'
