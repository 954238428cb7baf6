"""Rows of datasets like SWE-bench, and of SWE-bench before version 5: how they are read, and judged.

`dialects.jsonl.gz` was recorded with swebench 4.1.0 and swesmith 0.0.9 from PyPI:
`scripts/check_swe_dialects --logs 500 --seed 5 --record`.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.systems.rollouts.environments.trees import prepared
from koderz.systems.rollouts.swebench import Instance, read_instances, with_substitute
from koderz.systems.rollouts.swebench.dialects import reversed_diff
from koderz.systems.rollouts.swebench.judging import InstanceJudge
from koderz.systems.rollouts.swebench.places import InstancePlaces
from koderz.systems.rollouts.swebench.reports import DIALECTS, Expected, RuleName, report_of, untimed
from koderz.systems.rollouts.tasks.datasets import read_rollouts, stood_in
from koderz.systems.workspaces.environments import read_environments
from koderz.systems.workspaces.images import ImageStore
from koderz.systems.workspaces.local import Local
from koderz.systems.workspaces.predictions import read_predictions
from tests.koderz.systems.rollouts.swebench import toy

RECORDED = Path(__file__).with_name("dialects.jsonl.gz")
DIFF = "diff --git a/t/test_a.py b/t/test_a.py\n--- a/t/test_a.py\n+++ b/t/test_a.py\n@@ -1 +1 @@\n-a\n+b\n"
TESTS: dict[str, Any] = {"FAIL_TO_PASS": '["t/test_a.py::test_new"]', "PASS_TO_PASS": '["t/test_a.py::test_old"]'}
COMMON: dict[str, Any] = {
    "instance_id": "astropy__astropy-1",
    "repo": "astropy/astropy",
    "base_commit": "c" * 40,
    "patch": DIFF,
    "test_patch": DIFF,
    "problem_statement": "It fails.",
    **TESTS,
}
VERIFIED = {**COMMON, "version": "1.3", "environment_setup_commit": "d" * 40, "difficulty": "<15 min fix"}
REBENCH = {
    **COMMON,
    "repo": "some/library",
    "image_name": "swerebench/x:1",
    "language": "python",
    "install_config": {"test_cmd": ["pytest -rA t", "true"], "log_parser": "parse_log_pytest", "install": "pip"},
}
LIVE = {**COMMON, "repo": "some/library", "test_cmds": ["pytest -rA t/test_a.py"], "log_parser": "pytest"}
SMITH = {
    "instance_id": "mewwts__addict.75284f95.func__1",
    "repo": "swesmith/mewwts__addict.75284f95",
    "image_name": "swebench/swesmith.x86_64.mewwts_1776_addict.75284f95",
    "patch": DIFF,
    "problem_statement": "It fails.",
    **TESTS,
}
MULTI = {
    "org": "astropy",
    "repo": "astropy",
    "number": 1,
    "base": {"label": "x", "ref": "pytest -rA t/test_a.py", "sha": "c" * 40},
    "resolved_issues": [{"number": 2, "title": "It fails", "body": None}],
    "fix_patch": DIFF,
    "test_patch": DIFF,
    "p2p_tests": {"t/test_a.py::test_old": {}},
    "f2p_tests": {"t/test_a.py::test_new": {}},
    "s2p_tests": {},
    "n2p_tests": {},
    "test_patch_result": {"passed_tests": ["t/test_a.py::test_old", "t/test_a.py::test_kept"]},
}
LOG = ">>>>> Start Test Output\n{}\n>>>>> End Test Output\n"


def instance(tmp_path: Path, row: dict[str, Any]) -> Instance:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    (found,) = read_instances(path)
    return found


def resolved(found: Instance, log: str) -> bool:
    return bool(report_of(found.expected, log, found.parser)["resolved"])


def test_logs_have_the_reports_of_official_harnesses() -> None:
    cases = [json.loads(line) for line in gzip.decompress(RECORDED.read_bytes()).splitlines()]
    assert {case["log_parser"] for case in cases} == {
        name for name in DIALECTS if name.startswith(("swebench4.", "smith"))
    }
    assert sum(case["report"]["resolved"] for case in cases) > 30
    for case in cases:
        rule: RuleName = "smith" if case["log_parser"].startswith("smith") else "swebench4"
        expected = Expected(case["FAIL_TO_PASS"], case["PASS_TO_PASS"], rule=rule)
        log = case["log"].replace("\r\n", "\n").replace("\r", "\n")
        found = report_of(expected, log, DIALECTS[case["log_parser"]])
        tests = found.get("tests_status", {})
        shown = {"resolved": found["resolved"], **{key: tests.get(key) for key in ("FAIL_TO_PASS", "PASS_TO_PASS")}}
        assert shown == case["report"], case["log"]


def test_verified_before_version_5_has_image_script_and_parser_of_its_harness(tmp_path: Path) -> None:
    found = instance(tmp_path, VERIFIED)
    assert found.image == "swebench/sweb.eval.x86_64.astropy_1776_astropy-1:latest"
    lines = found.eval_script.split("\n")
    assert lines[:3] == ["source /opt/miniconda3/bin/activate", "conda activate testbed", "cd /testbed"]
    assert "python -m pip install -e .[test] --verbose" in lines
    assert f"git checkout {'c' * 40} t/test_a.py" in lines
    assert "pytest -rA -vv -o console_output_style=classic --tb=no t/test_a.py" in lines
    assert found.expected.fail_to_pass == ["t/test_a.py::test_new"]
    assert resolved(found, LOG.format("PASSED t/test_a.py::test_new\nPASSED t/test_a.py::test_old"))
    # That harness doesn't look at exit codes, and a test that it skips is neither a success nor a failure.
    assert resolved(found, LOG.format("PASSED t/test_a.py::test_new\nSKIPPED t/test_a.py::test_old"))
    assert not resolved(found, LOG.format("PASSED t/test_a.py::test_new"))


def test_rebench_counts_passed_alone_by_names_without_times(tmp_path: Path) -> None:
    row = {
        **REBENCH,
        "FAIL_TO_PASS": ["t/test_a.py::test_new [1.3 ms]"],
        "install_config": json.dumps(REBENCH["install_config"]),
    }
    for each in (REBENCH, row):
        found = instance(tmp_path, each)
        assert (found.image, found.workdir) == ("swerebench/x:1", "/library")
        assert "git apply -v --3way --recount --ignore-space-change --whitespace=nowarn - <<" in found.eval_script
        assert resolved(found, "PASSED t/test_a.py::test_new\nPASSED t/test_a.py::test_old\n")
        assert not resolved(found, "PASSED t/test_a.py::test_new\nXFAIL t/test_a.py::test_old\n")
    assert [*map(untimed, ("a [1.3 ms]", "b (0.2s)", "c in 3 sec", "d[1]", "\x1b[32me\x1b[0m"))] == [
        *"abc",
        "d[1]",
        "e",
    ]


def test_live_forgives_tests_that_are_absent_but_not_failures(tmp_path: Path) -> None:
    found = instance(tmp_path, {**LIVE, "rebuild_cmds": ["make"], "print_cmds": ["cat log"]})
    assert found.image == "starryzhang/sweb.eval.x86_64.astropy_1776_astropy-1"
    assert "make\n" in found.eval_script
    assert "pytest -rA t/test_a.py\ncat log\n" in found.eval_script
    assert instance(tmp_path, {**LIVE, "docker_image": "other/image"}).image == "other/image"
    assert resolved(found, "PASSED t/test_a.py::test_new\n")
    assert not resolved(found, "PASSED t/test_a.py::test_new\nXFAIL t/test_a.py::test_old\n")
    assert not resolved(found, "SKIPPED t/test_a.py::test_new\n")


def test_smith_has_the_reverse_of_its_patch_as_solution(tmp_path: Path) -> None:
    found = instance(tmp_path, SMITH)
    assert found.bug == DIFF
    assert "-b\n+a\n" in found.patch.replace("+a\n-b\n", "-b\n+a\n")
    assert reversed_diff(found.patch) == DIFF
    assert found.withheld == ("t/test_a.py",)
    (task,) = read_rollouts(tmp_path / "rows.jsonl")
    assert task.workdir == "/testbed"
    log = "+ : '>>>>> Start Test Output'\n{}\n+ : '>>>>> End Test Output'\n"
    assert resolved(found, log.format("t/test_a.py::test_new PASSED [ 5%]\nt/test_a.py::test_old XFAIL"))
    assert not resolved(found, log.format("t/test_a.py::test_new PASSED [ 5%]"))


def test_multi_in_python_is_judged_by_four_lists(tmp_path: Path) -> None:
    found = instance(tmp_path, MULTI)
    assert (found.id, found.repo) == ("astropy__astropy-1", "astropy/astropy")
    assert found.problem_statement == "It fails\n\n"
    passing = "PASSED t/test_a.py::test_new\nPASSED t/test_a.py::test_old\n"
    assert resolved(found, passing)
    assert not resolved(found, passing + "FAILED t/test_a.py::test_kept\n")
    with pytest.raises(KoderzError, match="not alibaba/fastjson2"):
        instance(tmp_path, {**MULTI, "org": "alibaba", "repo": "fastjson2"})


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({**LIVE, "log_parser": "def parse(log):\n    return {}\n"}, "its log_parser is code, which isn't run"),
        ({**REBENCH, "install_config": {"test_cmd": "go test", "log_parser": "lambda log: {}"}}, "is code"),
        ({**REBENCH, "install_config": {"test_cmd": "go test", "log_parser": "parse_log_gotest"}}, "isn't known here"),
        ({**REBENCH, "install_config": {"log_parser": "parse_log_pytest"}}, "names no test_cmd"),
        ({**REBENCH, "install_config": "{"}, "'install_config' is no JSON table"),
        ({**SMITH, "repo": "swesmith/tornadoweb__tornado.d5ac65c1"}, "a test runner of its own"),
        ({**VERIFIED, "repo": "no/such"}, "no row of SWE-bench before"),
        ({**LIVE, "test_cmds": []}, "test_cmds is empty"),
        ({**MULTI, "base": {}}, "base names no ref"),
    ],
)
def test_rows_that_cannot_be_judged_are_refused_by_name(tmp_path: Path, row: dict[str, Any], why: str) -> None:
    with pytest.raises(KoderzError, match=why):
        instance(tmp_path, row)


def test_reversed_diff_undoes_what_git_writes(tmp_path: Path) -> None:
    made = toy.make(tmp_path)
    changes: dict[str, str | None] = {
        "adding.py": "def add():\n    pass",
        "new/file.py": "--- a\n+++ b\n",
        "setup.cfg": None,
    }
    diff = toy.diff_of(made.repository, changes)
    for each in (diff, reversed_diff(diff)):
        (tmp_path / "patch").write_text(each)
        toy.git(made.repository, "apply", str(tmp_path / "patch"))
    assert toy.git(made.repository, "status", "--porcelain") == ""
    assert reversed_diff(reversed_diff(diff)) == diff


def _judged_row(dialect: str, made: toy.Toy) -> dict[str, Any]:
    """The toy's row as a dataset has it."""
    row, command = made.row, "python -m pytest -rA -p no:cacheprovider tests/test_adding.py"
    dialects: dict[str, dict[str, Any]] = {
        "rebench": {"install_config": {"test_cmd": command, "log_parser": "parse_log_pytest"}, "image_name": "none"},
        "live": {"test_cmds": [command], "log_parser": "pytest"},
    }
    more = dialects[dialect]
    kept = {
        name: value for name, value in row.items() if name not in ("image", "eval_script", "log_parser", "eval_type")
    }
    passing = [test for test in json.loads(row["PASS_TO_PASS"]) if "known" not in test]  # which is expected to fail
    return {**kept, **more, "PASS_TO_PASS": passing}


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["rebench", "live"])
async def test_rows_are_judged_by_running_their_tests(tmp_path: Path, dialect: str) -> None:
    made = toy.make(tmp_path)
    row = _judged_row(dialect, made)
    rules = read_environments(made.environments, "--environments")
    found = with_substitute(instance(tmp_path, row), rules, ImageStore(None))
    async with Local() as local:
        judge = InstanceJudge(InstancePlaces(local))
        judged = await judge.judge(found, row["patch"])
        assert judged.report["resolved"], judged.log
        wrong = row["patch"].replace("one + other", "one * other")
        assert not (await judge.judge(found, wrong)).report["resolved"]


@pytest.mark.slow
async def test_smith_is_judged_on_the_tree_with_its_bug(tmp_path: Path) -> None:
    made = toy.make(tmp_path)
    (made.repository / "adding.py").write_text(toy.FIXED)
    (made.repository / "tests/test_adding.py").write_text(toy.GRADING)
    toy.commit_all(made.repository)
    bug = toy.diff_of(made.repository, {"adding.py": toy.CODE})
    tests = json.loads(made.row["FAIL_TO_PASS"]), ["tests/test_adding.py::test_double"]
    repo = f"swesmith/mewwts__addict.{toy.git(made.repository, 'rev-parse', 'HEAD')[:8]}"
    row = {**SMITH, "repo": repo, "patch": bug, "FAIL_TO_PASS": tests[0], "PASS_TO_PASS": tests[1]}
    made.environments.write_text(made.environments.read_text().replace("koderz/adding", repo))
    found = with_substitute(
        instance(tmp_path, row), read_environments(made.environments, "--environments"), ImageStore(None)
    )
    (task,) = stood_in(read_rollouts(tmp_path / "rows.jsonl"), made.environments, None)
    async with Local() as local:
        judge = InstanceJudge(InstancePlaces(local))
        judged = await judge.judge(found, found.patch)
        assert judged.report["resolved"], judged.log
        assert not (await judge.judge(found, found.patch.replace("one + other", "one * other"))).report["resolved"]
        baseline = await (await prepared(task, tmp_path / "store", local)).baseline()
    # An agent begins with the bug, and without the tests that show it.
    assert (baseline / "adding.py").read_text() == toy.CODE
    assert not (baseline / "tests/test_adding.py").exists()


def test_predictions_of_other_tools_are_read(tmp_path: Path) -> None:
    def read(name: str, *rows: dict[str, Any], bom: bool = False) -> list[tuple[str, str | None]]:
        path = tmp_path / name
        path.write_bytes(b"\xef\xbb\xbf" * bom + "".join(f"{json.dumps(row)}\n" for row in rows).encode())
        return [(each.instance, each.patch) for each in read_predictions(path)]

    patch = DIFF.replace("\n", "\r\n")
    openhands = {"instance_id": "a-1", "test_result": {"git_patch": f"noise\r\n{patch}"}, "metadata": {}, "history": []}
    empty = {"instance_id": "a-2", "test_result": {"git_patch": " \r\n"}}
    none = {"instance_id": "a-3", "test_result": {"git_patch": None}}
    assert read("output.jsonl", openhands, empty, none) == [("a-1", DIFF), ("a-2", ""), ("a-3", None)]
    assert read("one.json", openhands) == [("a-1", DIFF)]
    assert read("bom.jsonl", {"instance_id": "a-1", "prediction": DIFF}, bom=True) == [("a-1", DIFF)]
    assert read("bom.json", {"a-1": {"model_patch": DIFF}}, bom=True) == [("a-1", DIFF)]
    assert read("null.jsonl", {"instance_id": "a-1", "prediction": None}) == [("a-1", None)]
    assert read("multi.jsonl", {"org": "o", "repo": "r", "number": 7, "fix_patch": DIFF}) == [("o__r-7", DIFF)]
    with pytest.raises(KoderzError, match="git_patch"):
        read("odd.jsonl", {"instance_id": "a-1", "test_result": {"git_patch": 3}})
    with pytest.raises(KoderzError, match="model_patch"):
        read("none.jsonl", {"instance_id": "a-1", "test_result": {}})
