"""The result of a verification: its findings, what couldn't be done anew, and the fields that are taken on trust."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import msgspec

from koderz_tracker import records
from koderz_tracker.plain_text import REDACTED
from koderz_tracker.records import Record

Kind = Literal[
    "verdict",
    "program",
    "experiment",
    "plan",
    "figure",
    "digest",
    "prompt",
    "cost",
    "blob",
    "file",
    "order",
    "call",
    "decision",
]
"""What a finding is about."""

KINDS: tuple[str, ...] = get_args(Kind)
_MOST = 1000  # findings that are kept: a run that is wrong throughout needs no more
_LONGEST = 300  # characters of a value in one


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between what is on record and what follows from it."""

    kind: Kind
    where: str  # a file, an experiment with its task, or the path of a figure in the summary
    recorded: Any
    derived: Any


@dataclass(slots=True)
class Verification:
    """The result of verifying one run: counts, findings, and what was not done anew."""

    run_id: str | None
    judged: int = 0  # verdicts that were made anew
    same: int = 0
    # verdicts that came out both ways: experiments and attempts
    unsteady: list[str] = field(default_factory=list)
    unjudged: int = 0  # verdicts that couldn't be made anew here
    replayed: int = 0  # experiments whose solver ran again over the record
    prompts: int = 0  # calls whose messages were made anew
    figures: int = 0  # that were computed anew; 0: there is no summary
    findings: list[Difference] = field(default_factory=list)
    # findings by kind, those that aren't kept included
    found: Counter[str] = field(default_factory=Counter)
    not_derived: list[str] = field(default_factory=list)
    # experiments that no figure shows, counted: a reader has to know
    gaps: list[str] = field(default_factory=list)
    chosen: str = ""  # the tasks, where the run's author has chosen them one by one
    on_trust: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lines: dict[str, str] = field(default_factory=dict)  # for the screen: tasks, prompts
    seconds: float = 0.0

    @property
    def verified(self) -> bool:
        """Whether nothing differs. What couldn't be done anew is in `not_derived`, what is missing in `gaps`."""
        return not self.found

    @property
    def is_whole(self) -> bool:
        """Whether all of the run was done anew, and no experiment is missing from its figures."""
        return not self.not_derived and not self.gaps

    def differs(self, kind: Kind, where: str, recorded: Any, derived: Any) -> None:
        """Adds a finding."""
        self.found[kind] += 1
        if len(self.findings) < _MOST:
            self.findings.append(Difference(kind, where, _short(recorded), _short(derived)))

    def lacks(self, what: str) -> None:
        """Adds something that isn't done anew, once."""
        if what not in self.not_derived:
            self.not_derived.append(what)

    def trusts(self, what: str) -> None:
        """Adds something that no record can show, once."""
        if what not in self.on_trust:
            self.on_trust.append(what)

    def note(self, text: str) -> None:
        """Adds a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    def document(self) -> dict[str, Any]:
        """The verification as JSON."""
        return {
            "run_id": self.run_id,
            "verified": self.verified,
            "verdicts": {"judged": self.judged, "same": self.same, "unsteady": self.unsteady},
            "figures": self.figures,
            "replayed": self.replayed,
            "prompts": self.prompts,
            "findings": [asdict(finding) for finding in self.findings],
            "found": dict(self.found),
            "not_derived": self.not_derived,
            "gaps": self.gaps,
            "chosen": self.chosen,
            "on_trust": self.on_trust,
            "notes": self.notes,
        }


def is_redacted(value: Any) -> bool:
    """Whether a text in a record was replaced before it was published. Asked only of runs that say so of themselves."""
    return REDACTED.encode() in msgspec.json.encode(value)


def as_json(value: Any) -> Any:
    """A value as it is read back from a journal."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _short(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _LONGEST:
        return f"{value[:_LONGEST]}… ({len(value)} characters)"
    if isinstance(value, Sequence) and not isinstance(value, str) and len(str(value)) > _LONGEST:
        return _short(str(value))
    return value


# The fields that nothing on record shows to be right. Whatever a record holds besides is made anew and compared, or
# compared with the rest of the record. A test forges every field of every record, one at a time: it is a finding, or it
# is named here.

_TIMES = "times"
_AT_HAND = "prices, and what its author had at hand besides the suite"
_MACHINE = "versions, the machine, and what contained programs"
_RENTED = "which machines were used elsewhere, and their cost"

ON_TRUST: Mapping[type[Record | records.Basis | records.Cell | records.Arm], Mapping[str, str]] = {
    records.Plan: {
        "time": _TIMES,
        "run_id": "its id",
        "config": "settings that no line follows from, such as those of speed",
        "environment": _MACHINE,
        "details": _AT_HAND,
        "together": "with which other runs it was planned",
        "rewarded_in": "that no model was rewarded on its tasks",
    },
    records.Basis: dict.fromkeys(
        (
            "solver_arguments",
            "at_hand",
            "prices",
            "base_url_trusted",
            "untrusted_roles",
            "untrusted_models",
            "memory",
            "documents",
        ),
        _AT_HAND,
    )
    | {"key_variables": _AT_HAND},
    records.Arm: {"baseline": "with which arm each other one is compared"},
    records.Cell: {"names": "the names of samples"},
    records.LongMessage: {"time": _TIMES},
    records.Call: {
        "time": _TIMES,
        "latency": _TIMES,
        "asked": "where and how models were asked",
        "reused": "from which runs' records replies were taken",
    },
    records.Attempt: {"time": _TIMES, "metrics": _TIMES, "sandbox": _MACHINE},
    records.Once: {"time": _TIMES},
    records.Grade: {"time": _TIMES},
    records.Experiment: {"time": _TIMES, "latency": _TIMES, "duration_seconds": _TIMES},
    records.Fault: dict.fromkeys(
        ("time", "reason", "cause", "frames", "throttled"), "when and why experiments faulted"
    ),
    records.Resumed: dict.fromkeys(
        ("time", "how", "config"), "when and how sessions worked on it again"
    ),
    records.Finished: dict.fromkeys(("time", "status", "reason"), "when and why sessions ended"),
    records.Submitted: dict.fromkeys(("time", "engine", "call_id", "url"), _RENTED),
    records.Compute: dict.fromkeys(
        ("time", "engine", "gpu", "seconds", "cost_per_second", "cost"), _RENTED
    ),
    records.JudgeCalibration: {"time": _TIMES},
    records.Decision: {"time": _TIMES},
    records.Batch: dict.fromkeys(
        records.Batch.__struct_fields__, "batches, as their provider told of them"
    ),
}
"""By kind of record and name of the field. A finding is not ruled out by its being here."""

OF_REPLIES = frozenset({
    *("reply", "text", "reasoning", "tokens_in", "tokens_out", "tokens_reasoning", "cost", "cost_known", "cost_source"),
    *("cost_saved", "finish_reason", "answered_by", "retries", "throttled", "adapted", "tool_calls", "body", "items"),
    "batch",
})  # fmt: skip
"""Fields of the calls of a real model that are on trust with its replies; the simulated model is asked again."""


EXPLAINING = ("feedback", "detail", "artifacts")
"""Fields of attempts that may name lines of Python's own or hold logs of a workspace, and so vary between machines."""

EXPLANATIONS = "explanations of verdicts, and texts that attempts left"


def trusted_replies(models: list[str]) -> str:
    """The sentence on replies of these models."""
    return f"that {', '.join(models)} wrote these replies, with the tokens, costs and ends that servers told"
