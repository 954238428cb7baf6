"""A suite of tasks that aren't code and an engine, each one file of a package that somebody else has installed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from tests import toys
from tests.conftest import Shell

RUN = ("benchmark", 0, 6, "--model", "simulated", "--quiet", "--suite")

GRADING = """
from koderz.types import Verdict

async def solve(task, ask, grade, session={"drawn": 0.0}):
    reply = await ask(task.messages)
    for place, letter in enumerate(reply.text):
        await grade(f"letter {place}", letter == task.payload.word[-1 - place])
    return Verdict("passed", metrics={"drawn": session["drawn"]})

async def asking(task, ask, judge, session):
    return await judge(task, await ask(task.messages))

async def writing(task, judge, workspace):
    return await judge(task, "")
"""


@pytest.fixture
def installed(tmp_path: Path) -> Mapping[str, str]:
    (tmp_path / "own.py").write_text(GRADING)
    return toys.installed(tmp_path)


def test_toy_suite_is_scored_with_its_measures_without_a_sandbox(koderz: Shell, installed: Mapping[str, str]) -> None:
    done = koderz(*RUN, "toy", "--mode", "comparative", "--max-iterations", 2, env=installed)

    plan = koderz.journal()[0]
    assert plan["measures"] == [
        {"name": "score", "direction": "higher", "unit": "share", "two_valued": False},
        {"name": "wrong", "direction": "lower", "unit": "letters", "two_valued": False},
    ]
    assert not {"sandbox", "cpu_scale"} & plan["environment"].keys()
    results = koderz.summary()["zero_shot"]["results"]
    assert [(row["problem_id"], row["success"], row["metrics"]["wrong"]) for row in results] == [
        ("Toy/0", False, 8.0),
        ("Toy/1", False, 6.0),
        ("Toy/2", True, 0.0),
        ("Toy/3", False, 6.0),
        ("Toy/4", True, 0.0),
        ("Toy/5", True, 0.0),
    ]
    assert "isolation" not in done.err


def test_toy_suite_is_graded_shown_and_resumed(koderz: Shell, installed: Mapping[str, str]) -> None:
    koderz(*RUN, "toy-session", "--solver", "own.py:solve", env=installed)

    results = koderz.summary()["results"]
    assert [(row["grades"], row["iterations"]) for row in results] == [(8, 0), (6, 0), (5, 0), (6, 0), (9, 0), (4, 0)]
    assert [row["score"] for row in results][2:5:2] == [1.0, 1.0]
    assert all(0 < row["metrics"]["drawn"] < 1 for row in results)
    assert "8 grades, " in koderz("benchmark", "show", "latest", "--problem", "Toy/0", env=installed).out

    (journal,) = koderz.results.glob("[!.]*/journal.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[: len(lines) // 2]))
    koderz("benchmark", "resume", "latest", "--quiet", env=installed)

    again = koderz.summary()["results"]
    assert [(row["score"], row["metrics"]) for row in again] == [(row["score"], row["metrics"]) for row in results]
    keys = [(line["experiment_id"], line["key"]) for line in koderz.journal() if line["kind"] in ("once", "grade")]
    assert len(keys) == len(set(keys)) == 6 + 38


def test_run_opens_once_what_its_sessions_share(koderz: Shell, installed: Mapping[str, str]) -> None:
    session = koderz(*RUN, "toy-session", "--solver", "own.py:asking", "--samples", 2, env=installed)
    without = koderz(*RUN, "toy-session", "--mode", "zero-shot", env=installed)

    assert session.err.count("opened once, 12 sessions of 6 tasks") == 1
    assert "opened once" not in without.err


def test_shared_resource_that_cannot_be_opened_ends_the_run_before_it(
    koderz: Shell, installed: Mapping[str, str]
) -> None:
    env = {**installed, "TOY_CLOSED": "1"}
    done = koderz(*RUN, "toy-session", "--solver", "own.py:asking", env=env, code=4)

    told = "what sessions of the suite toy-session share can't be opened: OSError: the toys are put away"
    assert told in done.err
    assert not koderz.results.exists()


TAKING_TURNS = """
import os, time
from koderz.types import Verdict

async def solve(task, once, exclusive):
    async with exclusive() as core:
        begun = time.monotonic()
        await once("block", lambda: time.sleep(0.02))
        ended = time.monotonic()
    return Verdict("passed", metrics={"begun": begun, "ended": ended, "core": -1 if core is None else core})
"""


@pytest.mark.slow
@pytest.mark.parametrize("solver", [("--mode", "zero-shot"), ("--solver", "turns.py:solve")], ids=["judge", "solver"])
def test_exclusive_tasks_are_measured_one_at_a_time(
    koderz: Shell, installed: Mapping[str, str], solver: tuple[str, ...]
) -> None:
    (koderz.folder / "turns.py").write_text(TAKING_TURNS)
    runs = [koderz.start(*RUN, "toy-timed", *solver, env=installed) for _ in range(2)]
    told = [run.communicate()[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], told

    found = [json.loads(path.read_bytes()) for path in koderz.results.glob("bench_*.json")]
    metrics = [row["metrics"] for summary in found for row in summary["results"]]
    assert len(metrics) == 12
    spans = sorted((each["begun"], each["ended"]) for each in metrics)
    assert all(ended <= begun for (_, ended), (begun, _) in pairwise(spans))
    if len(os.sched_getaffinity(0)) > 1 and "--mode" in solver:
        assert {(each["cores"], each["shared"]) for each in metrics} == {(1, 0)}


def test_exclusive_replies_are_judged_one_at_a_time(koderz: Shell, installed: Mapping[str, str]) -> None:
    rows = [{"task_id": f"Toy/{number}", "reply": ""} for number in (0, 1, 2, 0, 1, 2)]
    (koderz.folder / "replies.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    koderz("judge", "replies.jsonl", "--suite", "toy-timed", "--output", "out.jsonl", env=installed)

    metrics = [json.loads(line)["metrics"] for line in (koderz.folder / "out.jsonl").read_text().splitlines()]
    spans = sorted((each["begun"], each["ended"]) for each in metrics)
    assert all(ended <= begun for (_, ended), (begun, _) in pairwise(spans))
    if len(os.sched_getaffinity(0)) > 1:
        assert {(each["cores"], each["shared"]) for each in metrics} == {(1, 0)}


def test_toy_engine_runs_experiments_one_after_the_other(koderz: Shell, installed: Mapping[str, str]) -> None:
    done = koderz(*RUN, "toy", "--mode", "zero-shot", "--engine", "toy", env=installed)

    assert koderz.journal()[0]["environment"]["toy"] == "here"
    assert "one experiment after the other" in done.err
    kinds = [line["kind"] for line in koderz.journal()]
    assert kinds == ["plan", *["call", "attempt", "experiment"] * 6, "finished"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ("toy-session", "--solver", "own.py:asking", "--engine", "toy"),
            "Toy/0 needs session, which the engine toy hasn't got; choose another with --engine",
        ),
        (
            ("toy-timed", "--mode", "zero-shot", "--engine", "toy"),
            "Toy/0 needs exclusive, which the engine toy hasn't got; choose another with --engine",
        ),
        (("toy", "--solver", "own.py:asking"), "the solver asking asks for a session, which Toy/0 doesn't provide"),
        (
            ("toy-session", "--solver", "own.py:writing"),
            "the solver writing asks for a workspace, which Toy/0 doesn't provide",
        ),
        (
            ("toy", "--mode", "iterative", "--engine", "toy", "--use-memory"),
            "--use-memory: the engine toy can't reach this machine's memory store",
        ),
    ],
)
def test_needs_that_are_not_met_are_one_line_and_nothing_is_created(
    koderz: Shell, installed: Mapping[str, str], options: tuple[str, ...], told: str
) -> None:
    done = koderz(*RUN, *options, env=installed, code=2)

    assert told in done.err
    assert done.err.count("\n") == 1
    assert not koderz.results.exists()


def test_replies_to_any_suite_are_judged_and_written_line_by_line(koderz: Shell, installed: Mapping[str, str]) -> None:
    rows = [
        {"task_id": "Toy/1", "reply": "reward"},
        {"task_id": "Toy/0", "reply": "stressed"},
        {"task_id": "Toy/1", "reply": ""},
    ]
    (koderz.folder / "replies.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    done = koderz("judge", "replies.jsonl", "--suite", "toy", "--output", "out.jsonl", "--json", env=installed)

    assert [json.loads(line) for line in (koderz.folder / "out.jsonl").read_text().splitlines()] == [
        {"task_id": "Toy/1", "verdict": "passed", "cause": "", "score": 1.0, "metrics": {"wrong": 0.0}},
        {"task_id": "Toy/0", "verdict": "failed", "cause": "letters", "score": 0.0, "metrics": {"wrong": 8.0}},
        {"task_id": "Toy/1", "verdict": "failed", "cause": "letters", "score": 0.0, "metrics": {"wrong": 6.0}},
    ]
    assert json.loads(done.out) | {"pass@1": 0} == {
        "pass@1": 0,
        "mean_score": 1 / 3,
        "samples": 3,
        "passed": 1,
        "causes": {"passed": 1, "letters": 2},
    }


def test_replies_are_imported_and_rescored_as_replies(koderz: Shell, installed: Mapping[str, str]) -> None:
    (koderz.folder / "replies.jsonl").write_text(json.dumps({"task_id": "Toy/1", "reply": "reward"}))

    koderz("benchmark", "import", "replies.jsonl", "--suite", "toy", "--model", "somebody", "--quiet", env=installed)
    koderz("benchmark", "rescore", "latest", "--quiet", env=installed)

    (result,) = koderz.summary()["results"]
    assert (result["success"], result["score"]) == (True, 1.0)
    assert koderz.summary()["config"]["imported"] == "replies"


def test_toy_suite_adds_summary_parts_files_and_export_formats(koderz: Shell, installed: Mapping[str, str]) -> None:
    koderz(*RUN, "toy", "--mode", "zero-shot", env=installed)

    assert koderz.journal()[0]["parts"] == ["letters"]
    summary = koderz.summary()
    assert summary["letters"] == {"zero-shot": {"wrong": 20.0}}
    (file,) = koderz.results.glob("bench_*/letters.txt")
    rows = "Toy/0 failed\nToy/1 failed\nToy/2 passed\nToy/3 failed\nToy/4 passed\nToy/5 passed\n"
    assert file.read_text() == rows

    file.unlink()
    koderz("sync", "latest", "--rebuild", env=installed)
    assert file.read_text() == rows
    assert koderz.summary()["letters"] == summary["letters"]

    replies = koderz("benchmark", "export", "latest", "--format", "replies", env=installed).out
    assert replies.splitlines()[2] == f"{summary['run_id']} Toy/2 level"
    koderz("benchmark", "export", "latest", "--format", "reply-files", "-o", "out", env=installed)
    assert len(list((koderz.folder / "out").iterdir())) == 6
    refused = koderz("benchmark", "export", "latest", "--format", "reply-files", env=installed, code=2)
    assert "say which with --output DIR" in refused.err


def test_summary_says_where_a_part_is_not_installed_any_more(koderz: Shell, installed: Mapping[str, str]) -> None:
    koderz(*RUN, "toy", "--mode", "zero-shot", "--no-sink", "letter-file", env=installed)
    assert not list(koderz.results.glob("bench_*/letters.txt"))

    (path,) = koderz.results.glob("bench_*.json")
    path.unlink()
    koderz("sync", "latest")

    assert "there is no part of a summary 'letters'" in koderz.summary()["letters"]["error"]


MATRIX = """
[[arms]]
name = "none"
solver = "zero-shot"

[[arms]]
name = "two tries"
solver = "iterative"
baseline = "none"
max-iterations = 2

[[arms]]
name = "three tries"
solver = "iterative"
baseline = "two tries"
max-iterations = 3

[[arms]]
name = "four tries"
solver = "iterative"
baseline = "none"
max-iterations = 4

[[cells]]

[[cells]]
arms = ["none"]
problems = ["Toy/1"]
samples = 2
"""


def test_arms_are_compared_with_the_baseline_that_they_name(koderz: Shell, installed: Mapping[str, str]) -> None:
    (koderz.folder / "arms.toml").write_text(MATRIX)
    koderz(*RUN, "toy", "--matrix", "arms.toml", env=installed)

    arms = koderz.summary()["arms"]
    assert [(name, arm.get("baseline"), len(arm["results"])) for name, arm in arms.items()] == [
        ("none", None, 8),
        ("two tries", "none", 6),
        ("three tries", "two tries", 6),
        ("four tries", "none", 6),
    ]
    line = ("benchmark", "compare", "latest", "--allow-simulated")
    document = json.loads(koderz(*line, "--json", env=installed).out)
    assert {name: each["a"]["arm"] for name, each in document["arms"].items()} == {
        "two tries": "none",
        "three tries": "two tries",
        "four tries": "none",
    }
    told = koderz(*line, env=installed).out
    assert "two tries" in told
    assert "four tries" in told
    one = json.loads(koderz(*line, "--arm", "three tries", "--json", env=installed).out)
    assert (one["a"]["arm"], one["b"]["arm"]) == ("two tries", "three tries")
    refused = koderz(*line, "--fail-on-regression", env=installed, code=2)
    assert "gates judge one candidate" in refused.err


def test_logs_of_another_tool_are_compared(koderz: Shell, installed: Mapping[str, str]) -> None:
    for name, wrong in (("a", 9), ("b", 0)):
        lines = [f"word-{number} {'wrong' if number < wrong else 'right'}" for number in range(12)]
        (koderz.folder / f"{name}.tally").write_text("\n".join(lines))

    found = json.loads(koderz("compare", "a.tally", "b.tally", "--json", env=installed).out)

    assert [found[side]["success_rate"] for side in "ab"] == [25.0, 100.0]
    assert "'a.tally' is no run" in koderz("compare", "a.tally", "b.tally", code=2).err


def test_resume_on_an_engine_that_lacks_a_need_is_one_line(koderz: Shell, installed: Mapping[str, str]) -> None:
    koderz(*RUN, "toy", "--mode", "zero-shot", "--engine", "toy", env=installed)
    suite = Path(installed["PYTHONPATH"].partition(os.pathsep)[0]) / "toy_suite.py"
    suite.write_text(suite.read_text().replace("_tasks(*needs)[", '_tasks(*needs, "gpu")['))
    (journal,) = koderz.results.glob("[!.]*/journal.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:4]))

    done = koderz("benchmark", "resume", "latest", env=installed, code=2)

    assert "Toy/0 needs gpu, which the engine toy hasn't got" in done.err
    assert "Traceback" not in done.err
