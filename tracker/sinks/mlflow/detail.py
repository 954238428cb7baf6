"""How much of a run goes into MLflow."""

from __future__ import annotations

from typing import Literal, cast, get_args

from tracker.errors import KoderzError

Detail = Literal["full", "runs", "parent"]  # runs and traces, runs, the parent run with its table

_FULL_UP_TO = 500  # experiments
_RUNS_UP_TO = 5000


def detail_of(planned: int, wanted: str | None) -> Detail:
    """What was wanted, else what suits a run of so many experiments. KoderzError for a word that isn't known."""
    if wanted is None:
        return "full" if planned <= _FULL_UP_TO else "runs" if planned <= _RUNS_UP_TO else "parent"
    if wanted not in get_args(Detail):
        raise KoderzError(f"--mlflow-detail: invalid value {wanted!r}; choose from {', '.join(get_args(Detail))}")
    return cast("Detail", wanted)
