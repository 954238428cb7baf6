"""The jq lines and Python scripts of the README and docs/ print what the runs hold, each result once."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import koderz as api
from koderz_tracker.results import Result
from koderz_tracker.summary import ArmResults, Summary
from tests.conftest import Server, Shell, nothing_judged
from tests.e2e.pages import PAGES, blocks
from tests.e2e.test_docs import needs_jq

Runs = Sequence[Summary]
DECIDED = ("outcome", "tasks", "planned", "difference", "interval", "e_value")  # none of these runs is
OLD = "bench_00000000_20250101_000000"  # has no `arms`


def _is_single(run: Summary) -> bool:
    return len(run.arms) == 1


def _failed(results: Sequence[Result]) -> list[str]:
    return [result.problem_id for result in results if not result.success]


def _quoted(words: Sequence[str]) -> list[str]:
    return [f'"{word}"' for word in words]


def _dearest(run: Summary) -> list[str]:
    best = sorted(run.results, key=lambda result: -result.cost)[:5]
    return [f"{result.problem_id}: ${json.dumps(result.cost)}" for result in best]


def _rate(run: Summary) -> str:
    return "nothing judged" if run.summary.success_rate is None else json.dumps(run.summary.success_rate)


def _undecided() -> list[str]:
    return json.dumps(dict.fromkeys(DECIDED), indent=2).splitlines()


QUERIES: dict[str, Callable[[Runs], list[str]]] = {
    "jq '.arms[]?.results[] | select(.success == false) | .problem_id' benchmark_results/bench_*.json": lambda runs: (
        _quoted(
            [task for run in runs if run.run_id != OLD for arm in run.arms.values() for task in _failed(arm.results)]
        )
    ),
    "jq '(.results // (.arms // {zero_shot, iterative} | map(.results[])))[] | select(.success == false) | .problem_id'"
    " benchmark_results/bench_*.json": lambda runs: _quoted([task for run in runs for task in _failed(run.results)]),
    "jq -s 'map(.summary.total_cost // empty) | add' benchmark_results/*.json": lambda runs: [
        json.dumps(sum(run.summary.total_cost for run in runs if _is_single(run)))
    ],
    "jq -r 'select(.results) | .results | sort_by(-.cost) | .[0:5] | .[] | \"\\(.problem_id): $\\(.cost)\"'"
    " benchmark_results/bench_*.json": lambda runs: [line for run in runs if _is_single(run) for line in _dearest(run)],
    "jq -r 'select(.summary) | .summary.success_rate // \"nothing judged\"'"
    " benchmark_results/bench_*.json": lambda runs: [_rate(run) for run in runs if _is_single(run)],
    "jq '.decision | {outcome, tasks, planned, difference, interval, e_value}'"
    " benchmark_results/bench_*.json": lambda runs: [line for _ in runs for line in _undecided()],
    "jq .letters benchmark_results/bench_*.json": lambda runs: ["null" for _ in runs],  # of another system's runs alone
    "jq '.iterative.summary.successes' benchmark_results/bench_*.json": lambda runs: [
        str(run.arms["iterative"].summary.successes) if list(run.arms) == ["zero-shot", "iterative"] else "null"
        for run in runs
    ],
}
"""Each jq line of the pages, as it stands there, and what it has to print of runs in the order of their files."""


@pytest.fixture
def runs(koderz: Shell, serve: Callable[..., Server]) -> Runs:
    """One of a single mode, one where nothing was judged, two comparative ones of which one is as older files are, and
    one of three arms; in the order of their files' names.
    """
    env, usual = serve("--model", "gpt-4o-mini").env(), ("--model", "gpt-4o-mini", "--quiet")
    koderz("benchmark", 0, 6, "--mode", "iterative", *usual, env=env)
    nothing_judged(koderz, "iterative")
    koderz("benchmark", 0, 8, "--mode", "comparative", *usual, env=env)
    (path,) = (path for path in _files(koderz) if "zero_shot" in json.loads(path.read_text()))
    (koderz.folder / "mine.py").write_text(
        "async def once(task, ask, judge):\n    return await judge(task, await ask(task.messages))\n"
    )
    koderz("benchmark", 0, 5, "--solvers", "zero-shot,iterative,mine.py:once", *usual, env=env)
    old = json.loads(path.read_text())
    del old["arms"]
    old["run_id"] = OLD
    path.with_name(f"{old['run_id']}.json").write_text(json.dumps(old))
    found = [api.load_summary(path) for path in _files(koderz)]
    assert Counter(map(_is_single, found)) == {True: 2, False: 3}
    assert all(result.cost > 0 for run in found for result in run.results)
    return found


def _files(koderz: Shell) -> list[Path]:
    return sorted(koderz.results.glob("bench_*.json"))


def _printed(koderz: Shell, command: Sequence[str]) -> str:
    done = subprocess.run(command, cwd=koderz.folder, env=koderz.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_jq
@pytest.mark.slow
def test_documented_jq_lines_print_what_the_runs_hold(koderz: Shell, runs: Runs) -> None:
    shown = {
        line.strip()
        for page in PAGES
        for block in blocks(page)
        if block.language in ("sh", "console")
        for line in block.commands()
        if line.startswith("jq ")
    }
    assert shown == set(QUERIES), "a jq line of a page needs its answer here, and the other way round"

    for line in sorted(shown):
        assert _numbers(_printed(koderz, ["bash", "-c", line]).splitlines()) == _numbers(QUERIES[line](runs)), line


def _numbers(lines: Sequence[str]) -> list[Any]:
    """Lines with numbers as such: jq and Python write some of them in other ways."""
    return [pytest.approx(float(line)) if _is_number(line) else _shortened(line) for line in lines]


def _is_number(line: str) -> bool:
    try:
        float(line)
    except ValueError:
        return False
    return True


def _shortened(line: str) -> str:
    name, dollar, amount = line.partition(": $")
    return f"{name}{dollar}{float(amount):.9f}" if dollar else line


_WITHOUT_KODERZ, _COMPARED, _BY_MODEL, _COST = range(4)


@pytest.fixture
def scripts() -> list[str]:
    """The Python blocks of the page on queries, in its order."""
    return [block.text for block in blocks("docs/how-to/query-results.md") if block.language == "python"]


@pytest.mark.slow
def test_documented_script_without_koderz_counts_each_result_once(
    koderz: Shell, runs: Runs, scripts: Sequence[str]
) -> None:
    rates: defaultdict[str, list[float | None]] = defaultdict(list)
    failures: Counter[str] = Counter()
    for run in sorted(runs, key=lambda run: run.path.stat().st_mtime):  # type: ignore[attr-defined]
        for arm in _arms(run):
            if arm.results:
                rates[run.config["local_model"]].append(arm.summary.success_rate)
            failures.update(_failed(arm.results))

    printed = _printed(koderz, [sys.executable, "-c", scripts[_WITHOUT_KODERZ]])

    assert printed == f"{dict(rates)} {failures.most_common(5)}\n"


def _arms(run: Summary) -> Sequence[ArmResults]:
    return list(run.arms.values())


@pytest.mark.slow
def test_documented_scripts_with_koderz_count_each_result_once(
    koderz: Shell, runs: Runs, scripts: Sequence[str]
) -> None:
    assert len(scripts) == 4
    of_solver: defaultdict[str, list[Result]] = defaultdict(list)
    for run in runs:
        for result in run.results:
            of_solver[result.solver].append(result)

    by_model = _last(koderz, scripts[_BY_MODEL], "by_model")
    totals = _last(koderz, scripts[_COST], "totals")

    for name, found in of_solver.items():
        cost, solved = math.fsum(each.cost for each in found), sum(each.success for each in found)
        assert (by_model[name]["experiments"], totals[name]["solved"]) == (len(found), solved)
        assert by_model[name]["success_rate"] == pytest.approx(solved / len(found))
        assert totals[name]["cost"] == pytest.approx(cost)
        assert totals[name]["cost_per_solution"] == pytest.approx(cost / solved)
    assert by_model.keys() == totals.keys() == of_solver.keys()


def _last(koderz: Shell, script: str, frame: str) -> dict[str, dict[str, float]]:
    """The rows of a data frame that a script leaves, by solver."""
    more = f"print({frame}.droplevel('model').to_json(orient='index'))"
    rows: dict[str, dict[str, float]] = json.loads(
        _printed(koderz, [sys.executable, "-c", f"{script}\n{more}"]).splitlines()[-1]
    )
    return rows


@pytest.mark.slow
def test_documented_comparison_is_of_the_two_newest_runs(koderz: Shell, scripts: Sequence[str]) -> None:
    koderz("benchmark", 0, 6, "--mode", "zero-shot", "--model", "simulated", "--quiet")
    koderz("benchmark", 0, 6, "--mode", "iterative", "--model", "simulated", "--quiet")
    a, b = sorted(map(api.load_summary, _files(koderz)), key=lambda run: run.start_time)
    passed = [{result.problem_id for result in run.results if result.success} for run in (a, b)]

    printed = _printed(koderz, [sys.executable, "-c", scripts[_COMPARED]]).splitlines()

    difference = 100 * (len(passed[1]) - len(passed[0])) / 6
    pairs, shown, _ = printed[1].split(" ", 2)
    assert pairs == "6"
    assert float(shown) == pytest.approx(difference)
    assert printed[1].endswith(f"{sorted(passed[0] - passed[1])} {sorted(passed[1] - passed[0])}")
