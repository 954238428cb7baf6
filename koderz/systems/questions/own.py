"""Questions of one's own: the rows of the suite `qa`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from koderz.suites.choices import LETTERS
from koderz.suites.dataset import Row
from koderz.systems.questions.options import QaOptions
from koderz.systems.questions.question import Question, as_text, id_of, rows_in, shown_columns, text_in


def own_questions(
    path: Path, options: QaOptions, *, needs_target: bool, name: str = "qa"
) -> Iterator[tuple[Row, Question]]:
    """The rows with their questions. Raises KoderzError, naming file and line, for a row that lacks a field."""
    for number, row in enumerate(rows_in(path)):
        if not number:
            _require_columns(row, options, needs_target=needs_target)
        choices = _choices(row, options)
        yield (
            row,
            Question(
                id=id_of(row, name, number, options.id),
                text=text_in(row, options.input, "--input"),
                targets=_targets(row, options.target, choices, needs_target=needs_target),
                options=choices,
                columns=shown_columns(row),
                system=_extra(row, "system"),
                group=_extra(row, "group"),
                cluster=row.cluster_by(options.cluster_column),
            ),
        )


_USUAL = {
    "input": ("question", "prompt", "query", "problem", "instruction", "text"),
    "target": ("answer", "expected", "output", "label", "solution", "gold"),
}
"""How columns are often called that are `input` and `target` here."""


def _require_columns(row: Row, options: QaOptions, *, needs_target: bool) -> None:
    """Raises KoderzError, with the options that name the columns, if the first row lacks one of those that are read."""
    wanted = {"input": options.input} | ({"target": options.target} if needs_target else {})
    lacking = [option for option, name in wanted.items() if row.value(name) is None]
    meant = {option: next((name for name in _USUAL[option] if name in row.fields), "") for option in lacking}
    if any(meant.values()):
        flags = " ".join(f"--{option} {name or 'COLUMN'}" for option, name in meant.items())
        raise row.error(f"the field {wanted[lacking[0]]!r} is missing; to read others: {flags}")


def _extra(row: Row, name: str) -> str:
    return "" if row.fields.get(name) is None else text_in(row, name)


def _choices(row: Row, options: QaOptions) -> Mapping[str, str]:
    """The options by label; empty if the row has none."""
    names = options.choices
    if len(names) > 1:
        return {name: text_in(row, name) for name in names}
    name = names[0] if names else "choices"
    value = row.value(name)
    if value is None and not names:
        return {}
    found = _table(row, name, _parsed(value))
    if len(found) < 2 or not all(label.strip() for label in found):
        raise row.error(f"the field {name!r} has to be a list of options, or a table of label and text")
    return found


def _parsed(value: Any) -> Any:
    """The value; of a text that is JSON, as in a CSV, what it says."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _table(row: Row, name: str, value: Any) -> dict[str, str]:
    if isinstance(value, Mapping) and isinstance(value.get("label"), list) and isinstance(value.get("text"), list):
        pairs = [*zip(value["label"], value["text"], strict=False)]
        if len(value["label"]) != len(value["text"]):
            raise row.error(f"the field {name!r} has {len(value['label'])} labels, but {len(value['text'])} texts")
    elif isinstance(value, Mapping):
        pairs = [*value.items()]
    elif isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        pairs = [(each.get("label"), each.get("text")) for each in value]
    elif isinstance(value, list) and len(value) <= len(LETTERS):
        pairs = [*zip(LETTERS, value, strict=False)]
    else:
        return {}
    found = {as_text(row, name, label): as_text(row, name, text) for label, text in pairs}
    if len(found) < len(pairs):
        raise row.error(f"the field {name!r} has one label twice")
    return found


def _targets(row: Row, name: str, choices: Mapping[str, str], *, needs_target: bool) -> tuple[str, ...]:
    value = row.value(name)
    if value is None and not needs_target:
        return ()
    values: Sequence[Any] = value if isinstance(value, list) else [value]
    if not values:
        raise row.error(f"the field {name!r} is an empty list")
    if value is None:
        text_in(row, name, "--target")  # which says that it lacks
    if choices:
        return tuple(dict.fromkeys(_label(row, name, each, choices) for each in values))
    return tuple(dict.fromkeys(as_text(row, name, each) for each in values))


def _label(row: Row, name: str, value: Any, choices: Mapping[str, str]) -> str:
    """The label of the right option, which is named by its label, its text, or its number from 0."""
    text = as_text(row, name, value)
    if text in choices:
        return text
    labels = [*choices]
    meant = {label for label, option in choices.items() if option.strip() == text.strip()}
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(labels):
        meant.add(labels[value])
    if len(meant) == 1:
        return meant.pop()
    if meant:
        raise row.error(f"the field {name!r} may mean {' or '.join(sorted(meant))}; name the label")
    raise row.error(f"the field {name!r} has to be one of {', '.join(labels)} or an option's text, not {text!r:.80}")
