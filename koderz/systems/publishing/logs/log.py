"""The rows of another tool's log as a run: what it holds in the words of a summary, and nothing that it doesn't."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from koderz.analysis.logs import UNNAMED
from koderz.analysis.reader import summary_of_document
from koderz.errors import KoderzError
from koderz.systems.publishing.logs.files import text
from koderz_tracker.summary import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedSample:
    """One sample of a task. None: the log doesn't say."""

    task: str
    value: float | None  # its score; None: it has none, and `error` says why
    error: str = ""
    arm: str = ""  # empty: the log has one arm
    model: str = ""  # empty: the log's model
    metrics: Mapping[str, float] = field(default_factory=dict)  # its further scores, by name
    verdict: str = ""  # in the tool's word, where it has one
    cause: str = ""  # why it failed
    note: str = ""
    answer: str | None = None
    cost: float | None = None  # US dollars
    tokens_in: int | None = None
    tokens_out: int | None = None
    seconds: float | None = None
    asks: str | None = None  # the text of its task, or what a tool has in its place
    # of its task, by which tasks may be clustered
    fields: Mapping[str, Any] = field(default_factory=dict)
    asked: str = ""  # koderz' digest of what its task asks, in a log that koderz wrote


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """One run as its log tells it, with its rows in the order of its samples."""

    tool: str  # its name, and its version where the log has it
    suite: str
    model: str
    rows: Sequence[LoggedSample]
    settings: Mapping[str, Any] = field(default_factory=dict)  # whatever decides its figures
    scorer: str = "score"  # the name of what `value` is
    arm: str = ""  # of rows that name none; empty: the scorer
    lower_is_better: bool = False
    simulated: bool = False  # whether a simulated model of koderz' replied
    started: str = ""  # ISO 8601
    ended: str = ""
    status: str = "complete"
    reason: str = ""  # why it isn't complete
    planned: int | None = None
    unlisted: int = 0  # tasks that failed, and that it doesn't name
    notes: Sequence[str] = ()

    def summary(self, path: Path) -> Summary:
        """The summary of the log, which was read from `path`. Raises KoderzError for a log without one sample."""
        rows = [
            *self.rows,
            *(
                LoggedSample(task=f"{UNNAMED}{place}", value=0.0)
                for place in range(1, self.unlisted + 1)
            ),
        ]
        if not rows:
            raise KoderzError(
                f"{path}: this {self.tool} log holds no sample yet, so there is nothing to compare"
            )
        values = [row.value for row in rows if row.value is not None]
        is_bounded = not self.lower_is_better and all(0 <= value <= 1 for value in values)
        is_rate = is_bounded and all(value in (0, 1) for value in values)
        seen: Counter[tuple[str, str]] = Counter()
        judged: dict[str, list[dict[str, Any]]] = {}
        faults = []
        for row in rows:
            arm = row.arm or self.arm or self.scorer
            sample = seen[arm, row.task]
            seen[arm, row.task] += 1
            own = {"problem_id": row.task, "arm": arm, "sample": sample, "cost": row.cost or 0.0}
            judged.setdefault(arm, [])
            if row.value is None:
                faults.append(
                    own | {"reason": row.error or "the log has no score of it", "cause": "other"}
                )
                continue
            judged[arm].append(
                own | _result_of(row, self, arm, is_rate=is_rate, is_bounded=is_bounded)
            )
        partial = sum(value not in (0, 1) for value in values) if is_bounded else 0
        notes = [
            f"A log of {self.tool}: what it doesn't hold, such as costs or times, is left out.",
            *self.notes,
            *(
                [
                    f"{partial} of {len(values)} scores lie between 0 and 1; they don't count as passed."
                ]
                if partial
                else []
            ),
        ]
        models = [*dict.fromkeys(row.model for row in rows if row.model)]
        document = {
            "mode": "imported",
            "start_time": self.started,
            "end_time": self.ended,
            "status": self.status,
            "reason": self.reason,
            "planned": self.planned or len(rows),
            "config": {
                **self.settings,
                "suite": self.suite,
                "local_model": models[0] if len(models) == 1 else self.model,
                "models": models if len(models) > 1 else [],
                "samples": max(seen.values()),
                "imported": self.tool,
            },
            "simulated": self.simulated,
            "faults": faults,
            "asked": {
                row.task: row.asked or digest(row.asks or "")
                for row in rows
                if row.asked or row.asks
            },
            "notes": notes,
            "arms": {arm: {"results": results} for arm, results in judged.items()},
            **({} if is_rate else self._measured(is_bounded=is_bounded)),
        }
        return summary_of_document(document, path)

    def _measured(self, *, is_bounded: bool) -> dict[str, Any]:
        """How a summary says what `value` is of rows that don't just pass or fail."""
        name = "score" if is_bounded else self.scorer
        direction = "lower" if self.lower_is_better else "higher"
        bounds = {"bounds": [0, 1]} if is_bounded else {}
        return {
            "measures": [{"name": name, "direction": direction} | bounds],
            "headline": {"measure": name, "passed": ""},
        }

    def values(self, field_name: str, path: Path) -> dict[str, str]:
        """The value of a field by task, as text. Raises KoderzError where no task has it."""
        found = {
            row.task: value for row in self.rows if (value := text(row.fields.get(field_name)))
        }
        if not found:
            fields = ", ".join(
                dict.fromkeys(text(each) for row in self.rows for each in row.fields)
            )
            told = f"its fields are {fields[:400]}" if fields else "none has any field"
            raise KoderzError(f"{path}: no task has a field {field_name} to cluster by; {told}")
        return found


def _result_of(
    row: LoggedSample, log: Log, arm: str, *, is_rate: bool, is_bounded: bool
) -> dict[str, Any]:
    """A judged sample as a result, which names what the log doesn't hold, so that it isn't taken for 0."""
    told = {"cost": row.cost, "tokens": row.tokens_in, "iterations": None, "latency": None}
    metrics = row.metrics if is_bounded else {**row.metrics, log.scorer: row.value}
    answer = {} if row.answer is None else {"answer": row.answer}
    return answer | {
        "success": is_bounded and row.value == 1,
        "score": row.value if is_bounded and not is_rate else None,
        "solver": arm,
        "model": row.model or log.model,
        "verdict": row.verdict,
        "cause": row.cause,
        "note": row.note,
        "metrics": metrics or None,
        "cost_known": row.cost is not None,
        "tokens_in": row.tokens_in or 0,
        "tokens_out": row.tokens_out or 0,
        "duration_seconds": row.seconds or 0.0,
        "untold": [name for name, value in told.items() if value is None],
    }


def digest(text: str) -> str:
    """The digest by which two logs tell whether a task asks the same: of its words, of which tools keep the first."""
    return hashlib.sha256(" ".join(text.split())[:500].encode()).hexdigest()[:16]
