"""Logs whose tasks are in clusters by a field of theirs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import koderz
from koderz.analysis.boards import make_board, verify_board
from koderz.analysis.compare import compare_runs
from koderz.analysis.logs import read_log
from koderz.cli import app
from koderz.errors import KoderzError
from koderz.runs.imports import import_log
from tests.koderz.systems.publishing.logs.writers import (
    human_eval,
    inspect_archive,
    inspect_header,
    inspect_sample,
    lm_eval,
    swe_bench_submission,
)

A = [False] * 20 + [True] * 28
B = [number < 16 or number >= 24 for number in range(48)]
"""Of four tasks a topic: B gains all of four topics, loses all of one, and the other seven are as in A."""


def of_topics(path: Path, passes: list[bool]) -> str:
    samples = [
        inspect_sample(number, "C" if passed else "I", metadata={"topic": f"topic {number // 4}", "level": 1})
        for number, passed in enumerate(passes)
    ]
    entries = {"summaries.json": samples, "header.json": inspect_header(len(passes))}
    return str(inspect_archive(path, entries))


@pytest.fixture
def two(tmp_path: Path) -> list[str]:
    return [of_topics(tmp_path / "a.eval", A), of_topics(tmp_path / "b.eval", B)]


def test_tasks_of_one_value_are_one_cluster(two: list[str], tmp_path: Path) -> None:
    alone = compare_runs(two, tmp_path).document()
    found = compare_runs(two, tmp_path, cluster="topic").document()

    # Of 16 tasks that B gains and 4 that it loses, 4 topics and 1 are left: no evidence any more.
    assert (alone["clusters"], found["clusters"], found["pairs"]) == (None, 12, 48)
    assert found["difference"] == alone["difference"] == pytest.approx(100 * 12 / 48)
    assert alone["p_value"] < 0.05 < found["p_value"]
    assert found["interval"][0] < 0 < alone["interval"][0]
    assert koderz.compare(*two, cluster="topic").p_value == found["p_value"]


def test_field_of_each_tool_clusters(tmp_path: Path) -> None:
    submissions = []
    for name, numbers in (("a", range(9)), ("b", range(3, 12))):
        folder = swe_bench_submission(tmp_path / name, [True] * 12)
        resolved = [f"{('django__django', 'sympy__sympy', 'astropy__astropy')[n % 3]}-{n}" for n in numbers]
        lists = {"no_generation": [], "no_logs": [], "resolved": resolved}
        (folder / "results/results.json").write_text(json.dumps(lists))
        submissions.append(str(folder))
    documents = [lm_eval(tmp_path / f"lm {name}", [name == "a", True] * 12) for name in "ab"]
    for folder in documents:
        (path,) = folder.glob("samples_*.jsonl")
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps({**row, "doc": {"subject": row["doc_id"] % 6}}) + "\n" for row in rows))

    found = compare_runs([*map(str, documents)], tmp_path, cluster="subject").document()
    assert (found["pairs"], found["clusters"]) == (24, 6)
    found = compare_runs(submissions, tmp_path, cluster="repo").document()
    assert (found["pairs"], found["clusters"]) == (12, 3)  # also of what each doesn't name
    assert "3 clusters" in found["a"]["success_rate_interval_method"]


def test_log_without_the_field_is_refused_by_the_fields_that_it_has(two: list[str], tmp_path: Path) -> None:
    with pytest.raises(
        KoderzError, match=r"a\.eval: no task has a field area to cluster by; its fields are topic, level"
    ):
        compare_runs(two, tmp_path, cluster="area")
    bare = str(human_eval(tmp_path / "h", A))
    with pytest.raises(KoderzError, match="no task has a field area to cluster by; none has any field"):
        compare_runs([bare, bare], tmp_path, cluster="area")


def test_run_of_koderz_is_refused_since_its_plan_has_its_clusters(two: list[str], tmp_path: Path) -> None:
    log = read_log(Path(two[0]))
    assert log
    imported = asyncio.run(import_log(log, Path(two[0]), tmp_path / "results", summary=True))

    with pytest.raises(
        KoderzError, match=r"takes a field of other tools' logs; the clusters of bench_.* are those of its plan"
    ):
        compare_runs([imported.run_id, imported.run_id], tmp_path / "results", cluster="topic")


def test_board_in_clusters_is_made_anew_from_its_command(two: list[str], tmp_path: Path) -> None:
    page = tmp_path / "board.json"
    done = CliRunner().invoke(app, ["leaderboard", *two, "--cluster", "topic", "-o", str(page)])

    assert done.exit_code == 0
    assert "12 clusters" in page.read_text()
    assert "12 clusters" not in make_board(two, tmp_path).encoded().decode()
    assert verify_board(page, tmp_path) == []
