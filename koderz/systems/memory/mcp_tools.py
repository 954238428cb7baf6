"""The tools of `koderz mcp serve` that read runs and plan new ones. Nothing is asked or spent by them."""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from koderz.errors import KoderzError
from koderz.systems.memory.allowance import Allowance
from koderz.systems.memory.tools import Cursor, Tool, fitting
from koderz_tracker.memory.cortex import Cortex
from koderz_tracker.memory.memories import moment
from koderz_tracker.records import Fault
from koderz_tracker.runs import is_locked

RunName = Annotated[str, Meta(description="A run's id, the beginning of it, latest or latest~1.")]


@dataclass(frozen=True, slots=True)
class Desk:
    """Where the tools for runs work."""

    results: Path
    allowance: Allowance | None = None  # without one, nothing is begun
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def folder(self, name: str) -> Path:
        """The run of this name in the results folder. Raises KoderzError; a path is no name here."""
        from koderz.analysis.runs import find

        if not re.fullmatch(r"\w+|latest~\d+", name):
            raise KoderzError(
                f"{name!r} is no run: give its id, the beginning of it, latest or latest~1"
            )
        found = find(self.results, name)
        return found.with_suffix("") if found.suffix == ".json" else found

    def is_worked_on(self, run: Path) -> bool:
        """Whether a process works on a run, or is about to, or still hands it to the sinks."""
        is_held = self.allowance is not None and self.allowance.holder(run.name) is not None
        return is_held or (run.is_dir() and is_locked(run))


class RunTool(Tool, frozen=True):
    """A tool that works on the runs of a results folder."""

    async def call(self, cortex: Cortex) -> Any:  # noqa: ARG002
        raise KoderzError("this tool is one of koderz mcp serve")

    async def work(self, desk: Desk) -> Any:
        """The tool's answer. What reads files does so beside the event loop."""
        return await asyncio.to_thread(self.read, desk)

    def read(self, desk: Desk) -> Any:
        raise NotImplementedError


class ListRuns(RunTool, frozen=True):
    """Runs, the newest first, each arm with its success rate, the rate's 95 % interval, and costs."""

    model: Annotated[str, Meta(description="Only models with this in their name.")] | UnsetType = (
        UNSET
    )
    mode: str | UnsetType = UNSET
    suite: str | UnsetType = UNSET
    since: Annotated[str, Meta(description="Only runs begun since; ISO 8601.")] | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=200)] = 20
    cursor: Cursor | UnsetType = UNSET

    def read(self, desk: Desk) -> Any:
        from koderz.analysis.catalogue import chosen, load_catalogue

        found = load_catalogue(desk.results)
        narrowed = {name: getattr(self, name) or None for name in ("model", "mode", "suite")}
        since = moment(self.since) if self.since else None
        rows = chosen(found.rows, tags=self.tags or (), since=since, **narrowed)
        rows = sorted(rows, key=lambda row: (row.started, row.run_id), reverse=True)
        before = self.cursor or "~"
        left = [row for row in rows if f"{row.started} {row.run_id}" < before]
        page = fitting(map(_row, left[: self.limit]), self.max_characters)
        answer: dict[str, Any] = {"found": len(rows), "runs": page}
        if len(page) < len(left):
            answer["cursor"] = f"{left[len(page) - 1].started} {left[len(page) - 1].run_id}"
        return answer | ({"unreadable": found.unreadable} if found.unreadable else {})


def _row(row: Any) -> dict[str, Any]:
    """A row of the catalogue, each rate with its interval."""
    arms = {arm.solver: _told(arm, "rate interval passed judged cost") for arm in row.arms}
    for arm in row.arms:
        if arm.average is not None:
            arms[arm.solver] |= {"measure": arm.average.measure.name, "rate": None}
            arms[arm.solver] |= _told(arm.average, "mean interval")
    return {
        **_told(row, "run_id status mode model suite started planned faults cost simulated tags"),
        "arms": arms,
    }


def _told(about: Any, names: str) -> dict[str, Any]:
    return {name: getattr(about, name) for name in names.split()}


_FIGURES = "successes total_problems total_cost cost_known cost_per_success causes"


class ShowRun(RunTool, frozen=True):
    """One run, also while it goes on: status, arms with rates, intervals, costs and causes, faults, what it decided."""

    run: RunName = "latest"

    def read(self, desk: Desk) -> Any:
        from koderz.analysis.runs import find, load_run
        from koderz.analysis.sequential import decision_lines

        folder = desk.folder(self.run)
        is_worked_on = desk.is_worked_on(folder)
        run = load_run(find(desk.results, folder.name))
        arms = {}
        for name, arm in run.arms.items():
            arms[name] = _told(arm.summary, _FIGURES) | {"rate": arm.summary.success_rate}
            arms[name]["interval"] = arm.summary.success_rate_interval
            means = {
                measure: _told(mean, "mean interval")
                for measure, mean in arm.summary.measures.items()
            }
            arms[name]["measures"] = {
                measure: told for measure, told in means.items() if told["interval"]
            }
        return {
            **_told(run, "run_id reason mode model suite planned cautions simulated"),
            "status": "running" if is_worked_on else run.status,
            "judged": len(run.results),
            "paid": run.paid.get("total", 0.0),
            "faults": Counter(str(fault.get("cause") or "unknown") for fault in run.faults),
            "decision": [*decision_lines(run)] if run.decision else [],
            "arms": arms,
        }


class Failures(RunTool, frozen=True):
    """Experiments that a run did not pass, by cause, and faults apart. With a problem: each attempt's program,
    verdict, and what the solver was told."""

    run: RunName = "latest"
    arm: str | UnsetType = UNSET
    cause: Annotated[str, Meta(description="Only this one.")] | UnsetType = UNSET
    problem: (
        Annotated[str, Meta(description="The attempts on this task, passed or not.")] | UnsetType
    ) = UNSET
    cursor: Cursor | UnsetType = UNSET

    def read(self, desk: Desk) -> Any:
        from koderz.analysis.story import Experiments, journal_folder, problem_named

        experiments = Experiments(journal_folder(desk.folder(self.run)))
        mine = [each for each in experiments.outcomes if self.arm in (UNSET, each.arm)]
        if self.problem is not UNSET:
            name = problem_named(self.problem, experiments.plan.tasks)
            return {
                "problem": name,
                "stories": [_story(experiments.story(e)) for e in mine if e.problem_id == name],
            }
        found = [each for each in mine if not getattr(each, "success", False)]
        found = [each for each in found if self.cause in (UNSET, each.cause)]
        ids = [each.experiment_id for each in found]
        if self.cursor is not UNSET and self.cursor not in ids:
            raise KoderzError(
                f"cursor {self.cursor[:40]!r}: give the one of the answer before, as it is"
            )
        left = found[ids.index(self.cursor) + 1 :] if self.cursor is not UNSET else found
        page = fitting(map(_failure, left), self.max_characters - 2000)
        more = {"cursor": left[len(page) - 1].experiment_id} if len(page) < len(left) else {}
        causes = Counter(
            f"fault: {e.cause}" if isinstance(e, Fault) else e.cause or e.verdict for e in found
        )
        counts = {"of": len(mine), "found": len(found), "by_cause": dict(causes.most_common(20))}
        return {**counts, "failures": page, **more}


def _failure(outcome: Any) -> dict[str, Any]:
    names = ("problem_id", "arm", "sample", "verdict", "cause", "iterations", "cost", "reason")
    return {
        name: value for name in names if (value := getattr(outcome, name, None)) not in (None, "")
    }


def _story(story: Any) -> dict[str, Any]:
    attempts = [
        {
            **_told(each, "number verdict cause"),
            "told": str(each.feedback or ""),
            "program": each.program if isinstance(each.program, str) else None,
        }
        for each in story.attempts
    ]
    return {**_failure(story.outcome), "attempts": attempts}


class CompareRuns(RunTool, frozen=True):
    """Whether B, the last named, is better than A: the verdict with its interval, and the tasks that were lost and
    gained. One comparative run alone: its arms. Several: a leaderboard."""

    runs: Annotated[list[RunName], Meta(min_length=1, max_length=20)]
    arm: str | UnsetType = UNSET
    measure: str | UnsetType = UNSET
    allow_simulated: Annotated[
        bool, Meta(description="Also runs of the simulated model, which show nothing.")
    ] = False
    details: Annotated[
        bool, Meta(description="Also methods, causes of failures and all notes.")
    ] = False

    def read(self, desk: Desk) -> Any:
        from koderz.analysis.compare import compare_runs

        chosen: dict[str, Any] = {"arm": self.arm or None, "measure": self.measure or None}
        names = [desk.folder(name).name for name in self.runs]
        found = compare_runs(names, desk.results, allow_simulated=self.allow_simulated, **chosen)
        document = found.document()
        if self.details or "headline" not in document:
            return {
                "runs": names,
                "told": "\n".join(filter(None, found.markdown(details=self.details))),
            }
        told = {
            name: document[name] for name in ("headline", "interval", "lost", "gained", "notes")
        }
        return {"runs": names, **told}


class NewRun(RunTool, frozen=True):
    """The tasks and settings of a new run."""

    suite: (
        Annotated[str, Meta(description="The name of a suite, such as humaneval.")] | UnsetType
    ) = UNSET
    start: Annotated[int, Meta(ge=0, description="The first task's index.")] | UnsetType = UNSET
    end: Annotated[int, Meta(ge=0, description="The index after the last task's.")] | UnsetType = (
        UNSET
    )
    problems: Annotated[list[str], Meta(description="Only these tasks, by id.")] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    mode: Literal["zero-shot", "iterative", "comparative"] | UnsetType = UNSET
    solver: Annotated[str, Meta(description="A solver's name, instead of a mode.")] | UnsetType = (
        UNSET
    )
    samples: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    options: (
        Annotated[
            dict[str, Any],
            Meta(
                description="Other options of koderz benchmark by name, such as max_iterations or temperature."
            ),
        ]
        | UnsetType
    ) = UNSET

    def given(self) -> dict[str, Any]:
        """The settings of the run, as the command line would have them."""
        found = {
            name: getattr(self, name) for name in ("suite", "limit", "mode", "solver", "samples")
        }
        named = {name: value for name, value in found.items() if value is not UNSET}
        return {
            **(self.options or {}),
            **named,
            **({"problems": tuple(self.problems)} if self.problems else {}),
        }

    @property
    def span(self) -> range | None:
        if self.start is UNSET and self.end is UNSET:
            return None
        if self.start is UNSET or self.end is UNSET:
            raise KoderzError(
                "a range of tasks takes both start and end: 0 and 10 are the first ten"
            )
        return range(self.start, self.end)


class Plan(NewRun, frozen=True, kw_only=True):
    """Say what a run would do and cost, before anything is spent: tasks, calls, tokens, prices. Nothing is written."""

    models: Annotated[
        list[str], Meta(min_length=1, description="Such as openai/gpt-6-luna or simulated.")
    ]

    def given(self) -> dict[str, Any]:
        return {**NewRun.given(self), "local_model": self.models[0], "models": tuple(self.models)}

    async def work(self, desk: Desk) -> Any:
        from koderz.analysis.forecast import forecast_of

        plan, notes = await planned(self, desk)
        forecast = await asyncio.to_thread(forecast_of, plan, desk.environ)
        left = {} if desk.allowance is None else {"allowance_left": desk.allowance.left()}
        return {"plan": forecast.lines(), "cost": forecast.estimate.cost, "notes": notes, **left}


async def planned(new: NewRun, desk: Desk, **more: Any) -> tuple[Any, list[str]]:
    """The plan of a new run, and what is to be said of it. Raises KoderzError for what a client may not ask for."""
    from koderz.engines.sources import require_effect
    from koderz.runs.observer import NullObserver
    from koderz.runs.prepare import prepare

    class Notes(NullObserver):
        def __init__(self) -> None:
            self.told: list[str] = []

        def notice(self, text: str) -> None:
            self.told.append(text)

    notes = Notes()
    given = new.given()
    if refused := sorted(_refused(given)):
        raise KoderzError("; ".join(refused))
    span = new.span
    if span is None and given.keys().isdisjoint({"problems", "limit"}):
        raise KoderzError(
            "say which tasks: start and end (0 and 10 are the first ten), problems or limit"
        )
    plan = await prepare(
        {**given, "results": desk.results, **more}, span, observer=notes, environ=desk.environ
    )
    require_effect([plan], [*given])
    return plan, notes.told


def _refused(given: Mapping[str, Any]) -> Iterator[str]:
    """Why a client may not ask for these settings: they run code, reach files or addresses, or pass the cap."""
    from koderz.engines.sources import schema_here
    from koderz.settings.trust import SENDS, risks_of
    from koderz.solvers import SOLVERS
    from koderz.suites import SUITES

    for name in given.keys() & {"results", "max_cost", "trust_config"}:
        yield f"{name} is settled where koderz mcp serve was started"
        return
    for name in given.keys() & {"suite", "solver"}:
        chosen = str(given[name])
        if ":" in chosen or (SUITES if name == "suite" else SOLVERS).is_file(chosen):
            yield f"{name} {given[name]}: a client can't have files of code run; koderz benchmark can"
            return
    schema = schema_here(given)
    for name, risk in risks_of(schema.fields, schema.from_flags(given), lambda *_: False).items():
        is_known = name == "solver" or (name == "use_memory" and risk == SENDS)
        if not is_known:
            yield f"{name}: it could {risk}, so it is taken from koderz.toml and the command line alone"


READING: tuple[type[RunTool], ...] = (ListRuns, ShowRun, Failures, CompareRuns, Plan)
