"""Measures predictions without results, for `koderz perf opt-at-k`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import typer

from koderz.cli.console import Shown
from koderz.cli.front import EXIT_CODES, Front
from koderz.cli.session import SessionScreen
from koderz.errors import KoderzError
from koderz.types import NOBODY

if TYPE_CHECKING:
    from koderz.runs.session import SessionResult
    from koderz.systems.patches.gso.reports import Prediction

_ARM = "agent"


def evaluate(
    run_id: str, predictions: Mapping[str, Prediction], given: Mapping[str, Any], *, resumes: bool, json: bool
) -> None:
    """Measures patches in a run of one arm, and writes the logs as GSO's harness would. `given`: settings of the run.

    `resumes`: goes on with a run of just these that was cut off. `json`: prints nothing on standard output. Ends the
    command where the run could not be made.
    """
    from koderz.plans.matrix import Matrix, MatrixArm, MatrixCells
    from koderz.systems.patches.gso.reports import LOGS, model_of
    from tracker.files import write_whole

    _require_tasks(given["dataset"], predictions)
    place = LOGS / run_id / model_of(next(iter(predictions.values())))
    place.mkdir(parents=True, exist_ok=True)
    file = (place / "missing.jsonl").absolute()
    write_whole(file, [orjson.dumps(each) + b"\n" for each in predictions.values()])
    settings = {**given, "problems": tuple(predictions), "predictions": [str(file)]}
    front = Front(given=settings, usual={"suite": "koderz-perf-mini"})
    matrix = Matrix(Path("koderz perf opt-at-k"), (MatrixArm(_ARM, "patch:given", NOBODY),), (MatrixCells(samples=1),))
    for going_on in dict.fromkeys((resumes, False)):
        screen = _Screen(json=json)
        try:
            front.run(matrix=matrix, screen=screen, resumes=going_on)
        except typer.Exit as ended:
            if ended.exit_code not in (0, EXIT_CODES["incomplete"]):
                raise
        if sum(_write_logs(folder, run_id, predictions) for folder in screen.folders):
            return


class _Screen(SessionScreen):
    """Shows the progress of a run and notes its folder; reports show its results."""

    def __init__(self, *, json: bool) -> None:
        super().__init__(Shown(json=json), lambda _: None)
        self.folders: list[Path] = []

    def results(self, session: SessionResult) -> None:
        """Notes the folder and prints the end of the run."""
        self.folders.append(session.folder)
        super().results(session)


def _require_tasks(dataset: Path | None, predictions: Mapping[str, Prediction]) -> None:
    """Raises KoderzError if the dataset has only ids, and so nothing to measure."""
    from koderz.systems.patches.sources import tasks_of

    try:
        tasks_of(dataset)
    except KoderzError as error:
        what = f"{len(predictions)} patches have no result and can't be measured here"
        raise KoderzError(f"{what} ({error}); --reformat_reports grades the logs that are there") from None


def _write_logs(folder: Path, run_id: str, predictions: Mapping[str, Prediction]) -> int:
    """Writes the logs of a run's experiments; returns their number."""
    from koderz.analysis.story import Experiments
    from koderz.systems.patches.gso.projection import log_of
    from koderz.systems.patches.gso.reports import LOG, folder_of
    from tracker.files import write_whole

    experiments, written = Experiments(folder), 0
    for outcome in experiments.outcomes:
        log = log_of(experiments.plan, experiments.story(outcome))
        if log is not None and outcome.problem_id in predictions:
            place = folder_of(run_id, predictions[outcome.problem_id])
            place.mkdir(parents=True, exist_ok=True)
            write_whole(place / LOG, [log.encode()])
            written += 1
    return written
