"""The suite `ruler`: rows made from a seed, or those of a folder written by RULER's own scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.suites.clusters import linked
from koderz.suites.suite import SuiteSource
from koderz.suites.tokens import CHARS_A_TOKEN, Tokenizer, load_tokenizer, read_length
from koderz.systems.long_context.contexts import NEEDS, LongContextSuite, Recipe
from koderz.systems.long_context.lines import FileLine, file_lines
from koderz.systems.long_context.ruler.options import RulerOptions
from koderz.systems.long_context.ruler.questions import READERS
from koderz.systems.long_context.ruler.simulated import PLAYER
from koderz.systems.long_context.ruler.tasks import (
    TASKS,
    Material,
    Rows,
    RulerRecipe,
    kinds_of,
    reading_of,
)
from koderz.systems.long_context.words import VERSION
from koderz.types import Task
from koderz_tracker.files import write_whole


class Ruler(LongContextSuite):
    """RULER's rows made anew for any length, or those of a folder that its scripts have written."""

    options = RulerOptions

    @classmethod
    def load(cls, source: SuiteSource) -> Ruler:
        """Raises KoderzError for what can't be made or read."""
        options: RulerOptions = source.options
        tokenizer = load_tokenizer(options.tokenizer)
        counted = f"lengths in tokens of {tokenizer.name}"
        if source.dataset is not None:
            tasks = tuple(_folder_tasks(source.dataset, tokenizer))
            return cls("ruler", f"{source.dataset}, {counted}", tasks, _score, PLAYER)
        made_of = f"RULER's rows made anew, wonderwords {VERSION}, seed {source.seed}, {counted}"
        all_rows = rows_of(options, source.seed, tokenizer)
        tasks = tuple(_made_tasks(all_rows, options.tasks_per_length))
        export = partial(_export, all_rows, options.tasks_per_length)
        return cls("ruler", made_of, tasks, _score, PLAYER, export=export)


def rows_of(options: RulerOptions, seed: int, tokenizer: Tokenizer | None = None) -> list[Rows]:
    """The rows of each length and task, in this order."""
    material = Material(seed, tokenizer or load_tokenizer(options.tokenizer), options.haystack, options.qa_data)
    names = [
        kind
        for task in dict.fromkeys(options.ruler_tasks)
        for kind in kinds_of(task, options.needle_positions, options.needle_types)
    ]
    lengths = dict.fromkeys(map(read_length, options.context_lengths))
    for task in TASKS[-2:]:
        if task in names:
            material.collection(task)
    return [Rows(name, length, material) for length in lengths for name in names]


def _made_tasks(all_rows: Sequence[Rows], count: int) -> Iterator[Task[Recipe]]:
    clusters = {rows.task: _clusters(rows, count) for rows in all_rows if rows.task in READERS}
    for index in range(count):
        for rows in all_rows:
            recipe = RulerRecipe(rows, index)
            yield Task(
                f"{rows.name}/{rows.length}/{index}",
                payload=recipe,
                needs=NEEDS,
                digest=recipe.digest,
                tokens=rows.length,
                groups={"length": str(rows.length), "task": rows.name},
                cluster=clusters.get(rows.task, {}).get(index, ""),
                generated=rows.is_generated,
            )


def _clusters(rows: Rows, count: int) -> dict[int, str]:
    """The passages that a question shares with others, by number; the same at any length."""
    questions = rows.material.collection(rows.task).questions[:count]
    found = linked({number: question.shares for number, question in enumerate(questions)})
    return {number: f"{rows.task}, passage {name}" for number, name in found.items()}


def _export(all_rows: Sequence[Rows], count: int, folder: Path) -> Iterator[tuple[Path, int]]:
    """`TASK/validation.jsonl` as RULER's scripts write it, in a folder for each length if there are several."""
    lengths = {rows.length for rows in all_rows}
    for rows in all_rows:
        place = folder / str(rows.length) if len(lengths) > 1 else folder
        path = place / rows.name.replace("/", "_") / "validation.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, (_line(rows, index) for index in range(count)), durable=False)
        yield path, count


def _line(rows: Rows, index: int) -> bytes:
    row = rows.row(index)
    return f"{json.dumps(row if rows.generator == 'official' else {**row, 'generator': rows.generator})}\n".encode()


def _folder_tasks(folder: Path, tokenizer: Tokenizer) -> Iterator[Task[Recipe]]:
    files = [folder] if folder.is_file() else sorted(folder.glob("*/validation.jsonl"))
    if not files:
        raise KoderzError(f"there is no TASK/validation.jsonl in {folder}, as RULER's scripts write it")
    make = partial(_of_file, tokenizer=tokenizer)
    for file in files:
        for number, line in enumerate(file_lines(file)):
            row = line.row()
            row.text("input")
            for name in ("length", "token_position_answer"):
                row.number(name, 0)
            if not row.texts("outputs"):
                raise row.error("the field 'outputs' is empty")
            recipe = FileLine(line, make)
            task_id, tokens = f"{file.parent.name}/{number}", line.size // CHARS_A_TOKEN
            stated = row.fields.get("length")
            length = 1 << ((stated if isinstance(stated, int) and stated > 1 else max(tokens, 2)) - 1).bit_length()
            groups = {"length": str(length), "task": file.parent.name}  # the power of two that it was made for
            yield Task(
                task_id,
                payload=recipe,
                needs=NEEDS,
                digest=recipe.digest,
                tokens=tokens,
                groups=groups,
                cluster=row.cluster,
            )


def _of_file(row: Mapping[str, Any], *, tokenizer: Tokenizer) -> Any:
    return reading_of(row, tokenizer, "file"), row["outputs"]


def _score(task: Task[Recipe], outputs: Any, reply: str) -> tuple[float, Mapping[str, float]]:
    return score(task.id, outputs, reply), {}


_UNPRINTABLE = re.compile(r"[\x00-\x1f]")


def score(task: str, outputs: Sequence[str], reply: str) -> float:
    """The share of expected outputs in a reply, ignoring case; for questions 1 if it has any."""
    text = _UNPRINTABLE.sub("\n", reply.strip()).strip().lower()
    found = [output.lower() in text for output in outputs]
    if task.startswith("qa"):
        return float(any(found))
    return sum(found) / len(found)
