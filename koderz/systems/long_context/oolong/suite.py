"""The suites `oolong`, `oolong-real` and `oolong-pairs`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.suites.dataset import CLUSTER, Row
from koderz.suites.suite import SuiteSource
from koderz.suites.tokens import CHARS_A_TOKEN, read_length
from koderz.systems.long_context.contexts import NEEDS, LongContextSuite, Reading, Recipe, in_characters
from koderz.systems.long_context.oolong.generated import GeneratedQuestion, Windows
from koderz.systems.long_context.oolong.options import OolongOptions
from koderz.systems.long_context.oolong.scoring import gold_of, score, score_pairs, score_real
from koderz.systems.long_context.oolong.simulated import PLAYER
from koderz.systems.long_context.published import Fields, Filter, Layout, OfRow, published
from koderz.types import Measure, Task

_TEXT, _WINDOW = "context_window_text", "context_window_id"
_SYNTHETIC = Layout(
    {_TEXT: str},
    {"id": int | str, "context_len": int, **dict.fromkeys(("dataset", "question", "answer", "answer_type"), str)},
    ("task_group", "task", "input_subset", "num_labels", _WINDOW, CLUSTER),
    window=(_WINDOW, "dataset", "context_len", "input_subset"),
)
_REAL = Layout(
    {_TEXT: str},
    {"id": int | str, "question": str, "answer": int | str},
    (_WINDOW, "question_type", CLUSTER),
    window=(_WINDOW,),
)
_PAIRS = Layout({"context": str}, {"id": int | str, "question": str, "answer": list}, (CLUSTER,))

_MEASURES = (Measure("score", "higher", "share"), Measure("score_rlm", "higher", "share"))
_GROUPS = {"length": "context_len", "dataset": "dataset", "task": "task", "kind": "question_type"}  # by column
_USUAL_LENGTH = 4096
_LENGTHS = (1 << 10, 10 << 20)  # tokens of a generated text


class Oolong(LongContextSuite):
    """OOLONG's published rows (--dataset, parquet or JSON lines), or generated ones of the same kind."""

    options = OolongOptions

    @classmethod
    def load(cls, source: SuiteSource) -> Oolong:
        """Raises KoderzError for a row that can't be read, or a length that can't be made."""
        options: OolongOptions = source.options
        lengths = [read_length(word) for word in options.context_lengths]
        if source.dataset is None:
            tasks = _generated(lengths or [_USUAL_LENGTH], options, source.seed)
            made_of = "generated from templates, easier than OOLONG's own texts"
            about = f"{made_of}, seed {source.seed}, lengths in tokens of chars/4"
            return cls("oolong-generated", about, tasks, _score, PLAYER, _MEASURES)

        def keep(fields: Fields) -> bool:
            names = options.oolong_datasets
            return (not names or fields["dataset"] in names) and (not lengths or fields["context_len"] in lengths)

        tasks = tuple(_tasks("oolong", source.dataset, _SYNTHETIC, keep, _checked_row))
        return cls("oolong", str(source.dataset), tasks, _score, PLAYER, _MEASURES)


class OolongReal(LongContextSuite):
    """OOLONG's questions about real transcripts, from the user's file (--dataset)."""

    @classmethod
    def load(cls, source: SuiteSource) -> OolongReal:
        """Raises KoderzError where there is no file, or for a row that can't be read."""
        path = _path(source.dataset, "oolong-real", "oolongbench/oolong-real")

        def score_reply(_task: Task[Recipe], answer: Any, reply: str) -> tuple[float, Mapping[str, float]]:
            return score_real(str(answer), reply), {}

        tasks = tuple(_tasks("oolong-real", path, _REAL, lambda _: True, _answered))
        return cls("oolong-real", str(path), tasks, score_reply, PLAYER)


class OolongPairs(LongContextSuite):
    """Pairs of users to be found, from the user's file of {id, context, question, answer} (--dataset)."""

    @classmethod
    def load(cls, source: SuiteSource) -> OolongPairs:
        """Raises KoderzError where there is no file, or for a row that can't be read."""
        path = _path(source.dataset, "oolong-pairs", "mit-oasys/oolong-pairs")

        def score_reply(_task: Task[Recipe], answer: Any, reply: str) -> tuple[float, Mapping[str, float]]:
            return score_pairs(answer, reply)

        tasks = tuple(_tasks("oolong-pairs", path, _PAIRS, _is_of_pairs(path), _answered))
        return cls("oolong-pairs", str(path), tasks, score_reply, PLAYER)


def _generated(lengths: list[int], options: OolongOptions, seed: int) -> tuple[Task[Recipe], ...]:
    low, high = _LENGTHS
    if wrong := [length for length in lengths if not low <= length <= high]:
        raise KoderzError(f"--context-lengths: a generated text has {low:,} to {high:,} tokens, not {wrong[0]:,}")
    windows = Windows(seed)
    numbers, each = range(options.tasks_per_length), options.questions_per_text
    recipes = [GeneratedQuestion(windows, length, number, each) for number in numbers for length in lengths]
    return tuple(
        Task(
            f"oolong-generated/{recipe.length}/{recipe.number}",
            payload=recipe,
            needs=NEEDS,
            digest=recipe.digest,
            tokens=recipe.length,
            groups={"length": str(recipe.length)},
            cluster=f"text {recipe.length}/{recipe.text}",
            generated=True,
        )
        for recipe in recipes
    )


def _tasks(name: str, path: Path, layout: Layout, keep: Filter, of_row: OfRow) -> Iterator[Task[Recipe]]:
    seen = set()
    for row in published(path, layout, keep, of_row):
        task_id = f"{name}/{row.fields['id']}"
        if task_id in seen:
            raise KoderzError(f"{path}: two rows have the id {row.fields['id']}")
        seen.add(task_id)
        if name == "oolong":
            _require_gold(path, row.fields)
        tokens = row.fields.get("context_len") or row.size // CHARS_A_TOKEN
        groups = {name: str(row.fields[field]) for name, field in _GROUPS.items() if row.fields.get(field) is not None}
        yield Task(
            task_id,
            payload=row,
            needs=NEEDS,
            digest=row.digest,
            tokens=int(tokens),
            groups=groups,
            cluster=Row(f"{path}, id {row.fields['id']}", row.fields).cluster or _text_of(row.fields, layout),
        )
    if not seen:
        raise KoderzError(f"{path} holds no such row; see --oolong-datasets and --context-lengths")


def _text_of(fields: Fields, layout: Layout) -> str:
    """The key of the text that a row shares with others."""
    window = layout.window_of(fields, None)
    return f"text {'/'.join(window)}" if window else ""


def _require_gold(path: Path, fields: Fields) -> None:
    try:
        gold_of(str(fields["answer"]))
    except ValueError as error:
        raise KoderzError(
            f"{path}, id {fields['id']}: the answer {fields['answer']!r:.80} can't be read: {error}"
        ) from None


def _checked_row(fields: Fields, late: Fields) -> tuple[Reading, Any]:
    right = {name: str(fields[name]) for name in ("answer", "answer_type")}
    return _reading(fields, late, kind=str(fields.get("task"))), right


def _answered(fields: Fields, late: Fields) -> tuple[Reading, Any]:
    return _reading(fields, late), fields["answer"]


def _reading(fields: Fields, late: Fields, **more: Any) -> Reading:
    (text,) = (late[name] for name in (_TEXT, "context") if name in late)
    return in_characters(text, str(fields["question"]), generator="published", **more)


def _is_of_pairs(path: Path) -> Filter:
    def check(fields: Fields) -> bool:
        try:
            score_pairs([(a, b) for a, b in fields["answer"]], "")
        except (TypeError, ValueError, OverflowError):
            raise KoderzError(f"{path}, id {fields['id']}: the answer has to be a list of pairs of numbers") from None
        return True

    return check


def _score(_task: Task[Recipe], row: Any, reply: str) -> tuple[float, Mapping[str, float]]:
    return score(row["answer"], row["answer_type"], reply)


def _path(dataset: Path | None, name: str, place: str) -> Path:
    if dataset is None:
        raise KoderzError(f"the suite {name} needs its file: get {place} from Hugging Face and name it with --dataset")
    return dataset
