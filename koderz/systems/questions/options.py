"""Options of suites of questions: where a row's fields are, how replies are scored, and worked examples."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from koderz.settings.options import option
from koderz.settings.trust import RUNS_CODE, SENDS
from koderz.suites.options import cluster_column

SCORERS = (
    "number",
    "exact_match",
    "f1",
    "choice",
    "label",
    "rougeL",
    "levenshtein_ratio",
    "includes",
    "regex",
    "math",
    "judge",
)
"""The names that `--scorer` takes besides FILE:NAME."""


def _wrong_scorer(name: str) -> str:
    fine = name in SCORERS or all(name.rpartition(":")[::2])
    return "" if fine else f"there are {', '.join(SCORERS)}, and FILE:NAME"


def _wrong_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return f"no regular expression ({error})"
    return ""


@dataclass(frozen=True, slots=True)
class QuestionOptions:
    """How questions are put and replies are scored."""

    scorer: str | None = option(
        None,
        f"How replies are scored: {', '.join(SCORERS)} or FILE:NAME. Default: the set's own rule; of qa choice "
        "where there are choices, else exact_match.",
        "NAME",
        check=_wrong_scorer,
        risk=lambda name: RUNS_CODE if ":" in name else "",
    )
    pattern: str | None = option(
        None,
        "The regular expression of the scorer regex; its first group is the answer.",
        "REGEX",
        check=_wrong_pattern,
    )
    rubric: Path | None = option(
        None, "What the scorer judge grades by, in place of the target.", "FILE", risk=SENDS
    )
    judge_draws: int = option(
        1, "Judgements of each reply, of which the median counts.", "N", bounds=(1, 99)
    )
    few_shot: int | None = option(
        None,
        "Worked examples before each question. Default: 0; with --few-shot-from 5.",
        "N",
        bounds=(0, 100),
    )
    few_shot_from: Path | None = option(
        None, "Where the examples come from. Default: the other questions of the dataset.", "FILE"
    )
    template: Path | None = option(
        None,
        "The user's message: a text with {input}, {choices} or any column in braces.",
        "FILE",
        risk=SENDS,
    )
    data_seed: int = option(
        42, "Seed of orders of options that are drawn.", "N", bounds=(0, 2**31 - 1)
    )
    cluster_column: str | None = cluster_column()


@dataclass(frozen=True, slots=True)
class QaOptions(QuestionOptions):
    """The same, and where the fields of one's own rows are."""

    input: str = option("input", "The column with the question; dotted for a nested one.", "NAME")
    target: str = option(
        "target", "The column with what is right: a text, a number or a list of right ones.", "NAME"
    )
    choices: tuple[str, ...] = option(
        (),
        "The column with the options, or one column for each option: A,B,C,D. Default: choices, where it is there.",
        "NAME",
        listed=True,
    )
    id: str | None = option(
        None,
        "The column with the question's name. Default: id, key, question_id or unique_id.",
        "NAME",
    )
