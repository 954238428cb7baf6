"""Questions that aren't code, from the command line to summary, screen, comparison and rescoring."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Shell, whole_lines
from tests.koderz.systems.questions.sets import ROWS, write_rows

MODEL = ("--model", "simulated", "--no-sink", "mlflow", "--no-sink", "memory")
FAQ = [{"id": f"q{n}", "input": f"What is {n} + {n}?", "target": [str(2 * n), f"number {2 * n}"]} for n in range(20)]


def journal(koderz: Shell) -> list[dict[str, Any]]:
    path = max((koderz.folder / "benchmark_results").glob("[!.]*/journal.jsonl"), key=lambda each: each.stat().st_mtime)
    return whole_lines(path)


def calls(koderz: Shell) -> int:
    return sum(line["kind"] == "call" for line in journal(koderz))


def test_qa_run_has_answers_and_counts_the_unread(koderz: Shell) -> None:
    quiz = [
        {"Question": f"Which is {n}?", **{each: n + k for k, each in enumerate("ABCD")}, "Answer": "A"}
        for n in range(40)
    ]
    write_rows(koderz.folder / "quiz.csv", *quiz)
    columns = ("--input", "Question", "--target", "Answer", "--choices", "A,B,C,D", "--few-shot", "5")

    done = koderz("benchmark", "--suite", "qa", "--dataset", "quiz.csv", *columns, *MODEL)

    summary = koderz.summary()
    found, results = summary["summary"]["unread"], summary["results"]
    assert found["count"] == sum(result["answer"] is None for result in results) > 0
    assert found["rate"] == 100 * found["count"] / len(results)
    assert {result["cause"] for result in results if result["answer"] is None} == {"no_answer"}
    assert f"Unread: {found['count']} ({found['rate']:.1f}%)" in done.out
    assert summary["questions"]["scorer"] == "choice"
    assert "the label that the reply states" in summary["questions"]["rule"]
    assert summary["questions"]["few_shot"]["count"] == 5
    assert f"unread {found['rate']:.1f}% ({found['count']})" in koderz("benchmark", "show", "latest").out


def test_compare_warns_of_unread_shares_that_differ(koderz: Shell) -> None:
    write_rows(koderz.folder / "faq.jsonl", *FAQ)
    never = ("--scorer", "regex", "--pattern", "no such answer (x)")
    for scorer in (("--scorer", "includes"), never):
        koderz("benchmark", "--suite", "qa", "--dataset", "faq.jsonl", *scorer, *MODEL)

    said = " ".join(koderz("benchmark", "compare", "latest~1", "latest", "--allow-simulated").out.split())

    assert "100.0% of the answers can't be read" in said
    assert "+100.0 points" in said


def test_judge_is_recorded_and_replayed_by_rescore(koderz: Shell) -> None:
    write_rows(koderz.folder / "faq.jsonl", *FAQ[:5])
    judging = ("--scorer", "judge", "--judge-draws", "3")
    refused = koderz("benchmark", "--suite", "qa", "--dataset", "faq.jsonl", *judging, *MODEL, code=2).err
    assert "name one with --role judge=MODEL" in refused

    koderz("benchmark", "--suite", "qa", "--dataset", "faq.jsonl", *judging, "--role", "judge=simulated", *MODEL)
    before = koderz.summary()
    assert calls(koderz) == 20
    assert before["results"][0]["roles"]["judge"]["calls"] == 3

    koderz("benchmark", "rescore", "latest")
    assert calls(koderz) == 20
    assert [each["score"] for each in koderz.summary()["results"]] == [each["score"] for each in before["results"]]


def test_gpqa_shows_none_of_its_texts(koderz: Shell) -> None:
    rows = [
        {**ROWS["gpqa"], "Question": f"Secret question {n}?", "Correct Answer": "Unlikely option"} for n in range(3)
    ]
    write_rows(koderz.folder / "gpqa.csv", *rows)

    koderz("benchmark", "--suite", "gpqa", "--dataset", "gpqa.csv", *MODEL)

    written = [path for path in (koderz.folder / "benchmark_results").rglob("*") if path.is_file()]
    assert len(written) > 1
    for path in written:
        assert b"Secret question" not in path.read_bytes()
        assert b"Unlikely option" not in path.read_bytes()


@pytest.mark.slow
def test_ifeval_has_its_four_rates(koderz: Shell) -> None:
    write_rows(koderz.folder / "ifeval.jsonl", *({**ROWS["ifeval"], "key": n} for n in range(3)))
    koderz("benchmark", "--suite", "ifeval", "--dataset", "ifeval.jsonl", *MODEL)
    assert koderz.summary()["summary"]["ifeval"] == dict.fromkeys(
        ("prompt_strict", "prompt_loose", "instruction_strict", "instruction_loose"), 1.0
    )


def test_simpleqa_has_the_rates_of_its_grades(koderz: Shell) -> None:
    write_rows(koderz.folder / "simpleqa.csv", *({**ROWS["simpleqa"], "problem": f"{n}?"} for n in range(10)))
    done = koderz("benchmark", "--suite", "simpleqa", "--dataset", "simpleqa.csv", "--role", "judge=simulated", *MODEL)
    rates = koderz.summary()["summary"]["simpleqa"]
    assert rates["correct"] + rates["incorrect"] + rates["not_attempted"] == pytest.approx(1)
    assert "in koderz' own words" in done.out


def test_runs_that_a_model_judged_are_compared(koderz: Shell) -> None:
    write_rows(koderz.folder / "faq.jsonl", *FAQ)
    for seed in (0, 1):
        judging = ("--scorer", "judge", "--judge-draws", "3", "--role", "judge=simulated", "--seed", seed)
        koderz("benchmark", "--suite", "qa", "--dataset", "faq.jsonl", *judging, *MODEL)

    said = koderz("benchmark", "compare", "latest~1", "latest", "--allow-simulated").out

    assert "Judged by simulated, not calibrated." in said


def test_suites_show_says_whose_file_it_is(koderz: Shell) -> None:
    write_rows(koderz.folder / "test.jsonl", ROWS["gsm8k"])

    mine = json.loads(koderz("suites", "show", "gsm8k", "--dataset", "test.jsonl", "--json").out)
    own = json.loads(koderz("suites", "show", "humaneval", "--json").out)
    absent = json.loads(koderz("suites", "show", "mmlu", "--json").out)

    assert (mine["tasks"], mine["file"], mine["licence"]) == (1, "other", "MIT")
    assert (own["tasks"], own["file"], own["needs"]) == (164, "published", ["a sandbox for programs"])
    assert (absent["tasks"], absent["file"]) == (None, "none")
    assert "Licence:    MIT" in koderz("suites", "show", "mmlu").out


def test_suites_get_prints_the_command_and_downloads_nothing(koderz: Shell) -> None:
    done = koderz("suites", "get", "mmlu-pro")

    assert done.out.startswith("hf download TIGER-Lab/MMLU-Pro ")
    assert [*Path(koderz.folder).glob("mmlu-pro*")] == []
    assert "there is no file to fetch" in koderz("suites", "get", "ruler", code=2).err
