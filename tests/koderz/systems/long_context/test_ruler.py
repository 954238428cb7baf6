"""RULER's rows byte for byte, their order, their scores, and texts that are made only while somebody needs them."""

from __future__ import annotations

import asyncio
import gc
import json
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import Fault, KoderzError
from koderz.sandbox import NoSandbox
from koderz.settings.schema import Settings
from koderz.suites.suite import ExperimentContext, JudgeContext, SuiteSource
from koderz.suites.tokens import Characters, read_length, wrong_lengths
from koderz.systems.long_context.contexts import LongContextSuite
from koderz.systems.long_context.ruler.options import RulerOptions
from koderz.systems.long_context.ruler.suite import Ruler, answers, rows_of, score
from koderz.systems.long_context.ruler.tasks import TASKS, Material, Rows
from koderz.systems.long_context.words import WordPairs, word_pairs, words_of
from koderz.types import Judging
from tests.conftest import PATIENCE
from tests.koderz.systems.long_context.published import OF_QUESTIONS, ROWS, digest, question_files


def rows(task: str, length: int, seed: int = 0, **files: Path) -> Rows:
    return Rows(task, length, Material(seed, Characters(), **files))


def suite(*, seed: int = 0, dataset: Path | None = None, **options: Any) -> LongContextSuite:
    return Ruler.load(SuiteSource(dataset, RulerOptions(**options), seed=seed))


@pytest.mark.parametrize(("task", "length", "seed"), ROWS)
def test_rows_equal_those_of_rulers_own_generators(task: str, length: int, seed: int) -> None:
    made = rows(task, length, seed)

    expected = ROWS[task, length, seed].split()
    assert [digest(made.row(n)) for n in range(len(expected))] == expected
    assert made.generator == "official"


def test_row_does_not_depend_on_earlier_rows() -> None:
    forwards, backwards = rows("vt", 1024), rows("vt", 1024)

    assert [forwards.row(n) for n in range(4)] == [backwards.row(n) for n in (3, 0, 2, 1)][1:2] + [
        backwards.row(n) for n in (1, 2, 3)
    ]


def test_ids_are_ordered_by_row_then_length_then_task() -> None:
    tasks = suite(context_lengths=("1K", "2048"), ruler_tasks=("vt", "fwe"), tasks_per_length=2).tasks

    assert [task.id for task in tasks] == [
        *("vt/1024/0", "fwe/1024/0", "vt/2048/0", "fwe/2048/0"),
        *("vt/1024/1", "fwe/1024/1", "vt/2048/1", "fwe/2048/1"),
    ]
    assert [task.id for task in suite().tasks[:6]] == [
        *("niah_single_1/4096/0", "niah_multikey_2/4096/0", "vt/4096/0", "cwe/4096/0", "fwe/4096/0"),
        "niah_single_1/4096/1",
    ]


def test_words_are_adjective_noun_pairs_in_sorted_order() -> None:
    adjectives, nouns = ["good", "good-natured", "good-for-a", "bad", "go"], ["zebra", "apple", "m", "zoo"]
    pairs = WordPairs(adjectives, nouns)

    assert [pairs[n] for n in range(len(pairs))] == sorted({f"{a}-{n}" for a in adjectives for n in nouns})
    found = word_pairs()
    assert len(found) == len(
        {f"{a}-{n}" for a in set(words_of("adjectivelist")) for n in words_of("nounlist")[:1]}
    ) * len(set(words_of("nounlist")))
    assert found[0] < found[1] < found[len(found) // 2] < found[len(found) - 1]


def test_text_above_a_million_tokens_nearly_fills_its_length() -> None:
    length = read_length("1M") + 4
    for task in ("niah_single_1", "niah_multikey_3", "vt", "fwe"):
        made = rows(task, length)
        row = made.row(3)
        assert made.generator == "sized"
        assert 0.98 * length < row["length"] <= length
        assert all(output in row["input"] for output in row["outputs"])


def test_word_list_longer_than_the_vocabulary_is_sized() -> None:
    made = rows("cwe", read_length("128K"))
    row = made.row(0)

    assert made.generator == "sized"
    assert 0.98 * made.length < row["length"] <= made.length
    assert sorted(answers(row["input"])) == sorted(row["outputs"])


@pytest.mark.parametrize("task", [task for task in TASKS if not task.startswith("qa")])
def test_answers_can_be_found_in_the_text(task: str) -> None:
    row = rows(task, 8192).row(1)

    assert sorted(answers(row["input"])) == sorted(row["outputs"])
    assert row["length"] <= 8192


def test_essay_tasks_call_their_prose_generated_without_essays(tmp_path: Path) -> None:
    essays = tmp_path / "essays.json"
    essays.write_text(json.dumps({"text": "Start here. " * 2000 + "The end."}))

    (made,) = suite(ruler_tasks=("niah_single_2",), tasks_per_length=1).tasks
    (own,) = suite(ruler_tasks=("niah_single_2",), tasks_per_length=1, haystack=essays).tasks
    assert (made.id, own.id) == ("niah_single_2[generated]/4096/0", "niah_single_2/4096/0")
    assert "Start here. Start here." in own.payload.make()[0].context
    essays.write_text("[]")
    (damaged,) = suite(ruler_tasks=("niah_single_2",), tasks_per_length=1, haystack=essays).tasks
    with pytest.raises(KoderzError, match="no JSON object with the field 'text'"):
        damaged.payload.make()


def test_qa_says_which_file_to_fetch_and_refuses_others(tmp_path: Path) -> None:
    with pytest.raises(KoderzError, match=r"dev-v2\.0\.json and qa_2 HotpotQA's hotpot_dev_distractor_v1\.json"):
        suite(ruler_tasks=("qa_1",))
    other = tmp_path / "other.json"
    other.write_text('{"data": [{"paragraphs": [{"context": 1}]}]}')
    with pytest.raises(KoderzError, match=r"isn't SQuAD's dev-v2\.0\.json"):
        suite(ruler_tasks=("qa_1",), qa_data=other)


def test_questions_are_drawn_as_rulers_own_generator_draws_them(tmp_path: Path) -> None:
    for name, data in zip(OF_QUESTIONS, question_files(), strict=True):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(data))
        made = rows(name, 4096, 42, qa_data=file)
        assert [digest(made.row(n)) for n in range(6)] == OF_QUESTIONS[name].split()
        with pytest.raises(KoderzError, match="questions, which is fewer than --tasks-per-length"):
            made.row(60)


def test_needles_lie_in_their_places_and_are_marked_generated() -> None:
    options: dict[str, Any] = {"ruler_tasks": ("needles",), "tasks_per_length": 1, "context_lengths": ("8K",)}
    tasks = suite(**options).tasks
    assert len(tasks) == 4 * 5
    shares = {"beginning": (0, 0.06), "middle": (0.44, 0.56), "end": (0.94, 1)}
    for task in tasks:
        name, kind, place, length, row = task.id.split("/")
        reading, outputs = task.payload.make()
        assert (name, length, row) == ("needles[generated]", "8192", "0")
        assert len(outputs) == (4 if place == "distributed" else 1)
        assert all(reading.context.count(f"is: {output}.") == 1 for output in outputs), kind
        low, high = shares.get(place, (0.19, 0.81))
        assert all(low <= reading.context.index(output) / len(reading.context) <= high for output in outputs), task.id
    (one,) = suite(**options, needle_positions=("end",), needle_types=("quotes",)).tasks
    assert one.id == "needles[generated]/quotes/end/8192/0"
    assert 6 <= len(one.payload.make()[1][0].split()) <= 10


def test_tasks_of_ten_million_tokens_are_planned_without_their_texts() -> None:
    tracemalloc.start()
    tasks = suite(context_lengths=("10M",), tasks_per_length=40).tasks
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len({task.digest for task in tasks}) == len(tasks) == 200
    assert most < 20_000_000


def test_digests_change_with_what_texts_are_made_of() -> None:
    digests = {
        task.digest
        for options in ({}, {"seed": 1}, {"context_lengths": ("8192",)})
        for task in suite(**options, tasks_per_length=2).tasks
    }
    assert len(digests) == 3 * 5 * 2


def test_texts_are_held_once_while_in_use_and_then_dropped() -> None:
    made = suite(ruler_tasks=("vt",), tasks_per_length=1)
    (task,) = made.tasks

    async def work() -> None:
        context = ExperimentContext(task, None, Settings(), None)  # type: ignore[arg-type]
        async with made.open_long_context(context) as one, made.open_long_context(context) as other:
            assert len({id(reading) for reading in await asyncio.gather(one.read(), other.read())}) == 1
            sent = await made.sent(task, [{"role": "user", "content": [one.part("input"), one.part(end=8)]}])
            reading = await one.read()
            assert sent == ({"role": "user", "content": reading.input + reading.context[:8]},)

    async def held() -> bool:
        await work()
        # The thread that read it, and the event loop, hold what they handed out last until they get their turn.
        deadline = time.monotonic() + PATIENCE
        while made.library._held and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
            gc.collect()
        return bool(made.library._held)

    assert not asyncio.run(held())


@pytest.mark.parametrize(
    ("task", "outputs", "reply", "expected"),
    [
        ("vt/4096/0", ["ABCDE", "FGHIJ"], "abcde \x01", 0.5),
        ("niah_single_1/4096/0", ["4482327"], "**4482327**", 1.0),
        ("niah_single_1/4096/0", ["4482327"], "448 2327", 0.0),
        ("qa_1/4096/0", ["Paris", "the capital"], "It is paris.", 1.0),
        ("cwe/4096/0", ["a\nb"], "A\x00B", 1.0),
    ],
)
def test_scores_are_those_of_rulers_metrics(task: str, outputs: Sequence[str], reply: str, expected: float) -> None:
    assert score(task, outputs, reply) == expected


def test_rows_folder_is_a_suite_whose_lines_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "vt" / "validation.jsonl"
    file.parent.mkdir()
    made = [rows("vt", 1024).row(n) for n in range(2)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in made))

    found = suite(dataset=tmp_path)
    assert [task.id for task in found.tasks] == ["vt/0", "vt/1"]
    verdict = asyncio.run(
        found.judge(found.tasks[1], " ".join(made[1]["outputs"]), JudgeContext(NoSandbox(), Judging()))
    )
    assert (verdict.verdict, verdict.score) == ("passed", 1.0)
    file.write_text(file.read_text().replace("VAR", "VAT"))
    with pytest.raises(Fault, match="has changed since the run began"):
        asyncio.run(suite(dataset=tmp_path / "vt" / "validation.jsonl").library.read(found.tasks[0].payload))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "the field 'input' is missing"),
        ('{"input": "a"}', "the field 'outputs' is empty"),
        (
            '{"input": "a", "outputs": ["b"], "token_position_answer": "c"}',
            "the field 'token_position_answer' has to be a number from 0 up",
        ),
    ],
)
def test_malformed_row_of_a_folder_is_named(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "vt" / "validation.jsonl"
    file.parent.mkdir()
    file.write_text(f'{{"input": "a\\nb", "outputs": ["c"]}}\n{text}\n')
    with pytest.raises(KoderzError, match=f"line 2: {problem}"):
        suite(dataset=tmp_path)


def test_lengths_are_numbers_or_powers_of_two() -> None:
    assert [read_length(word) for word in ("4096", "128K", "1M", "10m")] == [4096, 131072, 1 << 20, 10 << 20]
    assert not wrong_lengths(("4096", "128K"))
    assert all(wrong_lengths((word,)) for word in ("", "K", "0", "4k4", "-1", "1G", "²"))


def test_length_below_the_shortest_text_is_an_error() -> None:
    with pytest.raises(KoderzError, match="raise --context-lengths"):
        rows("vt", 300).row(0)
    with pytest.raises(KoderzError, match="raise --context-lengths"):
        rows("fwe", 100).row(0)


def test_rows_of_several_lengths_and_tasks_are_made_from_one_seed() -> None:
    made = rows_of(RulerOptions(context_lengths=("1K", "2K"), ruler_tasks=("vt", "cwe")), 42)
    assert [(each.task, each.length) for each in made] == [("vt", 1024), ("cwe", 1024), ("vt", 2048), ("cwe", 2048)]
