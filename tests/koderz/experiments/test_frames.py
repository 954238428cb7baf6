"""Where an error of users' code was raised: on record, and wherever a fault is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from koderz.experiments.frames import frames_of
from tests.conftest import Shell

SOLVER = """import json


def deeper(task):
    raise KeyError(task.id)


async def buggy(task, ask, judge):
    deeper(task)


async def reads(task, ask, judge):
    return json.loads("{")
"""


def _raised(path: Path, source: str) -> BaseException:
    path.write_text(source)
    try:
        exec(compile(source, str(path), "exec"), {})
    except Exception as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    ("source", "functions", "last"),
    [
        ("import json\ndef read():\n    json.loads('{')\nread()", ["<module>", "read"], "json.loads('{')"),
        ("def deep(n):\n    return 1 // n if n < 1 else deep(n - 1)\ndeep(50)", ["deep"] * 20, ""),
        (f"x = '{'y' * 500}'; 1 / 0", ["<module>"], f"x = '{'y' * 195}"),
    ],
)
def test_frames_are_the_innermost_ones_of_users_files(
    tmp_path: Path, source: str, functions: list[str], last: str
) -> None:
    found = frames_of(_raised(tmp_path / "own.py", source))[-len(functions) :]

    assert [frame.function for frame in found] == functions
    assert found[-1].file == str(tmp_path / "own.py")
    assert found[-1].source == (last or "return 1 // n if n < 1 else deep(n - 1)")


def test_fault_of_a_solver_names_its_lines_wherever_it_is_shown(koderz: Shell) -> None:
    (koderz.folder / "mine.py").write_text(SOLVER)
    own = ("--model", "simulated", "--sink", "json", "--quiet")
    where = "  File mine.py, line 9, in buggy\n    deeper(task)\n  File mine.py, line 5, in deeper\n    raise KeyError"

    done = koderz("benchmark", 0, 1, "--solver", "mine.py:buggy", *own, code=3)
    assert "the first with: the solver raised KeyError: 'HumanEval/0' (mine.py, line 5)" in done.err + done.out
    (fault,) = koderz.summary()["faults"]
    assert [(frame["file"], frame["line"], frame["function"]) for frame in fault["frames"]] == [
        ("mine.py", 9, "buggy"),
        ("mine.py", 5, "deeper"),
    ]
    assert where in koderz("benchmark", "show", "latest", "--problem", 0).out
    assert where in koderz("run", 0, "--solver", "mine.py:buggy", "--model", "simulated", code=3).err
    koderz("benchmark", "report", "latest", "--output", "report.html")

    short = koderz("run", 0, "--solver", "mine.py:reads", "--model", "simulated", code=3).err
    assert short.endswith('  File mine.py, line 13, in reads\n    return json.loads("{")\n')
    whole = koderz("--debug", "run", 0, "--solver", "mine.py:reads", "--model", "simulated", code=3).err
    assert "experiments/runner.py" in whole
    assert "json/decoder.py" in whole


def test_fault_of_a_metric_names_its_lines(koderz: Shell) -> None:
    (koderz.folder / "mine.py").write_text("def half(item, reply):\n    return {}['half']\n")
    rows = [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(400)]
    (koderz.folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    columns = ("--input-column", "question", "--output-column", "answer", "--metric", "mine.py:half")
    given = ("--demo-datasets", "mine", "--dataset", "mine=rows.jsonl", *columns, "--optimizers", "few_shot")
    koderz("optimize", "run", *given, "--model", "simulated", "--sink", "json", "--quiet", code=3)
    frames = [frame for fault in koderz.summary()["faults"] for frame in fault["frames"]]
    assert {(frame["file"], frame["line"], frame["source"]) for frame in frames} == {
        ("mine.py", 2, "return {}['half']")
    }
