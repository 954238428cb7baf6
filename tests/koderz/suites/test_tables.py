"""Files of rows as spreadsheets and other programs write them, in every place that takes a file of rows."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.runs.judge import read_samples
from koderz.suites.suite import SuiteSource
from koderz.suites.tables import read_rows
from koderz.systems.code.bigcodebench.suite import read_exercises
from koderz.systems.code.humaneval import HumanEval
from koderz.systems.code.livecodebench.suite import read_contests
from koderz.systems.code.mbpp import Mbpp
from koderz.systems.code.options import BigCodeBenchOptions
from koderz.systems.long_context.browsecomp_plus.suite import BrowseCompPlus
from koderz.systems.long_context.oolong.suite import Oolong
from koderz.systems.long_context.options import OolongOptions, ResearchOptions
from koderz.systems.long_context.ruler.options import RulerOptions
from koderz.systems.long_context.ruler.suite import Ruler
from koderz.systems.optimizers.datasets.options import DatasetOptions
from koderz.systems.optimizers.datasets.suite import DatasetSuite
from koderz.systems.patches.gso import read_predictions as read_attempts
from koderz.systems.patches.patches import read_predictions as read_given
from koderz.systems.patches.sources import ids_of, read_published
from koderz.systems.publishing.labels import read_labels
from koderz.systems.questions.options import QaOptions
from koderz.systems.questions.suite import Qa
from koderz.systems.rollouts.swebench import read_instances
from koderz.systems.rollouts.tasks.datasets import read_dataset
from koderz.systems.serving.options import ServingOptions
from koderz.systems.serving.prompts import load_prompts
from koderz.systems.workspaces.predictions import read_predictions
from tests.koderz.suites.rows import complaint, written
from tests.koderz.systems.code.test_livecodebench import ROWS as CONTESTS
from tests.koderz.systems.long_context.encrypted import CANARY
from tests.koderz.systems.long_context.encrypted import rows as research_rows
from tests.koderz.systems.long_context.test_oolong import row as oolong_row
from tests.koderz.systems.rollouts.swebench.test_regrade import ROW as INSTANCE

Rows = Sequence[Mapping[str, Any]]
ODD = '"Größe", she said; naïve, 5 €'
"""What every delimiter, quotes and code pages stumble over."""


@pytest.fixture(autouse=True)
def canary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KODERZ_BROWSECOMP_CANARY", CANARY)


@dataclass(frozen=True)
class Place:
    """A place that takes a file of rows."""

    load: Callable[[Path], Iterable[Any]]
    row: Callable[[int], Mapping[str, Any]]
    name: str = ""  # the column with the row's own name
    is_table: bool = True  # whether CSV can hold its rows


def code(number: int) -> Mapping[str, Any]:
    test = "def check(candidate): assert candidate(3) == 1.5"
    prompt = f"def half(n): return  # {ODD}"
    return {"task_id": f"Own/{number}", "prompt": prompt, "entry_point": "half", "test": test} | {
        "canonical_solution": "def half(n): return n / 2"
    }


def exercise(number: int) -> Mapping[str, Any]:
    prompt = f"def half(n): return n / 2  # {ODD}"
    return {"task_id": f"BigCodeBench/{number}", "complete_prompt": prompt, "instruct_prompt": prompt} | {
        "canonical_solution": "pass",
        "entry_point": "half",
        "test": "class TestCases: pass",
        "libs": "[]",
    }


def qa(path: Path) -> Iterable[Any]:
    return [
        (each.id, each.payload.text, each.payload.targets) for each in Qa.load(SuiteSource(path, QaOptions())).tasks
    ]


def examples(path: Path) -> Iterable[Any]:
    questions = written(path.with_name("questions.jsonl"), {"input": "?", "target": "!"})
    return [Qa.load(SuiteSource(questions, QaOptions(few_shot=2, few_shot_from=path))).tasks[0].messages]


def datasets(path: Path) -> Iterable[Any]:
    columns: Any = {"input_columns": ("input",), "output_column": "target"}
    options = DatasetOptions(
        dataset=(f"own={path}",), demo_datasets=("own",), train_items=1, validation_items=1, test_items=1, **columns
    )
    (task,) = DatasetSuite.load(SuiteSource(None, options)).tasks
    return sorted((item.columns["input"], item.gold) for items in task.payload.splits.values() for item in items)


def prompts(path: Path) -> Iterable[Any]:
    return load_prompts(ServingOptions(dataset_name="custom", dataset_path=path, num_prompts=3), 0)


def samples(path: Path) -> Iterable[Any]:
    tasks = HumanEval.load(SuiteSource(written(path.with_name("tasks.jsonl"), *map(code, range(3))))).tasks
    return [(each.task.id, each.program) for each in read_samples(path, tasks).samples]


def of_perf(path: Path) -> Iterable[Any]:
    tasks: Any = [SimpleNamespace(id=f"{name}{number}") for name in ("a__b-", "") for number in range(5)]
    return sorted(read_given([path], tasks).patches.items())


def question(number: int) -> Mapping[str, Any]:
    return {"id": number, "input": f"{ODD} {number}?", "target": f"{number}"}


def prediction(number: int) -> Mapping[str, Any]:
    return {"instance_id": f"a__b-{number}", "model_patch": f"+{ODD}", "model_name_or_path": "m"}


def instance(number: int) -> Mapping[str, Any]:
    tests = json.dumps(["t.py::test_old"])
    fields = {"instance_id": f"a__b-{number}", "problem_statement": ODD, "eval_script": "pytest", "PASS_TO_PASS": tests}
    return {**INSTANCE, **fields}


PLACES = {
    "qa": Place(qa, question, "id"),
    "few-shot examples": Place(examples, question, "id"),
    "optimizers": Place(datasets, question),
    "humaneval": Place(lambda path: HumanEval.load(SuiteSource(path)).tasks, code, "task_id"),
    "mbpp": Place(
        lambda path: Mbpp.load(SuiteSource(path)).tasks,
        lambda n: {"task_id": n, "text": ODD, "code": "def half(n): return n / 2", "test_list": ["assert half(3)"]},
        "task_id",
        is_table=False,
    ),
    "bigcodebench": Place(lambda path: read_exercises(path, BigCodeBenchOptions()), exercise, "task_id"),
    "livecodebench": Place(
        lambda path: [(each.contest.function, each.row.id("question_id")) for each in read_contests(path)],
        lambda n: {**CONTESTS[0], "question_id": f"{n}", "question_content": ODD},
        "question_id",
        is_table=False,
    ),
    "oolong": Place(
        lambda path: [each.id for each in Oolong.load(SuiteSource(path, OolongOptions())).tasks],
        lambda n: oolong_row(n, question=ODD),
        "id",
        is_table=False,
    ),
    "browsecomp-plus": Place(
        lambda path: [each.id for each in BrowseCompPlus.load(SuiteSource(path, ResearchOptions())).tasks],
        lambda n: research_rows(n + 1)[n],
        "query_id",
        is_table=False,
    ),
    "ruler": Place(
        lambda path: [each.id for each in Ruler.load(SuiteSource(path, RulerOptions())).tasks],
        lambda n: {"index": n, "input": f"{n} {ODD}", "outputs": ["a"]},
        is_table=False,
    ),
    "serving": Place(prompts, lambda n: {"prompt": f"{ODD} {n}", "output_tokens": 3 + n}),
    "swebench": Place(
        lambda path: [(each.id, each.problem_statement) for each in read_instances(path)], instance, "instance_id"
    ),
    "rollouts": Place(lambda path: [each.id for each in read_dataset(path, None, {}).tasks], instance, "instance_id"),
    "gso": Place(
        lambda path: [(each.id, each.prompt) for each in read_published(path)],
        lambda n: (
            {"instance_id": f"a__b-{n}", "api": ODD, "opt_commit": "b", "base_commit": "a", "repo": "a/b"}
            | {"tests": ["pass"], "setup_commands": [], "install_commands": []}
        ),
        "instance_id",
        is_table=False,
    ),
    "ids of opt-at-k": Place(ids_of, prediction, "instance_id"),
    "predictions": Place(
        lambda path: [(each.instance, each.patch, each.model) for each in read_predictions(path)],
        prediction,
        "instance_id",
    ),
    "predictions of perf": Place(of_perf, prediction, "instance_id"),
    "predictions of opt-at-k": Place(read_attempts, prediction, "instance_id"),
    "samples": Place(samples, lambda n: {"task_id": f"Own/{n}", "solution": f"# {ODD}"}, "task_id"),
    "labels": Place(
        lambda path: sorted(read_labels(path, {f"exp_{n}": n for n in range(3)})[0].items()),
        lambda n: {"experiment_id": f"exp_{n}", "label": "pass", "question": ODD},
        "experiment_id",
    ),
}


def json_lines(rows: Iterable[Any]) -> str:
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\r\n" for row in rows)


def table(rows: Rows, delimiter: str, *, blanks: str = "") -> str:
    text = io.StringIO()
    names = [*rows[0]]
    writer = csv.writer(text, delimiter=delimiter)
    writer.writerows([[f"{name}{blanks}" for name in names], *([row[name] for name in names] for row in rows)])
    return text.getvalue()


def unquoted(rows: Rows) -> str:
    lines = [[*rows[0]], *([str(each).replace("\t", " ") for each in row.values()] for row in rows)]
    return "".join("\t".join(line) + "\r\n" for line in lines)


FILES: Mapping[str, tuple[str, Callable[[Rows], bytes]]] = {
    "Excel in German, CSV UTF-8": ("a.csv", lambda rows: table(rows, ";").encode("utf-8-sig")),
    "Excel in German with empty rows": (
        "a.csv",
        lambda rows: (table(rows, ";") + ";" * (len(rows[0]) - 1) + "\r\n").encode("utf-8-sig"),
    ),
    "a line sep=": ("a.csv", lambda rows: b"sep=;\r\n" + table(rows, ";").encode()),
    "Excel's Unicode text": ("a.txt", lambda rows: table(rows, "\t").encode("utf-16")),
    "Google Sheets' TSV": ("a.tsv", lambda rows: unquoted(rows).encode()),
    "Google Sheets' CSV": ("a.csv", lambda rows: table(rows, ",").encode()),
    "blanks in headings": ("a.csv", lambda rows: table(rows, ",", blanks=" \xa0").encode()),
    "pandas with its index": (
        "a.csv",
        lambda rows: table([{"": n, **row} for n, row in enumerate(rows)], ",").encode(),
    ),
    "JSON lines in UTF-16": ("a.jsonl", lambda rows: json_lines(rows).encode("utf-16")),
    "JSON lines in UTF-16 without a mark": ("a.jsonl", lambda rows: json_lines(rows).encode("utf-16-le")),
    "JSON lines of Windows": ("a.jsonl", lambda rows: b"\xef\xbb\xbf" + json_lines(rows).encode()),
    "a list in JSON": ("a.json", lambda rows: json.dumps(rows, indent=1).encode()),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_rows_are_read_as_programs_write_them(tmp_path: Path, place: Place) -> None:
    """Or they are refused with a line and a remedy, where rows are found again by their place in JSON lines."""
    rows = [place.row(number) for number in range(3)]
    (tmp_path / "rows").mkdir()  # by whose name some rows go
    expected = [*place.load(written(tmp_path / "rows/plain.jsonl", *rows))]
    refused = re.compile("JSON lines|iconv|has to be a list|no file of rows|a file of rows, such as|not JSON")
    for kind, (name, content) in FILES.items():
        path = tmp_path / kind / "rows" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(content(rows))
        try:
            found: Any = [*place.load(path)]
        except KoderzError as error:
            found = str(error)

        is_refused = isinstance(found, str) and refused.search(found) and (not place.is_table or name == "a.txt")
        assert found == expected or is_refused, f"{kind}: {found}"


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_code_page_of_windows_is_refused_with_the_remedy(tmp_path: Path, place: Place) -> None:
    """No byte of a file tells which code page it is in, and a wrong guess would be asked as a question."""
    rows = [{**place.row(number), "more": ODD} for number in range(3)]
    for name, text in {
        "a.jsonl": json_lines(rows),
        "a.csv": table(rows, ";"),
        "a.tsv": table(rows, "\t"),
    }.items():
        (tmp_path / name).write_bytes(text.encode("cp1252"))

        said = complaint(lambda each: [*place.load(each)], tmp_path / name)

        assert ("line 1: not UTF-8 text; save it as UTF-8" in said and "iconv -f CP1252 -t UTF-8" in said) or (
            "line 2: not UTF-8 text; save it as UTF-8" in said or "read from JSON lines alone" in said
        )


@pytest.mark.parametrize(
    "place", [each for each in PLACES.values() if each.name], ids=[n for n in PLACES if PLACES[n].name]
)
def test_whole_numbers_may_be_names_of_rows(tmp_path: Path, place: Place) -> None:
    numbered = [{**place.row(number), place.name: number + 1} for number in range(3)]
    named = [{**row, place.name: str(row[place.name])} for row in numbered]
    try:
        expected: Any = [*place.load(written(tmp_path / "a.jsonl", *named))]
    except KoderzError as error:  # of what has to be known, such as a sample's task
        expected = str(error)
    try:
        found: Any = [*place.load(written(tmp_path / "a.jsonl", *numbered))]
    except KoderzError as error:
        found = str(error)

    if place is PLACES["mbpp"]:
        assert [task.id for task in found] == ["Mbpp/1", "Mbpp/2", "Mbpp/3"]
    else:
        assert found == expected


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_bad_row_is_named_by_its_line(tmp_path: Path, place: Place) -> None:
    good = [json.dumps(place.row(number)) for number in range(3)]
    path = tmp_path / "a.jsonl"
    for before, bad in product((0, 1), ("[1, 2]", "3", "null", '{"a": ', "hello")):
        path.write_text("\n\n".join([*good[:before], bad, *good[before:]]))
        if place is PLACES["samples"]:
            tasks = HumanEval.load(SuiteSource(written(tmp_path / "tasks.jsonl", *map(code, range(3))))).tasks
            said = read_samples(path, tasks).malformed[0]
        else:
            said = complaint(lambda each: [*place.load(each)], path)

        assert f"{path}, line {2 * before + 1}: not " in said


def cells(path: Path, data: bytes) -> list[dict[str, Any]]:
    path.write_bytes(data)
    return [dict(row.fields) for row in read_rows(path)]


def test_quotes_of_a_table_with_tabs_are_those_of_its_writer(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    sheets = b'a\tb\n"Hi" she said\t"x\n"y"\tz "w"\n'
    excel = b'a\tb\r\n"a ""b"", c"\t"d\r\ne"\r\n'

    assert cells(path, sheets) == [{"a": '"Hi" she said', "b": '"x'}, {"a": "y", "b": 'z "w"'}]
    assert cells(path, excel) == [{"a": 'a "b", c', "b": "d\r\ne"}]


def test_delimiter_is_the_one_by_which_rows_have_the_headers_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"

    assert cells(path, b"a, b, c;d\n1;2\n") == [{"a, b, c": "1", "d": "2"}]
    assert cells(path, b'a;b\n"1, 2";3,4\n') == [{"a": "1, 2", "b": "3,4"}]
    assert cells(path, b"only\none; two\nthree\n") == [{"only": "one; two"}, {"only": "three"}]
    assert cells(tmp_path / "a.tsv", b"only\none, two\n") == [{"only": "one, two"}]


def test_cell_may_be_long(tmp_path: Path) -> None:
    long = "x, " * 100_000

    assert cells(tmp_path / "a.csv", f'a;b\n"{long}";2\n'.encode()) == [{"a": long, "b": "2"}]


def test_line_is_that_of_the_file_where_cells_have_several_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'sep=;\na;b\n"1\n2";3\n4\n')

    assert "line 5: 1 columns, but the header has 2" in complaint(lambda each: [*read_rows(each)], path)


def test_object_over_several_lines_is_one_row(tmp_path: Path) -> None:
    assert cells(tmp_path / "a.json", b'{\n "a": 1\n}\n') == [{"a": 1}]
    assert cells(tmp_path / "a", b'{"a": 1}\n{"a": 2}') == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (qa, "there are Question, Antwort: name the one that is meant with --input Question"),
        (lambda path: HumanEval.load(SuiteSource(path)).tasks, "Question, Antwort; rows of your own .* --suite qa"),
    ],
)
def test_missing_column_is_told_with_the_remedy(tmp_path: Path, load: Callable[[Path], Any], said: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("Question;Antwort\r\nWie groß?;3\r\n".encode("utf-8-sig"))

    with pytest.raises(KoderzError, match=rf"line 2: .*{said}"):
        load(path)
