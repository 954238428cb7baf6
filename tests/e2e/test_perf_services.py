"""Repositories that run a benchmark by themselves, measured by the command line."""

from __future__ import annotations

import difflib
import json
import subprocess
from pathlib import Path

import pytest

from tests.conftest import NOISY, Shell

pytestmark = [pytest.mark.slow, pytest.mark.others(NOISY)]

# Work that is waited for takes as long on a busy machine, and legs differ by how they start alone.
SLOW = "import time\n\n\ndef tokens(n):\n    time.sleep(0.03)\n    return n\n"
FAST = SLOW.replace("0.03", "0.003")
BENCH = """import json, sys, time
from work import tokens
begun = time.perf_counter()
count = sum(tokens(100_000) for _ in range(10))
taken = time.perf_counter() - begun
told = {"elapsed_time": taken, "num_requests": 10, "total_num_tokens": count, "tokens_per_second": count / taken}
json.dump(told, open(sys.argv[-1], "w"))
"""
FORGED = BENCH.replace("- begun\n", "- begun\ntaken /= 50\n")
LAZY = BENCH.replace("range(10)", "range(1)")
TASK = """
[[tasks]]
id = "t"
repo = "repo"
base_commit = "{base}"
human_commit = "{human}"
command = ["python3", "bench.py", "--output-json", "{{output}}"]
kind = "throughput"
"""


def _commit(folder: Path) -> str:
    for words in (("add", "."), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a")):
        subprocess.run(["git", "-C", folder, *words], check=True)
    done = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_figures_of_a_command_decide_as_far_as_its_leg_agrees(koderz: Shell) -> None:
    repository = koderz.folder / "repo"
    repository.mkdir()
    subprocess.run(["git", "init", "-q", repository], check=True)
    (repository / "bench.py").write_text(BENCH)
    commits = {}
    for name, work in (("base", SLOW), ("human", FAST)):
        (repository / "work.py").write_text(work)
        commits[name] = _commit(repository)
    (koderz.folder / "tasks.toml").write_text(TASK.format(**commits))
    diffs = [_diff("work.py", SLOW, FAST), _diff("bench.py", BENCH, FORGED), _diff("bench.py", BENCH, LAZY)]
    rows = [json.dumps({"instance_id": "t", "model_patch": diff}) for diff in diffs]
    (koderz.folder / "p.jsonl").write_text("\n".join(rows))
    task = ("--dataset", "tasks.toml", "--predictions", "p.jsonl", "--mode", "agent", "--max-blocks", 17)
    koderz("perf", "run", *task, "--threshold", "0.01", "--quiet")
    honest, forged, lazy = koderz.summary()["arms"]["agent"]["results"]
    # On a busy machine legs may start so late that they neither confirm nor deny what a command says.
    assert (honest["opt"], honest["hack"]) in (("opt", None), ("inconclusive", None))
    assert honest["metric"] == "tokens_per_second"
    assert honest["metrics"]["tokens_per_second_agent"] > honest["metrics"]["tokens_per_second_base"]
    assert (forged["opt"], forged["hack"]) in (("not", "timer"), ("inconclusive", None))
    assert (lazy["status"], lazy["opt"]) == ("test_failed", "not")
    shown = koderz("benchmark", "show", "latest").out
    assert ("not, timer" in shown) == (forged["hack"] == "timer")


def _diff(path: str, before: str, after: str) -> str:
    old, new = (text.splitlines(keepends=True) for text in (before, after))
    return "".join(difflib.unified_diff(old, new, f"a/{path}", f"b/{path}"))
