"""Opt@K and its reports agree with GSO's."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.systems.patches.gso import (
    evaluation,
    exact_part,
    grade_log,
    graded,
    harmonic_mean,
    merged_report,
    natural_order,
    read_predictions,
    run_report,
    speedups,
    status_of,
    times_of,
    write_json,
)
from koderz.systems.patches.measuring.verdicts import is_faster_than_base
from koderz_tracker.rates import BETA, CLUSTERED_WILSON

GSO = Path(os.environ.get("KODERZ_TEST_DATA", "nowhere")) / "gso" / "src"
"""The sources of GSO's harness, https://github.com/gso-bench/gso, where they are at hand."""

Times = Sequence[Sequence[float]]


def section(side: str, times: Times) -> str:
    tests = (f">>>>> Test {n}\n" + "".join(f"Execution time: {t:.6f}s\n" for t in each) for n, each in enumerate(times))
    return f">>>>> Start {side} Output\n{''.join(tests)}>>>>> End {side} Output\n"


def log_of(**sides: Times) -> str:
    return "Applying patch...\n>>>>> Applied Patch\n" + "".join(section(*each) for each in sides.items())


@pytest.mark.parametrize(
    ("log", "status"),
    [
        ("", "base_failed"),
        ("Applying patch...\n>>>>> Patch Apply Failed", "patch_failed"),
        ("Applying patch...\n>>>>> Init Failed", "patch_failed"),
        (log_of(Patch=[[1.0]]) + ">>>>> Tests Timed Out", "test_failed"),
        (log_of(Patch=[[1.0]]) + ">>>>> Tests Errored", "test_failed"),
        ("Applying patch...\n>>>>> Start Patch Output\n", "test_failed"),
        (log_of(Patch=[[1.0]]), "passed"),
    ],
)
def test_log_tells_how_far_it_came(log: str, status: str) -> None:
    assert status_of(log) == status


def test_log_without_times_is_dropped_and_without_section_an_error() -> None:
    found = times_of(log_of(Base=[[1.0, 2.0], []], Patch=[[0.5]], Commit=[[1.0]], Main=[[3.0]]))
    assert found == {"base": [[1.0, 2.0]], "patch": [[0.5]], "commit": [[1.0]], "main": [[3.0]]}
    warned = ">>>>> WARNING: Error in main branch! continuing...\n"
    assert times_of(warned + log_of(Base=[[1.0]], Patch=[[0.5]], Commit=[[1.0]], Main=[[3.0]]))["main"] is None
    with pytest.raises(ValueError, match="no section Commit"):
        times_of(log_of(Base=[[1.0]], Patch=[[0.5]]))


@pytest.mark.parametrize(
    ("patch", "commit", "opt_base", "opt_commit"),
    [
        (1 / 1.15, 1.0, True, True),  # a geometric mean of 1.15 rounds to 1.2
        (1 / 1.149, 1.0, False, False),
        (0.5, 0.5, True, True),
        (0.5, 0.4749, True, False),
        (0.5, 0.4751, True, True),
    ],
)
def test_patch_has_to_beat_base_and_equal_the_human(
    patch: float, commit: float, opt_base: bool, opt_commit: bool
) -> None:
    found = graded({"base": [[1.0]], "patch": [[patch]], "commit": [[commit]], "main": None})
    assert (found["opt_base"], found["opt_commit"], found["opt_main"]) == (opt_base, opt_commit, False)


def test_means_follow_gso_s_definitions() -> None:
    found = graded(
        {"base": [[2.0, 4.0], [8.0]], "patch": [[1.0], [2.0]], "commit": [[1.5], [1.0]], "main": [[1.0], [2.0]]}
    )
    stats, times = found["opt_stats"], found["time_stats"]
    assert stats["gm_speedup_patch_base"] == pytest.approx(math.sqrt(3 * 4))
    assert stats["hm_speedup_patch_commit"] == pytest.approx(2 / (1 / 1.5 + 1 / 0.5))
    assert stats["am_speedup_patch_base"] == pytest.approx(5.5 / 1.5)
    assert stats["slowdown_perc_patch_commit"] == 50.0
    assert times["per_test_means"]["base"] == [3.0, 8.0]
    assert times["base_std"] == pytest.approx(math.sqrt(12.5))
    assert stats["per_test_speedups"]["patch_base_speedups"] == [3.0, 4.0]
    assert (found["opt_main"], stats["hm_speedup_patch_main"]) == (True, 1.0)
    assert stats["speedup_patch_base"] is None
    assert speedups([1.0], [0.0]) == [math.inf]
    assert harmonic_mean([0.0]) == math.inf


def test_times_that_are_needed_have_to_be_there() -> None:
    with pytest.raises(TypeError):
        graded({"base": [], "patch": [[1.0]], "commit": [[1.0]], "main": None})
    with pytest.raises(TypeError):
        graded({"base": [[2.0]], "patch": [[1.0]], "commit": [], "main": None})
    slower = graded({"base": [[1.0]], "patch": [[1.0]], "commit": [], "main": None})
    assert slower["opt_stats"]["gm_speedup_patch_commit"] is None


def prediction(name: str, patch: str | None = "diff", model: str = "org/m") -> dict[str, Any]:
    return {"instance_id": name, "model_patch": patch, "model_name_or_path": model}


def test_json_has_null_for_what_is_no_number(tmp_path: Path) -> None:
    log = tmp_path / "test_output.txt"
    log.write_text(log_of(Base=[[1.0]], Patch=[[0.5]], Commit=[[0.5]]))
    write_json(tmp_path / "report.json", evaluation(prediction("a"), log))
    found = json.loads((tmp_path / "report.json").read_text())["a"]
    assert found["opt_stats"]["gsd_speedup_patch_base"] is None
    assert (found["opt_commit"], found["time_stats"]["base_std"]) == (True, 0.0)
    assert evaluation(prediction("a", None), log)["a"]["patch_is_None"]


def test_exact_figures_are_of_all_tasks_and_end_where_attempts_do() -> None:
    sets = [
        {f"{what}_ids": ["a", "b"] for what in ("passed", "opt_base")} | {"opt_commit_ids": ids} for ids in (["a"], [])
    ]
    found = exact_part(["a", "b", "c", "d"], [{"instance_sets": each} for each in sets], 5)
    assert found["exact"]["opt_commit"] == {"1": 0.125, "2": 0.25}
    assert found["exact"]["passed"] == {"1": 0.5, "2": 0.5}
    low, high = found["exact_interval"]["passed"]["1"]
    assert (low, high) == pytest.approx((0.1500, 0.8500), abs=1e-4)  # Wilson's of 2 in 4, as of the success rate
    assert found["exact_interval_method"]["passed"] == {"1": CLUSTERED_WILSON, "2": BETA}
    assert found == exact_part(["a", "b", "c", "d"], [{"instance_sets": each} for each in sets], 5)


def test_exact_figures_are_of_clusters_of_one_repository() -> None:
    ids = ["numpy__numpy-1b862eb", "numpy__numpy-2b862eb", "pandas-dev__pandas-0badcaf"]
    report = {"instance_sets": dict.fromkeys(("passed_ids", "opt_base_ids", "opt_commit_ids"), ids[:1])}
    assert exact_part(ids, [report], 1)["exact_interval_method"]["passed"]["1"].endswith("in 2 clusters")
    found = exact_part(ids[:2], [report], 1)
    assert found["exact_interval"]["passed"] == {"1": None}
    assert found["exact_interval_method"]["passed"] == {"1": "none: all 2 tasks are of one cluster"}


def test_files_are_in_natural_order() -> None:
    assert sorted(["p10.jsonl", "p9.jsonl", "p1.jsonl"], key=natural_order) == ["p1.jsonl", "p9.jsonl", "p10.jsonl"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.txt", "", "such as a .jsonl or a .json"),
        ("p.jsonl", '{"model_patch": ""}', "'instance_id' is missing"),
        ("p.jsonl", '{"instance_id": "../x", "model_patch": ""}', "folder's name"),
    ],
)
def test_invalid_predictions_file_is_told(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(KoderzError, match=said):
        read_predictions(tmp_path / name)


def made_up(folder: Path, seed: int) -> dict[str, Any]:
    """A dataset, three files of predictions, and logs of all kinds."""
    rng = random.Random(seed)
    ids = [f"own__repo-{number:07x}" for number in range(40)]
    files: list[dict[str, Any]] = []
    for number in range(3):
        chosen = rng.sample(ids, 34)
        predictions = {
            name: prediction(name, rng.choice(["diff"] * 12 + ["", None]), f"org/m{number}") for name in chosen
        }
        for name in rng.sample(chosen, 30):
            place = folder / "logs/run_evaluation/r" / f"org__m{number}" / name
            place.mkdir(parents=True)
            (place / "test_output.txt").write_text(_made_log(rng))
        files.append(predictions)
    return {"ids": ids, "files": files, "k": 3}


def _made_log(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.2:
        words = [
            "",
            "Applying patch...",
            "Applying patch...\n>>>>> Patch Apply Failed",
            "Applying patch...\n>>>>> Tests Errored",
        ]
        return rng.choice(words)
    tests = rng.choice([1, 2, 5])
    gain, human = rng.choice([0.9, 1.14, 1.16, 1.5, 3.0]), rng.choice([1.1, 1.5, 2.0])

    def times(speedup: float) -> Times:
        if rng.random() < 0.03:
            return [[0.0] * 3 for _ in range(tests)]
        found = [[rng.uniform(0.9, 1.1) / speedup for _ in range(3)] for _ in range(tests)]
        return found[: rng.choice([tests, tests, tests, tests - 1])]

    sides = {"Base": times(1.0), "Patch": times(gain), "Commit": times(human), "Main": times(1.0)}
    for name in rng.sample(["Commit", "Main", "Patch"], rng.choice([0, 0, 0, 0, 1])):
        del sides[name]
    return log_of(**sides) + (">>>>> WARNING: Error in main branch! continuing...\n" if rng.random() < 0.2 else "")


def _numbers(value: Any) -> Any:
    """The same with None for what JSON has no number for."""
    if isinstance(value, dict):
        return {name: _numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@pytest.mark.skipif(not GSO.is_dir(), reason="KODERZ_TEST_DATA has no gso/, the sources of GSO's harness")
@pytest.mark.parametrize("seed", range(5))
def test_reports_are_those_of_gso_s_own_harness(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for folder in (theirs, ours):
        folder.mkdir()
        cases = made_up(folder, seed)
    (theirs / "cases.json").write_text(json.dumps(cases))
    referee = Path(__file__).with_name("referee.py")
    command = [sys.executable, "-W", "ignore", str(referee), str(GSO), str(theirs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    merged = json.loads(done.stdout.splitlines()[-1])
    monkeypatch.chdir(ours)
    reports = {}
    for predictions in cases["files"]:
        for name, each in predictions.items():
            place = Path("logs/run_evaluation/r") / each["model_name_or_path"].replace("/", "__")
            if (place / name / "test_output.txt").exists():
                grade_log("r", each)
        report = run_report(cases["ids"], predictions, "r")
        write_json(place / f"{place.name}.r.report.json", report)
        reports[place / f"{place.name}.r.report.json"] = json.loads((place / f"{place.name}.r.report.json").read_text())
    write_json(Path("merged.json"), merged_report(cases["ids"], reports, 3))
    assert json.loads(Path("merged.json").read_text()) == _numbers(merged)
    found = sorted(path.relative_to(ours) for path in ours.rglob("*report.json"))
    assert found == sorted(path.relative_to(theirs) for path in theirs.rglob("*report.json"))
    assert len(found) > 60
    for path in found:
        assert json.loads((ours / path).read_text()) == _numbers(json.loads((theirs / path).read_text())), path


@pytest.mark.parametrize(("geometric", "is_opt"), [(1.15, True), (1.1499, False), (1.25, True)])
def test_gso_rule_rounds_gains_as_numpy_does(geometric: float, is_opt: bool) -> None:
    assert is_faster_than_base(2.0, 1.0, geometric) is is_opt
    assert not is_faster_than_base(1.0, 1.0, geometric)
