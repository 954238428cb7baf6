"""Predictions: patches of anyone, as SWE-bench's harness and its like take them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from koderz.suites.dataset import Row, row_of
from koderz.suites.tables import read_rows

_LONGEST_NAME = 100  # characters
# of SWE-bench; of some agents; of Multi-SWE-bench
_PATCHES = "model_patch", "prediction", "fix_patch"
_OPENHANDS = "test_result"  # in its output.jsonl the table that holds git_patch


@dataclass(frozen=True, slots=True)
class Prediction:
    """A patch of an instance."""

    where: str  # "FILE, line 3"
    instance: str
    patch: str | None  # None: the file has null
    model: str = ""


def read_predictions(file: Path) -> list[Prediction]:
    """The predictions in a file of rows: of one each, or with the suffix .json also of objects by id.

    Rows may be SWE-bench's, OpenHands' output.jsonl, or Multi-SWE-bench's.
    Raises KoderzError for a file that can't be read, and naming the line of one without instance_id or model_patch.
    """
    return [*map(_prediction, prediction_rows(file))]


def parse_predictions(file: Path, data: bytes) -> list[Prediction]:
    """The predictions in the content of a file. Raises KoderzError as `read_predictions`."""
    return [*map(_prediction, prediction_rows(file, data))]


def prediction_rows(file: Path, data: bytes | None = None) -> list[Row]:
    """The rows of a file or its content, their fields unchecked; of objects by id each with its id."""
    rows = [*read_rows(file, data=data)]
    if (
        file.suffix == ".json"
        and len(rows) == 1
        and not any(name in rows[0].fields for name in (*_PATCHES, _OPENHANDS))
    ):
        by_id = {name: row_of(value, f"{file}, {name}") for name, value in rows[0].fields.items()}
        rows = [Row(row.where, {"instance_id": name, **row.fields}) for name, row in by_id.items()]
    return rows


def _prediction(row: Row) -> Prediction:
    fields, made = row.fields, row.fields.get(_OPENHANDS)
    name = next((name for name in _PATCHES if name in fields), _PATCHES[0])
    patch = fields.get(name)
    if name not in fields and isinstance(made, dict) and "git_patch" in made:
        patch = (
            None
            if made["git_patch"] is None
            else _of_openhands(Row(row.where, made).text("git_patch"))
        )
    elif name not in fields or not isinstance(patch, str | None):
        patch = row.text(name)  # which says that it lacks, or is no text
    is_multi = "instance_id" not in fields and "org" in fields
    instance = (
        f"{row.text('org')}__{row.text('repo')}-{row.id('number')}"
        if is_multi
        else row.id("instance_id")
    )
    return Prediction(
        row.where, instance, patch, str(fields.get("model_name_or_path") or "")[:_LONGEST_NAME]
    )


def _of_openhands(patch: str) -> str:
    """A patch as OpenHands hands it on: from its first file on, with the ends of lines that Git reads."""
    if not patch.strip():
        return ""
    text = patch.replace("\r\n", "\n")
    begin = re.search(r"^diff --git ", text, re.MULTILINE)
    return text[begin.start() :].rstrip() + "\n" if begin else text
