"""Claims: memories of a sentence with its evidence, and the events by which it came to stand, move or fall.

Nothing of it is ever changed: a claim and each event is a memory of its own, by a key that two processes which find
the same out make alike. What a claim's evidence says is computed by whoever checks it, see `koderz.analysis.claims`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Literal

import msgspec
import orjson

from koderz_tracker.memory.memories import InvalidMemory, Memory
from koderz_tracker.memory.store import Filter, Store

State = Literal["stands", "moved", "fallen", "can't be checked"]
TAG, EVENT, PREFIX = "claim", "claim_event", "claim:"


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One run that a claim rests on."""

    run: str
    # of what was counted: experiments, verdicts and scores; empty: the store has nothing of it
    digest: str
    judge: str = ""  # a digest of the judge that is a model
    dataset: str = ""  # the digest of the tasks


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome that evidence gives: a rate, or a difference with its verdict."""

    verdict: str  # rate, better, worse or none
    value: float  # in the measure's unit; rates and their differences in per cent and points
    interval: tuple[float, float]
    interval_method: str
    n: int  # experiments of a rate, tasks of a difference
    text: str


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A sentence, what it rests on, and what was asked of that."""

    sentence: str
    evidence: list[Evidence]
    outcome: Outcome
    question: dict[str, Any]  # by which the outcome is computed again
    made_by: str
    supersedes: str | None = None  # the key of a claim
    contradicts: str | None = None

    @property
    def key(self) -> str:
        """A key of what is claimed; how it stands to other claims and who made it make no other claim of it."""
        told = orjson.dumps(
            [self.sentence, self.question, msgspec.to_builtins([self.evidence, self.outcome])]
        )
        return PREFIX + hashlib.sha256(told).hexdigest()[:20]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a claim's standing."""

    state: State
    reason: str = ""
    evidence: list[Evidence]
    outcome: Outcome | None = None  # None: it can't be computed
    found_by: str = ""  # the command, if it wasn't the evidence itself


def as_claim(memory: Memory) -> Claim:
    """The claim that a memory holds. Raises InvalidMemory if that is damaged."""
    found: Claim = _read(memory, "claim", Claim)
    return found


def _read(memory: Memory, name: str, kind: type[Any]) -> Any:
    try:
        return msgspec.convert(memory.metadata.get(name), kind)
    except msgspec.ValidationError as error:
        raise InvalidMemory(f"memory {memory.id} is no {name}: {error}") from None


def claims_in(store: Store, runs: Iterable[str] | None = None) -> list[Memory]:
    """The claims that rest on one of these runs, each once, or all, in the order in which they were made."""
    tags = [[TAG]] if runs is None else [[TAG, f"evidence:{run}"] for run in dict.fromkeys(runs)]
    found = {
        memory.id: memory
        for each in tags
        for memory in store.select(Filter(tags=each))
        if is_claim(memory)
    }
    return [found[id] for id in sorted(found)]


def is_claim(memory: Memory) -> bool:
    """Whether a memory is a claim, and nothing that somebody gave its tag."""
    if not str(memory.key).startswith(PREFIX) or TAG not in memory.tags:
        return False
    with suppress(InvalidMemory):
        as_claim(memory)
        return True
    return False


def has_claims(path: Path, runs: Sequence[str] | None) -> bool:
    """Whether the store at `path` has a claim on one of these runs, or any. Raises StoreDown."""
    with Store(path, create=False) as store:
        return bool(claims_in(store, runs))


def events_of(store: Store, key: str) -> list[Event]:
    """The events of a claim, oldest first."""
    found = list[Event]()
    for number in count(1):
        if (memory := store.get(f"{key}#{number}")) is None:
            return found
        found.append(_read(memory, "claim_event", Event))
    raise AssertionError("numbers don't end")


def told(store: Store, memory: Memory) -> dict[str, Any]:
    """A claim as it stands, with its history, and the claims that supersede or contradict it."""
    claim, events = as_claim(memory), events_of(store, str(memory.key))
    related = {
        name: [each.id for each in store.select(Filter(tags=(TAG, f"{relation}:{memory.key}")))]
        for name, relation in (("superseded_by", "supersedes"), ("contradicted_by", "contradicts"))
    }
    own = {
        name: getattr(claim, name) for name in ("sentence", "made_by", "supersedes", "contradicts")
    }
    return {
        "id": memory.id,
        "key": memory.key,
        **own,
        **related,
        "made_at": memory.created_at,
        "state": events[-1].state if events else "stands",
        "reason": events[-1].reason if events else "",
        "outcome": msgspec.to_builtins((events[-1].outcome if events else None) or claim.outcome),
        "runs": [each.run for each in claim.evidence],
        "history": [{"state": each.state, "reason": each.reason} for each in events],
    }


def marked(
    store: Store, memory: Memory, shown: Mapping[str, Any], *, whole: bool = False
) -> dict[str, Any]:
    """A memory as it is shown; a claim with how it stands, before its title where it doesn't any more."""
    if not is_claim(memory):
        return dict(shown)
    try:
        found = told(store, memory)
    except InvalidMemory as error:  # an import may be anybody's
        return {**shown, "claim": {"state": "can't be checked", "reason": str(error)}}
    mark = {"fallen": "[FALLEN] ", "can't be checked": "[CAN'T BE CHECKED] "}.get(
        found["state"], ""
    )
    mark += "[SUPERSEDED] " if found["superseded_by"] else ""
    brief = {name: found[name] for name in ("state", "reason", "superseded_by", "contradicted_by")}
    return {**shown, "title": f"{mark}{shown['title']}", "claim": found if whole else brief}
