"""Tasks of other tools' logs in clusters by a field of theirs, such as their repository, text or subject."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from koderz.analysis.logs import reader_of
from koderz.analysis.runs import Run
from koderz.errors import KoderzError
from koderz_tracker.summary import compare_modes, figures


def clustered(runs: Sequence[Run], name: str) -> list[Run]:
    """The runs, with tasks of one value of the field in one cluster. A task without the field stands alone.

    What a log doesn't say of a task is taken from the others. Raises KoderzError for a run of koderz' own, whose plan
    has its clusters, and for a log in which no task has the field.
    """
    own = [_values(run, name) for run in runs]
    known = {task: value for each in reversed(own) for task, value in each.items()}
    return [_in_clusters(run, known | each) for run, each in zip(runs, own, strict=True)]


def _values(run: Run, name: str) -> dict[str, str]:
    """The value of the field by task."""
    reader = reader_of(run.path) if run.is_log else None
    if reader is None:
        raise KoderzError(
            f"--cluster {name} takes a field of other tools' logs; the clusters of {run.name} are those of its plan, "
            "which --cluster-column names before it runs"
        )
    return reader(run.path).values(name, run.path)


def _in_clusters(run: Run, clusters: dict[str, str]) -> Run:
    arms = {}
    for name, arm in run.arms.items():
        results = [
            structs.replace(each, cluster=clusters.get(each.problem_id, "")) for each in arm.results
        ]
        own = figures(
            results, arm.summary.baseline_cost, run.measures, None, len(run.missing_of(name))
        )
        arms[name] = replace(arm, results=results, summary=own)
    return replace(
        run, arms=arms, comparison=run.comparison and compare_modes(arms, run.comparison.arms)
    )
