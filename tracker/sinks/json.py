"""The summary as one JSON file, `<results>/<run_id>.json`, for jq and for readers without koderz."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson
from msgspec import UNSET, Struct
from msgspec.structs import asdict

from koderz_tracker.errors import StorageError
from koderz_tracker.files import before_resuming, write_whole
from koderz_tracker.results import ANSWER, Result
from koderz_tracker.summary import ArmResults, Summary, summarize

_SELDOM = (
    *("comparison", "breakdown", "generated", "rewarded_in", "until_decided", "decision"),
    *("notes", "asked", "batches"),
)
"""Keys that a summary has only if there is something to say."""


def write_summary(folder: Path) -> tuple[Path, Summary]:
    """Writes the summary of the run in `folder` beside it, whole or not at all.

    Raises StorageError where the disk refuses; the run itself is safe then, and resuming writes it again.
    """
    summary = summarize(folder)
    path = folder.with_suffix(".json")
    try:
        write_whole(path, encode_summary(summary))
    except OSError as error:
        raise StorageError(
            f"the summary {path} can't be written ({error.strerror}); "
            f"{before_resuming(error)}koderz benchmark resume {folder.name}"
        ) from None
    return path, summary


def encode_summary(summary: Summary) -> Iterator[bytes]:
    """The summary as JSON indented by two spaces, in pieces, so that a large run is never in memory twice."""
    yield from _object(dict(_entries(summary)), b"")
    yield b"\n"


def _entries(summary: Summary) -> Iterator[tuple[str, Any]]:
    for item in fields(summary):
        value = getattr(summary, item.name)
        if item.name == "arms":
            # The arms of a mode stand under the older keys of the schema, too.
            if len(summary.arms) == 1:
                (arm,) = summary.arms.values()
                yield "results", arm.results
                yield "summary", _figures(arm)
            elif summary.arms.keys() == {"zero-shot", "iterative"}:
                yield "zero_shot", summary.arms["zero-shot"]
                yield "iterative", summary.arms["iterative"]
            yield "arms", summary.arms
        elif item.name == "parts":
            yield from value.items()
        elif value or item.name not in _SELDOM:
            yield item.name, value


def _figures(arm: ArmResults) -> Mapping[str, Any]:
    found = {item.name: getattr(arm.summary, item.name) for item in fields(arm.summary)} | dict(
        arm.more
    )
    # where the suite reads no answers, and where nothing is missing
    for name in ("unread", "success_rate_bounds"):
        if found[name] is None:
            del found[name]
    return found


def _value(value: Any, margin: bytes) -> Iterator[bytes]:
    if isinstance(value, Sequence) and value and isinstance(value[0], Result):
        inner = margin + b"  "
        for number, result in enumerate(value):
            yield (b",\n" if number else b"[\n") + inner
            yield _indented(result, inner)
        yield b"\n" + margin + b"]"
    elif isinstance(value, ArmResults):
        stated: dict[str, Any] = {"baseline": value.baseline} if value.baseline else {}
        stated |= {} if value.simulated is None else {"simulated": value.simulated}
        yield from _object({"results": value.results, "summary": _figures(value)} | stated, margin)
    elif isinstance(value, Mapping) and any(
        isinstance(each, ArmResults) for each in value.values()
    ):
        yield from _object(value, margin)
    else:
        yield _indented(value, margin)


def _object(values: Mapping[str, Any], margin: bytes) -> Iterator[bytes]:
    inner = margin + b"  "
    for number, (name, value) in enumerate(values.items()):
        yield (b",\n" if number else b"{\n") + inner + orjson.dumps(name) + b": "
        yield from _value(value, inner)
    yield b"\n" + margin + b"}"


def _indented(value: Any, margin: bytes) -> bytes:
    return orjson.dumps(value, default=_fields, option=orjson.OPT_INDENT_2).replace(
        b"\n", b"\n" + margin
    )


def _fields(struct: Struct) -> dict[str, Any]:
    fields = asdict(struct)
    if not isinstance(struct, Result):
        return fields
    for name in (
        "cluster",
        "roles",
        "resources",
        "truncated",
        "reused_calls",
        "saved_cost",
        "reused",
        "untold",
    ):
        if not fields[name]:
            del fields[name]
    if fields[ANSWER] is UNSET:
        del fields[ANSWER]
    return fields | dict(fields.pop("facts"))
