"""The fields of a run's records that nothing on record shows to be right, each with the sentence that says so.

Whatever a record holds besides is made anew and compared, or compared with the rest of the record. A test forges every
field of every record, one at a time: it is a finding, or it is named here.
"""

from __future__ import annotations

from collections.abc import Mapping

from koderz_tracker import records
from koderz_tracker.records import Record

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
    records.Resumed: dict.fromkeys(("time", "how", "config"), "when and how sessions worked on it again"),
    records.Finished: dict.fromkeys(("time", "status", "reason"), "when and why sessions ended"),
    records.Submitted: dict.fromkeys(("time", "engine", "call_id", "url"), _RENTED),
    records.Compute: dict.fromkeys(("time", "engine", "gpu", "seconds", "cost_per_second", "cost"), _RENTED),
    records.JudgeCalibration: {"time": _TIMES},
    records.Decision: {"time": _TIMES},
    records.Batch: dict.fromkeys(records.Batch.__struct_fields__, "batches, as their provider told of them"),
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
