"""Predictions: patches of anyone, as SWE-bench's harness and its like take them."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from koderz.suites.dataset import Row, row_of
from koderz.suites.tables import read_rows, rows_of

_LONGEST_NAME = 100  # characters


@dataclass(frozen=True, slots=True)
class Prediction:
    """A patch of an instance."""

    where: str  # "FILE, line 3"
    instance: str
    patch: str | None  # None: the file has null
    model: str = ""


def read_predictions(file: Path) -> list[Prediction]:
    """The predictions in a file of rows: of one each, or with the suffix .json also of objects by id.

    Raises KoderzError for a file that can't be read, and naming the line of one without instance_id or model_patch.
    """
    return [*map(_prediction, prediction_rows(file))]


def parse_predictions(file: Path, data: bytes) -> list[Prediction]:
    """The predictions in the content of a file. Raises KoderzError as `read_predictions`."""
    return [*map(_prediction, prediction_rows(file, data))]


def prediction_rows(file: Path, data: bytes | None = None) -> list[Row]:
    """The rows of a file or its content, their fields unchecked; of objects by id each with its id."""
    rows = [*(read_rows(file) if data is None else rows_of(io.BufferedReader(io.BytesIO(data)), file))]
    if file.suffix == ".json" and len(rows) == 1 and "model_patch" not in rows[0].fields:
        by_id = {name: row_of(value, f"{file}, {name}") for name, value in rows[0].fields.items()}
        rows = [Row(row.where, {"instance_id": name, **row.fields}) for name, row in by_id.items()]
    return rows


def _prediction(row: Row) -> Prediction:
    instance, patch = row.id("instance_id"), row.fields.get("model_patch")
    if "model_patch" not in row.fields or not isinstance(patch, str | None):
        patch = row.text("model_patch")  # which says that it lacks, or is no text
    return Prediction(row.where, instance, patch, str(row.fields.get("model_name_or_path") or "")[:_LONGEST_NAME])
