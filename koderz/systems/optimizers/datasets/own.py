"""Users' own datasets (by their columns), initial prompts and metrics."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.settings.registry import find_in_file
from koderz.suites.dataset import Row
from koderz.systems.optimizers.datasets.judged import JudgeMetric
from koderz.systems.optimizers.datasets.labels import Labels
from koderz.systems.optimizers.datasets.metrics import LabelMetric, NumberMetric, OwnMetric, TextMetric
from koderz.systems.optimizers.datasets.options import DatasetOptions
from koderz.systems.optimizers.datasets.payload import Item, Metric, placeholders
from koderz.systems.optimizers.datasets.published import scalar
from koderz.types import Message
from tracker.files import MB, read_all

_MOST_LABELS = 50

MakeItem = Callable[[str, Row], Item]


def own_item(name: str, options: DatasetOptions) -> MakeItem:
    """A function that makes the items of one's own dataset from rows. Raises KoderzError if no columns are named."""
    inputs, output = options.input_columns, options.output_column
    if not inputs or not output:
        raise KoderzError(f"{name} is a dataset of your own: name its columns with --input-column and --output-column")
    if output in inputs:
        raise KoderzError(f"--output-column {output}: prompts may show the --input-column ones, so it can't be one")

    def make(item_id: str, row: Row) -> Item:
        cluster = scalar(row, options.cluster_column) if options.cluster_column else ""
        shares = (cluster,) if cluster else ()
        return Item(item_id, {column: scalar(row, column) for column in inputs}, scalar(row, output), shares=shares)

    return make


def plain_messages(columns: Collection[str]) -> tuple[Message, ...]:
    """The default prompt of a user's own dataset."""
    shown = "\n\n".join(f"{column}: {{{column}}}" for column in columns)
    return {"role": "system", "content": "Answer."}, {"role": "user", "content": shown}


def read_prompt(path: Path, usual: tuple[Message, ...], columns: Collection[str]) -> tuple[Message, ...]:
    """The initial prompt in a file: a text replaces the instruction in `usual`, JSON is messages.

    Raises KoderzError for a file that can't be read, and for messages that aren't any or show no column.
    """
    try:
        text = read_all(path, MB).decode("utf-8")
    except (OSError, ValueError) as error:
        raise KoderzError(f"--initial-prompt {path} can't be read: {error}") from None
    said = _as_json(text)
    if not isinstance(said, list):
        return {**usual[0], "content": text.strip()}, *usual[1:]
    if not said or not all(map(_is_message, said)) or said[-1]["role"] != "user":
        raise KoderzError(
            f'--initial-prompt {path}: write [{{"role": "system", "content": …}}, {{"role": "user", "content": …}}], '
            "the user's message last"
        )
    if not placeholders(said[-1]["content"], columns):
        known = ", ".join(f"{{{column}}}" for column in columns)
        raise KoderzError(f"--initial-prompt {path}: its last message shows nothing of an item; there are {known}")
    messages = tuple({"role": each["role"], "content": each["content"]} for each in said)
    return messages if messages[0]["role"] == "system" else ({"role": "system", "content": ""}, *messages)


def chosen_metric(name: str, items: Collection[Item]) -> Metric:
    """The metric with this name for these items. Raises KoderzError if it can't score them."""
    if ":" in name:
        return _from_file(name)
    if name in ("choice", "label"):
        if name == "choice" and all(item.options for item in items):
            return LabelMetric()
        labels = sorted({item.gold for item in items})
        if len(labels) > _MOST_LABELS:
            raise KoderzError(f"--metric {name}: there may be {_MOST_LABELS} labels, not the {len(labels)} here")
        return LabelMetric(Labels({label: (label,) for label in labels}, is_cased=name == "choice"))
    beside = {"exact_match": ("f1",), "f1": ("exact_match",)}.get(name, ())
    if name == "number":
        return NumberMetric()
    return JudgeMetric() if name == "judge" else TextMetric(name, beside)


def _from_file(name: str) -> Metric:
    function = find_in_file("--metric", name)
    if not callable(function):
        raise KoderzError(f"--metric {name}: that is no function")
    file, _, attribute = name.rpartition(":")
    source = Path(file).read_bytes()
    return OwnMetric(attribute, function, hashlib.sha256(source).hexdigest()[:16], source.decode())


def _as_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.get("role") in ("system", "user", "assistant")
        and isinstance(value.get("content"), str)
    )
