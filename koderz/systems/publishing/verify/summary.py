"""The comparison of a run's summary with the one that follows from its journal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from koderz._version import __version__
from koderz.errors import KoderzError
from koderz.systems.publishing.verify.findings import Verification
from koderz_tracker.files import open_own, read_all
from koderz_tracker.sinks.json import encode_summary
from koderz_tracker.summary import Summary, summarize

_LARGEST = 2 << 30
_ALWAYS = frozenset({"run_id", "mode", "start_time", "end_time", "config", "planned", "faults", "status", "simulated"})
"""Keys that summaries of all versions have, as far as they were written since these were added."""


def check_summary(folder: Path, path: Path | None, result: Verification) -> None:
    """Computes the summary of the run in `folder` anew, and compares the file at `path` with it."""
    summary = summarize(folder)
    arms = {name: replace(arm, results=[]) for name, arm in summary.arms.items()}
    result.figures = sum(1 for _ in _numbers(_document(replace(summary, arms=arms, config={}, environment={}))))
    if path is None:
        result.note("it has no summary beside it, so only the journal was verified")
        result.figures = 0
        return
    if _is_same(path, summary):
        return
    try:
        with open_own(path) as file:
            recorded = orjson.loads(read_all(file, _LARGEST, str(path)))
    except (OSError, orjson.JSONDecodeError) as error:
        raise KoderzError(f"{path} can't be read as a summary: {error}") from None
    derived = _document(summary)
    if not isinstance(recorded, dict):
        result.differs("figure", path.name, type(recorded).__name__, "an object")
        return
    version = str(summary.environment.get("koderz", ""))
    if version != __version__ and (newer := derived.keys() - recorded.keys() - _ALWAYS):
        result.note(f"written by koderz {version}, whose summaries have no {', '.join(sorted(newer))}")
        derived = {name: value for name, value in derived.items() if name not in newer}
    for where, before, now in _differences("", recorded, derived):
        result.differs("figure", where, before, now)


def _is_same(path: Path, summary: Summary) -> bool:
    """Whether the file holds just these bytes; it is read in pieces, since it may be large."""
    try:
        with open_own(path) as file:
            return all(file.read(len(piece)) == piece for piece in encode_summary(summary)) and not file.read(1)
    except OSError as error:
        raise KoderzError(f"{path} can't be read ({error.strerror})") from None


def _document(summary: Summary) -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads(b"".join(encode_summary(summary)))
    return document


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _numbers(each)
    elif isinstance(value, list):
        for each in value:
            yield from _numbers(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def _differences(where: str, recorded: Any, derived: Any) -> Iterator[tuple[str, Any, Any]]:
    """The paths at which two JSON values differ, with both values there."""
    if isinstance(recorded, dict) and isinstance(derived, dict):
        for name in dict.fromkeys([*derived, *recorded]):
            path = f"{where}.{name}" if where else name
            if name not in recorded or name not in derived:
                yield path, recorded.get(name, "missing"), derived.get(name, "missing")
            else:
                yield from _differences(path, recorded[name], derived[name])
    elif isinstance(recorded, list) and isinstance(derived, list) and len(recorded) == len(derived):
        for number, pair in enumerate(zip(recorded, derived, strict=True)):
            yield from _differences(f"{where}[{number}]", *pair)
    elif recorded != derived:
        yield where, recorded, derived
