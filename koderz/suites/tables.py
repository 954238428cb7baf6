"""Rows of files as people have them, in any encoding of Unicode, multiple choices in their columns, and templates."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from koderz.errors import KoderzError
from koderz.suites.dataset import LONGEST, File, Row, decoded, lines_of, opened, parsed, row_of
from koderz_tracker.files import MB

KINDS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")

Skip = Callable[[KoderzError], None]

_HEAD = 4096  # bytes by which an encoding and a kind are known
_DELIMITERS = ",;\t"
_BLANK = " \t\r\n\xa0\ufeff\u200b"  # around a heading


def kind_of(path: Path) -> str:
    """How a file's name ends, but for `.gz`; empty where it isn't one of a table."""
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    return suffix if suffix in KINDS else ""


def rows_in(path: Path) -> Iterator[Row]:
    """The rows of a file, or of all tables in a folder. Raises KoderzError naming file and line."""
    if not path.is_dir():
        yield from read_rows(path)
        return
    files = sorted(each for each in path.rglob("*") if each.is_file() and kind_of(each))
    if not files:
        raise KoderzError(f"{path}: there is no {', '.join(KINDS)} file in this folder")
    for file in files:
        yield from read_rows(file)


def read_rows(path: Path, skip: Skip | None = None, data: bytes | None = None) -> Iterator[Row]:
    """The rows of a file by how its name ends, of another name by its content: a table, or objects of JSON.

    JSON has an object a line, a list of such, or one alone; its numbers keep all their digits, NaN and Infinity are
    understood. CSV, with any delimiter, and TSV have a header, and their values are texts. Raises KoderzError, naming
    the line, for what is no row, and for a file that can't be read. With `skip`, lines that are no JSON object are
    handed to it and left out. `data`: the content of the file, if it was read before.
    """
    if kind_of(path) == ".parquet":
        number = 0
        with opened_parquet(path, data=data) as file:
            for batch in file.iter_batches(batch_size=1000):
                for fields in batch.to_pylist():
                    yield Row(f"{path}, row {number}", fields)
                    number += 1
        return
    with opened(path, data=data) as file:
        head, kind = file.peek(_HEAD), kind_of(path)
        encoding = json.detect_encoding(head[:4])
        begin = head.decode(encoding, "ignore").lstrip(_BLANK)[:1]
        if kind in (".csv", ".tsv") or (not kind and begin not in ("", "{", "[") and skip is None):
            text = decoded(_whole(file, path), path, encoding=encoding)
            if not kind and not any(_fit(text, each)[0] for each in _DELIMITERS):
                raise KoderzError(f"{path}, line 1: not JSON, nor a table with several columns")
            yield from _of_csv(text, path)
        elif encoding.startswith("utf-8"):
            yield from _of_json(_decoded(lines_of(file, path), path), path, skip)
        else:  # which ends its lines within a character
            lines = decoded(_whole(file, path), path, encoding=encoding).split("\n")
            yield from _of_json(enumerate((line.strip(_BLANK) for line in lines), 1), path, skip)


def _whole(file: File, path: Path) -> bytes:
    data = file.read(LONGEST)
    if len(data) == LONGEST:
        raise KoderzError(
            f"{path}: a table of {LONGEST // MB} MB and more isn't read; write it as JSON lines in UTF-8"
        )
    return data


def _decoded(lines: Iterable[tuple[int, bytes]], path: Path) -> Iterator[tuple[int, str]]:
    for number, line in lines:
        yield number, decoded(line, path, number, "utf-8-sig" if number == 1 else "utf-8").strip()


def _of_json(lines: Iterator[tuple[int, str]], path: Path, skip: Skip | None) -> Iterator[Row]:
    """The rows of numbered lines: of a row a line, or of one value over all lines."""
    first = next((each for each in lines if each[1]), None)
    if first is None:
        return
    number, line = first
    if not _is_object(line):  # a value over all lines, or a bad row before others
        rest = [*lines]
        if line.startswith(("[", "{")) and not (_is_json(line) and any(text for _, text in rest)):
            text = "\n".join([line, *(text for _, text in rest)])
            if line.startswith("[") or _is_json(text):
                yield from _of_value(parsed(text, path, number), path)
                return
        lines = iter(rest)
    for number, line in chain([first], lines):
        if line:
            try:
                row = row_of(parsed(line, path, number), f"{path}, line {number}")
            except KoderzError as error:
                if skip is None:
                    raise
                skip(error)
            else:
                yield row


def _of_value(value: Any, path: Path) -> Iterator[Row]:
    if isinstance(value, dict):
        yield Row(str(path), value)
        return
    for number, entry in enumerate(value, 1):
        yield row_of(entry, f"{path}, entry {number}")


def _is_object(text: str) -> bool:
    return text.startswith("{") and _is_json(text)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _of_csv(text: str, path: Path) -> Iterator[Row]:
    """The rows below a header. Blanks around headings, empty rows, and columns without a name don't count."""
    records = _records(text, path)
    _, header = next(records, (1, []))
    names = [name.strip(_BLANK) for name in header]
    # pandas leaves its index without one
    places = {name: place for place, name in enumerate(names) if name}
    if not places or len(places) < len([*filter(None, names)]):
        raise KoderzError(f"{path}, line 1: the columns need a name each, all different")
    for number, values in records:
        where = f"{path}, line {number}"
        if not any(values):
            continue
        if len(values) < len(header) or any(values[len(header) :]):
            raise KoderzError(f"{where}: {len(values)} columns, but the header has {len(header)}")
        yield Row(where, {name: values[place] for name, place in places.items()})


def _records(text: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """The records of a table, each with the number of the line on which it begins."""
    csv.field_size_limit(LONGEST)
    first, _, rest = text.partition("\n")
    # Excel is told of a delimiter by sep=
    begin, text = (1, rest) if first.startswith("sep=") else (0, text)
    order = sorted(_DELIMITERS, key=lambda each: each == "\t", reverse=kind_of(path) == ".tsv")
    delimiter = max(order, key=lambda each: _fit(text, each))
    if delimiter == "\t":
        lines = [line.split("\t") for line in io.StringIO(text, newline=None)]
        if len({len(each) for each in lines if any(map(str.strip, each))}) == 1:
            # Google Sheets quotes nothing, and no cell holds a line: a quote within a cell is one of its characters.
            for number, cells in enumerate(lines, begin + 1):
                yield number, [_unquoted(cell.rstrip("\n")) for cell in cells]
            return
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = begin + 1
    try:
        for values in reader:
            yield line, values
            line = begin + reader.line_num + 1
    except csv.Error as error:
        raise KoderzError(
            f"{path}, line {line}: not CSV ({error}); is a quote left open?"
        ) from None


def _fit(text: str, delimiter: str) -> tuple[bool, int]:
    """Whether the first row has as many columns as the header if a delimiter is the file's, and how many there are."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    try:
        header = next(reader, [])
        row = next((values for values in reader if values), header)
    except csv.Error:
        row = []
    return 1 < len(header) == len(row), len(header)


def _unquoted(cell: str) -> str:
    inner = cell[1:-1].replace('""', "")
    is_quoted = len(cell) > 1 and cell[0] == cell[-1] == '"' and '"' not in inner
    return cell[1:-1].replace('""', '"') if is_quoted else cell


@contextmanager
def opened_parquet(
    path: Path, error: type[KoderzError] = KoderzError, data: bytes | None = None
) -> Iterator[Any]:
    """pyarrow's ParquetFile. What can't be read, now or within, is an `error` that names the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path if data is None else io.BytesIO(data)) as file:
            yield file
    except FileNotFoundError:
        raise error(f"there is no dataset {path}") from None
    except (OSError, pa.ArrowException) as problem:
        reason = str(problem).partition("\n")[0]
        raise error(f"the dataset {path} can't be read: {reason}") from None


_PLACEHOLDER = re.compile(r"\{([^{}\n]{1,200})\}")


def fill(template: str, columns: Mapping[str, str]) -> str:
    """The template with the columns' values in place of their names in braces; other braces stay.

    Values are never looked at again, so that a `{question}` in one remains what it is.
    """
    return _PLACEHOLDER.sub(lambda found: columns.get(found[1], found[0]), template)


def placeholders(template: str, columns: Collection[str]) -> set[str]:
    """The columns whose placeholders a template has."""
    return {name for name in _PLACEHOLDER.findall(template) if name in columns}


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
