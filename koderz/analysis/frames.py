"""Runs as a data frame: one row an experiment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from koderz.analysis.runs import Run, load_run, load_summary, of_summary, run_paths
from koderz.errors import KoderzError
from koderz.settings.installation import package_command
from koderz_tracker.results import Result
from koderz_tracker.summary import Summary

Library = Literal["pandas", "polars"]
Source = Summary | Path | str

_OF_RUN = ("run_id", "model", "mode", "suite", "status", "start_time")
_OF_RESULT = tuple(name for name in Result.__struct_fields__ if name not in ("cost_by_tier", "metrics", "roles"))


def to_dataframe(runs: Source | Iterable[Source], library: Library = "pandas") -> Any:
    """Returns a data frame with one row per experiment: its run, model, mode, suite, status and start, and its result.

    `runs` are runs, summaries, summary files or a results folder, one or several. `start_time` is a time, costs
    are US dollars (`cost_spec` and so on by tier), `latency` and `duration_seconds` seconds; each metric has a column
    `metric_NAME`. Raises KoderzError for a file that can't be read, and where the library isn't installed.
    """
    sources = [runs] if isinstance(runs, Summary | Path | str) else list(runs)
    rows = [row for source in sources for run in _runs(source) for row in _rows(run)]
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
    return _frame(columns or {name: [] for name in (*_OF_RUN, "simulated", *_OF_RESULT)}, library)


def _rows(run: Run) -> Iterator[dict[str, Any]]:
    of_run = {name: getattr(run, name) for name in _OF_RUN}
    simulated = [run.is_simulated(name) for name, arm in run.arms.items() for _ in arm.results]
    for is_simulated, result in zip(simulated, run.results, strict=True):
        own = {"simulated": is_simulated, **{name: getattr(result, name) for name in _OF_RESULT}}
        tiers = {f"cost_{tier}": cost for tier, cost in (result.cost_by_tier or {"local": result.cost}).items()}
        metrics = {f"metric_{name}": value for name, value in (result.metrics or {}).items()}
        yield {**of_run, **own, **tiers, **metrics}


def _runs(source: Source) -> Iterator[Run]:
    if isinstance(source, Summary):
        yield of_summary(source)
    elif Path(source).is_dir() and (paths := run_paths(Path(source))):
        yield from map(load_run, paths)
    else:
        yield load_summary(source)


def _frame(columns: dict[str, list[Any]], library: Library) -> Any:
    if library == "polars":
        try:
            import polars
        except ImportError:
            raise KoderzError(
                f"polars isn't installed; run: {package_command('polars')}; or take pandas: to_dataframe(runs)"
            ) from None
        return polars.DataFrame(columns).with_columns(polars.col("start_time").str.to_datetime(strict=False))
    import pandas as pd

    frame = pd.DataFrame(columns)
    return frame.assign(start_time=pd.to_datetime(frame["start_time"], format="ISO8601", errors="coerce"))
