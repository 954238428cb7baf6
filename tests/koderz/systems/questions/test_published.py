"""Published sets are read from their columns, and replies come to the official verdicts."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.sandbox import NoSandbox
from koderz.suites.suite import JudgeContext, SuiteSource
from koderz.systems.questions.options import QuestionOptions
from koderz.systems.questions.published import SETS, PublishedSuite
from koderz.systems.questions.rules import boxed, equivalent
from koderz.types import PRIVACY, Judging, Reply, Verdict
from tests.koderz.systems.questions.sets import GPQA, MMLU_PRO, RIGHT, ROWS, UNREAD, write_rows

BY_NAME = {kind.name: kind for kind in SETS}
SCORED = Path(os.environ.get("KODERZ_TEST_DATA", "/absent")) / "runner" / "qa_scored_open.jsonl.gz"
SAMPLE = Path(__file__).parent / "scored_sample.jsonl.gz"


def loaded(name: str, path: Path, *rows: Any, ending: str = ".jsonl", **options: Any) -> PublishedSuite:
    file = write_rows(path / f"rows{ending}", *(rows or (ROWS[name],)))
    return BY_NAME[name].load(SuiteSource(file, QuestionOptions(**options)))


def judged(suite: PublishedSuite, reply: str, number: int = 0, finish: str = "stop", ask: Any = None) -> Verdict:
    context = JudgeContext(NoSandbox(), Judging(), ask)
    return asyncio.run(suite.judge(suite.tasks[number], Reply(1, reply, finish_reason=finish), context))


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_published_sets_read_right_replies(tmp_path: Path, name: str) -> None:
    verdict = judged(loaded(name, tmp_path), RIGHT[name])

    assert verdict.passed
    assert verdict.facts["answer"]


@pytest.mark.parametrize("name", UNREAD)
def test_published_sets_guess_no_answer(tmp_path: Path, name: str) -> None:
    verdict = judged(loaded(name, tmp_path), UNREAD[name], ask=unasked)

    assert not verdict.passed
    assert verdict.facts == {"answer": None}
    assert verdict.cause in ("no_answer", "ambiguous")
    assert judged(loaded(name, tmp_path), UNREAD[name], finish="length", ask=unasked).cause == "length"


async def unasked(*_: Any, **__: Any) -> Reply:
    raise AssertionError("nobody has to judge an empty reply")


@pytest.mark.parametrize("name", ["mmlu-pro", "gsm8k", "arc", "mmlu", "ifeval", "truthfulqa"])
def test_published_sets_are_read_from_parquet(tmp_path: Path, name: str) -> None:
    row = {**ROWS[name], "kwargs": [{"num_words": None}]} if name == "ifeval" else ROWS[name]

    assert loaded(name, tmp_path, row, ending=".parquet").tasks[0].digest == loaded(name, tmp_path, row).tasks[0].digest


def scored(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def assert_official(rows: list[dict[str, Any]], folder: Path) -> None:
    """Each reply comes to the verdict that the official code gave it."""
    for name in {row["set"] for row in rows}:
        of_set = [row for row in rows if row["set"] == name]
        questions = [{"key": n, **row["row"], "question_id": n} if name == "mmlu-pro" else {**row["row"], "key": n}
                     for n, row in enumerate(of_set)]  # fmt: skip
        suite = loaded(name, folder, *questions)
        for number, row in enumerate(of_set):
            verdict = judged(suite, row["reply"], number)
            if name == "ifeval":
                assert verdict.metrics["strict"] == sum(row["strict"])
                assert verdict.metrics["loose"] == sum(row["loose"])
                assert verdict.passed == all(row["strict"])
            else:
                assert verdict.facts["answer"] == (None if row["read"] is None else row["read"].strip())
                assert verdict.passed == bool(row["right"])


def test_official_verdicts_are_met_on_a_sample(tmp_path: Path) -> None:
    assert_official(scored(SAMPLE), tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not SCORED.exists(), reason="the scored examples are not there")
def test_official_verdicts_are_met_on_all_scored_examples(tmp_path: Path) -> None:
    assert_official(scored(SCORED), tmp_path)


@pytest.mark.parametrize(
    ("reply", "letter"),
    [
        ("Answer: B", "B"),
        ("**Answer:** B", "B"),
        ("Answer:  $\\boxed{B}$", "B"),
        ("answer : b", "b"),
        ("Answer: A\nAnswer: B", "A"),
        ("Antwort: B", "B"),
        ("答案：B", "B"),
        ("The answer is B", None),
        ("Answer: the second", None),
    ],
)
def test_mmlu_reads_as_simple_evals(tmp_path: Path, reply: str, letter: str | None) -> None:
    verdict = judged(loaded("mmlu", tmp_path), reply)

    assert verdict.facts["answer"] == letter
    assert verdict.passed == (letter == "B")


@pytest.mark.parametrize(
    ("reply", "letter"),
    [
        ("The answer is (C). The answer is (A).", "C"),
        ("Answer: A. answer: C\nanswer: B", "C"),
        ("Answer: Answer: C", "C"),
        ("I choose C", "C"),
        ("A or B, no: C.", "C"),
        ("Answer is c", None),
    ],
)
def test_mmlu_pro_reads_in_three_steps(tmp_path: Path, reply: str, letter: str | None) -> None:
    assert judged(loaded("mmlu-pro", tmp_path), reply).facts["answer"] == letter


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("\\frac12", "1/2"),
        (".5", "\\frac{1}{2}"),
        ("x=3", "3"),
        ("\\sqrt3", "\\sqrt{3}"),
        ("10\\text{ cm}", "10"),
        ("30^\\circ", "30"),
        ("\\dfrac{7}{9}", "\\tfrac79"),
        ("5\\%", "5"),
        ("\\left(1,2\\right)", "(1, 2)"),
    ],
)
def test_math_compares_after_normalising(one: str, other: str) -> None:
    assert equivalent(one, other)


def test_math_reads_the_last_closed_box() -> None:
    assert boxed("\\boxed{1} and \\boxed{\\frac{1}{2}}") == "\\frac{1}{2}"
    assert boxed("\\fbox{3}") == "3"
    assert boxed("\\boxed{3} or \\boxed{4") is None
    assert boxed("\\boxed3") is None
    assert boxed("$\\boxed{3}$, not in \\boxed ") is None
    assert not equivalent("\\frac", "\\sqrt")
    assert equivalent("\\frac1 \\frac", "\\frac1\\frac")
    assert equivalent("\\frac", "\\frac")


@pytest.mark.parametrize(
    ("reply", "content"),
    [
        ("So $\\boxed 5$, and not $4$.", "5"),
        ("\\boxed 5", "5"),
        ("\\boxed {7}", "7"),
        ("$\\boxed {\\frac{1}{2}}$.", "\\frac{1}{2}"),
        ("$\\boxed \\frac12$.", "\\frac12"),
        ("\\(\\boxed 5\\) and \\[ \\boxed 6 \\]", "6"),
        ("$\\boxed 5$, no, $\\boxed{6}$", "6"),
        ("$\\boxed{6}$, no, $\\boxed 5$", "5"),
        ("$\\boxed \\$5$", "\\$5"),
        ("$\\fbox {3}$", "3"),
    ],
)
def test_math_reads_boxes_without_braces_or_with_a_space_before(reply: str, content: str) -> None:
    assert boxed(reply) == content


def test_drawn_orders_depend_on_row_and_data_seed_alone(tmp_path: Path) -> None:
    rows = [{**GPQA, "id": str(number), "Question": f"{number}?"} for number in range(20)]
    first = {task.id: task.payload.options for task in loaded("gpqa", tmp_path, *rows).tasks}
    random.Random(1).shuffle(rows)
    again = {task.id: task.payload.options for task in loaded("gpqa", tmp_path, *rows).tasks}
    other = {task.id: task.payload.options for task in loaded("gpqa", tmp_path, *rows, data_seed=7).tasks}

    assert first == again != other
    assert len({tuple(options.values()) for options in first.values()}) > 5


def test_gpqa_keeps_its_texts_private(tmp_path: Path) -> None:
    suite = loaded("gpqa", tmp_path, scorer="includes")

    assert suite.tasks[0].needs == {PRIVACY}
    assert suite.privacy_key
    assert judged(suite, "the first law").facts["answer"] == "[private]"


def test_mmlu_pro_takes_the_first_five_of_the_category(tmp_path: Path) -> None:
    examples = [{**MMLU_PRO, "question_id": n, "question": f"{n}?", "category": "law" if n % 2 else "math"}
                for n in range(20)]  # fmt: skip
    file = write_rows(tmp_path / "validation.jsonl", *examples)
    suite = loaded("mmlu-pro", tmp_path, few_shot_from=file)
    asked = suite.tasks[0].messages

    assert len(asked) == 11
    assert [str(each["content"]).partition("Question: ")[2][:2].strip("?\n") for each in asked[:10:2]] == list("02468")
    assert asked[1]["content"] == "Let's think step by step. 7 has no divisors. The answer is (C)."
    assert "about math." in asked[-1]["content"]
    assert asked[-1]["content"].endswith("A. 4\nB. 6\nC. 7\nD. 8")
    assert suite.details(suite.tasks, None)["few_shot"]["examples"]["math"] == ["0", "2", "4", "6", "8"]  # type: ignore[arg-type]


HOSTILE: dict[str, list[tuple[dict[str, Any], str]]] = {
    "gsm8k": [({"answer": "no number"}, "has to end in a number"), ({"question": None}, "'question' is missing")],
    "math": [({"solution": "no box"}, "'solution' has no"), ({"problem": " "}, "the question is empty")],
    "aime": [({"Answer": 1000}, "from 0 to 999"), ({"Answer": "seven"}, "from 0 to 999")],
    "mmlu": [({"choices": ["1"]}, "list of 4 texts"), ({"answer": 9}, "0 to 3")],
    "mmlu-pro": [({"answer": "F"}, "has to be one of"), ({"options": "A"}, "a list of texts")],
    "gpqa": [({"Incorrect Answer 1": "the first"}, "the same as"), ({"Correct Answer": 1}, "has to be text")],
    "arc": [({"answerKey": "Z"}, "has to be one of"), ({"choices": []}, "lists of texts")],
    "truthfulqa": [({"mc1_targets": {"choices": ["a"], "labels": [1]}}, "incorrect answers")],
    "ifeval": [
        ({"instruction_id_list": ["x:y"]}, "there is no instruction 'x:y'"),
        ({"kwargs": []}, "the arguments of each"),
        ({"instruction_id_list": ["keywords:existence"], "kwargs": [{"keywords": ["("]}]}, "no regular expression"),
        ({"instruction_id_list": ["keywords:existence"]}, "has to be a list of texts"),
    ],
    "simpleqa": [({"answer": []}, "has to be text")],
    "drop": [({"answers_spans": {"spans": [" "]}}, "no right answer"), ({"answers_spans": 3}, "a list of texts")],
}


@pytest.mark.parametrize(("name", "change", "problem"), [(n, *each) for n, rows in HOSTILE.items() for each in rows])
def test_published_sets_refuse_hostile_rows(tmp_path: Path, name: str, change: dict[str, Any], problem: str) -> None:
    with pytest.raises(KoderzError, match=rf"rows.jsonl, line 2: .*{problem}"):
        loaded(name, tmp_path, {**ROWS[name], "id": "a"}, {**ROWS[name], "id": "b", **change})


def test_published_sets_say_where_their_file_is() -> None:
    for kind in SETS:
        with pytest.raises(KoderzError, match=r"needs its file: get it with: hf download"):
            kind.load(SuiteSource(None, QuestionOptions()))


@pytest.mark.slow
def test_ifeval_bounds_keywords_that_never_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koderz.systems.questions.apart.SECONDS", 0.2)
    row = {**ROWS["ifeval"], "instruction_id_list": ["keywords:existence"], "kwargs": [{"keywords": ["(a+)+$"]}]}
    verdict = judged(loaded("ifeval", tmp_path, row), "a" * 40 + "b")

    assert verdict.facts == {"answer": None}
    assert "within 0.2 s of CPU" in verdict.detail


@pytest.mark.parametrize("name", [name for name in UNREAD if name != "simpleqa"])
def test_published_sets_end_on_long_replies(tmp_path: Path, name: str) -> None:
    suite = loaded(name, tmp_path)
    for text in ("a", " ", "{", "answer: ", "Answer:\\boxed{", "*\n", "\\frac", "1,"):
        verdict = judged(suite, text * (200_000 // len(text)))

        assert len(verdict.facts["answer"] or "") <= 1001, text
