"""Claims on the command line: each command that changes a run's evidence says which claims stand otherwise."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import Shell

SINKS = ("--sink", "json", "--sink", "memory", "--quiet")


def write_lax(folder: Path, n: int) -> None:
    """Tasks whose tests look at one input, and programs that are wrong on another."""
    tasks, samples = [], []
    for number in range(n):
        prompt = f'def add{number}(x):\n    """Add {number} to x."""\n'
        test = f"def check(candidate):\n    assert candidate(1) == {1 + number}\n"
        task = {"task_id": f"T/{number}", "prompt": prompt, "entry_point": f"add{number}", "test": test}
        tasks.append({**task, "canonical_solution": f"    return x + {number}\n"})
        program = f"def add{number}(x):\n    return 0 if x == 7 else x + {number}\n"
        samples.append({"task_id": f"T/{number}", "solution": program})
    write_lines(folder / "tasks.jsonl", tasks)
    write_lines(folder / "samples.jsonl", samples)


def write_lines(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_rescore_by_stricter_tests_lets_a_claim_fall_at_once(koderz: Shell) -> None:
    write_lax(koderz.folder, 24)
    koderz("benchmark", "import", "samples.jsonl", "--dataset", "tasks.jsonl", "--model", "m", *SINKS)
    koderz("memory", "claim", "the model passes all", "--run", "latest")
    tasks = [json.loads(line) for line in (koderz.folder / "tasks.jsonl").read_text().splitlines()]
    stricter = [{**task, "test": f"{task['test']}    assert candidate(7) == {7 + n}\n"} for n, task in enumerate(tasks)]
    write_lines(koderz.folder / "tasks.jsonl", stricter)

    done = koderz("benchmark", "rescore", "latest", "--accept-changes", "--quiet")

    assert "HAS FALLEN: the model passes all" in done.err
    (row,) = json.loads(koderz("memory", "claims", "--fallen", "--json").out)["rows"]
    assert (row["state"], row["outcome"]["n"], row["outcome"]["value"]) == ("fallen", 24, 0)
    assert "[FALLEN] the model passes all" in koderz("memory", "recall", "model", "passes").out
    assert "1. fallen: was: " in koderz("memory", "show", row["id"]).out


def test_decided_and_remembered_comparisons_become_claims(koderz: Shell) -> None:
    arms = ("--mode", "comparative", "--model", "simulated")
    decided = koderz("benchmark", 0, 100, *arms, "--until-decided", *SINKS)
    refused = koderz("benchmark", "compare", "latest", "--remember", "so it is", "--exact", code=2)
    koderz("benchmark", "compare", "latest", "--remember", "iterating helps")

    rows = json.loads(koderz("memory", "claims", "--json").out)["rows"]

    assert "is stored: iterative beats zero-shot" in decided.err
    assert "--remember keeps the plain comparison" in refused.err
    assert [row["made_by"] for row in rows] == ["koderz benchmark compare", "koderz decide"]
    assert all(row["outcome"]["interval"][0] > 0 for row in rows)
    assert len({row["says"] for row in rows}) == 1


def test_questions_are_answered_in_a_table_and_as_json(koderz: Shell) -> None:
    koderz("benchmark", 0, 6, "--mode", "comparative", "--model", "simulated", *SINKS)

    for question in (("best",), ("hardest",), ("find",), ("lessons",), ("tried", "iterative"), ("compare", "latest")):
        shown, told = koderz("memory", *question), json.loads(koderz("memory", *question, "--json").out)
        assert shown.out.startswith(told["answer"])
    assert koderz("memory", "best", "--suite", "nope", code=2).err.startswith("koderz: no result in this memory store")
    assert koderz("memory", "tried", code=2).err.startswith("koderz: say what is planned")
    assert "write name=value" in koderz("memory", "tried", "--setting", "x", code=2).err
    assert "choose from newest" in koderz("memory", "find", "--order", "x", code=2).err
