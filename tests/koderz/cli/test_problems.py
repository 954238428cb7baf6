"""`koderz benchmark problems`, as it is typed."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.conftest import Shell
from tests.koderz.analysis import builders
from tests.koderz.cli.conftest import Command


def _write(koderz: Shell, number: int, outcomes: builders.Outcomes, model: str = "m") -> None:
    run_id = f"bench_0000000{number}_20260131_12000{number}"
    builders.write(koderz.results / f"{run_id}.json", builders.document(outcomes, run_id=run_id, model=model))


def test_problems_without_names_covers_all_runs(command: Command, koderz: Shell) -> None:
    _write(koderz, 1, [True, False, True])
    _write(koderz, 2, [True, False, False], model="n")

    done = command("benchmark", "problems", "--limit", 2)

    assert [line.split(" ")[0] for line in done.out.splitlines()[2:4]] == ["T/1", "T/2"]
    assert "3 tasks: 1 never solved, 1 always." in done.out
    assert "--limit 3 shows all" in done.out


def test_json_has_them_all(command: Command, koderz: Shell) -> None:
    _write(koderz, 1, [True] * 30)

    found = json.loads(command("benchmark", "problems", "latest", "--json").out)

    assert len(found) == 30
    assert len(json.loads(command("benchmark", "problems", "latest", "--json", "--limit", 3).out)) == 3
    assert found[0]["solved_by"] == ["m"]


def test_problems_leaves_out_simulated_runs_and_damaged_files(command: Command, koderz: Shell) -> None:
    _write(koderz, 1, [True])
    _write(koderz, 2, [False], model="simulated")
    (koderz.results / "bench_00000003_20260131_120003.json").write_text('{"results": [')

    done = command("benchmark", "problems")

    assert "100.0% (1/1)" in done.out
    assert "1 runs of the SIMULATED model are left out" in done.err
    assert "is truncated" in done.err


def test_problems_tells_missing_runs_and_arms_in_one_line(command: Command, koderz: Shell) -> None:
    assert "holds no run yet" in command("benchmark", "problems", code=2).err
    _write(koderz, 1, [True])
    assert "has no arm iterative" in command("benchmark", "problems", "latest", "--arm", "iterative", code=2).err
    assert "no results yet" in command("benchmark", "problems", "--arm", "iterative", code=2).err


def test_printed_command_quotes_an_id_with_blanks(command: Command, tmp_path: Path) -> None:
    rows = ({"id": f"a sum; of {n}", "input": f"{n} + 1?", "target": str(n + 1)} for n in range(30))
    (tmp_path / "faq.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    suite = ("--suite", "qa", "--dataset", tmp_path / "faq.jsonl")
    command("benchmark", *suite, "--model", "simulated", "--sink", "json", "--quiet")

    done = command("benchmark", "show", "latest", "--failures")

    assert re.search(r"--problem 'a sum; of \d+'$", done.err.rstrip())
