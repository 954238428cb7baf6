"""The rows of another tool's log as a run, of files that strangers wrote.

These are read within limits, with one KoderzError for whatever is wrong.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec

from koderz.analysis.logs import UNNAMED
from koderz.analysis.reader import summary_of_document
from koderz.errors import KoderzError
from koderz.sandbox.archives import damage
from koderz_tracker.files import MB, open_own
from koderz_tracker.summary import Summary

_MOST = 512 * MB  # of one file, or of what is read of one archive
_LONGEST = 64 * MB  # a line, or an entry of an archive


def decoded(data: bytes, where: str) -> Any:
    """The JSON value of `data`. NaN and infinities, which Python's writers take for numbers, are None."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return json.loads(data, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError, too
        raise KoderzError(f"{where} is damaged or no JSON: {str(error)[:200]}") from None


def read_json(path: Path) -> Any:
    """The JSON value in a file. Raises KoderzError for a link, a file above 512 MB, and what is no JSON."""
    with _opened(path) as file:
        return decoded(_bounded(file, _MOST, str(path)), str(path))


def read_lines(path: Path) -> Iterator[Any]:
    """The JSON values of a file's lines. A last line that was cut off as it was written is left out."""
    with _opened(path) as file:
        number = 0
        while line := file.readline(_LONGEST + 1):
            number += 1
            where = f"{path}, line {number}"
            if len(line) > _LONGEST:
                raise KoderzError(f"{where} has more than {_LONGEST // MB} MB")
            if not line.strip():
                continue
            try:
                yield decoded(line, where)
            except KoderzError:
                if line.endswith(b"\n"):
                    raise


def zip_module() -> Any:
    """The module zipfile that knows zstd, as Python's does from 3.14 on."""
    if sys.version_info >= (3, 14):
        import zipfile
    else:
        from backports.zstd import zipfile
    return zipfile


def _zstd_error() -> type[Exception]:
    if sys.version_info >= (3, 14):
        from compression.zstd import ZstdError
    else:
        from backports.zstd import ZstdError
    return ZstdError


class Zip:
    """A zip whose entries may be compressed by zstd, as inspect's are. No entry and no sum of them is too large."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._path, self._left = path, _MOST
        self._zip = zip_module().ZipFile(file)
        self.names = self._zip.namelist()

    def read(self, name: str) -> Any:
        """The JSON value of an entry; of two of one name, the last."""
        with self._zip.open(name) as entry:
            data = _bounded(entry, min(_LONGEST, self._left), f"{self._path}: {name}")
        self._left -= len(data)
        return decoded(data, f"{self._path}: {name}")


@contextmanager
def unzipped(path: Path) -> Iterator[Zip]:
    """A zip that is read. Raises KoderzError where it is damaged."""
    with _opened(path) as file, damage(path):
        try:
            yield Zip(file, path)
        except (zip_module().BadZipFile, _zstd_error()) as error:
            raise ValueError(str(error)) from None


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with open_own(path) as file:
            yield file
    except OSError as error:
        raise KoderzError(f"{path} can't be read ({error.strerror})") from None


def _bounded(file: IO[bytes], most: int, where: str) -> bytes:
    data = file.read(most + 1)
    if len(data) > most:
        raise KoderzError(f"{where} has more than {most // MB} MB")
    return data


def text(value: Any) -> str:
    """A value as text that can be printed and written: names may be numbers, and texts may hold lone surrogates."""
    if value is None:
        return ""
    found = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return found.encode("utf-8", "replace").decode()


def number(value: Any) -> float | None:
    """A finite number; None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e300 else None


def count(value: Any) -> int | None:
    """A count, such as of tokens; None for anything else."""
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40
        else None
    )


def table(value: Any) -> dict[str, Any]:
    """A JSON object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def listed(value: Any) -> list[Any]:
    """A JSON array; an empty one for anything else."""
    return value if isinstance(value, list) else []


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
