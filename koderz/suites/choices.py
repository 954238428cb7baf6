"""Multiple choices in the columns of published sets."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from koderz.suites.dataset import Row

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class ChoiceQuestion(NamedTuple):
    """A question with options, of which one is right."""

    question: str
    options: Mapping[str, str]  # texts by label
    label: str  # of the right one


def listed(options: Mapping[str, str], mark: str = ")") -> str:
    """The options as lines, each behind its label and the mark."""
    return "\n".join(f"{label}{mark} {text}" for label, text in options.items())


def scalar(row: Row, name: str) -> str:
    """A field as text; it may also be a number or a truth value."""
    value = row.fields.get(name)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else row.text(name).strip()


def arc_choice(row: Row) -> ChoiceQuestion:
    """The choice of a row of ARC, whose labels are letters or numbers. Raises KoderzError for an invalid row."""
    choices = _struct(row, "choices", "text", "label")
    options = dict(zip(choices["label"], choices["text"], strict=False))
    key = scalar(row, "answerKey")
    if not len(choices["label"]) == len(choices["text"]) == len(options) > 1:
        raise row.error("the field 'choices' has to hold as many different labels as texts")
    if key not in options:
        raise row.error(
            f"the field 'answerKey' has to be one of {', '.join(options)}, not {key!r:.80}"
        )
    return ChoiceQuestion(row.text("question"), options, key)


def truthful_choice(row: Row, seed: int) -> ChoiceQuestion:
    """The choice MC1 of a row of TruthfulQA's configurations, or of TruthfulQA.csv, whose lists are joined by `;`.

    Raises KoderzError for an invalid row.
    """
    if "Question" in row.fields:
        question, best = row.text("Question"), row.text("Best Answer")
        wrong = [text.strip() for text in row.text("Incorrect Answers").split(";") if text.strip()]
    elif "mc1_targets" in row.fields:
        question, targets = row.text("question"), _struct(row, "mc1_targets", "choices")
        choices, labels = targets["choices"], row.fields["mc1_targets"].get("labels")
        if not isinstance(labels, list) or len(labels) != len(choices) or labels.count(1) != 1:
            raise row.error(
                "the field 'mc1_targets' has to hold a label for each choice, one of them 1"
            )
        right = labels.index(1)
        best, wrong = (
            choices[right],
            [choice for number, choice in enumerate(choices) if number != right],
        )
    else:
        question, best, wrong = (
            row.text("question"),
            row.text("best_answer"),
            row.texts("incorrect_answers"),
        )
    if not wrong or len(wrong) >= len(LETTERS):
        raise row.error(
            f"there have to be 1 to {len(LETTERS) - 1} incorrect answers, not {len(wrong)}"
        )
    options, label = drawn_order(best, wrong, seed, question)
    return ChoiceQuestion(question, options, label)


def drawn_order(
    right: str, wrong: Sequence[str], seed: int, question: str
) -> tuple[dict[str, str], str]:
    """Options in an order determined by the seed and the texts, and the label of the right one."""
    texts = sorted({right, *wrong})
    random.Random(f"{seed} {question} {texts}").shuffle(texts)  # noqa: S311 repeatable on purpose
    return dict(zip(LETTERS, texts, strict=False)), LETTERS[texts.index(right)]


def _struct(row: Row, name: str, *lists: str) -> dict[str, list[str]]:
    value = row.fields.get(name)
    if not isinstance(value, Mapping) or not all(are_texts(value.get(each)) for each in lists):
        raise row.error(f"the field {name!r} has to hold lists of texts: {', '.join(lists)}")
    return {each: value[each] for each in lists}


def are_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
