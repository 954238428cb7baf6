"""`koderz rollouts regrade` with recorded logs, and the files that it reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from koderz.errors import KoderzError
from koderz.systems.rollouts.commands.tasks import regrade
from koderz.systems.rollouts.swebench import read_instances
from koderz.systems.rollouts.swebench.judging import of_logs, read_predicted

ROW: dict[str, Any] = {
    "instance_id": "a__b-1",
    "repo": "a/b",
    "version": "1.0",
    "base_commit": "0" * 40,
    "patch": "",
    "test_patch": "",
    "problem_statement": "It fails.",
    "hints_text": "",
    "FAIL_TO_PASS": '["t.py::test_new"]',
    "PASS_TO_PASS": ["t.py::test_old"],
    "image": "swebench/a:latest",
    "eval_script": "#!/bin/bash\npytest",
    "log_parser": "parse_log_pytest",
    "eval_type": "pass_and_fail",
    "image_assets": "{}",
}
LOG = ">>>>> Start Test Output\n{}\n>>>>> End Test Output\n>>>>> Test Exit Code: 0\n"
GOOD = LOG.format("PASSED t.py::test_new\nPASSED t.py::test_old")


def write(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def predicted(instance: str, patch: str | None = "diff") -> dict[str, Any]:
    return {"instance_id": instance, "model_name_or_path": "m", "model_patch": patch}


def log_of(folder: Path, instance: str, text: str) -> None:
    (folder / instance).mkdir(parents=True)
    (folder / instance / "test_output.txt").write_text(text)


def test_regrade_reads_recorded_logs(tmp_path: Path) -> None:
    rows = write(tmp_path / "rows.jsonl", *({**ROW, "instance_id": f"a__b-{n}"} for n in range(1, 6)))
    predictions = write(
        tmp_path / "p.jsonl",
        *(predicted("a__b-1"), predicted("a__b-2"), predicted("a__b-3", None), predicted("a__b-4", "")),
        predicted("a__b-5"),
    )
    log_of(tmp_path / "logs", "a__b-1", GOOD)
    log_of(tmp_path / "logs", "a__b-2", "Could not resolve host: example\r\n")

    regraded = [*of_logs(read_predicted(rows, predictions), tmp_path / "logs")]
    found = {each.instance: each.report for each in regraded}

    assert found["a__b-1"] == {
        "patch_is_None": False,
        "patch_exists": True,
        "patch_successfully_applied": True,
        "resolved": True,
        "infra_failure": False,
        "tests_status": {
            "FAIL_TO_PASS": {"success": ["t.py::test_new"], "failure": []},
            "PASS_TO_PASS": {"success": ["t.py::test_old"], "failure": []},
            "FAIL_TO_FAIL": {"success": [], "failure": []},
            "PASS_TO_FAIL": {"success": [], "failure": []},
        },
    }
    assert found["a__b-2"]["infra_failure_reason"] == "network_unreachable"
    assert found["a__b-3"]["patch_is_None"]
    assert not found["a__b-4"]["resolved"]
    assert regraded[-1].fault == f"there is no {tmp_path}/logs/a__b-5/test_output.txt"


@pytest.mark.parametrize("patch", ["", " \n\t", None])
def test_regrade_never_resolves_an_empty_patch_and_counts_instances(
    patch: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = write(tmp_path / "rows.jsonl", *({**ROW, "instance_id": f"a__b-{n}"} for n in range(1, 4)))
    predictions = write(tmp_path / "p.jsonl", predicted("a__b-1"), predicted("a__b-2", patch))
    log_of(tmp_path / "logs", "a__b-1", GOOD)
    log_of(tmp_path / "logs", "a__b-2", GOOD)

    def regraded(*, json: bool) -> str:
        with pytest.raises(typer.Exit) as ended:
            regrade(rows, predictions, tmp_path / "report.json", logs=tmp_path / "logs", parallel=1, json=json)
        assert ended.value.exit_code == 0
        return capsys.readouterr().out

    assert "1 of 3 instances resolved (1 with an empty patch, 1 without prediction): " in regraded(json=False)
    told = json.loads(regraded(json=True))
    assert (told["resolved"], told["empty"], told["graded"], told["instances"]) == (["a__b-1"], ["a__b-2"], 2, 3)
    assert not json.loads((tmp_path / "report.json").read_text())["a__b-2"]["resolved"]


@pytest.mark.parametrize("kind", ["lines", "list", "object", "objects by id"])
def test_predictions_are_read_in_each_form(kind: str, tmp_path: Path) -> None:
    rows = write(tmp_path / "rows.jsonl", ROW)
    row = {**predicted("a__b-1"), "model_patch": "a\u2028b"}
    by_id = {"a__b-1": {name: value for name, value in row.items() if name != "instance_id"}}
    told = {"lines": row, "list": [row], "object": row, "objects by id": by_id}[kind]
    file = tmp_path / ("p.jsonl" if kind == "lines" else "p.json")
    file.write_text(json.dumps(told, ensure_ascii=False))

    (found,) = read_predicted(rows, file)

    assert found.instance.id == "a__b-1"
    assert found.patch == "a\u2028b"


def test_rows_of_a_task_repository_equal_those_of_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "repository/tasks/a__b-1"
    folder.mkdir(parents=True)
    files = {"gold.patch": "patch", "test.patch": "test_patch", "eval.sh": "eval_script"}
    files["problem_statement.md"] = "problem_statement"
    for name, field in files.items():
        (folder / name).write_text(ROW[field])
    tests = {"FAIL_TO_PASS": ["t.py::test_new"], "PASS_TO_PASS": ["t.py::test_old"]}
    (folder / "tests.json").write_text(json.dumps(tests))
    own = {*files.values(), *tests, "hints_text", "image_assets"}
    (folder / "task.yaml").write_text("".join(f'{name}: "{ROW[name]}"\n' for name in ROW if name not in own))

    (from_folder,) = read_instances(tmp_path / "repository")
    (from_file,) = read_instances(write(tmp_path / "rows.jsonl", ROW))

    assert from_folder.expected == from_file.expected
    assert from_folder.image == from_file.image
    assert from_folder.where.endswith("task.yaml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": None}, "image is missing, which rows have since SWE-bench 5"),
        (
            dict.fromkeys(("image", "eval_script", "log_parser", "eval_type")),
            "image, eval_script, log_parser, eval_type are missing",
        ),
        ({"eval_type": "all"}, "eval_type has to be one of pass_and_fail, fail_only, not 'all'"),
        ({"FAIL_TO_PASS": "[1"}, "'FAIL_TO_PASS' is no JSON list"),
        ({"FAIL_TO_PASS": "[1]"}, "'FAIL_TO_PASS' has to be a list of texts"),
        ({"PASS_TO_PASS": None}, "'PASS_TO_PASS'"),
        ({"log_parser": "parse_log_cargo"}, "log_parser 'parse_log_cargo' is none of koderz' own; "),
        ({"base_commit": 3}, "'base_commit' has to be text"),
        ({"image_assets": "{"}, "'image_assets' is no JSON"),
    ],
)
def test_rows_that_are_damaged_or_older_are_refused_by_line(
    changes: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "swebench.harness.log_parsers", None)
    rows = write(tmp_path / "rows.jsonl", ROW, {**ROW, "instance_id": "a__b-2", **changes})

    with pytest.raises(KoderzError) as caught:
        read_instances(rows)

    assert str(caught.value).startswith(f"{rows}, line 2: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_predictions_of_unknown_or_repeated_instances_are_refused(tmp_path: Path) -> None:
    rows = write(tmp_path / "rows.jsonl", ROW)
    with pytest.raises(KoderzError, match=r"p.jsonl, line 1: .* has no instance 'a__b-9'"):
        read_predicted(rows, write(tmp_path / "p.jsonl", predicted("a__b-9")))
    with pytest.raises(KoderzError, match=r"p\.jsonl, line 2: a__b-1 has a prediction already"):
        read_predicted(rows, write(tmp_path / "p.jsonl", predicted("a__b-1"), predicted("a__b-1")))
    with pytest.raises(KoderzError, match="has no predictions"):
        read_predicted(rows, write(tmp_path / "p.jsonl"))


def test_logs_that_are_no_text_are_refused(tmp_path: Path) -> None:
    rows = write(tmp_path / "rows.jsonl", ROW)
    predictions = write(tmp_path / "p.jsonl", predicted("a__b-1"))
    log_of(tmp_path / "logs", "a__b-1", "")
    (tmp_path / "logs/a__b-1/test_output.txt").write_bytes(b"\xff\xfe")

    with pytest.raises(KoderzError, match=r"test_output.txt: not UTF-8 text \(byte 0\)"):
        [*of_logs(read_predicted(rows, predictions), tmp_path / "logs")]
