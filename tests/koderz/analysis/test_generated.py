"""Figures of made-up tasks say so, and stand in no table with those of published ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from koderz.analysis.compare import compare_runs
from koderz.analysis.pairs import chosen_sides
from koderz.errors import KoderzError
from tests.conftest import Shell

RUN = ("benchmark", "--model", "simulated", "--solver", "direct", "--quiet")
MADE_UP = (*RUN, "--suite", "oolong", "--limit", 6)
NEEDLES = (*RUN, "--suite", "ruler", "--ruler-tasks", "needles", "--needle-types", "dates", "--limit", 6)
OFFICIAL = (*RUN, "--suite", "ruler", "--ruler-tasks", "vt", "--context-lengths", "1K", "--limit", 6)


def begun(koderz: Shell, *arguments: object) -> str:
    """Runs the command; the id of the run."""
    before = {*koderz.results.glob("*.json")}
    koderz(*arguments)
    (path,) = {*koderz.results.glob("*.json")} - before
    return path.stem


@pytest.mark.slow
def test_made_up_tasks_share_no_table_with_others(koderz: Shell) -> None:
    one, other, made_up, needles = (begun(koderz, *run) for run in (OFFICIAL, OFFICIAL, MADE_UP, NEEDLES))

    for pair in ((one, made_up), (one, needles), (one, other, made_up)):
        refused = koderz("benchmark", "compare", *pair, code=2)
        assert "their figures don't belong into one table" in refused.err
        assert "one table" in koderz("benchmark", "compare", *pair, "--allow-simulated", code=2).err
        assert "one table" in koderz("benchmark", "report", *pair, code=2).err
    assert "have no task in common" in koderz("benchmark", "compare", made_up, needles, code=2).err
    assert "generated" in koderz("benchmark", "problems").err
    koderz("benchmark", "report", made_up, needles, "-o", "report.html")
    page = (koderz.folder / "report.html").read_text()
    assert "Generated data, oolong-generated, ruler-generated" in page
    assert one not in page
    assert "oolong-generated" in koderz("benchmark", "list").out
    assert "GENERATED DATA, ruler-generated" in koderz("benchmark", "show", needles).out
    assert "GENERATED DATA" not in koderz("benchmark", "show", one).out


def test_made_up_tasks_go_by_a_name_of_their_own_in_every_record(koderz: Shell) -> None:
    assert "GENERATED DATA, oolong-generated" in koderz(*MADE_UP, env={"KODERZ_SINKS": "json,memory"}).out

    assert koderz.summary()["generated"] == koderz.journal()[0]["generated"] == "oolong-generated"
    assert all(row["problem_id"].startswith("oolong-generated/") for row in koderz.summary()["results"])
    assert '"suite":"oolong-generated"' in koderz("memory", "export").out.replace(" ", "")
    koderz("benchmark", "export", "latest", "-o", "rows.csv")
    assert "oolong-generated" in (koderz.folder / "rows.csv").read_text()


@pytest.mark.slow
def test_made_up_tasks_have_a_page_of_their_own_in_mlflow(koderz: Shell) -> None:
    import sqlite3

    for run in (OFFICIAL, NEEDLES):
        koderz(*run, "--wait", env={"KODERZ_SINKS": "json,mlflow"})
    with sqlite3.connect(koderz.results / "mlflow.db") as store:
        names = {name for (name,) in store.execute("SELECT name FROM experiments")}
    assert {"koderz/ruler", "koderz/ruler-generated"} <= names


def test_generated_and_real_tasks_share_no_run(koderz: Shell) -> None:
    done = koderz(*RUN, "--suite", "ruler", "--ruler-tasks", "vt", "niah_single_2", "--limit", 4, code=2)

    assert "niah_single_2[generated]/4096/0 is generated and vt/4096/0 isn't" in done.err


def test_generated_and_real_tasks_are_not_compared_by_the_api(koderz: Shell) -> None:
    one, made_up = (begun(koderz, *run) for run in (OFFICIAL, MADE_UP))
    results: Path = koderz.results

    with pytest.raises(KoderzError, match="one table"):
        compare_runs([one, made_up], results, allow_simulated=True)
    sides, notes = chosen_sides([], results)
    assert {side.run.run_id for side in sides} == {one}
    assert notes == ["1 runs of generated tasks are left out; name them to see them"]
