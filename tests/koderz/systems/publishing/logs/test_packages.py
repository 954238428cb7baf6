"""Logs that the packages themselves write, each by a Python of its own, read by koderz."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import koderz
from koderz.analysis.compare import compare_runs

INSPECT = os.environ.get("KODERZ_INSPECT")
"""A Python that has inspect_ai."""

LM_EVAL = os.environ.get("KODERZ_LM_EVAL")
"""A Python that has lm_eval; torch isn't needed."""

ASK = """
import sys, tiktoken
class Words:  # in place of the encoding that would be fetched
    def encode(self, text, **_): return text.split()
tiktoken.get_encoding = tiktoken.encoding_for_model = lambda _: Words()
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, get_model
from inspect_ai.scorer import match
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool

@tool
def add():
    async def execute(x: int, y: int):
        '''Adds two numbers.

        Args:
            x: The first.
            y: The second.
        '''
        return x + y
    return execute

words = ["a1", "a2", "b1", "b2", "broken"]
samples = [Sample(id=word, input=f"say {word}", target=word, metadata={"topic": word[0]}) for word in words]
asked = {"epochs": 2, "fail_on_error": False, "display": "none"}
for folder, form, wrong in zip(*[iter(sys.argv[1:])] * 3):
    def reply(messages, *_):
        word = messages[0].text.split()[-1]
        if word == "broken":
            raise RuntimeError("no reply")
        if len(messages) == 1:
            return ModelOutput.for_tool_call("mockllm/model", "add", {"x": 1, "y": 1})
        return ModelOutput.from_content("mockllm/model", "no" if word in wrong.split() else word)

    task = Task(dataset=samples, solver=[use_tools(add()), generate()], scorer=match(), name="echo")
    model = get_model("mockllm/model", custom_outputs=reply, memoize=False)
    eval(task, model=model, log_dir=folder, log_format=form, **asked)
"""
"""Writes logs of five samples in two epochs: those named are answered wrongly, and one raises an error."""

TASK = """
task: echo
dataset_path: json
dataset_kwargs: {data_files: {test: ROWS}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{asked}}"
doc_to_target: "{{answer}}"
doc_to_choice: [x, y]
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


def ran(python: str | None, *arguments: str | Path, **environment: str) -> str:
    command = [str(python), *map(str, arguments)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not INSPECT and not os.environ.get("CI"), reason="KODERZ_INSPECT names no Python with inspect_ai")
def test_logs_that_inspect_writes_are_read_as_they_went(tmp_path: Path) -> None:
    asked = [("a", "eval", "a1 b2"), ("a", "json", "a1 b2"), ("b", "eval", "b2")]
    ran(INSPECT, "-c", ASK, *(word for name, form, wrong in asked for word in (tmp_path / name, form, wrong)))
    logs = [next((tmp_path / name).glob(f"*.{form}")) for name, form, _ in asked]

    for log in logs[:2]:
        run = koderz.load_summary(log)
        assert {(result.problem_id, result.sample): result.success for result in run.results} == {
            (word, epoch): word in ("a2", "b1") for word in ("a1", "a2", "b1", "b2") for epoch in (0, 1)
        }
        assert [fault["problem_id"] for fault in run.faults] == ["broken", "broken"]
        assert "no reply" in run.faults[0]["reason"]
        assert (run.status, run.planned, run.model) == ("complete", 10, "mockllm/model")
        assert all(result.tokens_in > 0 and result.duration_seconds > 0 for result in run.results)
    found = compare_runs([str(logs[0]), str(logs[2])], tmp_path, cluster="topic").document()
    assert (found["pairs"], found["clusters"], found["gained"], found["lost"]) == (4, 2, ["a1"], [])


@pytest.mark.slow
@pytest.mark.skipif(not LM_EVAL and not os.environ.get("CI"), reason="KODERZ_LM_EVAL names no Python with lm_eval")
def test_results_that_lm_eval_writes_are_read_with_its_own_figure(tmp_path: Path) -> None:
    rows = [{"asked": f"say {n}", "answer": n % 2, "topic": f"t{n % 3}"} for n in range(6)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "echo.yaml").write_text(TASK.replace("ROWS", str(tmp_path / "rows.jsonl")))
    asked: list[str | Path] = ["--model", "dummy", "--tasks", "echo", "--include_path", tmp_path, "--log_samples"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")}
    ran(LM_EVAL, "-m", "lm_eval", "run", *asked, "--output_path", tmp_path / "out", **offline)
    (path,) = (tmp_path / "out").rglob("results_*.json")
    told = json.loads(path.read_text())["results"]["echo"]["acc,none"]

    for log in (path, path.parent):
        run = koderz.load_summary(log)
        assert [result.problem_id for result in run.results] == [f"echo/{n}" for n in range(6)]
        assert run.summary.success_rate == pytest.approx(100 * told)
    found = compare_runs([str(path), str(path)], tmp_path, cluster="topic").document()
    assert (found["pairs"], found["clusters"], found["difference"]) == (6, 3, 0)
