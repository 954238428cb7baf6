"""action.yml, step by step in bash with the files that a runner has. Its steps of other actions are left out."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.forks import forks
from tests.koderz.analysis import builders

ROOT = Path(__file__).parents[1]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
SCRIPTS = [step for step in STEPS if "run" in step]
EXPRESSION = re.compile(r"\$\{\{ ([\w.-]+) \}\}")


class Job(dict[str, str]):
    """The outputs of the action; what the job's summary and the comment say, and the exit code of its last step."""

    summary = comment = said = ""
    code = 0


@pytest.fixture
def action(tmp_path: Path) -> Callable[..., Job]:
    """Runs the action as a job of a pull request."""
    rows = [{"id": f"q{n}", "input": f"What is {n}?", "target": "x" if n == 1 else str(n)} for n in range(3)]
    (tmp_path / "faq.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tools = tmp_path / "tools"
    tools.mkdir()
    forks().write_command(tools / "koderz")
    for name, text in {
        "python": f'if [ "$2" = pip ]; then printf "%s\\n" "$@" >>"$PIPS"; else exec "{sys.executable}" "$@"; fi',
        "gh": 'printf "%s\\n" "$@" >>"$POSTED"; exit "${GH_CODE:-0}"',
    }.items():
        (tools / name).write_text(f"#!/bin/bash\n{text}\n")
        (tools / name).chmod(0o755)
    files = {name: tmp_path / name.lower() for name in ("GITHUB_STEP_SUMMARY", "GITHUB_EVENT_PATH", "POSTED", "PIPS")}
    files["GITHUB_EVENT_PATH"].write_text('{"pull_request": {"number": 7}}')
    kept: dict[str, str] = {
        name: value for name, value in os.environ.items() if not name.startswith(("KODERZ_", "GITHUB_"))
    }
    paths = {name: str(path) for name, path in files.items()}
    environ: dict[str, str] = kept | paths | {
        "PATH": f"{tools}:{os.environ['PATH']}", "GITHUB_ACTION_PATH": str(ROOT), "GITHUB_REPOSITORY": "us/ours",
        "RUNNER_TEMP": str(tmp_path / "temp"), "HOME": str(tmp_path), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    (tmp_path / "temp").mkdir()

    def run(env: Mapping[str, str] | None = None, **inputs: str) -> Job:
        known = {f"inputs.{name}": str(about.get("default", "")) for name, about in ACTION["inputs"].items()}
        known |= {f"inputs.{name.replace('_', '-')}": value for name, value in inputs.items()}
        known |= {"github.token": "gh-test", "steps.report.outputs.artifact-url": "https://ci.example/report"}
        job = Job()
        for step in SCRIPTS:
            output = tmp_path / "output"
            output.write_text("")
            own = {
                name: EXPRESSION.sub(lambda found: known.get(found[1], ""), value)
                for name, value in step.get("env", {}).items()
            }
            if "run-id" in step.get("if", "") and not known.get("steps.run.outputs.run-id"):
                continue
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]], cwd=tmp_path, check=False,
                env=environ | own | {"GITHUB_OUTPUT": str(output)} | {**(env or {})}, capture_output=True, text=True,
            )  # fmt: skip
            job.said += done.stdout + done.stderr
            job.code = done.returncode
            assert done.returncode == 0 or step["name"] in ("Gate", "Run"), (step["name"], job.said)
            for name, _, value in (line.partition("=") for line in output.read_text().splitlines()):
                known[f"steps.{step.get('id')}.outputs.{name}"] = value
        job |= {
            name: EXPRESSION.sub(lambda found: known.get(found[1], ""), about["value"])
            for name, about in ACTION["outputs"].items()
        }
        job.summary = files["GITHUB_STEP_SUMMARY"].read_text() if files["GITHUB_STEP_SUMMARY"].exists() else ""
        job.comment = (tmp_path / "temp" / "koderz" / "comment.md").read_text()
        return job

    return run


ARGS = "--suite qa --dataset faq.jsonl --model simulated"


def test_action_expands_no_input_inside_of_a_script() -> None:
    for step in SCRIPTS:
        assert "${{" not in step["run"], step["name"]
        assert step["shell"] == "bash"
    assert [step["uses"].partition("@")[0] for step in STEPS if "uses" in step] == [
        "actions/cache/restore", "actions/upload-artifact", "actions/cache/save",
    ]  # fmt: skip
    text = (ROOT / "action.yml").read_text()
    wanted = {*re.findall(r"inputs\.([\w-]+)", text)}
    assert wanted == ACTION["inputs"].keys() == {"args", "baseline", "gate", "task-threshold", "comment", "version"}
    assert ACTION["outputs"].keys() == {"run-id", "success-rate", "verdict", "cost", "junit"}


def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    for number, step in enumerate(SCRIPTS):
        (tmp_path / f"{number}.sh").write_text(f"#!/bin/bash\n{step['run']}")
    command = [str(Path(sys.executable).with_name("shellcheck")), *map(str, sorted(tmp_path.glob("*.sh")))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_action_runs_compares_and_ends_with_the_code_of_the_gate(action: Callable[..., Job], tmp_path: Path) -> None:
    first = action(args=ARGS)
    assert (first.code, first["verdict"]) == (0, "passed"), first.said
    (saved,) = (tmp_path / "benchmark_results").glob("*.json")
    summary = json.loads(saved.read_text())
    assert first["run-id"] == summary["run_id"]
    assert float(first["success-rate"]) == summary["summary"]["success_rate"]
    assert float(first["cost"]) == 0
    assert Path(first["junit"]).is_file()
    passed = builders.document({f"q{n}": [True] for n in range(3)}, model="simulated", simulated=True)
    builders.write(tmp_path / "base.json", passed)
    lost = [result["problem_id"] for result in summary["results"] if not result["success"]]
    assert lost

    second = action(args=ARGS, baseline="base.json", gate="--max-drop 1", comment="true", task_threshold="0")
    assert (second.code, second["verdict"]) == (1, "failed"), second.said
    assert second.comment.startswith("<!-- koderz -->\n**koderz: The gate has failed: the success rate dropped by ")
    assert f"- Lost: [{lost[0]}](https://ci.example/report#task={lost[0]})" in second.comment
    assert "[report](https://ci.example/report)" in second.comment
    assert "3 replies were on record" in second.comment
    assert "Gate failed: " in second.summary
    posted = (tmp_path / "posted").read_text()
    assert "repos/us/ours/issues/7/comments" in posted
    assert (tmp_path / "temp" / "koderz" / "report.html").is_file()


@pytest.mark.parametrize(
    ("inputs", "code", "verdict", "says"),
    [
        ({"args": f"{ARGS} --task-threshold 1"}, 1, "failed", "gate failed: "),
        ({"args": ARGS, "task_threshold": "1"}, 1, "failed", "gate failed: "),
        ({"args": ARGS, "gate": "--min 'rate=10'"}, 0, "passed", ""),
        ({"args": ARGS, "gate": "--min-point rate=99"}, 1, "failed", "gate failed: "),
        ({"args": f"{ARGS} --nonsense"}, 2, "broken", "--nonsense"),
        ({"args": '"open'}, 2, "broken", "can't be read as words of a shell"),
        ({"args": ARGS, "gate": "--nonsense"}, 2, "broken", "--nonsense"),
        ({"args": "--suite qa --dataset '$(touch here).jsonl;touch here'"}, 2, "broken", "there"),
    ],
)
def test_action_ends_with_one_verdict(
    action: Callable[..., Job], tmp_path: Path, inputs: dict[str, str], code: int, verdict: str, says: str
) -> None:
    job = action(**inputs)
    assert (job.code, job["verdict"]) == (code, verdict), job.said
    assert says in job.said
    assert not (tmp_path / "here").exists()
    assert not (tmp_path / "posted").exists()  # unless comment says so
    assert job.summary.startswith("<!-- koderz -->")


def test_action_warns_where_it_may_not_comment(action: Callable[..., Job]) -> None:
    job = action(args=ARGS, comment="true", env={"GH_CODE": "1"})
    assert job.code == 0
    assert "::warning::koderz may not write a comment here" in job.said


@pytest.mark.parametrize(
    ("version", "what"), [("", str(ROOT)), ("0.1.0", "koderz==0.1.0"), ("koderz[share] >= 0.1", "koderz[share] >= 0.1")]
)
def test_action_installs_the_version(action: Callable[..., Job], tmp_path: Path, version: str, what: str) -> None:
    action(args="--nonsense", version=version)
    assert (tmp_path / "pips").read_text().splitlines()[-1] == what


def test_comment_makes_names_of_runs_harmless(tmp_path: Path) -> None:
    told = {
        "lost": ["@everyone <img src=x> [a](https://b.example)", *(f"T/{n}" for n in range(30))],
        "gates_failed": ["`x`\n# y"],
    }
    run = {"run_id": "bench_1", "summary": {"reused_calls": 3, "saved_cost": 0.41}, "paid": {"total": 0.0}}
    compared = {**told, "smallest_difference": 7.04, "measure": {"two_valued": True}, "headline": "B passes 1%"}
    (tmp_path / "run.json").write_text(json.dumps(run))
    (tmp_path / "compare.json").write_text(json.dumps(compared))
    command = [sys.executable, str(ROOT / "scripts" / "action.py"), "comment", str(tmp_path), "failed", ""]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "@everyone" not in said
    assert not re.search(r"(?<!\\)[<\[]", said.replace("<!-- koderz -->", ""))
    assert "https://" not in said
    assert "\n# y" not in said
    assert "and 11 more" in said
    assert "this gate can see drops of 7.0 points" in said
    assert "3 replies were on record, which saved $0.4100" in said
