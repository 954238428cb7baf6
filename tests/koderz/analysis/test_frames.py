"""Runs in Python: as data frames, and as a notebook shows them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pandas as pd
import pytest

import koderz
from koderz.errors import KoderzError
from tests.koderz.analysis import builders


def test_frame_has_a_row_per_experiment_with_its_run(tmp_path: Path) -> None:
    run = koderz.load_summary(builders.write(tmp_path / "c.json", builders.comparative([False, True], [True, True])))

    frame = koderz.to_dataframe(run)

    assert list(frame["solver"]) == ["zero-shot", "zero-shot", "iterative", "iterative"]
    assert frame.groupby("solver")["success"].mean().to_dict() == {"iterative": 1.0, "zero-shot": 0.5}
    assert frame["start_time"][0] == pd.Timestamp("2026-01-31T12:00:00")
    assert set(frame["model"]) == {"m"}
    assert frame["cost_local"].sum() == pytest.approx(frame["cost"].sum())


def test_frame_has_a_column_per_metric(tmp_path: Path) -> None:
    first, second = builders.rows([True, False])
    run = builders.run(tmp_path, [True, False], results=[{**first, "metrics": {"f1": 0.5}, "score": 0.25}, second])

    frame = koderz.to_dataframe(run)

    assert frame["metric_f1"][0] == 0.5
    assert frame["metric_f1"].isna().tolist() == [False, True]
    assert frame["score"][0] == 0.25


def test_files_folders_and_mixtures_of_them_are_taken(tmp_path: Path) -> None:
    results = tmp_path / "results"
    for name in (builders.RUN, builders.OTHER):
        builders.write(results / f"{name}.json", builders.document(run_id=name))
    file = builders.write(tmp_path / "x.json", builders.document())

    assert len(koderz.to_dataframe(results)) == 4
    assert len(koderz.to_dataframe([str(file), builders.run(tmp_path, [True] * 3), results])) == 9


def test_frame_without_results_has_its_columns(tmp_path: Path) -> None:
    frame = koderz.to_dataframe(builders.run(tmp_path, []))

    assert len(frame) == 0
    assert {"run_id", "model", "success", "cost", "start_time"} <= set(frame.columns)


@pytest.mark.skipif(importlib.util.find_spec("polars") is not None, reason="polars is installed")
def test_polars_is_asked_for_by_name(tmp_path: Path) -> None:
    with pytest.raises(KoderzError, match="polars isn't installed"):
        koderz.to_dataframe(builders.run(tmp_path, [True]), library="polars")


@pytest.mark.skipif(importlib.util.find_spec("polars") is None, reason="polars is not installed")
def test_polars_gives_the_same_rows(tmp_path: Path) -> None:
    run = builders.run(tmp_path, [True, False])

    assert koderz.to_dataframe(run, library="polars")["success"].to_list() == [True, False]


def test_notebook_shows_runs_and_comparisons_escaped(tmp_path: Path) -> None:
    evil = builders.run(tmp_path, {"<script>": [True], "T/1": [False]}, model="<img src=x>")
    fine = builders.run(tmp_path, {"<script>": [False], "T/1": [False]}, "b.json", model="n")

    for html in (evil._repr_html_(), koderz.compare(evil, fine)._repr_html_()):
        assert "<table>" in html
        assert "&lt;img src=x&gt;" in html
        assert "<script" not in html
        assert "<img" not in html
