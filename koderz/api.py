"""The Python API, which can do everything that the command line can."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from koderz.analysis.forecast import Forecast, forecast_of
from koderz.analysis.runs import Run, of_summary
from koderz.errors import KoderzError
from koderz.runs.observer import EventObserver, NullObserver, OnEvent, observer_here
from koderz.runs.prepare import prepare
from koderz.runs.resume import ResumeOptions, resume_run
from koderz.runs.session import SessionResult, begin, raise_if_failed, settle_sinks
from koderz.settings.options import fields_of
from koderz.settings.registry import hand_over
from koderz.settings.schema import FIRST_ARM, Settings
from koderz_tracker.summary import Summary

if TYPE_CHECKING:
    from typing import Unpack

    from koderz.plans.plan import Plan
    from koderz.runs.observer import Observer
    from koderz.settings.keywords import Changes, Keywords

P = ParamSpec("P")
R = TypeVar("R")


def _with_settings(function: Callable[P, R]) -> Callable[P, R]:
    """The function with the settings in its signature, so that an interpreter or a notebook completes them."""
    signature = inspect.signature(function)
    *own, others = signature.parameters.values()
    taken = {each.name for each in own} | {"problems", "models", "local_model"}
    settings = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type
        )
        for name, field in fields_of(Settings).items()
        if name not in taken
    ]
    function.__signature__ = signature.replace(parameters=[*own, *settings, others])  # type: ignore[attr-defined]
    return function


@_with_settings
async def benchmark(
    problems: range | Sequence[str] | None = None,
    *,
    model: str | Sequence[str] | None = None,
    solver_args: Mapping[str, Any] | None = None,
    on_event: OnEvent | None = None,
    **settings: Unpack[Keywords],
) -> Run:
    """Runs a benchmark and returns its summary.

    `problems` is a range of the suite's tasks, a sequence of ids, or None for all. `settings` are the fields
    of `koderz.Settings` and the options of the suite, solver, sandbox and engine that they choose; environment and
    koderz.toml count as on the command line. A solver, suite, scorer or metric may be a function or an object of the
    program: its source and digest are recorded, and whoever resumes the run hands it over again. In a notebook the
    progress is shown. `on_event` is called with each line of the journal as a dict once it is durable, in order and in
    this thread; what it returns is awaited where that can be. An exception of it ends the run as Ctrl-C does, and is
    raised; a slow one makes the run wait only where it is 10,000 lines behind. Returns once the sinks are up to date;
    of one that is given up a warning is logged as `koderz`. Raises KoderzError for what is wrong before anything is
    spent, and Unreachable where the model can't be asked.
    """

    async def begun(observer: Observer, listener: EventObserver | None) -> SessionResult:
        planned = await _planned(problems, model, solver_args, settings, observer)
        return await begin(planned, observer, listener=listener)

    return await _heard(begun, on_event)


@_with_settings
async def stream(
    problems: range | Sequence[str] | None = None,
    *,
    model: str | Sequence[str] | None = None,
    solver_args: Mapping[str, Any] | None = None,
    **settings: Unpack[Keywords],
) -> AsyncGenerator[dict[str, Any], None]:
    """Runs a benchmark and yields each line of its journal, as `on_event` of `benchmark` has them.

    Arguments and errors as for `benchmark`. Whoever leaves the loop ends the run as Ctrl-C does.
    """
    lines: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(1)
    is_left = False

    async def offer(line: dict[str, Any]) -> None:
        await lines.put(line)
        if is_left:
            raise _Left

    async def whole() -> None:
        try:
            await benchmark(
                problems, model=model, solver_args=solver_args, on_event=offer, **settings
            )
        finally:
            await lines.put(None)

    running = asyncio.create_task(whole())
    try:
        while (line := await lines.get()) is not None:
            yield line
        await running
    finally:
        is_left = True
        while not running.done():
            if await lines.get() is None:
                await asyncio.wait([running])
        if not running.cancelled() and not isinstance(running.exception(), _Left | None):
            logging.getLogger("koderz").warning(
                "the run that was left ended with: %s", running.exception()
            )


class _Left(Exception):
    """Ends a run whose lines nobody wants any more."""


@_with_settings
async def plan(
    problems: range | Sequence[str] | None = None,
    *,
    model: str | Sequence[str] | None = None,
    solver_args: Mapping[str, Any] | None = None,
    **settings: Unpack[Keywords],
) -> Forecast:
    """Plans a benchmark, with its calls, tokens and cost in dollars, and spends nothing.

    Arguments and errors as for `benchmark`. A notebook shows the forecast as a table; `lines()` has it as text, and
    `estimate` the figures.
    """
    planned = await _planned(problems, model, solver_args, settings, observer_here())
    return await asyncio.to_thread(forecast_of, planned)


@_with_settings
async def decide(
    a: str,
    b: str,
    problems: range | Sequence[str] | None = None,
    *,
    against: str | None = None,
    **settings: Unpack[Keywords],
) -> Run:
    """Compares model B with model A, stops once it is decided, and returns the summary, whose `decision` says what.

    `against`: the arm that others are compared with, if not the first. Other arguments and errors as for `benchmark`,
    of which `alpha`, `margin`, `min_tasks` and `max_cost` say when to stop. The solver is zero-shot if none is given.
    """
    if a == b:
        raise KoderzError(f"A and B are both {a}; name two models")
    if settings.keys().isdisjoint({"mode", "solver", "solvers", "matrix"}):
        settings["mode"] = "zero-shot"
    settings["until_decided"] = against or FIRST_ARM
    return await benchmark(problems, model=(a, b), **settings)


async def resume(
    run: str | Summary = "latest",
    *,
    results: Path | None = None,
    past_decision: bool = False,
    on_event: OnEvent | None = None,
    **changes: Unpack[Changes],
) -> Run:
    """Resumes a run where it stopped; nothing on record is asked, judged or paid for again.

    `run` is a run itself, or is named as on the command line: by its id, a unique prefix, a summary file, `latest` or
    `latest~1`; `results` is its folder. `changes` are settings that may differ from the run's, such as `max_cost`, and
    functions that the program hands over again. With `past_decision` the rest of a decided run is asked, too; its
    decision stays what it was. `on_event` is called, as by `benchmark`, with each line that is added. Unlike on the
    command line, runs that were planned together with it are left as they are. Raises KoderzError where there is no
    such run, or where it can't be resumed as it is.
    """
    return await _resume(
        run, ResumeOptions("resume", past_decision=past_decision), results, changes, on_event
    )


async def retry(
    run: str | Summary = "latest",
    *,
    causes: Sequence[str] = (),
    results: Path | None = None,
    on_event: OnEvent | None = None,
    **changes: Unpack[Changes],
) -> Run:
    """Retries the experiments of a run that ended in a fault, or in one of some `causes`, words of `tracker.errors`.

    Other arguments and errors are those of `resume`.
    """
    return await _resume(run, ResumeOptions("retry", causes=causes), results, changes, on_event)


async def rescore(
    run: str | Summary = "latest",
    *,
    results: Path | None = None,
    calls: bool = False,
    on_event: OnEvent | None = None,
    **changes: Unpack[Changes],
) -> Run:
    """Judges a run anew: its solvers run again over the recorded replies. No call is made unless `calls`.

    Other arguments and errors as for `resume`.
    """
    return await _resume(run, ResumeOptions("rescore", calls=calls), results, changes, on_event)


@_with_settings
async def run(
    task: str,
    *,
    model: str | None = None,
    on_event: OnEvent | None = None,
    **settings: Unpack[Keywords],
) -> Run:
    """Runs one experiment and returns its summary.

    `task` is a task's id; `on_event`, `settings` and errors as for `benchmark`. The journal lies in the results folder;
    there is no run id and no summary file.
    """
    given = hand_over(settings) | {"problems": (task,), "samples": 1}
    if model is not None:
        given["local_model"] = model

    async def begun(observer: Observer, listener: EventObserver | None) -> SessionResult:
        return await begin(await prepare(given, None, single=True), observer, listener=listener)

    return await _heard(begun, on_event, NullObserver())


async def _planned(
    problems: range | Sequence[str] | None,
    model: str | Sequence[str] | None,
    solver_args: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
    observer: Observer,
) -> Plan:
    given = hand_over(settings)
    span = problems if isinstance(problems, range) else None
    if span is not None and span.step != 1:
        raise KoderzError(f"a range of tasks goes up by one, not by {span.step}")
    if problems is not None and span is None:
        given["problems"] = tuple(problems)
        if not given["problems"]:
            raise KoderzError(
                "an empty list of tasks leaves nothing to run; None means all of them"
            )
    if isinstance(model, str):
        given["local_model"] = model
    elif model is not None:
        given |= {"local_model": next(iter(model), ""), "models": tuple(model)}
    arguments = {key: str(value) for key, value in (solver_args or {}).items()}
    return await prepare(given, span, solver_arguments=arguments, observer=observer)


async def _resume(
    run: str | Summary,
    way: ResumeOptions,
    results: Path | None,
    changes: Mapping[str, Any],
    on_event: OnEvent | None,
) -> Run:
    named = hand_over(changes)
    # the record names the others
    given = {name: value for name, value in changes.items() if named[name] == value}
    name = run if isinstance(run, str) else str(of_summary(run).path)

    async def resumed(observer: Observer, listener: EventObserver | None) -> SessionResult:
        return await resume_run(
            name, way, results=results, changes=given, observer=observer, listener=listener
        )

    return await _heard(resumed, on_event)


async def _heard(
    session: Callable[[Observer, EventObserver | None], Awaitable[SessionResult]],
    on_event: OnEvent | None,
    observer: Observer | None = None,
) -> Run:
    """The run of a session, each line of which `on_event` has been called with."""
    observer = observer or observer_here()
    if on_event is None:
        return await _ended(await session(observer, None))
    events = EventObserver(on_event, observer)
    async with events.delivering():
        return await _ended(await session(events, events))


async def _ended(session: SessionResult) -> Run:
    """The run, once its sinks are up to date. Raises Unreachable if it ended because no model could be asked."""
    await settle_sinks(session)
    if session.sinks is not None and "memory" in session.sinks.sinks:
        from koderz.analysis.claims import lines_after
        from koderz_tracker.memory import store_path

        where = store_path(session.folder.parent)
        for line in await asyncio.to_thread(
            lines_after, where, [session.folder.name], session.summary.decision
        ):
            logging.getLogger("koderz").info("%s", line)
    return of_summary(raise_if_failed(session), session.summary_path or session.folder)
