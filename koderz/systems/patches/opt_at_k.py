"""`koderz perf opt-at-k`: Opt@K of predictions, with GSO's flags, files and figures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from koderz.cli.console import OutputOptions, data_output, say, warn
from koderz.cli.flags import Json
from koderz.cli.front import EXIT_CODES, Front
from koderz.cli.session import SessionScreen
from koderz.errors import KoderzError
from koderz.types import NOBODY

if TYPE_CHECKING:
    from koderz.runs.session import SessionResult
    from koderz.systems.patches.gso import Prediction


_ADDED = {"gso-bench/gso": "gso", "Lossfunk/ISO-Bench": "iso"}
"""The suites' names here, by the names of datasets on their hub."""

_COUNTS = {
    "Total instances": "total_instances",
    "Instances submitted": "total_predictions",
    "Instances completed": "completed_instances",
    "Instances that passed": "passed_instances",
    "Instances with failed tests": "test_failed_instances",
    "Instances with failed patch": "patch_failed_instances",
    "Instances with empty patches": "empty_patch_instances",
    "Instances with base errors": "base_failed_instances",
    "Instances with errors": "error_instances",
    "Instances that improved over base": "opt_base",
    "Instances that improved over commit": "opt_commit",
}


_DatasetName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="gso-bench/gso, or a .json or .jsonl file. Default: the one that has all ids.",
    ),
]


_Paths = Annotated[
    list[str],
    typer.Option(
        metavar="FILE …", help="Predictions, .json or .jsonl; the first K in natural order count."
    ),
]


def opt_at_k(
    run_id: Annotated[
        str,
        typer.Option(metavar="NAME", help="What the evaluation is called, and its folder of logs."),
    ],
    prediction_paths: _Paths,
    dataset_name: _DatasetName = None,
    dataset: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Tasks, looked at first where no --dataset-name is given."
        ),
    ] = None,
    instance_ids: Annotated[
        list[str] | None,
        typer.Option(metavar="ID …", help="Evaluate these alone; reports are about all."),
    ] = None,
    model_name: Annotated[
        str,
        typer.Option(
            "--model-name",
            "--model",
            metavar="NAME",
            help="Whose report it is, in its file's name.",
        ),
    ] = "gpt-4o",
    k: Annotated[
        int, typer.Option("--k", metavar="K", help="Patches of each instance.", min=1)
    ] = 1,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time for the tests of one patch.", min=1)
    ] = 3600,
    reformat_reports: Annotated[
        bool,
        typer.Option(
            "--reformat-reports", help="Grade the logs that are there, and evaluate nothing."
        ),
    ] = False,
    rerun_all: Annotated[
        bool, typer.Option("--rerun-all", help="Evaluate also what has a result already.")
    ] = False,
    max_workers: Annotated[
        int, typer.Option(metavar="N", help="Evaluations at once, at most.", min=1)
    ] = 10,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show the figures of each file as well.")
    ] = False,
    json: Json = False,
) -> None:
    """Grade predictions as GSO does, and tell how often one of K patches is as good as the human's.

    Reads and writes logs/run_evaluation/RUN and reports/ in the working directory.

    Examples:
        koderz perf opt-at-k --run-id trial --prediction-paths predictions.jsonl
    """
    from koderz.systems.patches.gso import REPORTS, natural_order, read_predictions, write_json

    _require_name("--run-id", run_id)
    _require_name("--model-name", model_name)
    paths = sorted(prediction_paths, key=natural_order)[:k]
    tell = warn if json else say
    tell(f"Found {len(prediction_paths)} predictions, using first k={k}:")
    files = {path: read_predictions(Path(path)) for path in paths}
    place, ids = _dataset_of(
        dataset_name, dataset or _from_environment(), (attempts[0] for attempts in files.values())
    )
    given = {"dataset": place, "timeout": timeout, "concurrency": max_workers}
    known = [_known(path, attempts, ids) for path, attempts in files.items()]
    if foreign := [name for name in instance_ids or () if name not in ids]:
        raise KoderzError(f"--instance-ids {foreign[0]}: the dataset has no such task")

    def report(predictions: Mapping[str, Prediction]) -> Path:
        if not reformat_reports and (
            missing := _missing(run_id, predictions, instance_ids, anew=rerun_all)
        ):
            evaluate(run_id, missing, given, resumes=not rerun_all, json=json)
        _grade(run_id, predictions, instance_ids, anew=reformat_reports or rerun_all)
        return _report(run_id, ids, predictions, tell, verbose=verbose)

    reports = [[report(predictions) for predictions in attempts] for attempts in known]
    merged = _merged(ids, reports, k)
    target = REPORTS / f"{model_name}.opt@{k}.{run_id}.report.json"
    write_json(target, merged)
    _show(merged["summary"], tell)
    tell(f"score [opt@{k}]: {merged['summary']['score']}%")
    tell(f"Results saved to {target}")
    if json:
        data_output().write(target.read_bytes() + b"\n")


def _known(
    path: str, attempts: Sequence[Mapping[str, Prediction]], ids: Sequence[str]
) -> list[dict[str, Prediction]]:
    """The predictions for the dataset's tasks. Raises KoderzError if there is none."""
    known = [{name: each for name, each in attempt.items() if name in ids} for attempt in attempts]
    if not known or not known[0]:
        raise KoderzError(f"{path} has no prediction for a task of the dataset")
    if foreign := len(attempts[0]) - len(known[0]):
        warn(f"{path}: {foreign} predictions are of no task of the dataset, and left out")
    return [attempt for attempt in known if attempt]


def _report(
    run_id: str,
    ids: Sequence[str],
    predictions: Mapping[str, Prediction],
    tell: Callable[[str], object],
    *,
    verbose: bool,
) -> Path:
    """Writes the report of one file of predictions; returns its path."""
    from koderz.systems.patches.gso import LOGS, model_of, run_report, write_json

    model = model_of(next(iter(predictions.values())))
    target = LOGS / run_id / model / f"{model}.{run_id}.report.json"
    report = run_report(ids, predictions, run_id)
    write_json(target, report)
    tell(f"Run Report: {target}")
    if verbose:
        _show(report["summary"], tell)
    return target


def _merged(ids: Sequence[str], reports: Sequence[Sequence[Path]], k: int) -> dict[str, Any]:
    """GSO's figures of the last attempts of each file, and the exact ones of all."""
    from koderz.systems.patches.gso import exact_part, merged_report, review_part

    read = {path: orjson.loads(path.read_bytes()) for attempts in reports for path in attempts}
    merged = merged_report(ids, {attempts[0]: read[attempts[0]] for attempts in reports}, k)
    every = [read[path] for attempts in reports for path in attempts]
    merged["summary"] |= exact_part(ids, every, k) | review_part(every)
    if k > len(every):
        warn(
            f"there are {len(every)} attempts at each instance at most, so exact figures end at K = {len(every)}"
        )
    return merged


def _missing(
    run_id: str, predictions: Mapping[str, Prediction], wanted: Sequence[str] | None, *, anew: bool
) -> dict[str, Prediction]:
    """The patches with neither report nor log; or all, with `anew`."""
    from koderz.systems.patches.gso import LOG, REPORT, folder_of, is_empty

    return {
        name: each
        for name, each in predictions.items()
        if not is_empty(each)
        and (not wanted or name in wanted)
        and (anew or not any((folder_of(run_id, each) / file).exists() for file in (REPORT, LOG)))
    }


def _grade(
    run_id: str, predictions: Mapping[str, Prediction], wanted: Sequence[str] | None, *, anew: bool
) -> None:
    """Makes the reports of logs that have none; or of all, with `anew`."""
    from koderz.systems.patches.gso import LOG, REPORT, folder_of, grade_log, is_empty

    for name, prediction in predictions.items():
        folder = folder_of(run_id, prediction)
        if wanted and name not in wanted:
            continue
        if (folder / LOG).exists() and (anew or not (folder / REPORT).exists()):
            if wrong := grade_log(run_id, prediction):
                warn(f"error: {wrong}")
        elif not is_empty(prediction) and not (folder / REPORT).exists():
            warn(f"error: {folder / LOG} is missing: {name} was not evaluated")


def _dataset_of(
    name: str | None, dataset: Path | None, predictions: Iterable[Mapping[str, Any]]
) -> tuple[Path | None, list[str]]:
    """The named dataset, else the first with all predictions, and its ids in order.

    None is the embedded one.

    Raises KoderzError where there is none.
    """
    from koderz.suites import added_dataset
    from koderz.systems.patches.sources import ids_of

    if name is not None:
        path = (
            Path(name)
            if Path(name).suffix in (".json", ".jsonl", ".toml")
            else added_dataset(_ADDED.get(name, name))
        )
        if path is None:
            raise KoderzError(f"{name} isn't here: give --dataset-name its .json or .jsonl file")
        return path, ids_of(path)
    wanted = {each for predicted in predictions for each in predicted}
    places = [dataset, *map(added_dataset, _ADDED.values()), None]
    for place in (
        place for number, place in enumerate(places) if place or number == len(places) - 1
    ):
        found = ids_of(place)
        if wanted <= {*found}:
            return place, found
    raise KoderzError(
        "no dataset has all instances that are predicted; name the file of one with --dataset-name"
    )


def _from_environment() -> Path | None:
    path = os.environ.get("KODERZ_DATASET")
    return Path(path) if path else None


def _require_name(flag: str, name: str) -> None:
    if not name.isprintable() or {*name} & {"/", "\\"} or name in ("", ".", ".."):
        raise KoderzError(f"{flag} {name!r} can't be part of a file's name")


def _show(summary: Mapping[str, Any], tell: Callable[[str], object]) -> None:
    tell("=== Evaluation Summary ===")
    for label, name in _COUNTS.items():
        tell(f"{label}: {summary[name]}")
    if found := summary.get("needs_review"):
        tell(f"Needs review, more than twice as fast as the human's answer: {', '.join(found)}")


_ARM = "agent"


def evaluate(
    run_id: str,
    predictions: Mapping[str, Prediction],
    given: Mapping[str, Any],
    *,
    resumes: bool,
    json: bool,
) -> None:
    """Measures patches in a run of one arm, and writes the logs as GSO's harness would. `given`: settings of the run.

    `resumes`: goes on with a run of just these that was cut off. `json`: prints nothing on standard output. Ends the
    command where the run could not be made.
    """
    from koderz.suites.matrix import Matrix, MatrixArm, MatrixCells
    from koderz.systems.patches.gso import LOGS, model_of
    from koderz.systems.patches.sources import tasks_of
    from koderz_tracker.files import write_whole

    try:
        tasks_of(given["dataset"])
    except KoderzError as error:  # it has only ids, and so nothing to measure
        what = f"{len(predictions)} patches have no result and can't be measured here"
        raise KoderzError(
            f"{what} ({error}); --reformat_reports grades the logs that are there"
        ) from None
    place = LOGS / run_id / model_of(next(iter(predictions.values())))
    place.mkdir(parents=True, exist_ok=True)
    file = (place / "missing.jsonl").absolute()
    write_whole(file, [orjson.dumps(each) + b"\n" for each in predictions.values()])
    settings = {**given, "problems": tuple(predictions), "predictions": [str(file)]}
    front = Front(values=settings, usual={"suite": "koderz-perf-mini"})
    matrix = Matrix(
        (MatrixArm(_ARM, "patch:given", NOBODY),),
        (MatrixCells(samples=1),),
        "koderz perf opt-at-k",
    )
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
        super().__init__(OutputOptions(json=json), lambda _: None)
        self.folders: list[Path] = []

    def results(self, session: SessionResult) -> None:
        """Notes the folder and prints the end of the run."""
        self.folders.append(session.folder)
        super().results(session)


def _write_logs(folder: Path, run_id: str, predictions: Mapping[str, Prediction]) -> int:
    """Writes the logs of a run's experiments; returns their number."""
    from koderz.analysis.story import Experiments
    from koderz.systems.patches.formats import log_of
    from koderz.systems.patches.gso import LOG, folder_of
    from koderz_tracker.files import write_whole

    experiments, written = Experiments(folder), 0
    for outcome in experiments.outcomes:
        log = log_of(experiments.plan, experiments.story(outcome))
        if log is not None and outcome.problem_id in predictions:
            place = folder_of(run_id, predictions[outcome.problem_id])
            place.mkdir(parents=True, exist_ok=True)
            write_whole(place / LOG, [log.encode()])
            written += 1
    return written
