"""The suites `oolong`, `oolong-real` and `oolong-pairs`."""

from __future__ import annotations

import ast
import datetime
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.suites.options import RowOptions, require_no_column
from koderz.suites.suite import Publication, SuiteSource
from koderz.suites.tokens import CHARS_A_TOKEN, read_length
from koderz.systems.long_context.contexts import (
    NEEDS,
    LongContextSuite,
    Reading,
    Recipe,
    in_characters,
)
from koderz.systems.long_context.oolong.questions import (
    KINDS,
    TEMPLATES,
    GeneratedQuestion,
    TextLine,
    Windows,
)
from koderz.systems.long_context.options import OolongOptions
from koderz.systems.long_context.published import Fields, Filter, Layout, OfRow, published
from koderz.systems.long_context.simulated import Player
from koderz.types import Measure, Task

_COMPARISONS = ("more common", "less common", "same frequency")
_SHORT = 20  # characters of a reply that is taken as it is
_PARTLY = 0.75  # for each by which a number is off
_PAIR = re.compile(r"\(\s*(\d+)\s*,\s*(\d+)\s*\)")


def gold_of(answer: str) -> Any:
    """The right answer: the first of a list in Python's notation, or a day. Raises ValueError for anything else."""
    if "datetime" in answer:
        return datetime.datetime.strptime(answer, "[datetime.date(%Y, %m, %d)]")
    try:
        return ast.literal_eval(answer)[0]
    except (SyntaxError, TypeError, IndexError, KeyError, RecursionError) as error:
        raise ValueError(str(error)) from None


def parsed(reply: str) -> str:
    """The answer in a reply: the text after the last colon, else a short reply, else the last word."""
    if ":" not in reply:
        if len(reply) < _SHORT:
            return reply
        return next(reversed(reply.split()), "")
    said = re.sub(r"[*\[\]]", "", reply.rpartition(":")[2].strip())
    if len(said) >= _SHORT:
        return next((phrase for phrase in _COMPARISONS if phrase in said), said)
    return said


def score(answer: str, answer_type: str, reply: str) -> tuple[float, Mapping[str, float]]:
    """The score of a reply to a synthetic question, and by the RLM repository's laxer rule as `score_rlm`."""
    gold, reading = gold_of(answer), parsed(reply)
    if reading == str(gold):
        strict = 1.0
    elif reading in _COMPARISONS:
        strict = float(reading in str(gold))
    elif answer_type == "ANSWER_TYPE.NUMERIC":
        strict = _near(gold, reading)
    elif answer_type == "ANSWER_TYPE.DATE":
        strict = float(_as_date(reading) == gold)
    else:
        strict = 0.0
    if ":" not in reply and not reply.strip():
        return strict, {"score_rlm": strict}
    return strict, {"score_rlm": max(strict, _lax(str(gold), reading, reply))}


def _near(gold: Any, said: Any) -> float:
    try:
        return float(_PARTLY ** abs(int(gold) - int(said)))
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _as_date(said: str) -> datetime.datetime | None:
    from dateutil.parser import parse

    try:
        found: datetime.datetime = parse(said)
    except Exception:  # noqa: BLE001 it raises whatever comes up in it
        return None
    return found


def _lax(gold: str, said: str, reply: str) -> float:
    """The score by containment, ignoring case; the last comparison anywhere counts."""
    lower = reply.lower()
    last = max(_COMPARISONS, key=lower.rfind)
    return float(gold.lower() in (last if last in lower and _compares(gold) else said.lower()))


def _compares(gold: str) -> bool:
    return any(phrase in gold for phrase in _COMPARISONS)


def score_real(answer: str, reply: str) -> float:
    """The score of a reply to a question about a real transcript."""
    boxed = _boxed(reply)
    gold, reading = _as_answer(answer), reply if boxed is None else _as_answer(boxed)
    if isinstance(gold, int) and isinstance(reading, int):
        return _near(gold, reading)
    if isinstance(gold, str) and isinstance(reading, str):
        return float(gold.strip().lower() == reading.strip().lower())
    if isinstance(gold, list) and isinstance(reading, list):
        return len({*gold} & {*reading}) / len(gold) if gold else 0.0
    return 0.0


def _boxed(reply: str) -> str | None:
    r"""The content of the first `\boxed{\text{…}}`, else of the first `\boxed{…}`, up to a brace; None without any.

    As the official patterns `\\boxed\{\\text\{([^}]*)\}\}` and `\\boxed[\{]+([^}]*)[\}]+` have it, which take minutes
    for a reply of many boxes that are never closed.
    """
    parts = reply.split("}")
    for part, after in pairwise(parts[:-1]):
        mark, content = part.partition(r"\boxed{\text{")[1:]
        if mark and not after:
            return content
    for part in parts[:-1]:
        mark, content = part.partition(r"\boxed{")[1:]
        if mark:
            return content.lstrip("{")
    return None


def _as_answer(text: str) -> int | str | list[str]:
    try:
        return int(text)
    except ValueError:
        return [item.strip() for item in text.split(",") if item.strip()] if "," in text else text


def score_pairs(answer: Any, reply: str) -> tuple[float, Mapping[str, float]]:
    """F1 over unordered pairs of numbers, with precision and recall."""
    gold = {frozenset(map(int, pair)) for pair in answer}
    pairs = {frozenset({int(a), int(b)}) for a, b in _PAIR.findall(reply)}
    right = len(gold & pairs)
    precision, recall = right / len(pairs) if pairs else 0.0, right / len(gold) if gold else 0.0
    both = precision + recall
    f1 = 2 * precision * recall / both if both else float(not gold and not pairs)
    assert math.isfinite(f1)
    return f1, {"precision": precision, "recall": recall}


_TEXT, _WINDOW = "context_window_text", "context_window_id"
_SYNTHETIC = Layout(
    {_TEXT: str},
    {
        "id": int | str,
        "context_len": int,
        **dict.fromkeys(("dataset", "question", "answer", "answer_type"), str),
    },
    ("task_group", "task", "input_subset", "num_labels", _WINDOW),
    window=(_WINDOW, "dataset", "context_len", "input_subset"),
)
_REAL = Layout(
    {_TEXT: str},
    {"id": int | str, "question": str, "answer": int | str},
    (_WINDOW, "question_type"),
    window=(_WINDOW,),
)
_PAIRS = Layout({"context": str}, {"id": int | str, "question": str, "answer": list})

_LICENCE = "MIT, see its card"
_MEASURES = (Measure("score", "higher", "share"), Measure("score_rlm", "higher", "share"))
# by column
_GROUPS = {"length": "context_len", "dataset": "dataset", "task": "task", "kind": "question_type"}
_USUAL_LENGTH = 4096
_LENGTHS = (1 << 10, 10 << 20)  # tokens of a generated text


class Oolong(LongContextSuite):
    """OOLONG's published rows (--dataset, parquet or JSON lines), or generated ones of the same kind."""

    options = OolongOptions
    publication = Publication.on_hub("oolongbench/oolong-synth", _LICENCE)

    @classmethod
    def load(cls, source: SuiteSource) -> Oolong:
        """Raises KoderzError for a row that can't be read, or a length that can't be made."""
        options: OolongOptions = source.options
        lengths = [read_length(word) for word in options.context_lengths]
        if source.dataset is None:
            require_no_column(options)
            tasks = _generated(lengths or [_USUAL_LENGTH], options, source.seed)
            made_of = "generated from templates, easier than OOLONG's own texts"
            about = f"{made_of}, seed {source.seed}, lengths in tokens of chars/4"
            return cls("oolong-generated", about, tasks, _score, PLAYER, _MEASURES)

        def keep(fields: Fields) -> bool:
            names = options.oolong_datasets
            return (not names or fields["dataset"] in names) and (
                not lengths or fields["context_len"] in lengths
            )

        tasks = tuple(
            _tasks(
                "oolong",
                source.dataset,
                replace(_SYNTHETIC, cluster=options.cluster_column),
                keep,
                _checked_row,
            )
        )
        return cls("oolong", str(source.dataset), tasks, _score, PLAYER, _MEASURES)


class OolongReal(LongContextSuite):
    """OOLONG's questions about real transcripts, from the user's file (--dataset)."""

    options = RowOptions
    publication = Publication.on_hub("oolongbench/oolong-real", _LICENCE)

    @classmethod
    def load(cls, source: SuiteSource) -> OolongReal:
        """Raises KoderzError where there is no file, or for a row that can't be read."""
        if (path := source.dataset) is None:
            raise cls.publication.missing("oolong-real")

        def score_reply(
            _task: Task[Recipe], answer: Any, reply: str
        ) -> tuple[float, Mapping[str, float]]:
            return score_real(str(answer), reply), {}

        layout = replace(_REAL, cluster=(source.options or RowOptions()).cluster_column)
        tasks = tuple(_tasks("oolong-real", path, layout, lambda _: True, _answered))
        return cls("oolong-real", str(path), tasks, score_reply, PLAYER)


class OolongPairs(LongContextSuite):
    """Pairs of users to be found, from the user's file of {id, context, question, answer} (--dataset)."""

    options = RowOptions
    publication = Publication.on_hub("mit-oasys/oolong-pairs", _LICENCE)

    @classmethod
    def load(cls, source: SuiteSource) -> OolongPairs:
        """Raises KoderzError where there is no file, or for a row that can't be read."""
        if (path := source.dataset) is None:
            raise cls.publication.missing("oolong-pairs")

        def score_reply(
            _task: Task[Recipe], answer: Any, reply: str
        ) -> tuple[float, Mapping[str, float]]:
            return score_pairs(answer, reply)

        layout = replace(_PAIRS, cluster=(source.options or RowOptions()).cluster_column)
        tasks = tuple(_tasks("oolong-pairs", path, layout, _is_of_pairs(path), _answered))
        return cls("oolong-pairs", str(path), tasks, score_reply, PLAYER)


def _generated(lengths: list[int], options: OolongOptions, seed: int) -> tuple[Task[Recipe], ...]:
    low, high = _LENGTHS
    if wrong := [length for length in lengths if not low <= length <= high]:
        raise KoderzError(
            f"--context-lengths: a generated text has {low:,} to {high:,} tokens, not {wrong[0]:,}"
        )
    windows = Windows(seed)
    numbers, each = range(options.tasks_per_length), options.questions_per_text
    recipes = [
        GeneratedQuestion(windows, length, number, each) for number in numbers for length in lengths
    ]
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


def _tasks(
    name: str, path: Path, layout: Layout, keep: Filter, of_row: OfRow
) -> Iterator[Task[Recipe]]:
    seen = set()
    for row in published(path, layout, keep, of_row):
        task_id = f"{name}/{row.fields['id']}"
        if task_id in seen:
            raise KoderzError(f"{path}: two rows have the id {row.fields['id']}")
        seen.add(task_id)
        if name == "oolong":
            fields = row.fields
            try:
                gold_of(str(fields["answer"]))
            except ValueError as error:
                raise KoderzError(
                    f"{path}, id {fields['id']}: the answer {fields['answer']!r:.80} can't be read: {error}"
                ) from None
        tokens = row.fields.get("context_len") or row.size // CHARS_A_TOKEN
        groups = {
            name: str(row.fields[field])
            for name, field in _GROUPS.items()
            if row.fields.get(field) is not None
        }
        yield Task(
            task_id,
            payload=row,
            needs=NEEDS,
            digest=row.digest,
            tokens=int(tokens),
            groups=groups,
            cluster=row.cluster or ("" if layout.cluster else _text_of(row.fields, layout)),
        )
    if not seen:
        raise KoderzError(f"{path} holds no such row; see --oolong-datasets and --context-lengths")


def _text_of(fields: Fields, layout: Layout) -> str:
    """The key of the text that a row shares with others."""
    window = layout.window_of(fields, None)
    return f"text {'/'.join(window)}" if window else ""


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
            raise KoderzError(
                f"{path}, id {fields['id']}: the answer has to be a list of pairs of numbers"
            ) from None
        return True

    return check


def _score(_task: Task[Recipe], row: Any, reply: str) -> tuple[float, Mapping[str, float]]:
    return score(row["answer"], row["answer_type"], reply)


_BEGINNINGS = {
    re.match(r"[^{]*?(?= \{| a \{| the \{|$)", template)[0]: label  # type: ignore[index]
    for label, templates in TEMPLATES.items()
    for template in templates
}
_LINE = re.compile(
    r"^Date: (\w{3} \d\d, \d{4}) \|\| User: (\d+) \|\| Instance: (.*)$", re.MULTILINE
)
_LABEL_OF = "What is the label of this line?"


def answers(asked: str) -> list[str]:
    """The right answers to a generated text and question, read from them alone; empty for others."""
    question = asked.rpartition("\n")[2]
    if question == _LABEL_OF:
        return [entry.label for entry in _entries(asked)]
    for kind in KINDS:
        if found := kind.pattern.match(question):
            about = found.groupdict()
            right = kind.answer([*_entries(asked)], about.get("a", ""), about.get("b", ""))
            return [] if right is None else [str(right)]
    return []


def _entries(text: str) -> Iterator[TextLine]:
    for day, user, said in _LINE.findall(text):
        label = next((label for start, label in _BEGINNINGS.items() if said.startswith(start)), "")
        if label:
            yield TextLine(datetime.datetime.strptime(day, "%b %d, %Y").date(), user, label)


_SEARCH = f"""I have a line of each form labelled, and count all lines by code.

```repl
from datetime import date
months = 'Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec'.split()
forms = '|'.join({[*_BEGINNINGS]!r})
lines = re.findall(r'^Date: (.+?) \\|\\| User: (\\d+) \\|\\| Instance: (' + forms + ')', context, re.MULTILINE)
seen = [*dict.fromkeys(form for _, _, form in lines)]
shown = [re.search('^Date: .*Instance: ' + form + '.*', context, re.MULTILINE)[0] for form in seen]
said = llm_query_batched([line + '\\n{_LABEL_OF}' for line in shown]) if seen else []
labels = {{form: reply[8:] for form, reply in zip(seen, said) if reply.startswith('Answer: ')}}
print(len(lines), 'lines', labels)

days = {{day: date(int(day[8:]), months.index(day[:3]) + 1, int(day[4:6])) for day in {{day for day, _, _ in lines}}}}
user, after = re.search(r' of user (\\d+)', question), re.search(r' after (\\d\\S+)', question)
rows = [(days[day], who, labels[form]) for day, who, form in lines if form in labels]
rows = [each for each in rows if not user or each[1] == user[1]]
rows = [each for each in rows if not after or each[0] > date.fromisoformat(after[1])]
column = 1 if 'Which user' in question else 0 if ' date' in question else 2
counts, named = Counter(each[column] for each in rows), re.findall(r"label '(.+?)'", question)
ranked, times = [each for each, _ in counts.most_common()], re.search(r'exactly (\\d+) lines', question)
if not rows:
    parts = [context[at : at + 20_000] for at in range(0, len(context), 20_000)]
    replies = llm_query_batched([part + '\\n' + question for part in parts])
else:
    if times:
        found = [*counts.values()].count(int(times[1]))
    elif 'In which month' in question:
        by_month = Counter((each[0].replace(day=1), each[2]) for each in rows)
        found = [m for m in sorted({{m for m, _ in by_month}}) if by_month[m, named[0]] > by_month[m, named[1]]]
        found = f'{{found[0]:%B %Y}}' if found else 'none'
    elif 'How many lines' in question:
        found = counts[named[0]]
    elif 'Is label' in question:
        one, other = counts[named[0]], counts[named[1]]
        found = 'more common than' if one > other else 'less common than' if one < other else 'same frequency as'
    else:
        found = ranked[-1 if ' least ' in question else 1 if ' second ' in question else 0]
    replies = ['Answer: ' + (f'{{found:%Y-%m-%d}}' if column == 0 and not times else str(found))]
print(replies)
```"""

PLAYER = Player(answers, _SEARCH)
