"""How much of a run goes into MLflow."""

from __future__ import annotations

from typing import Literal, cast, get_args

from tracker.errors import KoderzError

Detail = Literal["traces", "runs", "parent", "full"]
"""`parent`: the run with its table. `traces`: and a trace for each experiment. `runs`, also called `full`: and a
nested run for each."""

_TRACES_UP_TO = 5000  # experiments


def detail_of(planned: int, wanted: str | None) -> Detail:
    """What was wanted, else what suits a run of so many experiments. KoderzError for a word that isn't known."""
    if wanted is None:
        return "traces" if planned <= _TRACES_UP_TO else "parent"
    if wanted not in get_args(Detail):
        raise KoderzError(f"--mlflow-detail {wanted}: choose one of {', '.join(get_args(Detail))}")
    return cast("Detail", wanted)
