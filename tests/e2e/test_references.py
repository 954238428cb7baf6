"""Datasets that are broken here: said before the run, and nobody's failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Shell

GOOD = {"task_id": "T/0", "reference": "    return 0\n"}
WRONG = {"task_id": "T/1", "reference": "    return 7\n"}
ENDLESS = {"task_id": "T/2", "reference": "    while True: pass\n"}
WITHOUT = {"task_id": "T/3", "reference": ""}


def dataset(folder: Path, *tasks: dict[str, str]) -> Path:
    rows = [
        {
            "task_id": task["task_id"],
            "prompt": 'def f():\n    """Return the number of the task."""\n',
            "entry_point": "f",
            "test": f"def check(candidate):\n    assert candidate() == {task['task_id'][2:]}\n",
            **({"canonical_solution": task["reference"]} if task["reference"] else {}),
        }
        for task in tasks
    ]
    path = folder / "tasks.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_reference_that_fails_here_is_a_fault_told_before_the_run(koderz: Shell) -> None:
    path = dataset(koderz.folder, GOOD, WRONG, ENDLESS, WITHOUT)
    options = ("--model", "simulated", "--simulated-skill", "1", "--mode", "zero-shot", "--test-timeout", "0.3")
    done = koderz("benchmark", "0", "4", "--dataset", path, *options, code=3)
    assert (
        "T/1 can't be judged, and its experiments end as faults: reference fails here: failed (assertion)" in done.err
    )
    assert "T/2 can't be judged" in done.err
    summary = koderz.summary()
    assert [result["problem_id"] for result in summary["results"]] == ["T/0", "T/3"]
    reasons = {fault["problem_id"]: fault["reason"] for fault in summary["faults"]}
    assert reasons["T/1"].startswith("reference fails here: failed (assertion) f() returned 7 expected 1")
    assert reasons["T/2"].startswith("reference fails here: timeout (cpu)")
    assert not [line for line in koderz.journal() if line["kind"] == "call" and "T/1" in str(line)]


def test_reference_that_passed_is_not_tried_again_for_the_dataset(koderz: Shell) -> None:
    path = dataset(koderz.folder, GOOD, WITHOUT)
    options = ("--model", "simulated", "--mode", "zero-shot", "--quiet", "--dataset", path)
    koderz("benchmark", "0", "2", *options)
    (cache,) = (koderz.folder / "cache" / "koderz").glob("references-*.json")
    assert len(json.loads(cache.read_text())) == 1
    dataset(koderz.folder, {**GOOD, "reference": "    return 5\n"}, WITHOUT)
    koderz("benchmark", "0", "2", *options, code=3)


@pytest.mark.parametrize("form", ["program", "samples", "import"])
def test_judging_says_so_too(koderz: Shell, form: str) -> None:
    path = dataset(koderz.folder, GOOD, WRONG)
    program, samples = koderz.folder / "program.py", koderz.folder / "samples.jsonl"
    program.write_text("def f():\n    return 1\n")
    samples.write_text(
        "".join(f"{json.dumps({'task_id': f'T/{n}', 'completion': f'    return {n}'})}\n" for n in (0, 1))
    )
    if form == "program":
        done = koderz("judge", program, "--task", "T/1", "--dataset", path, code=3)
    elif form == "import":
        done = koderz("benchmark", "import", samples, "--model", "m", "--dataset", path, code=3)
        summary = koderz.summary()
        assert [result["problem_id"] for result in summary["results"]] == ["T/0"]
        assert [fault["problem_id"] for fault in summary["faults"]] == ["T/1"]
        assert summary["environment"]["cpu_scale"] >= 1
        assert f"koderz benchmark rescore {summary['run_id']}" in done.err
        dataset(koderz.folder, GOOD, {**WRONG, "reference": "    return 1\n"})
        koderz("benchmark", "rescore", "latest", "--accept-changes")
        assert [result["problem_id"] for result in koderz.summary()["results"] if result["success"]] == ["T/0", "T/1"]
    else:
        done = koderz("judge", samples, "--dataset", path, code=3)
        assert "1 of 1 samples passed" in done.out
    assert "reference fails here: failed (assertion)" in done.err
