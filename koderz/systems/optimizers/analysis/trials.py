"""Searches for better prompts, folded from the journal's lines as they come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import fmean
from typing import Any

from koderz.plans.ids import planned_ids
from koderz.systems.optimizers.datasets import BASELINE
from koderz.types import Message
from koderz_tracker import records
from koderz_tracker.records import Record

SEARCHING = ("item", "judge", "propose", "analyse")
"""The purposes of the calls before the test."""


@dataclass(frozen=True, slots=True)
class PlannedTrial:
    """An experiment of a plan: a dataset, an optimizer, a model and a seed."""

    experiment_id: str
    dataset: str
    arm: str
    optimizer: str
    model: str
    seed: int | None  # None: that of the initial prompt alone, which has none

    @property
    def id(self) -> str:
        """The original's id of a task, with the seed behind it."""
        return "_".join(
            (
                self.dataset,
                self.optimizer,
                self.model,
                *([] if self.seed is None else [str(self.seed)]),
            )
        )

    @property
    def log(self) -> str:
        """The name of its log."""
        return f"optimization_{self.id.replace('/', '_')}.log"


def cells_of(plan: records.Plan) -> Iterator[PlannedTrial]:
    """The experiments of a plan, in its order, the initial prompt's first."""
    first = int(plan.config.get("seed") or 0)
    found = []
    titles = {arm.name: arm.title for arm in plan.arms}
    for experiment_id, task, arm, sample in planned_ids(plan):
        optimizer = titles[arm]
        seed = None if optimizer == BASELINE else first + sample
        found.append(PlannedTrial(experiment_id, task, arm, optimizer, plan.model_of(arm), seed))
    order = {task: number for number, task in enumerate(plan.tasks)}
    yield from sorted(found, key=lambda cell: (order[cell.dataset], cell.seed is not None))


def differences(plan: records.Plan) -> dict[str, str]:
    """The differences of optimizers from the originals of their names; empty for runs before these were recorded."""
    return {name: about.differs for name, about in plan.basis.solvers.items() if about.differs}


@dataclass
class Trial:
    """One search, as far as its lines tell. Repeated lines change nothing."""

    begun: float | None = None  # seconds since 1970
    ended: float | None = None
    # by digest, as they were first scored
    candidates: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    # the messages that tested one, examples and all
    shown: dict[str, Sequence[Message]] = field(default_factory=dict)
    # by split and digest
    scores: dict[tuple[str, str], dict[str, records.Grade]] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)  # by purpose
    costs: Counter[str] = field(default_factory=Counter)
    search: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    outcome: records.Experiment | records.Fault | None = None
    page: str = ""  # where it is to be seen, if it ran elsewhere
    notes: list[tuple[float, str]] = field(default_factory=list)  # what happened, and when
    _seen: set[str] = field(default_factory=set)
    # of what wasn't kept
    _means: dict[tuple[str, str], tuple[float, int]] = field(default_factory=dict)

    def fold(self, line: Record) -> bool:
        """Takes in a line; returns whether there is news to show."""
        key = getattr(line, "key", "") or f"{line.kind} {line.time}"
        if key in self._seen:
            return False
        self._seen.add(key)
        moment = seconds_of(line)
        self.begun = moment if self.begun is None else min(self.begun, moment)
        match line:
            case records.Call():
                self.calls[line.purpose] += 1
                self.costs[line.purpose] += line.cost  # type: ignore[assignment]
                self._keep_shown(line)
                return False
            case records.Grade():
                place = line.labels.get("split", ""), line.labels.get("candidate", "")
                self.scores.setdefault(place, {})[line.item] = line
                return False
            case records.Once():
                return self._fold_once(line, moment)
            case records.Submitted():
                self.page = line.url
                return False
            case records.Experiment() | records.Fault():
                self.outcome, self.ended = line, moment
                self.notes.append((moment, _ending(line)))
                return True
        return False

    def take_up(self, line: records.Resumed) -> None:
        """Forgets a fault before a session that retries it."""
        if (
            line.how == "retry"
            and isinstance(self.outcome, records.Fault)
            and self.outcome.time < line.time
        ):
            self.outcome, self.ended = None, None

    def mean(self, split: str, digest: str) -> tuple[float, int] | None:
        """The mean score of a candidate on the judged items of a split, and their number."""
        scores = [grade.score for grade in self.judged(split, digest).values()]
        return (fmean(scores), len(scores)) if scores else self._means.get((split, digest))

    def judged(self, split: str, digest: str) -> dict[str, records.Grade]:
        """The grades by item, except those that no judge could read."""
        found = self.scores.get((split, digest), {})
        return {item: grade for item, grade in found.items() if "fault" not in grade.labels}

    def best_so_far(self) -> Iterator[tuple[int, float]]:
        """Metric calls, and the best mean by then of a candidate scored on the whole minibatch.

        Each time that a better one is found, and at the end.
        """
        least, best = int(self.result.get("minibatch_n") or 0), 0.0
        calls = 0
        for candidate in sorted(
            self.candidates.values(), key=lambda each: (each["metric_calls"], each["number"])
        ):
            found = self.mean("validation", str(candidate["digest"]))
            if found and found[1] >= least and (not calls or found[0] > best):
                calls, best = candidate["metric_calls"] + least, found[0]
                yield calls, best
        if calls:
            yield max(calls, int(self.result["metric_calls"])), best

    @property
    def prompt(self) -> list[Message]:
        """The final messages of the search, with examples, without the format line; empty before the end."""
        winner = self.candidates.get(str(self.result.get("winner", ""))) or {}
        template: list[Message] = list(winner.get("messages") or ())
        examples = list(self.shown.get("test", ()))[1:-1] if winner.get("demos") else []
        return [*template[:1], *examples, *template[-1:]] if examples else template

    def _fold_once(self, line: records.Once, moment: float) -> bool:
        value = line.value if isinstance(line.value, dict) else {}
        if line.name.startswith("candidate/"):
            self.candidates[str(value.get("digest"))] = value
            self.notes.append((moment, f"candidate {value.get('digest')}"))
        elif line.name == "search":
            self.search = value
            self.notes.append((moment, "search"))
        elif line.name == "result":
            self.result = value
            self._let_go()
            self.notes.append((moment, "result"))
        else:
            return False
        return True

    def _let_go(self) -> None:
        """Keeps only the means of candidates that were neither first nor best, as thousands of grades are large."""
        needed = (self.result.get("winner"), self.result.get("initial"))
        for place in [place for place in self.scores if place[1] not in needed]:
            if found := self.mean(*place):
                self._means[place] = found
            del self.scores[place]

    def _keep_shown(self, call: records.Call) -> None:
        if call.purpose == "test" and not self.shown:
            self.shown["test"] = call.messages

    def lines(self) -> Iterator[str]:
        """The lines of the log: tried, scored and kept candidates, one after the other."""
        for moment, note in self.notes:
            at = datetime.fromtimestamp(moment).strftime("%H:%M:%S")
            kind, _, digest = note.partition(" ")
            if kind == "candidate" and digest in self.candidates:
                yield from (f"{at}  {text}" for text in self._candidate_lines(digest))
            elif note == "search":
                yield (
                    f"{at}  the search is over ({self.search.get('finish_reason') or 'nothing to search for'}): "
                    f"{self.search.get('metric_calls')} metric calls, {self.search.get('reasoning_calls')} of the "
                    f"reasoning model, {self.search.get('refused')} proposals refused"
                )
            elif note == "result":
                yield f"{at}  {self._winner_line()}"
            else:
                yield f"{at}  {note}"

    def _candidate_lines(self, digest: str) -> Iterator[str]:
        about = self.candidates[digest]
        number = about.get("number")
        which = "the initial prompt" if number == 0 else f"candidate {number}"
        examples = f", {len(about['demos'])} examples" if about.get("demos") else ""
        yield f"{which} ({digest[:8]}){examples}, after {about.get('metric_calls')} metric calls"
        messages = about.get("messages") or [{}]
        yield f"  {plain(str(messages[0].get('content', '')))}"
        means = {split: self.mean(split, digest) for split in ("train", "validation", "test")}
        scored = [
            f"{split} {found[0]:.3f} on {found[1]}" for split, found in means.items() if found
        ]
        if scored:
            yield f"  scored {', '.join(scored)}"

    def _winner_line(self) -> str:
        winner = str(self.result.get("winner", ""))
        validation = (self.result.get("validation") or {}).get(winner)
        promised = "" if validation is None else f", {validation:.3f} on all of validation"
        tested = self.mean("test", winner)
        found = f", {tested[0]:.3f} on {tested[1]} test items" if tested else ""
        name = (
            "the initial prompt" if self.result.get("kept_initial") else f"candidate {winner[:8]}"
        )
        return f"kept {name}{promised}{found}"


def plain(text: str) -> str:
    """A text on one line, without control characters."""
    return "".join(each if each.isprintable() else " " for each in " ".join(text.split()))


def _ending(outcome: records.Experiment | records.Fault) -> str:
    if isinstance(outcome, records.Fault):
        return f"failed: {plain(outcome.reason)}"
    return f"ended: {outcome.verdict}, ${outcome.cost:.4f}{f'; {plain(outcome.note)}' if outcome.note else ''}"


def seconds_of(line: records.Line) -> float:
    """The time at which the line's action was requested, or else written, since 1970."""
    waited = line.latency if isinstance(line, records.Call) else 0.0
    return (datetime.fromisoformat(line.time) - timedelta(seconds=waited)).timestamp()
