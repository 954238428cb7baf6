"""Suites say which of their tasks are about one text, repository or passage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.settings.schema import Settings
from koderz.suites import SUITES
from koderz.suites.suite import SuiteSource, linked
from koderz.systems.code.humaneval import HumanEval
from koderz.systems.long_context.oolong.suite import Oolong, OolongPairs
from koderz.systems.long_context.options import OolongOptions
from koderz.systems.long_context.ruler.options import RulerOptions
from koderz.systems.long_context.ruler.suite import Ruler
from koderz.systems.optimizers.datasets.options import DatasetOptions
from koderz.systems.optimizers.datasets.suite import DatasetSuite
from koderz.systems.patches.options import PerformanceOptions
from koderz.systems.patches.suite import Gso
from tests.koderz.suites.rows import HUMANEVAL, written
from tests.koderz.systems.long_context.test_oolong import as_lines, row
from tests.koderz.systems.patches.test_published import GSO, ISO
from tests.koderz.systems.questions.sets import ROWS, write_rows


def sizes(clusters: list[str]) -> list[int]:
    """How many have each cluster; those that have none apart."""
    return [clusters.count(name) for name in dict.fromkeys(clusters) if name]


def test_clusters_link_things_by_way_of_third_ones() -> None:
    found = linked({1: ["a", "b"], 2: ["c"], 3: ["b", "d"], 4: ["d"], 5: [], 6: ["e", "e"]})

    assert sorted(found) == [1, 3, 4]
    assert len({*found.values()}) == 1
    assert linked({1: ["a"], 2: ["b"]}) == {}


def test_clusters_of_generated_oolong_are_texts() -> None:
    alone = Oolong.load(SuiteSource(None, OolongOptions()))
    assert len({task.cluster for task in alone.tasks}) == len(alone.tasks) == 10

    shared = Oolong.load(
        SuiteSource(None, OolongOptions(tasks_per_length=24, questions_per_text=12, context_lengths=("1K", "2K")))
    )
    assert sizes([task.cluster for task in shared.tasks]) == [12] * 4
    texts = {task.cluster: task.payload.make()[0].context for task in shared.tasks}
    assert all(task.payload.make()[0].context == texts[task.cluster] for task in shared.tasks)


def test_clusters_of_published_oolong_are_its_windows(tmp_path: Path) -> None:
    rows = [row(number) for number in range(4)]
    suite = Oolong.load(
        SuiteSource(as_lines(tmp_path / "rows.jsonl", [*rows, row(5, context_len=2048)]), OolongOptions())
    )

    assert sizes([task.cluster for task in suite.tasks]) == [2, 2, 1]

    pairs = [{"id": n, "context": "t", "question": "q", "answer": [[1, 2]], "cluster": n // 2} for n in range(4)]
    assert [
        task.cluster for task in OolongPairs.load(SuiteSource(as_lines(tmp_path / "pairs.jsonl", pairs))).tasks
    ] == [*"0011"]


def test_clusters_of_ruler_are_the_passages_of_its_questions(tmp_path: Path) -> None:
    squad = tmp_path / "squad.json"
    paragraphs = [
        {
            "context": f"Paragraph {p}.",
            "qas": [{"question": f"{p}/{q}?", "answers": [{"text": "x"}], "is_impossible": False} for q in range(3)],
        }
        for p in range(2)
    ]
    squad.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    options = RulerOptions(ruler_tasks=("qa_1", "vt"), qa_data=squad, tasks_per_length=5, context_lengths=("1K", "2K"))
    tasks = Ruler.load(SuiteSource(None, options)).tasks

    assert sizes([task.cluster for task in tasks if task.id.startswith("qa_1")]) == [6, 4]  # at both lengths
    assert not any(task.cluster for task in tasks if task.id.startswith("vt"))

    hotpot = tmp_path / "hotpot.json"
    facts = [["A", "B"], ["C", "D"], ["B", "E"], ["F", "G"]]
    hotpot.write_text(
        json.dumps(
            [
                {
                    "question": f"{n}?",
                    "answer": "x",
                    "context": [[title, ["Text."]] for title in titles],
                    "supporting_facts": [[title, 0] for title in titles],
                }
                for n, titles in enumerate(facts)
            ]
        )
    )
    options = RulerOptions(ruler_tasks=("qa_2",), qa_data=hotpot, tasks_per_length=4)
    first, second, third, fourth = (task.cluster for task in Ruler.load(SuiteSource(None, options)).tasks)
    assert first == third != ""
    assert (second, fourth) == ("", "")


def test_clusters_of_gso_are_repositories(tmp_path: Path) -> None:
    other = {**GSO, "instance_id": "numpy__numpy-2b862eb", "opt_commit": "2b862eb11223"}
    path = as_lines(tmp_path / "rows.jsonl", [GSO, other, ISO])

    tasks = Gso(path, PerformanceOptions()).tasks
    assert [task.cluster for task in tasks] == ["https://github.com/numpy/numpy"] * 2 + [""]


def test_clusters_of_ones_own_tasks_are_a_field_of_their_rows(tmp_path: Path) -> None:
    rows = [{**HUMANEVAL, "task_id": f"Own/{n}", "cluster": cluster} for n, cluster in enumerate(["a", 7, None])]
    assert [task.cluster for task in HumanEval.load(SuiteSource(written(tmp_path / "own.jsonl", *rows))).tasks] == [
        "a",
        "7",
        "",
    ]

    wrong = written(tmp_path / "wrong.jsonl", {**HUMANEVAL, "cluster": ["a"]})
    with pytest.raises(KoderzError, match="line 1: the field 'cluster' has to be text or a whole number"):
        HumanEval.load(SuiteSource(wrong))


def questions(suite: str, path: Path, *rows: Mapping[str, Any], **options: Any) -> list[str]:
    """The clusters of a suite's questions."""
    found = SUITES.load(suite).load(SuiteSource(write_rows(path, *rows), SUITES.options_in(suite, None)))
    if options:
        chosen = replace(SUITES.options_in(suite, None), **options)
        found = SUITES.load(suite).load(SuiteSource(path, chosen))
    return [task.cluster for task in found.tasks]


def test_clusters_of_drop_are_its_passages_in_either_form(tmp_path: Path) -> None:
    rows = [{**ROWS["drop"], "passage": f"The Lions won {n}-3.", "question": f"Who won in {q}?"} for n, q in PAIRS]
    published = questions("drop", tmp_path / "drop.jsonl", *rows)
    assert sizes(published) == [2, 1]
    assert all(len(name) < 30 for name in published)

    evals = [
        {
            "context": f"Passage: {row['passage']}\nQuestion: {row['question']}\nAnswer:",
            "ref_text": "a",
            "completion": "",
        }
        for row in rows
    ]
    assert sizes(questions("drop", tmp_path / "evals.jsonl", *evals)) == [2, 1]


PAIRS = ((1, 1), (1, 2), (2, 1))


def test_clusters_of_questions_are_a_field_or_a_named_column(tmp_path: Path) -> None:
    rows = [{"input": f"{n}?", "target": "a", "cluster": n // 2, "meta": {"text": "x" * 200}} for n in range(3)]

    assert questions("qa", tmp_path / "qa.jsonl", *rows) == ["0", "0", "1"]
    assert sizes(questions("qa", tmp_path / "qa.jsonl", *rows, cluster_column="meta.text")) == [3]
    assert questions("gsm8k", tmp_path / "g.jsonl", {**ROWS["gsm8k"], "cluster": "a"}) == ["a"]
    with pytest.raises(KoderzError, match="line 1: the field 'meat' is missing; is 'meta' meant"):
        questions("qa", tmp_path / "qa.jsonl", *rows, cluster_column="meat")


def test_clusters_in_tables_with_gaps_are_whole_numbers(tmp_path: Path) -> None:
    rows = [{"input": f"{n}?", "target": "a", "cluster": cluster} for n, cluster in enumerate([1.0, 1.0, None])]
    assert questions("qa", tmp_path / "qa.parquet", *rows) == ["1", "1", ""]


def described(path: Path, rows: list[dict[str, Any]], name: str, **more: Any) -> dict[str, Any]:
    """What a plan's record says of a dataset of six items a split."""
    options = DatasetOptions(
        dataset=(f"{name}={as_lines(path, rows)}",),
        demo_datasets=(name,),
        train_items=6,
        validation_items=6,
        test_items=6,
        **more,
    )
    suite = DatasetSuite.load(SuiteSource(None, options))
    found: dict[str, Any] = suite.details(suite.tasks, Settings().having(options))[name]
    return found


def test_clusters_of_test_items_are_on_record(tmp_path: Path) -> None:
    rows = [{"q": f"Question number {n} of {n * n}?", "a": str(n), "text": f"text {n % 2}"} for n in range(18)]
    own = {"input_columns": ("q",), "output_column": "a"}
    found = described(tmp_path / "own.jsonl", rows, "own", cluster_column="text", **own)

    assert len(found["clusters"]) == 6
    assert {*found["clusters"].values()} == {"1", "2"}
    assert "clusters" not in described(tmp_path / "own.jsonl", rows, "own", **own)


def test_clusters_of_hotpot_are_its_supporting_passages(tmp_path: Path) -> None:
    rows = [
        {
            "id": str(n),
            "question": f"Who was number {n} of the {n * n}?",
            "answer": f"King {n}",
            "context": {"title": ["Kings", "Towns"], "sentences": [[f"King {n}."], ["Towns are."]]},
            "supporting_facts": {"title": [f"King {n // 9}", f"Town {n}"], "sent_id": [0, 0]},
        }
        for n in range(18)
    ]
    assert len({*described(tmp_path / "train.jsonl", rows, "hotpot_300")["clusters"].values()}) in (1, 2)
    bare = [{name: value for name, value in row.items() if name != "supporting_facts"} for row in rows]
    assert "clusters" not in described(tmp_path / "train.jsonl", bare, "hotpot_300")


def test_questions_of_made_up_texts_differ_with_the_seed() -> None:
    suites = [Oolong.load(SuiteSource(None, OolongOptions(), seed)) for seed in (0, 0, 1)]
    first, again, other = ([suite.pairing_text(task) for task in suite.tasks] for suite in suites)

    assert first == again
    assert not {*first} & {*other}
