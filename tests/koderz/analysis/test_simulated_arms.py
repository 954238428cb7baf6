"""Arms of the simulated model beside real ones: marked one by one, and never compared with each other unasked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from koderz.analysis.compare import compare_runs
from koderz.analysis.comparison import compare
from koderz.analysis.export import to_dataframe
from koderz.analysis.pairs import chosen_sides
from koderz.analysis.runs import load_summary
from koderz.errors import KoderzError
from tests.koderz.analysis.builders import RUN, Outcomes, arm, comparative, document, write

GOOD, BAD = [True] * 8, [False] * 8


def mixed(folder: Path, *, run_id: str = RUN, real: Outcomes = GOOD, **more: Any) -> Path:
    """A run of an oracle, which is simulated, and two real arms."""
    arms = {
        "oracle": {**arm(GOOD, model="simulated"), "simulated": True},
        "base": {**arm(BAD, model="gpt"), "simulated": False},
        "better": {**arm(real, model="gpt"), "simulated": False},
    }
    whole = {name: value for name, value in document().items() if name not in ("results", "summary")}
    return write(folder / f"{run_id}.json", {**whole, "run_id": run_id, "simulated": False, "arms": arms, **more})


def test_simulated_arms_are_named_in_the_caution(tmp_path: Path) -> None:
    run = load_summary(mixed(tmp_path))

    assert run.cautions == ["SIMULATED ARMS, oracle: their figures say nothing about any real model"]
    assert [name for name in run.arms if run.is_simulated(name)] == ["oracle"]


def test_simulated_run_of_an_older_file_has_simulated_arms(tmp_path: Path) -> None:
    old = load_summary(write(tmp_path / "old.json", comparative(GOOD, BAD, simulated=True)))

    assert all(map(old.is_simulated, old.arms))
    assert old.cautions == ["SIMULATED MODEL: these figures say nothing about any real one"]


def test_compare_leaves_simulated_arms_out_beside_real_ones(tmp_path: Path) -> None:
    path = mixed(tmp_path)

    own = compare(path)
    board = compare_runs([str(path)], tmp_path).document()["leaderboard"]
    every = compare_runs([str(path)], tmp_path, allow_simulated=True).document()["leaderboard"]

    assert (own.a.arm, own.b.arm) == ("base", "better")
    assert {row["arm"] for row in board} == {"base", "better"}
    assert {row["arm"] for row in every} == {"oracle", "base", "better"}


def test_compare_sets_mixed_runs_against_each_other_by_real_arms(tmp_path: Path) -> None:
    a, b = mixed(tmp_path), mixed(tmp_path, run_id="bench_0a1b2c3e_20260131_130000", real=BAD)

    found = compare(a, b)
    oracles = compare(a, b, arm="oracle")

    assert list(found.arms) == ["base", "better"]
    assert (oracles.a.simulated, oracles.b.simulated, oracles.difference) == (True, True, 0.0)


def test_compare_refuses_a_simulated_arm_against_a_real_one(tmp_path: Path) -> None:
    real = write(tmp_path / "real.json", document(GOOD, model="gpt", simulated=False))
    simulated = write(tmp_path / "simulated.json", document(BAD, model="simulated", simulated=True))

    for pair in ((real, simulated), (simulated, real), (mixed(tmp_path), simulated)):
        with pytest.raises(KoderzError, match=r"is of the SIMULATED model, .* of a real one"):
            compare(*pair)
    assert compare(real, simulated, allow_simulated=True).pairs == 8


def test_problems_are_ranked_without_simulated_arms(tmp_path: Path) -> None:
    mixed(tmp_path)

    sides, notes = chosen_sides([RUN], tmp_path)

    assert [side.arm for side in sides] == ["base", "better"]
    assert notes == [f"SIMULATED arms are left out: {RUN} oracle; --allow-simulated takes them in"]


def test_data_frame_marks_simulated_arms_one_by_one(tmp_path: Path) -> None:
    frame = to_dataframe(mixed(tmp_path))

    assert frame.groupby("arm")["simulated"].unique().to_dict() == {
        "base": [False],
        "better": [False],
        "oracle": [True],
    }
