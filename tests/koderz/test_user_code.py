"""Solvers, suites and metrics in users' own files: how they are run, and where an error of theirs is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from koderz.errors import frames_of
from tests.conftest import Shell

SOLVER = """import json


def deeper(task):
    raise KeyError(task.id)


async def buggy(task, ask, judge):
    deeper(task)


async def reads(task, ask, judge):
    return json.loads("{")
"""


SUITE = """from dataclasses import dataclass

from koderz import Task, Verdict


@dataclass
class Words:
    tasks: tuple
    name: str = "words"
    source: str = "a list"

    def messages(self, task, prompts):
        return ({"role": "user", "content": task.prompt},)

    async def judge(self, task, answer, sandbox, how):
        said = answer if isinstance(answer, str) else answer.text
        return Verdict("passed" if said == task.payload else "failed")

    def simulate(self, messages, sampling):
        return messages[0]["content"]


def words(dataset):
    listed = dataset.read_text().split() if dataset else ["one", "two", "three"]
    return Words(tuple(Task(f"Word/{word}", word, word, needs=frozenset(), digest=word) for word in listed))


fixed = words(None)
broken = 3


def fails(dataset):
    return {}["dataset"]
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


@pytest.mark.slow
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


def test_suite_in_a_file_is_run_resumed_and_kept_to(koderz: Shell) -> None:
    own = koderz.folder / "own.py"
    own.write_text(SUITE)
    given = ("benchmark", "--suite", "own.py:words", "--limit", 9, "--model", "simulated", "--sink", "json", "--quiet")
    koderz(*given)
    assert [result["verdict"] for result in koderz.summary()["results"]] == ["passed"] * 3
    (koderz.folder / "rows.txt").write_text("four five")
    assert "Tasks: 2 (Word/four … Word/five)" in koderz(*given, "--dataset", "rows.txt", "--dry-run").out
    koderz("benchmark", "--suite", "own.py:fixed", *given[3:], "--dry-run")

    (path,) = koderz.results.glob("bench_*/journal.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if b"Word/three" not in line or line.startswith(b'{"kind":"plan"')]
    path.write_bytes(b"".join(line for line in kept if not line.startswith(b'{"kind":"finished"')))
    own.write_text(f"{SUITE}# changed\n")
    assert "not what it was when the run began: suite file" in koderz("benchmark", "resume", "latest", code=2).err
    own.write_text(SUITE)
    koderz("benchmark", "resume", "latest")
    assert [result["verdict"] for result in koderz.summary()["results"]] == ["passed"] * 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own.py:fails", "--suite own.py:fails: KeyError: 'dataset' (own.py, line 33)"),
        ("own.py:broken", "--suite own.py:broken is no suite, nor a function that returns one: it has no name"),
        ("own.py:absent", "--suite own.py:absent: own.py defines no absent"),
        ("none.py:words", "--suite none.py:words: there is no file none.py; give FILE:NAME"),
        ("bad.py:words", "--suite bad.py:words: bad.py can't be loaded: ZeroDivisionError: division by zero (bad.py, "),
    ],
)
def test_suite_in_a_file_that_is_none_is_one_line(koderz: Shell, name: str, message: str) -> None:
    (koderz.folder / "own.py").write_text(SUITE)
    (koderz.folder / "bad.py").write_text("\n1 / 0\n")
    assert koderz("benchmark", 0, 2, "--suite", name, "--model", "simulated", code=2).err.startswith(
        f"koderz: {message}"
    )


def test_suite_file_of_an_untrusted_koderz_toml_is_not_run(koderz: Shell) -> None:
    (koderz.folder / "own.py").write_text(f"open('ran', 'w')\n{SUITE}")
    (koderz.folder / "koderz.toml").write_text('suite = "own.py:words"\n')
    run = ("benchmark", 0, 2, "--model", "simulated", "--sink", "json", "--quiet")

    assert "--trust-config" in koderz(*run, code=2).err
    koderz("benchmark", "--help")
    assert not (koderz.folder / "ran").exists()
    koderz(*run, "--trust-config")
    assert (koderz.folder / "ran").exists()
