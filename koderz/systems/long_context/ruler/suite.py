"""The suite `ruler`: rows made from a seed, or those of a folder written by RULER's own scripts."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.suites.options import require_no_column
from koderz.suites.suite import SuiteSource, linked
from koderz.suites.tokens import CHARS_A_TOKEN, Tokenizer, load_tokenizer, read_length
from koderz.systems.long_context.contexts import NEEDS, LongContextSuite, Recipe
from koderz.systems.long_context.published import FileLine, file_lines
from koderz.systems.long_context.ruler.options import RulerOptions
from koderz.systems.long_context.ruler.questions import READERS
from koderz.systems.long_context.ruler.tasks import (
    TASKS,
    Material,
    Rows,
    RulerRecipe,
    kinds_of,
    reading_of,
)
from koderz.systems.long_context.simulated import Player
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
            tasks = tuple(_folder_tasks(source.dataset, tokenizer, options.cluster_column))
            return cls("ruler", f"{source.dataset}, {counted}", tasks, _score, PLAYER)
        require_no_column(options)
        made_of = f"RULER's rows made anew, wonderwords {VERSION}, seed {source.seed}, {counted}"
        all_rows = rows_of(options, source.seed, tokenizer)
        tasks = tuple(_made_tasks(all_rows, options.tasks_per_length))
        export = partial(_export, all_rows, options.tasks_per_length)
        return cls("ruler", made_of, tasks, _score, PLAYER, export=export)


def rows_of(options: RulerOptions, seed: int, tokenizer: Tokenizer | None = None) -> list[Rows]:
    """The rows of each length and task, in this order."""
    material = Material(
        seed, tokenizer or load_tokenizer(options.tokenizer), options.haystack, options.qa_data
    )
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


def _folder_tasks(
    folder: Path, tokenizer: Tokenizer, cluster_column: str | None
) -> Iterator[Task[Recipe]]:
    files = [folder] if folder.is_file() else sorted(folder.glob("*/validation.jsonl"))
    if not files:
        raise KoderzError(
            f"there is no TASK/validation.jsonl in {folder}, as RULER's scripts write it"
        )
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
            length = (
                1
                << (
                    (stated if isinstance(stated, int) and stated > 1 else max(tokens, 2)) - 1
                ).bit_length()
            )
            # the power of two that it was made for
            groups = {"length": str(length), "task": file.parent.name}
            yield Task(
                task_id,
                payload=recipe,
                needs=NEEDS,
                digest=recipe.digest,
                tokens=tokens,
                groups=groups,
                cluster=row.cluster_by(cluster_column),
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


_QUERY = re.compile(r"special magic \w+ for (.+?) mentioned in the provided text\?")
_VALUE = re.compile(r"are assigned the value (\d+) in the text above\.")
_ASSIGNMENT = re.compile(r"VAR (\w+) = (?:VAR )?(\w+)")
_NUMBERED = re.compile(r"\d+\. (\S+)")


def answers(asked: str) -> list[str]:
    """The expected answers to a whole prompt; empty if it isn't one of RULER's."""
    question = asked.rpartition("\n")[2]
    if query := _QUERY.search(question):
        keys = re.split(r", (?:and )?", query[1])
        return [
            value
            for key in keys
            for value in re.findall(rf"for {re.escape(key)} is: (.+?)\.(?=\s|$)", asked)
        ]
    if value := _VALUE.search(question):
        text = asked.rpartition("Memorize and track")[2]
        # the variables that have the value, directly or through another one
        found: dict[str, Any] = {value[1]: None}
        for name, origin in _ASSIGNMENT.findall(text):
            if origin in found:
                found[name] = None
        return [*found][1:]
    if "most common words" in question:
        listed = _NUMBERED.findall(
            asked.rpartition("Below is a numbered list")[2].rpartition("\n")[0]
        )
        return [word for word, _ in Counter(listed).most_common(10)]
    if "most frequently appeared words" in question:
        coded = asked.rpartition("\n")[0].partition("appeared coded words. ")[2].split(" ")
        return [
            word for word, _ in Counter(word for word in coded if set(word) != {"."}).most_common(3)
        ]
    return []


_SEARCH = """I search for what the question names, and count what is left.

```repl
number = re.search(r'value (\\d+) in the text', question)
keys = re.search(r' for (.+?) mentioned in', question)
counted = Counter(re.findall(r'\\d+\\. (\\S+)', context)) if 'common words' in question else Counter()
if number:
    assigned = re.findall(r'VAR \\w+ = \\w+(?: \\w+)?', context.rpartition('Memorize and track')[2])
    parts = ['Memorize and track ' + '\\n'.join(assigned)]
elif keys:
    wanted = '|'.join(map(re.escape, re.split(r', (?:and )?', keys[1])))
    parts = ['\\n'.join(re.findall(r'[^.\\n]*\\bfor (?:' + wanted + r') is: [^\\n]*?\\.(?=\\s|$)', context))]
elif counted:
    words = [word for rank, (word, _) in enumerate(counted.most_common(10)) for _ in range(10 - rank)]
    listed = ' '.join(f'{n}. {word}' for n, word in enumerate(words, 1))
    parts = ['Below is a numbered list of words. ' + listed]
elif 'frequently appeared words' in question:
    coded = Counter(word for word in context.partition('appeared coded words. ')[2].split() if set(word) != {'.'})
    words = [word for rank, (word, _) in enumerate(coded.most_common(3)) for _ in range(3 - rank)]
    parts = ['appeared coded words. ' + ' '.join(words)]
else:
    parts = [context[at : at + 20_000] for at in range(0, len(context), 20_000)]
print(len(parts), sum(map(len, parts)))
replies = llm_query_batched([part + '\\n' + question for part in parts])
print(Counter(replies))
```"""

PLAYER = Player(answers, _SEARCH)
