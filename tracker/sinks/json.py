"""The summary as one JSON file, `<results>/<run_id>.json`: for jq, and for whoever has no koderz."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson

from tracker.errors import StorageError
from tracker.summary import Arm, Result, Summary, summarize


def write_summary(folder: Path) -> tuple[Path, Summary]:
    """Writes the summary of the run in `folder` beside it, whole or not at all.

    Raises StorageError where the disk refuses; the run itself is safe then, and resuming writes it again.
    """
    summary = summarize(folder)
    path = folder.with_suffix(".json")
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.writelines(encode_summary(summary))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise StorageError(
            f"the summary {path} can't be written ({error.strerror}); make room, then: "
            f"koderz benchmark resume {folder.name}"
        ) from None
    return path, summary


def encode_summary(summary: Summary) -> Iterator[bytes]:
    """The summary as JSON, indented by two spaces, in pieces: a large run is never held twice."""
    yield b"{\n"
    separator = b""
    for name, value in _entries(summary):
        yield separator + b"  " + orjson.dumps(name) + b": "
        yield from _arm(value) if isinstance(value, Arm) else _value(value, b"  ")
        separator = b",\n"
    yield b"\n}\n"


def _entries(summary: Summary) -> Iterator[tuple[str, Any]]:
    for item in fields(summary):
        value = getattr(summary, item.name)
        if item.name == "arms":
            yield from _arm_entries(summary)
        elif item.name != "comparison" or value is not None:
            yield item.name, value


def _arm_entries(summary: Summary) -> Iterator[tuple[str, Any]]:
    if len(summary.arms) > 1:
        for solver, arm in summary.arms.items():
            yield solver.replace("-", "_"), arm
    else:
        for arm in summary.arms.values():
            yield "results", arm.results
            yield "summary", arm.summary


def _arm(arm: Arm) -> Iterator[bytes]:
    yield b'{\n    "results": '
    yield from _value(arm.results, b"    ")
    yield b',\n    "summary": '
    yield from _value(arm.summary, b"    ")
    yield b"\n  }"


def _value(value: Any, margin: bytes) -> Iterator[bytes]:
    if isinstance(value, Sequence) and value and isinstance(value[0], Result):
        inner = margin + b"  "
        for number, result in enumerate(value):
            yield (b",\n" if number else b"[\n") + inner
            yield _indented(result, inner)
        yield b"\n" + margin + b"]"
    else:
        yield _indented(value, margin)


def _indented(value: Any, margin: bytes) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).replace(b"\n", b"\n" + margin)
