"""Predictions: patches of anyone, as SWE-bench's harness and its like take them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.suites.keys import misspelt

_LONGEST_NAME = 100  # characters


@dataclass(frozen=True, slots=True)
class Prediction:
    """A patch of an instance."""

    where: str  # "FILE, prediction 3"
    instance: str
    patch: str | None  # None: the file has null
    model: str = ""


def read_predictions(file: Path) -> list[Prediction]:
    """The predictions in a file: JSON lines, or with the suffix .json a list, one object, or objects by id.

    Raises KoderzError for a file that can't be read, and a prediction without instance_id or model_patch.
    """
    try:
        return parse_predictions(file, file.read_bytes())
    except OSError as error:
        raise KoderzError(f"{file} can't be read: {error.strerror}") from None


def parse_predictions(file: Path, data: bytes) -> list[Prediction]:
    """The predictions in the content of a file. Raises KoderzError as `read_predictions`."""
    return [
        _prediction(row, f"{file}, prediction {number}") for number, row in enumerate(prediction_rows(file, data), 1)
    ]


def prediction_rows(file: Path, data: bytes) -> list[Any]:
    """The rows of a file, unchecked; of objects by id each with its id. Raises KoderzError for other than JSON."""
    try:
        text = data.decode()
        if file.suffix != ".json":
            return [json.loads(line) for line in text.split("\n") if line.strip()]
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise KoderzError(f"{file} can't be read as predictions: {error}") from None
    if isinstance(found, dict):
        if "model_patch" in found:
            return [found]
        return [{"instance_id": name, **row} if isinstance(row, dict) else row for name, row in found.items()]
    return found if isinstance(found, list) else [found]


def _prediction(row: Any, where: str) -> Prediction:
    if not isinstance(row, dict):
        raise KoderzError(f"{where}: it is no JSON object")
    for name in ("instance_id", "model_patch"):
        if name not in row:
            raise KoderzError(f"{where}: it has no {name}{misspelt(name, row)}")
    instance, patch = row["instance_id"], row["model_patch"]
    if not isinstance(instance, str) or not isinstance(patch, str | None):
        raise KoderzError(f"{where}: {'model_patch' if isinstance(instance, str) else 'instance_id'} is no text")
    return Prediction(where, instance, patch, str(row.get("model_name_or_path") or "")[:_LONGEST_NAME])
