"""`koderz benchmark calibrate`: drawn items, labels as spreadsheets write them, and what compare makes of them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from koderz.errors import KoderzError
from koderz.systems.publishing.commands import calibration_lines
from koderz.systems.publishing.labels import JudgedRun, read_labels, write_rows
from tests.conftest import Shell
from tests.e2e.conftest import one_line
from tests.koderz.systems.questions.sets import write_rows as write_questions

RUN = ("benchmark", "--suite", "browsecomp-plus", "--judge-model", "simulated", "--model", "simulated", "--limit", 40)


@pytest.fixture
def drawn(koderz: Shell) -> Path:
    """The drawn items of a run that a model judged."""
    koderz(*RUN)
    koderz("benchmark", "calibrate", "latest", "--draw", 40, "-o", "labels.csv")
    return koderz.folder / "labels.csv"


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def filled(path: Path, labels: Sequence[str], *, delimiter: str = ",", bom: bool = False) -> None:
    """Writes the labels into the file, as a spreadsheet would."""
    rows = [{**row, "label": label} for row, label in zip(rows_of(path), labels, strict=False)]
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(rows)
    path.write_bytes(b"\xef\xbb\xbf" * bom + text.getvalue().replace("\n", "\r\n").encode())


@pytest.mark.slow
def test_calibrate_corrects_the_rate_by_labels_of_a_draw(koderz: Shell, drawn: Path) -> None:
    assert "verdict" not in drawn.read_text().splitlines()[0]
    count = len(rows_of(drawn))
    filled(drawn, ["pass", "FAIL"] * count, delimiter=";", bom=True)

    done = koderz("benchmark", "calibrate", "latest", "--labels", "labels.csv")

    (figures,) = koderz.summary()["calibration"].values()
    assert figures["items"] == count
    assert figures["drawn"]
    assert figures["corrected"]["method"] == "prediction-powered"
    assert figures["corrected"]["rate"] == pytest.approx(0.5)
    assert f"Rate: {100 * figures['rate']:.1f} % as the judge has it; corrected 50.0 %" in done.out
    assert koderz.summary()["status"] == "complete"
    assert list(koderz.results.glob("*/calibrations/*.json"))
    found = json.loads(koderz("verify", "latest", "--json").out)
    assert found["verified"]
    assert "the labels of people" in found["on_trust"]


@pytest.mark.parametrize("is_turned", [False, True])
def test_labels_turned_round_correct_nothing_and_say_so(koderz: Shell, is_turned: bool) -> None:
    write_questions(
        koderz.folder / "faq.jsonl", *({"input": f"What is {n} + {n}?", "target": 2 * n} for n in range(60))
    )
    judging = ("--suite", "qa", "--dataset", "faq.jsonl", "--scorer", "judge", "--role", "judge=simulated")
    koderz("benchmark", *judging, "--model", "simulated", "--no-sink", "mlflow", "--no-sink", "memory")
    koderz("benchmark", "calibrate", "latest", "--draw", 40, "-o", "labels.csv")
    path = koderz.folder / "labels.csv"
    passed = {row["experiment_id"]: row["success"] for row in koderz.summary()["results"]}
    filled(path, ["pass" if passed[row["experiment_id"]] != is_turned else "fail" for row in rows_of(path)])

    done = koderz("benchmark", "calibrate", "latest", "--labels", "labels.csv")

    (figures,) = koderz.summary()["calibration"].values()
    assert figures["drawn"]
    assert (figures["corrected"]["rate"] is None) == is_turned
    assert ("no correction: the judge tells nothing here: sensitivity and specificity" in done.out) == is_turned
    koderz("benchmark", *judging, "--model", "simulated", "--seed", 1, "--no-sink", "mlflow", "--no-sink", "memory")
    compared = koderz("benchmark", "compare", "latest~1", "latest", "--allow-simulated").out
    assert "Judged by simulated, not calibrated" in compared


@pytest.mark.slow
def test_labels_are_clustered_as_tasks_are(koderz: Shell, drawn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(drawn)
    clusters = {row["task"]: f"text {n % 8}" for n, row in enumerate(sorted(rows, key=lambda row: row["task"]))}
    labels = {row["experiment_id"]: {"": float(n % 2)} for n, row in enumerate(rows)}
    folder = next(koderz.results.glob("bench_*/"))
    alone = JudgedRun(folder).calibration(labels, "d").arms

    monkeypatch.setattr("koderz.systems.publishing.labels.clusters_in", lambda plan: clusters)
    (found,), (before,) = JudgedRun(folder).calibration(labels, "d").arms.values(), alone.values()

    assert (before["clusters"], found["clusters"]) == (None, 8)
    assert len(found["labelled"]) == 8
    assert found["rectifier"]["mean"] == pytest.approx(before["rectifier"]["mean"])
    assert found["rectifier"]["variance"] != before["rectifier"]["variance"]
    assert next(calibration_lines("a", found)).endswith("in 8 clusters, 1 labeller.")


@pytest.mark.slow
def test_calibrate_repeats_the_judge_within_its_cap(koderz: Shell, drawn: Path) -> None:
    done = koderz("benchmark", "calibrate", "latest", "--repeat", 2, "--json")

    found = json.loads(done.out)
    assert (found["items"], found["flipped"], found["agreement"]) == (len(rows_of(drawn)), 0, 1.0)
    calls = [line for line in koderz.journal() if line["kind"] == "call"]
    again = [line for line in calls if line["key"].startswith("judge-ask-again")]
    assert len(again) == 2 * found["items"]
    assert json.loads(koderz("verify", "latest", "--json").out)["verified"]


@pytest.mark.slow
def test_compare_says_that_a_judge_is_not_calibrated(koderz: Shell) -> None:
    for seed in (0, 1):
        koderz(*RUN, "--seed", seed)

    done = koderz("benchmark", "compare", "latest~1", "latest", "--allow-simulated")

    assert "Judged by simulated, not calibrated." in done.out


@pytest.mark.slow
def test_calibrate_refuses_what_no_model_judged(koderz: Shell) -> None:
    koderz("benchmark", 0, 1, "--model", "simulated")

    done = koderz("benchmark", "calibrate", "latest", "--draw", 3, "-o", "labels.csv", code=2)

    assert "no model judged there" in one_line(done.err)


KNOWN = {"exp_1": 1, "exp_2": 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("experiment_id,label\nexp_1,maybe\n", "line 2: 'maybe' is no label"),
        ("experiment_id,label\nexp_9,pass\n", "line 2: this run has no experiment 'exp_9'"),
        ("experiment_id,label\nexp_1,1\nexp_1,0\n", "line 3: exp_1 is labelled twice"),
        ("experiment_id,label,labeller\nexp_1,1,ann\nexp_1,0,ann\n", "labelled twice by ann"),
        ("experiment_id,label\nexp_1,1.5\n", "is no label"),
        ("experiment_id,label\nexp_1,\n", "no row has a label"),
        ("task,verdict\na,b\n", "line 2: a file of labels has the columns"),
        ("", "line 1: the columns need a name each"),
        ("experiment_id,label,label\nexp_1,1,0\n", "line 1: the columns need a name each, all different"),
        (
            'experiment_id,label\n"exp_1,pass\nexp_2,fail\n',
            r"line 2: not CSV \(unexpected end of data\); is a quote left open\?",
        ),
    ],
)
def test_labels_that_are_none_are_named_with_their_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(text)

    with pytest.raises(KoderzError, match=reason):
        read_labels(path, KNOWN)


@pytest.mark.parametrize(
    "text",
    [
        "experiment_id,label,labeller\nexp_1,pass,ann\nexp_1,0,bob\nexp_2,,\n",
        '\ufeffexperiment_id;label;labeller\r\n"exp_1";"PASS";"ann"\r\nexp_1;FALSE;bob\r\n',
        "experiment_id\tlabel\tlabeller\nexp_1\t1\tann\nexp_1\tfail\tbob\n",
        """"experiment_id";answer;label;labeller;"notes, if any, here"
exp_1;"a ""b""; c
d";"1,0"; ann ;
exp_1;'=1+1;0,0;bob;
;;;;
exp_2;;;;
""",
        "sep=;\r\nexperiment_id;label;labeller\r\nexp_1;Pass ;ann\r\nexp_1;fail;bob\r\n",
    ],
    ids=["commas", "LibreOffice with semicolons", "tabs", "cells of several lines, decimal commas", "a line sep="],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_labels_are_read_as_spreadsheets_write_them(tmp_path: Path, text: str, encoding: str) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes(text.encode(encoding))

    assert read_labels(path, KNOWN)[0] == {"exp_1": {"ann": 1.0, "bob": 0.0}}


def test_labels_are_read_from_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text('{"experiment_id": "exp_1", "label": 0.25}\n{"experiment_id": "exp_2", "label": true}\n')

    assert read_labels(path, KNOWN)[0] == {"exp_1": {"": 0.25}, "exp_2": {"": 1.0}}


def test_drawn_texts_are_no_formula_of_a_spreadsheet(tmp_path: Path) -> None:
    row = dict.fromkeys(("experiment_id", "task", "question", "reference", "label", "labeller"), "x")

    write_rows(tmp_path / "labels.csv", iter([{**row, "answer": '=HYPERLINK("http://a")'}]))

    assert rows_of(tmp_path / "labels.csv")[0]["answer"].startswith("'=")
