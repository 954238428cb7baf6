"""Claims are made and checked: what their evidence says is computed from memories, as `compare` does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import orjson

from koderz.analysis.brief import headline
from koderz.analysis.measures import interval_text, measure_named, shown, usual_measure
from koderz.analysis.memories import Chosen, recalled_runs, run_named
from koderz.analysis.pairs import sides_of
from koderz.analysis.questions import Answer, compared
from koderz.analysis.runs import Run
from koderz.analysis.sequential import sentence as decision_in_words
from koderz.errors import KoderzError
from koderz_tracker.memory.claims import (
    EVENT,
    TAG,
    Claim,
    Event,
    Evidence,
    Outcome,
    as_claim,
    claims_in,
    events_of,
    is_claim,
    told,
)
from koderz_tracker.memory.memories import Draft, InvalidMemory, Memory
from koderz_tracker.memory.store import Store
from koderz_tracker.outline import each_of

_OF_JUDGES = ("roles", "role_options", "scorer", "rubric")  # settings by which a model judges
DECIDED = "koderz decide"
_TRIES = 5  # against other processes that check the same claim


def claim(
    store: Store,
    sentence: str,
    runs: Sequence[str],
    *,
    arm: str | None = None,
    measure: str | None = None,
    is_difference: bool | None = None,
    made_by: str = "koderz memory claim",
    supersedes: str | int | None = None,
    contradicts: str | int | None = None,
) -> Answer:
    """Stores a claim about one run or two: its rate in an arm, or how its two arms, or both runs, differ.

    Raises KoderzError where the evidence gives no interval, and InvalidMemory for relations to what is no claim.
    """
    if not sentence.strip() or not 1 <= len(runs) <= 2:
        raise KoderzError("a claim is a sentence about one run or two; name them with --run")
    names = [run_named(store, run) for run in runs]
    found = [_run(store, name) for name in names]
    if missing := [name for name, run in zip(names, found, strict=True) if run is None]:
        raise KoderzError(
            f"the memory store has nothing of {missing[0]}; bring it there: koderz sync --sink memory"
        )
    if is_difference is None:
        is_difference = len(names) == 2 or (
            arm is None and found[0] is not None and len(found[0].arms) > 1
        )
    question = {"runs": names, "arm": arm, "measure": measure, "is_difference": is_difference}
    new = Claim(
        sentence=sentence.strip(),
        evidence=[_evidence(run, name, arm) for run, name in zip(found, names, strict=True)],
        outcome=_outcome(store, question),
        question=question,
        made_by=made_by,
        supersedes=None if supersedes is None else _key_of(store, supersedes),
        contradicts=None if contradicts is None else _key_of(store, contradicts),
    )
    return _listed([told(store, _add(store, new))], "The claim is stored.")


def _add(store: Store, claim: Claim) -> Memory:
    """Stores a claim; returns its memory. Raises InvalidMemory where it names itself or a claim that isn't there."""
    relations = {
        name: key for name in ("supersedes", "contradicts") if (key := getattr(claim, name))
    }
    for name, key in relations.items():
        if claim.key in _line(store, key):
            raise InvalidMemory(
                f"{name}: the claim {key} comes of this very claim, so that they would go in a circle"
            )
    known = store.get(claim.key)
    if known and (as_claim(known).supersedes, as_claim(known).contradicts) != (
        claim.supersedes,
        claim.contradicts,
    ):
        raise InvalidMemory(
            f"this was claimed before, as memory {known.id}; claims are never changed"
        )
    runs = [f"evidence:{each.run}" for each in claim.evidence]
    draft = Draft(
        key=claim.key,
        title=claim.sentence,
        content=f"{claim.sentence}\n\n{claim.outcome.text}\n\nEvidence: {', '.join(e.run for e in claim.evidence)}",
        category="learning",
        importance="critical",  # never forgotten, merged or ranked lower with age
        tags=[TAG, *runs, *(f"{name}:{key}" for name, key in relations.items())],
        metadata={"claim": msgspec.to_builtins(claim)},
    )
    store.add_new([draft])
    memory = store.get(claim.key)
    assert memory is not None, "it was stored a moment ago"
    return memory


def _key_of(store: Store, which: str | int) -> str:
    """The key of the claim with this number or key. Raises InvalidMemory if that is no claim."""
    text = str(which)
    # SQLite holds no larger number
    memory = store.get(int(text) if text.isdecimal() and len(text) < 19 else text)
    if memory is None or memory.key is None or not is_claim(memory):
        raise InvalidMemory(f"{which} is no claim; list them with: koderz memory claims")
    return memory.key


def _line(store: Store, key: str) -> Iterator[str]:
    """A claim and all that it supersedes or contradicts, directly or not."""
    waiting, seen = [key], set[str]()
    while waiting:
        if (at := waiting.pop()) not in seen and (memory := store.get(at)):
            seen.add(at)
            yield at
            claim = as_claim(memory)
            waiting += filter(None, (claim.supersedes, claim.contradicts))


def claims(store: Store, *, fallen: bool = False, limit: int = 50) -> Answer:
    """All claims as they stand by the evidence of now, or those that have fallen, newest first."""
    recheck(store)
    found = [told(store, memory) for memory in reversed(claims_in(store))]
    kept = [each for each in found if each["state"] == "fallen" or not fallen]
    number = sum(each["state"] == "fallen" for each in found)
    return _listed(kept[:limit], f"Claims: {len(found)}, of which fallen: {number}.")


def _listed(found: Sequence[Mapping[str, Any]], sentence: str) -> Answer:
    rows = [{**each, "says": each["outcome"]["text"]} for each in found]
    heads = {
        "": "id",
        "State": "state",
        "Claim": "sentence",
        "The evidence says": "says",
        "Why": "reason",
    }
    return Answer(sentence=sentence, rows=rows, columns={**heads, "Superseded by": "superseded_by"})


def recheck(
    store: Store, runs: Sequence[str] | None = None, findings: Sequence[str] | None = None
) -> list[tuple[Memory, Event]]:
    """Checks the claims that rest on these runs, or all; returns those that stand otherwise now, with the event.

    `findings`: what `koderz verify` found wrong with the run, by which they fall; None: nothing was verified.
    """
    changed = [(memory, _checked(store, memory, findings)) for memory in claims_in(store, runs)]
    return [(memory, event) for memory, event in changed if event]


def lines_of(changed: Sequence[tuple[Memory, Event]]) -> Iterator[str]:
    """A line on each change."""
    for memory, event in changed:
        word = {"stands": "stands", "moved": "has moved", "fallen": "HAS FALLEN"}.get(
            event.state, event.state
        )
        yield f"claim {memory.id} {word}: {memory.title} ({event.reason})"


def lines_after(
    path: Path,
    runs: Sequence[str] | None,
    decision: Mapping[str, Any] | None = None,
    findings: Sequence[str] | None = None,
) -> list[str]:
    """Lines on the claims in the store at `path` that stand otherwise, since these runs have changed.

    The final `decision` of a run between two arms becomes a claim; `findings` as in `recheck`. Nothing here fails a
    command whose run is done.
    """
    try:
        with Store(path, create=False) as store:
            changed = [*lines_of(recheck(store, runs, findings))]
            final = [each for each in each_of(decision) if each["outcome"] != "money"]
            known = [as_claim(memory).made_by for memory in claims_in(store, runs)]
            if runs and len(final) == 1 and DECIDED not in known and store.get(runs[0]):
                made = claim(
                    store,
                    decision_in_words(final[0], named=True),
                    runs,
                    is_difference=True,
                    made_by=DECIDED,
                )
                changed.append(f"claim {made.rows[0]['id']} is stored: {made.rows[0]['sentence']}")
            return changed
    except KoderzError as error:
        return [
            f"note: claims on {', '.join(runs or ['the runs'])} could not be made or checked: {error}"
        ]


def _checked(store: Store, memory: Memory, findings: Sequence[str] | None) -> Event | None:
    """The event that has come to a claim, stored; None if it stands as it did."""
    of = as_claim(memory)
    for _ in range(_TRIES):
        events = events_of(store, str(memory.key))
        last = (
            events[-1]
            if events
            else Event(state="stands", evidence=of.evidence, outcome=of.outcome)
        )
        evidence = [
            _evidence(_run(store, each.run), each.run, of.question["arm"]) for each in of.evidence
        ]
        if findings:
            reason = f"koderz verify finds: {'; '.join(findings[:3])}"
            event = Event(
                state="fallen",
                reason=reason,
                evidence=evidence,
                outcome=last.outcome,
                found_by="verify",
            )
        elif evidence == last.evidence and (last.found_by != "verify" or findings is None):
            # what verify found wrong is mended only by another verify, or other evidence
            return None
        else:
            event = _judged(store, of, evidence)
        if event == last:
            return None
        # If another process has stored an event of this number meanwhile, the claim is judged again.
        draft = Draft(
            key=f"{memory.key}#{len(events) + 1}",
            title=f"Claim {memory.id} {'has ' if event.state == 'fallen' else ''}{event.state}: {memory.title}",
            content=event.reason,
            category="learning",
            importance="critical",
            tags=[EVENT, event.state],
            metadata={"claim_event": msgspec.to_builtins(event)},
        )
        if store.add_new([draft]):
            return event
    return None  # the others have checked what there is


def _judged(store: Store, of: Claim, evidence: list[Evidence]) -> Event:
    """How a claim stands by this evidence."""
    pairs = list(zip(of.evidence, evidence, strict=True))
    if gone := [now.run for _, now in pairs if not now.digest]:
        reason = f"this store has no results of {' and '.join(gone)} any more"
        return Event(state="can't be checked", reason=reason, evidence=evidence)
    if evidence == of.evidence:
        return Event(
            state="stands",
            reason="its evidence is as it was",
            evidence=evidence,
            outcome=of.outcome,
        )
    if other := [now.run for then, now in pairs if then.judge != now.judge]:
        reason = f"the judge of {' and '.join(other)} is another, so it isn't what was claimed"
        return Event(state="fallen", reason=reason, evidence=evidence)
    if len({now.dataset for now in evidence}) > len({then.dataset for then in of.evidence}):
        reason = (
            "the runs are of other tasks than each other now, so they are not comparable any more"
        )
        return Event(state="fallen", reason=reason, evidence=evidence)
    try:
        now = _outcome(store, of.question)
    except KoderzError as error:
        return Event(
            state="fallen",
            reason=f"the evidence doesn't say it any more: {error}",
            evidence=evidence,
        )
    was, (low, high) = of.outcome, of.outcome.interval
    other_tasks = any(then.dataset != now.dataset for then, now in pairs)
    reason = f"was: {was.text}; is: {now.text}{'; the tasks have changed' if other_tasks else ''}"
    is_apart = now.verdict == "rate" and (now.interval[1] < low or now.interval[0] > high)
    is_within = now.n == was.n and low <= now.value <= high
    state: Any = "moved"
    if now.verdict != was.verdict or is_apart:
        state = "fallen"
    elif is_within:
        state = "stands"
    return Event(state=state, reason=reason, evidence=evidence, outcome=now)


def _outcome(store: Store, question: Mapping[str, Any]) -> Outcome:
    """The outcome that the evidence gives now. Raises KoderzError where that has no interval."""
    runs, arm, name = question["runs"], question["arm"], question["measure"]
    if question["is_difference"]:
        one, _ = compared(store, *runs, arm=arm, measure=name)
        if one.arms:
            raise KoderzError(
                f"the runs share the arms {', '.join(one.arms)}; name the one that is claimed of: --arm"
            )
        text, n = headline(one), one.pairs or one.a_compared.tasks + one.b_compared.tasks
        verdict = "none"
        if one.significant:
            verdict = "worse" if one.worse_by > 0 else "better"
        value, interval, method = one.difference, one.interval_holm, one.interval_holm_method
    else:
        run = _run(store, runs[0])
        sides = sides_of(run, arm) if run else []
        if not run or len(sides) != 1 or not sides[0].results:
            raise KoderzError(
                f"{runs[0]} has no results in one arm; name the arm that is claimed of: --arm"
            )
        side = sides[0]
        measure = measure_named(name or usual_measure([side.run]), [side.run])
        if (mean := side.mean(measure)) is None:
            raise KoderzError(f"{side.label} has no {measure.name}")
        scale = 100 if measure.two_valued else 1
        span = mean.interval and interval_text(mean.interval, measure)
        of = (
            f" ({side.figures.successes} of {mean.results})"
            if measure.two_valued
            else f" ({measure.name}, n = {mean.results})"
        )
        text = f"{side.label}: {shown(mean.mean, measure)}{of}, 95% interval {span}"
        interval = mean.interval and (scale * mean.interval[0], scale * mean.interval[1])
        value, method, n = scale * mean.mean, mean.interval_method, mean.results
        verdict = "rate"
    if value is None or interval is None:
        raise KoderzError(
            f"this evidence gives no interval ({method}), and without one there is no claim"
        )
    low, high = interval
    return Outcome(
        verdict=verdict,
        value=value,
        interval=(low, high),
        interval_method=method or "",
        n=n,
        text=text,
    )


def _run(store: Store, name: str) -> Run | None:
    """The run as the store has it now; None if it has nothing of it."""
    runs, _ = recalled_runs(store, Chosen(run=name, allow_simulated=True))
    return runs[0] if runs else None


def _evidence(run: Run | None, name: str, arm: str | None) -> Evidence:
    """A run as evidence, of all that was counted of it."""
    if run is None or not run.results:
        return Evidence(run=name, digest="")
    results = [
        result
        for side in sides_of(run, arm if arm in run.arms else None)
        for result in side.results
    ]
    rows = sorted(
        (r.arm, r.problem_id, r.sample, r.experiment_id, r.verdict, r.success, r.score or 0.0)
        for r in results
    )
    judge = {name: value for name, value in run.judge.items() if name != "caveats"}
    judged_by = [judge, [run.config.get(name) for name in _OF_JUDGES]]
    dataset = str(run.environment.get("dataset_digest") or "")
    return Evidence(
        run=name, digest=_digest(rows), judge=_digest(judged_by) if judge else "", dataset=dataset
    )


def _digest(value: Any) -> str:
    return hashlib.sha256(
        orjson.dumps(msgspec.to_builtins(value), option=orjson.OPT_SORT_KEYS)
    ).hexdigest()[:20]
