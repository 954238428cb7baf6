"""`koderz rlm run`: OOLONG, BrowseComp-Plus and RULER by recursive language models, one after the other."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from koderz.cli.console import say, say_all, warn
from koderz.cli.front import Front, exit_code, interruptible, run_options, take_sample
from koderz.cli.groups import PanelCommand, new_group
from koderz.cli.session import SessionScreen, next_steps
from koderz.settings.options import flag_of, without_effect
from koderz.settings.schema import OF_PROGRAMS

if TYPE_CHECKING:
    from koderz.plans.plan import Plan
    from koderz.runs.session import SessionResult
    from koderz.systems.long_context.benchmarks import BenchmarkParameters
    from koderz_tracker.records import Record

_SUITES = ("oolong", "browsecomp-plus", "ruler")
_WIDE, _THIN = "#" * 80, "=" * 80
_TESTS: Mapping[str, tuple[str, Sequence[str]]] = {
    "oolong": (
        "difficult long-context tasks including:",
        (
            "Fact retrieval",
            "Multi-hop reasoning",
            "Comparative analysis",
            "Summarization",
            "Inference",
        ),
    ),
    "deep_research": (
        "complex research tasks including:",
        (
            *(
                "Literature review",
                "Competitive analysis",
                "Technical evaluation",
                "Market research",
            ),
            "Scientific synthesis",
        ),
    ),
    "ruler": (
        "needle-in-haystack retrieval across:",
        (
            "Different context lengths (1K to 10M+ tokens)",
            "Different needle positions (beginning, middle, end, distributed)",
            "Different needle types (factual, numerical, entities, dates, quotes)",
        ),
    ),
}
"""The description of each benchmark's tests, in the words of the runner whose screen this is."""

_HELP = {
    "mode": "comparative: direct and rlm on the same tasks; zero-shot: direct alone. Default: --solver rlm.",
    "problems": "Only these tasks, by id or index, separated by commas.",
    "limit": "Tasks of each benchmark, in place of --max-tasks and its halves.",
    "concurrency": "With --async: maximum tasks at work at once. Default: 5.",
    "pool_size": "With --async: maximum cells of code at once, and sessions made ahead. Default: 3.",
}
"""The help of settings whose meaning differs here."""

app = new_group(
    "Benchmarks of long texts by recursive language models, whose code runs in WASM.",
    examples=["koderz rlm run --simulated --benchmark ruler --max-tasks 4"],
)


@app.callback()
def group() -> None:
    """Makes this a group, which has commands by name even if it has only one."""


def _own(help_text: str, metavar: str | None = None, *flags: str, **more: Any) -> Any:
    return typer.Option(
        *flags, metavar=metavar, help=help_text, rich_help_panel="Benchmarks", **more
    )


@app.command(cls=PanelCommand)
@run_options(
    without={
        **dict.fromkeys((*OF_PROGRAMS, "detach"), ""),
        "suite": "--benchmark, which says which suite",
        "dataset": "--dataset-dir, which says where the suites' files are",
    },
    parts=[("suite", name) for name in _SUITES],
    told=_HELP,
    solver="rlm",
    local_model="gpt-5",
    concurrency=5,
    pool_size=3,
)
def run(
    front: Front,
    benchmark: Annotated[
        Literal["oolong", "deep_research", "ruler", "all"],
        _own("The benchmark: oolong, deep_research, ruler or all.", "NAME"),
    ] = "all",
    max_tasks: Annotated[
        int, _own("Tasks of each benchmark; of all, half as many for deep_research.", "N", min=1)
    ] = 10,
    dataset_dir: Annotated[
        Path | None, _own("Data sets: oolong/, browsecomp-plus/, browsecomp-plus-corpus/.", "DIR")
    ] = None,
    api_key: Annotated[
        str | None, _own("The server's key. Default: LLM_API_KEY, or OPENAI_API_KEY.", "KEY")
    ] = None,
    simulated: Annotated[
        bool, _own("Ask the simulated model, which needs no key.", None, "--simulated")
    ] = False,
    output_dir: Annotated[str, _own("Where summary.json and the results go.", "DIR")] = "results",
    no_save: Annotated[
        bool, _own("Write no such files; the journals stay.", None, "--no-save")
    ] = False,
    enable_logging: Annotated[
        bool,
        _own(
            "A line for each turn, cell and sub-call on standard error.", None, "--enable-logging"
        ),
    ] = False,
    is_async: Annotated[
        bool,
        _own(
            "--concurrency tasks at once, and --pool-size cells; else one after another.",
            None,
            "--async",
        ),
    ] = False,
) -> None:
    """Run the benchmarks in turn. All are planned before the first call, and koderz benchmark resume goes on with all.

    The model is a name of an OpenAI-compatible server. LLM_API_KEY, LLM_MODEL, LLM_BASE_URL and
    WASM_MANAGER_SERVICE_URL count where no flag is given.

    Examples:
        koderz rlm run --simulated --benchmark ruler --max-tasks 4
        koderz rlm run --model gpt-5 --benchmark all --dry-run
    """
    from koderz.systems.long_context.benchmarks import BENCHMARKS

    parameters = _parameters(front, api_key, simulated=simulated, is_async=is_async)
    parameters = replace(
        parameters,
        max_tasks=max_tasks,
        dataset_dir=dataset_dir,
        output=None if no_save else output_dir,
    )
    names = tuple(BENCHMARKS) if benchmark == "all" else (benchmark,)
    with interruptible():
        raise typer.Exit(asyncio.run(_run(front, names, parameters, enable_logging=enable_logging)))


def _parameters(
    front: Front, api_key: str | None, *, simulated: bool, is_async: bool
) -> BenchmarkParameters:
    """The parameters of the runs: flags over variables over defaults."""
    from koderz.systems.long_context.benchmarks import (
        BenchmarkParameters,
        model_name,
        sub_model,
        with_key,
    )

    values, environ = dict(front.values), os.environ
    if not is_async and (idle := [name for name in ("concurrency", "pool_size") if name in values]):
        raise without_effect(flag_of(idle[0]), "a run with --async")
    base_url = values.get("base_url") or environ.get("LLM_BASE_URL")
    model = (
        values.pop("local_model", None)
        or environ.get("LLM_MODEL")
        or str(front.usual["local_model"])
    )
    settings: dict[str, Any] = {"local_model": "simulated"}
    if simulated or model == "simulated":
        model, _ = "simulated", values.pop("base_url", None)
    else:
        settings, found = (
            with_key(api_key, environ) if front.sample or not front.dry_run else ({}, {})
        )
        # for whatever this process starts, and for what keeps secrets out of records
        environ.update(found)
        settings |= {
            "local_model": model_name(model, base_url),
            "base_url": base_url,
            **sub_model(environ, base_url),
        }
    return BenchmarkParameters(
        model=model,
        max_depth=values.pop("max_depth", 3),
        concurrency=values.get("concurrency", front.usual["concurrency"]) if is_async else 1,
        pool_size=values.get("pool_size", front.usual["pool_size"]) if is_async else None,
        settings=settings
        | {
            name: value
            for name, value in values.items()
            if name not in ("concurrency", "pool_size")
        },
    )


async def _run(
    front: Front, names: Sequence[str], parameters: BenchmarkParameters, *, enable_logging: bool
) -> int:
    from koderz.engines.sources import require_effect
    from koderz.runs.session import lay_down
    from koderz.systems.long_context.benchmarks import carry_out, plan_benchmarks, sidecar

    place = await sidecar(parameters.settings.get("wasm_url"), os.environ)
    parameters = replace(parameters, settings={**parameters.settings, "wasm_url": place})
    screen = _Screen(front, parameters, enable_logging=enable_logging)
    plans = await plan_benchmarks(
        names, parameters, os.environ, screen, scope=front.scope, trust_config=front.trust_config
    )
    require_effect([*plans.values()], front.values)
    if front.dry_run:
        from koderz.cli.overview import show_plan
        from koderz.plans.plan import sample_of

        codes = [0]
        for plan in plans.values():
            sampled = await take_sample(sample_of(plan, front.sample)) if front.sample else None
            show_plan(plan, json=front.shown.json, sampled=sampled)
            if sampled:
                _catch_up(front, [sampled])
                codes.append(exit_code(sampled))
        return max(codes)
    await lay_down([*plans.values()], os.environ)
    runs = {name: plan.name for name, plan in plans.items()}
    screen.begin(runs)
    ended: dict[str, SessionResult] = {}
    async for session in carry_out([*plans.values()], os.environ, screen):
        name = list(plans)[len(ended)]
        ended[name] = session
        screen.ended(name, plans[name], session)
    screen.end(ended, runs)
    _catch_up(front, [*ended.values()])
    return max(map(exit_code, ended.values()))


def _catch_up(front: Front, sessions: Sequence[SessionResult]) -> None:
    from koderz.cli.sync import catch_up_session

    for session in sessions:
        catch_up_session(session, quiet=front.shown.quiet, wait=front.shown.wait)


class _Screen(SessionScreen):
    """The screen of the runner that this command imitates; progress and warnings are on standard error."""

    def __init__(
        self, front: Front, parameters: BenchmarkParameters, *, enable_logging: bool
    ) -> None:
        super().__init__(front.shown)
        self._json, self._common, self._is_logging = front.shown.json, parameters, enable_logging
        self._steps: Any = None
        self._names: Mapping[str, str] = {}  # the benchmarks by their runs

    def recorded(self, record: Record) -> None:
        if self._is_logging and (line := self._steps.tell_record(record)):
            warn(line)

    def begin(self, runs: Mapping[str, str]) -> None:
        """Prints the header of all runs; `runs`: by the benchmarks' names."""
        parameters, self._names = self._common, {run: name for name, run in runs.items()}
        at_once = [
            ("Max Concurrency", parameters.concurrency),
            ("RLM Pool Size", parameters.pool_size),
        ]
        rows = [
            ("Model", parameters.model),
            ("Max Depth", parameters.max_depth),
            ("Max Tasks", parameters.max_tasks),
        ]
        rows += [
            *(at_once if parameters.pool_size is not None else ()),
            ("Output Directory", parameters.output or "none"),
        ]
        self._print(_WIDE, "RLM BENCHMARK SUITE - SIDECAR WASM PATTERN", _WIDE)
        self._print(
            "Running comprehensive benchmark suite with sidecar WASM execution",
            "",
            "Configuration:",
        )
        self._print(*(f"  {name}: {value}" for name, value in rows))
        self._print(f"  WASM: {_place(parameters)}")

    def header(self, plan: Plan) -> None:
        from koderz.runs.observer import Steps

        self._steps = Steps(plan.record)
        name = self._names[plan.name]
        what, kinds = _TESTS[name]
        heading = name.replace("_", " ").upper()
        self._print("", _THIN, f"{heading} BENCHMARK", _THIN, "")
        called = heading if name != "deep_research" else "Deep Research"
        self._print(f"Running {called} benchmark with {len(plan.tasks)} examples...")
        self._print(f"Tasks: {plan.suite.name} ({plan.suite.source})", f"Run: {plan.name}")
        if plan.record.simulated:
            self._print("SIMULATED MODEL: these figures say nothing about any real one")
        self._print(f"This benchmark tests {what}", *(f"  - {kind}" for kind in kinds), "")

    def ended(self, name: str, plan: Plan, session: SessionResult) -> None:
        from koderz.analysis.runs import breakdown_blocks
        from koderz.cli.tables import print_blocks
        from koderz.systems.long_context.benchmarks import BENCHMARKS
        from koderz.systems.long_context.results import file_of, part_of

        part = part_of(plan.record, session.summary, BENCHMARKS[name].name)
        metrics = part["metrics"]
        self._print(f"{part['name']} Results:", f"  Accuracy: {metrics['overall_accuracy'] or '-'}")
        self._print(
            f"  Correct: {metrics['correct_tasks']}/{metrics['total_tasks']}",
            *_times(part, "Avg Time per Task"),
        )
        self._print(*(f"  {caveat}" for caveat in session.summary.judge.get("caveats", ())))
        if self._common.output:
            self._print(f"  Results saved to: {Path(self._common.output, file_of(name))}")
        if session.summary.breakdown and not self._json:
            say()
            print_blocks(breakdown_blocks(session.summary.breakdown))
        for line in next_steps(session.summary, session.folder.name):
            warn(line)

    def end(self, ended: Mapping[str, SessionResult], runs: Mapping[str, str]) -> None:
        from koderz.systems.long_context.benchmarks import about
        from koderz.systems.long_context.results import SUMMARY, summary_document

        first = next(iter(ended))
        document = summary_document(ended[first].folder.parent, about(first, runs, self._common))
        if self._json:
            from koderz.cli.console import print_json

            print_json(document)
            return
        self._print(
            "",
            _WIDE,
            "BENCHMARK SUMMARY",
            _WIDE,
            "",
            f"Total Execution Time: {document['total_time']:.2f}s",
            "",
        )
        for name, session in ended.items():
            part = document["benchmarks"].get(name)
            say_all(_summary_lines(name, part, session))
        for name in [name for name in runs if name not in ended]:
            self._print(
                f"{name.replace('_', ' ').upper()}:", f"  Status: NOT RUN - resume {runs[name]}", ""
            )
        if self._common.output:
            self._print(f"✓ Summary saved to: {Path(self._common.output, SUMMARY)}")
        is_whole = len(ended) == len(runs) and all(
            each.ended.status != "interrupted" for each in ended.values()
        )
        self._print(
            "", _THIN, f"Benchmark execution {'completed!' if is_whole else 'stopped'}", _THIN
        )

    def _print(self, *lines: str) -> None:
        if not self._json:
            say_all(lines)
            sys.stdout.flush()


def _place(parameters: BenchmarkParameters) -> str:
    """The place where code runs."""
    from koderz.systems.long_context.wasm.image import missing_packages

    if manager := parameters.settings.get("wasm_url"):
        return f"the manager at {manager}"
    kind = parameters.settings.get("session") or ("native" if missing_packages() else "wasm")
    return "koderz' own workers" if kind == "wasm" else "none; code runs natively, contained"


def _summary_lines(
    name: str, part: Mapping[str, Any] | None, session: SessionResult
) -> Iterator[str]:
    yield f"{name.replace('_', ' ').upper()}:"
    if part is None or not part["metrics"]["total_tasks"]:
        faults = session.summary.faults
        yield f"  Status: FAILED - {faults[0]['reason'] if faults else session.ended.reason}"
    else:
        is_whole = session.ended.status in ("complete", "incomplete")
        yield f"  Status: {'COMPLETED' if is_whole else f'{session.ended.status.upper()} - {session.ended.reason}'}"
        yield f"  Accuracy: {part['metrics']['overall_accuracy']}"
        yield from _times(part, "Avg Time/Task")
    yield ""


def _times(part: Mapping[str, Any], each: str) -> Iterator[str]:
    yield f"  Total Time: {part['total_time']:.2f}s"
    if part["avg_time_per_task"] is not None:
        yield f"  {each}: {part['avg_time_per_task']:.2f}s"
