"""The arms that a command over many runs is about: those named, or all there are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from koderz.analysis.pairs import Side, sides_of
from koderz.analysis.runs import Run, load_run, resolve, run_paths
from koderz.errors import KoderzError


def chosen_sides(
    names: Sequence[str], results: Path, *, arm: str | None = None, allow_simulated: bool = False
) -> tuple[list[Side], list[str]]:
    """The arms of the runs named, else of all; and what was left out of those or is still going, a sentence each.

    Without names, simulated runs give way to real ones and files that can't be read to those that can; with
    names, both are a KoderzError. So is an arm that no run has.
    """
    if names:
        runs, left_out = resolve(names, results, allow_simulated=allow_simulated), list[str]()
    else:
        runs, left_out = _all(results, allow_simulated=allow_simulated)
    going = [f"{run.name} {run.progress}" for run in runs if run.is_going]
    return [side for run in runs for side in _sides(run, arm, must_have=bool(names))], left_out + going


def _all(results: Path, *, allow_simulated: bool) -> tuple[list[Run], list[str]]:
    runs, notes = [], []
    for path in run_paths(results):
        try:
            runs.append(load_run(path))
        except KoderzError as error:
            notes.append(f"left out: {error}")
    if not runs:
        raise KoderzError("; ".join(notes) or f"{results} holds no run yet; make one with: koderz benchmark 0 10")
    real = [run for run in runs if not run.simulated]
    if real and len(real) < len(runs) and not allow_simulated:
        left_out = f"{len(runs) - len(real)} runs of the SIMULATED model are left out"
        notes.append(f"{left_out}; --allow-simulated takes them in")
        runs = real
    return runs, notes


def _sides(run: Run, arm: str | None, *, must_have: bool) -> list[Side]:
    wanted = arm.replace("_", "-") if arm is not None else None
    if must_have or wanted is None or wanted in run.arms:
        return sides_of(run, arm)
    return []
