"""OOLONG's scores with their oddities, its published rows without their texts, and generated questions."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from koderz.engines.sources import schema_of
from koderz.errors import Fault, KoderzError
from koderz.sandbox import NoSandbox
from koderz.suites.suite import JudgeContext, SuiteSource
from koderz.systems.long_context import published as published_rows
from koderz.systems.long_context.contexts import LongContextSuite
from koderz.systems.long_context.oolong.questions import KINDS, GeneratedQuestion, Windows
from koderz.systems.long_context.oolong.suite import (
    Oolong,
    OolongPairs,
    OolongReal,
    answers,
    score,
    score_pairs,
    score_real,
)
from koderz.systems.long_context.options import OolongOptions
from koderz.types import Judging

DATA = Path(__file__).parents[5] / "shared" / "data" / "oolong_scored_open.jsonl.gz"

SCORED = [
    ("['True']", "LABEL", "Answer: *description and abstract concept*", 0.0),
    ("['human being']", "LABEL", "Answer: 'human being'", 0.0),
    ("['entity']", "LABEL", "Label: entity", 1.0),
    ("['description and abstract concept']", "LABEL", "Answer: description and abstract concept (I think)", 0.0),
    ("['entity']", "LABEL", "entity", 1.0),
    ("['Sci/Tech']", "LABEL", "The answer is Sci/Tech", 1.0),
    ("[1999]", "NUMERIC", "Answer: 1999.", 0.0),
    ("[1999]", "NUMERIC", "User: 1999", 1.0),
    ("[1999]", "NUMERIC", "Answer: 1999\n", 1.0),
    ("[0]", "NUMERIC", "answer:1", 0.75),
    ("[1999]", "NUMERIC", "A: x\nAnswer: -1999", 0.0),
    ("[65]", "NUMERIC", "Answer:  -65  ", 5.72748869863268e-17),
    ("[1999]", "NUMERIC", "Answer: (1999)", 0.0),
    ("[1]", "NUMERIC", "Answer: 1", 1.0),
    ("[1]", "NUMERIC", "answer:3", 0.5625),
    ("['more common than']", "COMPARISON", "Answer: 'entity' is the same 'location', not less common", 0.0),
    ("['same frequency as']", "COMPARISON", "Answer: more common Confidence: high", 0.0),
    ("['less common than']", "COMPARISON", "Answer: label X is the same label Y in this dataset", 0.0),
    ("['same frequency as']", "COMPARISON", "Answer: label X is same frequency label Y in this dataset", 1.0),
    ("['more common than']", "COMPARISON", "Answer: more common than\n", 1.0),
    ("['same frequency as']", "COMPARISON", "Label: **[same frequency as]**", 1.0),
    ("[datetime.date(2023, 5, 15)]", "DATE", "May 15, 2023", 1.0),
    ("[datetime.date(2023, 9, 17)]", "DATE", "Answer: 2023/09/17\n", 1.0),
    ("[datetime.date(2023, 12, 18)]", "DATE", "2023-12-18\n", 1.0),
    ("[datetime.date(2023, 8, 25)]", "DATE", 'Answer: "August 25 2023"', 0.0),
    ("[datetime.date(2023, 8, 21)]", "DATE", "2023/08/22\n", 0.0),
    ("[datetime.date(2023, 11, 25)]", "DATE", "Answer: 'Nov 24'", 0.0),
    ("[44106]", "USER", " 44106 ", 0.0),
    ("[7]", "USER", "Answer: 7", 1.0),
    ("[7]", "USER", "Answer: **7**", 1.0),
    ("[44106]", "USER", "**44106**", 0.0),
    ("[90210]", "USER", "A: x\nAnswer: 90210", 1.0),
    ("[90210]", "USER", "Label: **[90211]**", 0.0),
    ("['January 2023']", "MONTH_YEAR", "Answer: [01/2023]", 0.0),
    ("['January 2023']", "MONTH_YEAR", "ANSWER: January 2023", 1.0),
    ("['October 2022']", "MONTH_YEAR", "The answer is October 2022", 0.0),
    ("['October 2022']", "MONTH_YEAR", "answer:october 2022", 0.0),
    ("['October 2022']", "MONTH_YEAR", "Answer: *October 2022*", 1.0),
]
"""Answer, type, reply and what OOLONG's own synth_process_response (MIT, commit adbf1cb) makes of it."""


def suite(dataset: Path | None = None, *, seed: int = 0, **options: Any) -> LongContextSuite:
    return Oolong.load(SuiteSource(dataset, OolongOptions(**options), seed=seed))


def row(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "id": number,
        "context_len": 1024,
        "dataset": "trec_coarse",
        "context_window_text": f"text of window {number // 2}\n",
        "context_window_text_with_labels": "SECRET",
        "question": f"Question {number}?",
        "task_group": "counting",
        "task": "TASK_TYPE.MOST_FREQ",
        "answer": "['entity']",
        "answer_type": "ANSWER_TYPE.LABEL",
        "input_subset": "False",
        "num_labels": 6,
        "context_window_id": number // 2,
        **fields,
    }


def as_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def as_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    return path


@pytest.mark.parametrize(("answer", "kind", "reply", "expected"), SCORED)
def test_scores_are_those_of_the_official_rules(answer: str, kind: str, reply: str, expected: float) -> None:
    assert score(answer, f"ANSWER_TYPE.{kind}", reply)[0] == pytest.approx(expected, abs=1e-12)


@pytest.mark.skipif(not DATA.exists(), reason=f"{DATA} isn't there")
def test_published_scores_are_reproduced() -> None:
    lines = gzip.decompress(DATA.read_bytes()).splitlines()
    wrong = [
        (each["output"], each["score"])
        for each in map(json.loads, lines)
        if abs(score(each["row"]["answer"], each["row"]["answer_type"], each["output"])[0] - each["score"]) > 1e-12
    ]
    assert len(lines) > 100
    assert not wrong


@pytest.mark.parametrize(
    ("answer", "kind", "reply", "expected"),
    [
        ("['entity']", "LABEL", "", 0.0),
        ("['entity']", "LABEL", " " * 30, 0.0),  # where the official code crashes
        ("[10]", "NUMERIC", "At 10:30", 0.75**20),
        ("[65]", "NUMERIC", "Answer: 65: done", 0.0),
        ("[65]", "NUMERIC", f"Answer: {'9' * 400}", 0.0),
        ("[65]", "NUMERIC", f"Answer: {'9' * 5000}", 0.0),
        ("[datetime.date(2023, 6, 29)]", "DATE", "Date: June 29, 2023", 1.0),
        ("[datetime.date(2023, 6, 29)]", "DATE", "Date: never", 0.0),
        ("['more common than']", "COMPARISON", "Answer: a is more common than b, I think", 1.0),
        ("['entity']", "LABEL", "Label: **[entity]**", 1.0),
    ],
)
def test_odd_replies_are_scored_and_not_mended(answer: str, kind: str, reply: str, expected: float) -> None:
    assert score(answer, f"ANSWER_TYPE.{kind}", reply)[0] == pytest.approx(expected)


def test_laxer_rule_is_a_metric_of_its_own() -> None:
    assert score("['Entity']", "ANSWER_TYPE.LABEL", "It is entity") == (0.0, {"score_rlm": 1.0})
    said = "First more common, but then: less common, so it is"
    assert score("['less common than']", "ANSWER_TYPE.COMPARISON", said) == (1.0, {"score_rlm": 1.0})


@pytest.mark.parametrize(
    ("answer", "reply", "expected"),
    [
        ("14", r"It is \boxed{12}", 0.75**2),
        ("14", "14", 0.0),  # without a box it stays a text
        ("Fire Bolt", r"\boxed{\text{fire bolt }}", 1.0),
        ("a, b, c, d", r"\boxed{a, d, x}", 0.5),
        ("a, b", "a, b", 0.0),
        ("yes", "YES ", 1.0),
    ],
)
def test_answers_about_real_transcripts_are_scored_by_their_kind(answer: str, reply: str, expected: float) -> None:
    assert score_real(answer, reply) == pytest.approx(expected)


def test_pairs_are_scored_by_f1_whatever_their_order() -> None:
    f1, more = score_pairs([[1, 2], [3, 4], [5, 6]], "(2, 1), (3,4) and (9, 9); also (1, 2)")
    assert [f1, more["precision"], more["recall"]] == pytest.approx([2 / 3, 2 / 3, 2 / 3])
    assert score_pairs([[1, 2]], "none")[0] == 0.0


@pytest.mark.parametrize("write", [as_lines, as_parquet])
def test_published_rows_are_asked_without_their_labels(tmp_path: Path, write: Any) -> None:
    path = write(tmp_path / f"rows.{'jsonl' if write is as_lines else 'parquet'}", [row(n) for n in range(8)])
    found = suite(path)

    assert [task.id for task in found.tasks] == [f"oolong/{n}" for n in range(8)]
    for number, task in enumerate(found.tasks):
        reading = asyncio.run(found.library.read(task.payload))
        assert reading.input == f"text of window {number // 2}\n\nQuestion {number}?"
    verdict = asyncio.run(found.judge(found.tasks[0], "Label: entity", JudgeContext(NoSandbox(), Judging())))
    assert (verdict.passed, verdict.score, verdict.metrics) == (True, 1.0, {"score_rlm": 1.0})


def test_rows_are_chosen_before_reading_and_share_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(n, dataset="imdb" if n % 3 else "trec_coarse", context_len=1024 << n % 2) for n in range(12)]
    rows += [row(12, context_window_id=77), row(13, context_window_id=77)]
    path = as_parquet(tmp_path / "rows.parquet", rows)
    read: list[Any] = []

    def reading(_: Path, places: list[Any], __: object) -> list[dict[str, str]]:
        read.extend(places)
        return [{"context_window_text": "t"}]

    monkeypatch.setattr(published_rows, "rows_at", reading)

    chosen = suite(path, oolong_datasets=("trec_coarse",), context_lengths=("1K",)).tasks
    assert [task.id for task in chosen] == ["oolong/0", "oolong/6", "oolong/12", "oolong/13"]
    assert not read
    one, other = (task.payload.make()[0] for task in chosen[2:])
    assert one.context is other.context
    assert read == [(4, 0)]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"answer": None}, "the column 'answer' is missing"),
        ({"answer": "entity"}, "the answer 'entity' can't be read"),
        ({"answer": "[]"}, "can't be read"),
        ({"id": 0}, "two rows have the id 0"),
        ({"context_len": "long"}, "'context_len' has to be a whole number"),
        ({"context_len": 1e400}, "'context_len' has to be a whole number"),
        ({"id": {"a": 1}}, "'id' has to be text or a whole number"),
        ({"question": 7}, "'question' has to be text"),
        ({"context_window_text": ["t"]}, "'context_window_text' has to be text"),
        ({"question": "\ud800"}, "half a surrogate pair"),
    ],
)
def test_malformed_rows_are_one_clear_error(tmp_path: Path, fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(KoderzError, match=problem):
        suite(as_lines(tmp_path / "rows.jsonl", [row(0), row(1, **fields)]))


def test_damaged_and_absent_files_are_one_clear_error(tmp_path: Path) -> None:
    path = as_parquet(tmp_path / "rows.parquet", [row(n) for n in range(3)])
    (task, *_) = suite(path).tasks
    path.write_bytes(path.read_bytes()[:-20])
    (tmp_path / "empty").mkdir()
    with pytest.raises(KoderzError, match="can't be read"):
        suite(path)
    with pytest.raises(Fault, match="can't be read"):
        task.payload.make()
    with pytest.raises(KoderzError, match="there is no dataset"):
        suite(tmp_path / "none.parquet")
    with pytest.raises(KoderzError, match=r"no \.jsonl, \.jsonl\.gz, \.parquet file"):
        suite(tmp_path / "empty")
    with pytest.raises(KoderzError, match="holds no such row"):
        suite(as_lines(tmp_path / "rows.jsonl", [row(0)]), oolong_datasets=("imdb",))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"context_window_text": [1, 2]}, r"'context_window_text' has to be text"),
        ({"answer": ["[1]", None]}, r"row 1: the column 'answer' is missing"),
    ],
)
def test_columns_of_another_type_and_empty_ones_are_one_clear_error(
    tmp_path: Path, fields: dict[str, list[Any]], problem: str
) -> None:
    rows = [{**row(n), **{name: values[n] for name, values in fields.items()}} for n in range(2)]
    with pytest.raises(KoderzError, match=problem):
        suite(as_parquet(tmp_path / "rows.parquet", rows))


def test_gzipped_lines_are_read_where_they_lie(tmp_path: Path) -> None:
    plain = as_lines(tmp_path / "rows.jsonl", [row(n) for n in range(6)])
    (tmp_path / "zipped").mkdir()
    path = tmp_path / "zipped" / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(plain.read_bytes()))
    tasks = suite(tmp_path / "zipped").tasks
    assert [task.payload.make()[0].input for task in tasks] == [
        task.payload.make()[0].input for task in suite(plain).tasks
    ]

    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(Fault, match="can't be read"):
        tasks[5].payload.make()
    with pytest.raises(KoderzError, match="can't be read"):
        suite(path)


def test_real_and_pairs_come_from_the_users_file(tmp_path: Path) -> None:
    real = as_lines(tmp_path / "real.jsonl", [{"id": "x", "context_window_text": "t", "question": "q", "answer": "3"}])
    found = OolongReal.load(SuiteSource(real))
    assert asyncio.run(found.judge(found.tasks[0], r"\boxed{3}", JudgeContext(NoSandbox(), Judging()))).passed
    pairs = as_lines(tmp_path / "pairs.jsonl", [{"id": 1, "context": "t", "question": "q", "answer": [[1, 2]]}])
    pairs_suite = OolongPairs.load(SuiteSource(pairs))
    assert asyncio.run(pairs_suite.judge(pairs_suite.tasks[0], "(2, 1)", JudgeContext(NoSandbox(), Judging()))).passed
    with pytest.raises(KoderzError, match="the column 'context' is missing"):
        OolongPairs.load(SuiteSource(real))
    for answer, problem in {
        "1, 2": "a list",
        ((1, 2), (3,)): "a list of pairs",
        ((1e400, 2),): "a list of pairs",
    }.items():
        as_lines(pairs, [{"id": 1, "context": "t", "question": "q", "answer": answer}])
        with pytest.raises(KoderzError, match=f"answer'? has to be {problem}"):
            OolongPairs.load(SuiteSource(pairs))
    with pytest.raises(KoderzError, match="get it with: hf download oolongbench/oolong-real"):
        OolongReal.load(SuiteSource(None))


@pytest.mark.slow
def test_generated_questions_are_right_by_counting_the_text() -> None:
    found = suite(context_lengths=("4096", "16K"), tasks_per_length=2 * len(KINDS))

    asked = set()
    for task in found.tasks:
        reading, right = task.payload.make()
        (counted,) = answers(reading.input)
        assert score(right["answer"], right["answer_type"], f"Answer: {counted}")[0] == 1.0, reading.question
        asked.add((right["task_group"], right["task"], right["answer_type"]))
        assert reading.tokens <= int(task.id.split("/")[1])
    assert asked == {(kind.group, f"TASK_TYPE.{kind.task}", f"ANSWER_TYPE.{kind.answer_type}") for kind in KINDS}
    assert found.tasks[0].id == "oolong-generated/4096/0"
    assert "easier than OOLONG's own" in found.source


def test_generated_texts_have_a_thousand_to_ten_million_tokens() -> None:
    with pytest.raises(KoderzError, match="1,024 to 10,485,760 tokens, not 512"):
        suite(context_lengths=("512",))
    (task,) = suite(context_lengths=("1M",), tasks_per_length=1).tasks
    assert 0.99 * (1 << 20) < task.payload.make()[0].tokens <= 1 << 20


def test_generated_questions_of_earlier_runs_are_unchanged() -> None:
    recorded = schema_of(("suite", "oolong")).from_config({"suite": "oolong", "seed": 42})
    options = recorded.of(OolongOptions)
    assert options.questions_per_text == len(KINDS)

    first = GeneratedQuestion(Windows(42), 4096, 0, options.questions_per_text)
    row, window = first.row()
    assert first.digest == "d61b847ca4cec384bc5c0ece4cb6c3aa"
    assert (row["answer"], len(window.text)) == ("['entity']", 15951)
    assert GeneratedQuestion(Windows(42), 4096, 0, 1).digest != first.digest
    assert OolongOptions().questions_per_text == 1
