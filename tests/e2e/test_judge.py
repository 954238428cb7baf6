"""`koderz judge`: programs and samples files through the sandbox."""

from __future__ import annotations

import asyncio
import json

import pytest

import koderz as api
from koderz.suites import load_suite
from tests.conftest import Shell

RIGHT = "def truncate_number(number):\n    return number % 1.0\n"


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        (RIGHT, 0, "HumanEval/2: passed"),
        ("def truncate_number(number):\n    return number\n", 1, "expected  0.5"),
        ("def truncate_number(number):\n    return nothing\n", 1, "line 2, in truncate_number"),
        ("x = 1\n", 1, "no_entry_point"),
        ("import os\nos._exit(0)\n", 1, "HumanEval/2: error"),
    ],
)
def test_judge_exit_code_tells_the_verdict(koderz: Shell, program: str, code: int, said: str) -> None:
    (koderz.folder / "program.py").write_text(program)

    done = koderz("judge", "program.py", "--task", "HumanEval/2", code=code)

    assert said in done.out


def test_judge_takes_a_task_by_its_number(koderz: Shell) -> None:
    (koderz.folder / "program.py").write_text(RIGHT)

    assert koderz("judge", "program.py", "--task", 2).out == "HumanEval/2: passed\n"


def test_samples_are_judged_and_give_pass_at_k(koderz: Shell) -> None:
    tasks = load_suite("humaneval").tasks[:20]
    rows = [{"task_id": task.id, "completion": task.payload.reference} for task in tasks]
    rows += [{"task_id": task.id, "solution": "def nothing(): pass"} for task in tasks]
    (koderz.folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    done = koderz("judge", "samples.jsonl", "--json")

    causes = {"passed": 20, "no_entry_point": 20}
    assert json.loads(done.out) == {"pass@1": 0.5, "samples": 40, "passed": 20, "causes": causes}


def test_malformed_lines_are_named_and_the_others_judged(koderz: Shell) -> None:
    reference = load_suite("humaneval").tasks[2].payload.reference
    right = json.dumps({"task_id": "HumanEval/2", "completion": reference})
    unknown = json.dumps({"task_id": "HumanEval/999", "completion": ""})
    (koderz.folder / "samples.jsonl").write_text(f'{{"task_id": 3}}\nnot json\n{right}\n{unknown}\n')

    done = koderz("judge", "samples.jsonl", code=2)

    assert "1 of 1 samples passed" in done.out
    assert {line.partition("line ")[2][0] for line in done.err.splitlines()} == {"1", "2", "4"}


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        ("def (", ("--task", "HumanEval/2"), "isn't Python"),
        (RIGHT, ("--task", "HumanEval/999"), "has no task 'HumanEval/999'"),
        (RIGHT, ("--task", "HumanEval/2", "--test-timeout", "-1"), "--test-timeout"),
    ],
)
def test_judge_refuses_unusable_input_in_one_line(
    koderz: Shell, text: str, arguments: tuple[str, ...], said: str
) -> None:
    (koderz.folder / "program.py").write_text(text)

    done = koderz("judge", "program.py", *arguments, code=2)

    assert said in done.err
    assert len(done.err.splitlines()) == 1


GREEDY = "def truncate_number(number):\n    bytearray(200 << 20)\n    return number % 1.0\n"


@pytest.mark.parametrize("command", [("judge",), ("benchmark", "import", "--model", "m")])
@pytest.mark.parametrize("said", ["koderz.toml", "flag"])
def test_limits_hold_for_samples_wherever_they_are_said(koderz: Shell, command: tuple[str, ...], said: str) -> None:
    rows = [{"task_id": "HumanEval/2", "solution": text} for text in (GREEDY, RIGHT)]
    (koderz.folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if said == "koderz.toml":
        (koderz.folder / "koderz.toml").write_text("test-memory = 100\n")

    done = koderz(*command, "samples.jsonl", *(("--test-memory", 100) if said == "flag" else ()))

    if command[0] == "judge":
        assert "1 of 2 samples passed" in done.out
        assert "not passed: 1 memory" in done.out
    else:
        assert sorted(result["cause"] for result in koderz.summary()["results"]) == ["", "memory"]
        assert koderz.summary()["config"]["test_memory"] == 100


def test_judge_uses_a_koderz_toml_that_was_trusted(koderz: Shell) -> None:
    (koderz.folder / "koderz.toml").write_text('base-url = "http://127.0.0.1:9"\n')
    (koderz.folder / "program.py").write_text(RIGHT)
    (koderz.folder / "samples.jsonl").write_text(json.dumps({"task_id": "HumanEval/2", "solution": RIGHT}) + "\n")

    koderz("judge", "program.py", "--task", "HumanEval/2")  # which sends nothing there
    (koderz.folder / "koderz.toml").write_text('sandbox = "uncontained"\n')
    assert "--trust-config" in koderz("judge", "program.py", "--task", "HumanEval/2", code=2).err
    koderz("judge", "program.py", "--task", "HumanEval/2", "--trust-config")
    koderz("benchmark", "import", "samples.jsonl", "--model", "m")


def test_judge_from_python_gives_the_same() -> None:
    assert asyncio.run(api.judge("HumanEval/2", RIGHT)).passed
    assert asyncio.run(api.judge("HumanEval/3", RIGHT)).cause == "no_entry_point"


def test_judge_extracts_programs_and_writes_verdicts_in_order(koderz: Shell) -> None:
    rows = [
        {"task_id": "HumanEval/2", "reply": f"Here it is:\n```python\n{RIGHT}```\n"},
        {"task_id": "HumanEval/2", "reply": "I can't."},
    ]
    (koderz.folder / "replies.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    koderz("judge", "replies.jsonl", "--output", "out.jsonl")

    lines = [json.loads(line) for line in (koderz.folder / "out.jsonl").read_text().splitlines()]
    assert [(line["task_id"], line["verdict"]) for line in lines] == [
        ("HumanEval/2", "passed"),
        ("HumanEval/2", "error"),
    ]
