"""Questions about documents: a made-up world that holds together, and what a reply to one is worth."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.suites.long_context.browsecomp_plus.documents import Sought
from koderz.suites.long_context.browsecomp_plus.generated import GeneratedResearch
from koderz.suites.long_context.browsecomp_plus.options import ResearchOptions
from koderz.suites.long_context.browsecomp_plus.scoring import calibration_error, judgement_of, metrics_of
from koderz.suites.long_context.browsecomp_plus.simulated import answers
from koderz.suites.long_context.browsecomp_plus.suite import browsecomp_plus
from koderz.suites.long_context.contexts import LongContextSuite
from koderz.types import Judging

SOUGHT = Sought("Who?", "The Eiffel Tower", frozenset({"12", "34"}))


def suite(dataset: Path | None = None, *, seed: int = 0, **options: Any) -> LongContextSuite:
    return browsecomp_plus(dataset, ResearchOptions(**options), seed=seed)


@pytest.mark.parametrize("documents", [20, 21, 33, 100])
def test_made_up_questions_can_be_answered_from_their_documents_alone(documents: int) -> None:
    for number in range(12):
        recipe = GeneratedResearch(7, documents, number)
        reading, sought = recipe.make()

        assert reading.context.count("\n\n") == documents
        assert 2 <= len(sought.evidence) == recipe.hops <= 4
        assert sought.answer not in sought.query
        (found,) = answers(reading.input)
        name, *cited = found.replace("]", "").split(" [")
        assert (name, frozenset(cited)) == (sought.answer, sought.evidence)
        without = "".join(each for each in reading.context.split("\n\n") if sought.answer not in each)
        assert answers(f"{without}\n{reading.question}") == []


def test_made_up_worlds_differ_by_seed_and_number_and_are_named_as_generated() -> None:
    first, other = suite(), suite(seed=1)

    assert first.name == "research-generated"
    assert [task.id for task in first.tasks][:2] == ["research-generated/0", "research-generated/1"]
    assert len({task.digest for task in (*first.tasks, *other.tasks)}) == 40
    with pytest.raises(KoderzError, match="20 documents or more, not 5"):
        suite(documents=5)


def test_a_reply_is_judged_by_its_exact_answer() -> None:
    tasks = suite()
    task = tasks.tasks[0]
    _, sought = task.payload.make()

    async def judged(reply: str) -> Any:
        return await tasks.judge(task, reply, None, Judging())

    cited = " ".join(f"[{each}]" for each in sorted(sought.evidence))
    right = asyncio.run(judged(f"Explanation: {cited}\nExact Answer: {sought.answer.upper()}.\nConfidence: 90%"))
    assert (right.verdict, right.score) == ("passed", 1.0)
    assert right.metrics == {"exact_match": 1, "citation_precision": 1, "citation_recall": 1, "confidence": 90}
    assert asyncio.run(judged("Exact Answer: Nowhere")).passed is False


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("Exact Answer: the eiffel tower!", 1.0),
        ("exact answer: Eiffel  Tower \nConfidence: 3%", 1.0),
        ("Ｅｉｆｆｅｌ Tower", 1.0),
        ("Exact Answer: a tower\nExact Answer: Eiffel Tower", 1.0),
        ("It is the Eiffel Tower", 0.0),
        ("Exact Answer:\nEiffel Tower", 0.0),
        ("", 0.0),
    ],
)
def test_exact_match_is_normalised(reply: str, expected: float) -> None:
    assert metrics_of(SOUGHT, reply)["exact_match"] == expected


@pytest.mark.parametrize(
    ("reply", "precision", "recall"),
    [
        ("[12] [34]", 1.0, 1.0),
        ("[12, 99]", 0.5, 0.5),
        ("【34】 and 【12】【1】", 2 / 3, 1.0),
        ("[doc 12]", 1.0, 0.5),
        ("12 34", 0.0, 0.0),
        ("[none]", 0.0, 0.0),
    ],
)
def test_citations_are_the_numbers_in_brackets(reply: str, precision: float, recall: float) -> None:
    found = metrics_of(SOUGHT, reply)
    assert [found["citation_precision"], found["citation_recall"]] == pytest.approx([precision, recall])


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("extracted_final_answer: x\nreasoning: y\ncorrect: yes\nconfidence: 80%", (True, 80.0, "x")),
        ("**extracted_final_answer:** x\n**correct:** No\n**confidence:** 120", (False, 100.0, "x")),
        ("correct: no\n**correct**: yes", (True, None, "")),
        ("**correct**: no\n**correct:** yes", (True, None, "")),
        ("CORRECT: YES", (True, None, "")),
        ("correct: maybe", None),
        ("It is right.", None),
    ],
)
def test_a_judges_reply_is_read_in_all_its_forms(reply: str, expected: Any) -> None:
    assert judgement_of(reply) == expected


def test_calibration_counts_all_bins() -> None:
    assert calibration_error([(80.0, True)] * 50) == pytest.approx(20)
    assert calibration_error([(100.0, True)] * 100 + [(0.0, True)] * 100) == pytest.approx((100**2 / 2) ** 0.5)
    mixed = [(90.0, True)] * 100 + [(10.0, False)] * 140  # two bins, the last one of 140: 40 of 10 %, 100 of 90 %
    assert calibration_error(mixed) == pytest.approx((100 / 240 * 10**2 + 140 / 240 * (30 / 7) ** 2) ** 0.5)
