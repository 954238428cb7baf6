"""The Python API, which can do everything that the command line can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.runs.prepare import prepare
from koderz.runs.resume import ResumeOptions, resume_run
from koderz.runs.session import begin, raise_if_failed, settle_sinks
from koderz.settings.schema import FIRST_ARM
from koderz_tracker.summary import Summary


async def benchmark(
    problems: range | Sequence[str] | None = None,
    *,
    model: str | Sequence[str] | None = None,
    solver_args: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Summary:
    """Runs a benchmark and returns its summary.

    `problems` is a range of the suite's tasks, a sequence of ids, or None for all. `settings` are the fields
    of `koderz.Settings` and the options of the suite, solver, sandbox and engine that they choose; environment and
    koderz.toml count as on the command line. Returns once the sinks are up to date; of one that is given up a warning
    is logged as `koderz`. Raises KoderzError for what is wrong before anything is spent, and Unreachable where the
    model can't be asked.
    """
    span = problems if isinstance(problems, range) else None
    if span is not None and span.step != 1:
        raise KoderzError(f"a range of tasks goes up by one, not by {span.step}")
    if problems is not None and span is None:
        settings["problems"] = tuple(problems)
        if not settings["problems"]:
            raise KoderzError("an empty list of tasks leaves nothing to run; None means all of them")
    if isinstance(model, str):
        settings["local_model"] = model
    elif model is not None:
        settings |= {"local_model": next(iter(model), ""), "models": tuple(model)}
    arguments = {key: str(value) for key, value in (solver_args or {}).items()}
    plan = await prepare(settings, span, solver_arguments=arguments)
    return raise_if_failed(await settle_sinks(await begin(plan)))


async def decide(
    a: str, b: str, problems: range | Sequence[str] | None = None, *, against: str | None = None, **settings: Any
) -> Summary:
    """Compares model B with model A, stops once it is decided, and returns the summary, whose `decision` says what.

    `against`: the arm that others are compared with, if not the first. Other arguments and errors as for `benchmark`,
    of which `alpha`, `margin`, `min_tasks` and `max_cost` say when to stop. The solver is zero-shot if none is given.
    """
    if a == b:
        raise KoderzError(f"A and B are both {a}; name two models")
    if settings.keys().isdisjoint({"mode", "solver", "solvers", "matrix"}):
        settings["mode"] = "zero-shot"
    return await benchmark(problems, model=(a, b), until_decided=against or FIRST_ARM, **settings)


async def resume(
    run: str = "latest", *, results: Path | None = None, past_decision: bool = False, **changes: Any
) -> Summary:
    """Resumes a run where it stopped; nothing on record is asked, judged or paid for again.

    `run` is named as on the command line: by its id, a unique prefix, a summary file, `latest` or `latest~1`; `results`
    is its folder. `changes` are settings that may differ from the run's, such as `max_cost`. With `past_decision` the
    rest of a decided run is asked, too; its decision stays what it was. Unlike on the command line, runs that were
    planned together with it are left as they are. Raises KoderzError where there is no such run, or where it can't be
    resumed as it is.
    """
    return await _resume(run, ResumeOptions("resume", past_decision=past_decision), results, changes)


async def retry(
    run: str = "latest", *, causes: Sequence[str] = (), results: Path | None = None, **changes: Any
) -> Summary:
    """Retries the experiments of a run that ended in a fault, or in one of some `causes`, words of `tracker.causes`.

    Other arguments and errors are those of `resume`.
    """
    return await _resume(run, ResumeOptions("retry", causes=causes), results, changes)


async def rescore(run: str = "latest", *, results: Path | None = None, calls: bool = False, **changes: Any) -> Summary:
    """Judges a run anew: its solvers run again over the recorded replies. No call is made unless `calls`.

    Other arguments and errors as for `resume`.
    """
    return await _resume(run, ResumeOptions("rescore", calls=calls), results, changes)


async def run(task: str, *, model: str | None = None, **settings: Any) -> Summary:
    """Runs one experiment and returns its summary.

    `task` is a task's id; `settings` and errors as for `benchmark`. The journal lies in the results folder; there is no
    run id and no summary file.
    """
    if model is not None:
        settings["local_model"] = model
    plan = await prepare({**settings, "problems": (task,), "samples": 1}, None, single=True)
    return raise_if_failed(await settle_sinks(await begin(plan)))


async def _resume(run: str, way: ResumeOptions, results: Path | None, changes: Mapping[str, Any]) -> Summary:
    return raise_if_failed(await settle_sinks(await resume_run(run, way, results=results, changes=changes)))
