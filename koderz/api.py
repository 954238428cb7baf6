"""The Python API: the same power as the command line.

import koderz

summary = await koderz.benchmark(range(0, 10), mode="comparative", model="qwen2.5-coder:32b")
print(summary.comparison)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from koderz.config import Config, load_config
from koderz.errors import KoderzError
from koderz.orchestrator import Ended
from koderz.plan import Plan, make_plan, restore_plan
from koderz.replay import Replaying
from koderz.selection import select_tasks
from koderz.session import (
    NOTHING_TO_DO,
    Audience,
    Nobody,
    Session,
    begin,
    carry_on,
    close,
    plan_line,
    raise_if_failed,
    risky_settings,
)
from koderz.settings import FIELDS, Settings, checked, from_environment, layered
from koderz.trust import require_trust
from tracker.runs import find_run
from tracker.summary import Summary
from tracker.tracker import Tracker

CHANGEABLE = ("concurrency", "max_cost", "judges", "grace")
"""The settings that may differ when a run is picked up again."""


async def benchmark(
    problems: range | Sequence[str] | None = None,
    *,
    model: str | None = None,
    solver_args: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Summary:
    """Runs a benchmark and returns its summary.

    `problems` is a range of the suite's tasks, a sequence of ids, or None for all. `settings` are the fields
    of `koderz.Settings`; environment and koderz.toml count as on the command line. Raises KoderzError for
    what is wrong before anything is spent, and Unreachable where the model can't be asked.
    """
    span = problems if isinstance(problems, range) else None
    if span is not None and span.step != 1:
        raise KoderzError(f"a range of problems goes up by one, not by {span.step}")
    if problems is not None and span is None:
        settings["problems"] = tuple(problems)
    if model is not None:
        settings["local_model"] = model
    arguments = {key: str(value) for key, value in (solver_args or {}).items()}
    plan = await prepare(settings, span, solver_arguments=arguments)
    return raise_if_failed(await start(plan))


async def resume(run: str = "latest", *, results: Path | None = None, **changes: Any) -> Summary:
    """Goes on with a run where it stopped; whatever is recorded is not paid for again."""
    return raise_if_failed(await pick_up(run, how="resume", results=results, changes=changes))


async def retry(run: str = "latest", *, results: Path | None = None, **changes: Any) -> Summary:
    """Runs those experiments again that ended in a fault."""
    return raise_if_failed(await pick_up(run, how="retry", results=results, changes=changes))


async def rescore(run: str = "latest", *, results: Path | None = None, calls: bool = False, **changes: Any) -> Summary:
    """Judges every recorded attempt anew. No call is made unless `calls`."""
    return raise_if_failed(await pick_up(run, how="rescore", results=results, changes=changes, calls=calls))


async def run(task: str, *, model: str | None = None, **settings: Any) -> Summary:
    """One experiment. Its journal lies in the results folder; it has no run id and no summary file."""
    if model is not None:
        settings["local_model"] = model
    plan = await prepare({**settings, "problems": (task,), "samples": 1}, None, single=True)
    return raise_if_failed(await start(plan))


async def prepare(
    given: Mapping[str, Any],
    span: range | None,
    *,
    solver_arguments: Mapping[str, str] | None = None,
    trust_config: bool = False,
    single: bool = False,
    audience: Audience | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Plan:
    """The plan of a new run. Nothing is created, no model is asked; KoderzError for what doesn't fit."""
    unknown = set(given) - set(FIELDS)
    if unknown:
        raise KoderzError(f"there is no setting {min(unknown)!r}")
    flags = {name: checked(name, _plain(value), _flag(name)) for name, value in given.items() if value is not None}
    config = load_config(Path.cwd(), trust=trust_config, environ=environ)
    settings = layered(flags, from_environment(environ), config.settings)
    if single and settings.mode == "comparative":
        raise KoderzError("one experiment has one solver: --mode zero-shot or iterative")
    build = partial(
        make_plan,
        select=_selection(settings, span),
        problem_range=f"{span.start}-{span.stop}" if span is not None else None,
        solver_arguments=solver_arguments,
        details=_details(settings, config),
        single=single,
    )
    build(settings)  # whatever is wrong is said before anybody is asked
    settings = await _with_model(settings, audience or Nobody(), environ)
    return build(settings, specs=_specs(settings, build(settings)))


async def start(plan: Plan, audience: Audience | None = None, environ: Mapping[str, str] = os.environ) -> Session:
    """Carries out a new plan."""
    return await begin(plan, audience or Nobody(), environ)


async def pick_up(
    name: str,
    *,
    how: str,
    results: Path | None = None,
    changes: Mapping[str, Any] | None = None,
    calls: bool = True,
    accept_divergence: bool = False,
    accept_changes: bool = False,
    trust_config: bool = False,
    audience: Audience | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Session:
    """Resumes, retries or rescores a run. Of a finished one there is nothing to do but to redo its summary."""
    folder = find_run(results_folder(results, environ), name)
    with Tracker.reopen(folder) as tracker:
        _require_own(tracker, trust_config, environ)
        overrides = _overrides(changes or {}) | {"results": folder.parent}
        plan = restore_plan(tracker.plan, overrides, accept_changes=accept_changes)
        tracker.select(faults=how in ("retry", "rescore"), judged=how == "rescore")
        done = tracker.tally.judged + tracker.tally.faults
        if how != "rescore" and done == plan.record.planned:
            return close(tracker, _last_end(tracker))
        replaying = Replaying(
            accept_divergence or accept_changes, rescore=how == "rescore", calls_allowed=calls or how != "rescore"
        )
        recorded = {key: value for key, value in (changes or {}).items() if value is not None}
        return await carry_on(plan, tracker, replaying, audience or Nobody(), environ, how=how, changes=recorded)


def results_folder(given: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """Where runs land: `given`, else what environment or koderz.toml say."""
    return given or layered(from_environment(environ), load_config(Path.cwd(), environ=environ).settings).results


def _selection(settings: Settings, span: range | None) -> Any:
    return partial(
        select_tasks,
        start=span.start if span is not None else None,
        end=span.stop if span is not None else None,
        problems=settings.problems,
        limit=settings.limit,
        shuffle=settings.shuffle,
        seed=settings.seed,
    )


def _details(settings: Settings, config: Config) -> dict[str, Any]:
    return {
        "prices": dict(config.prices),
        "base_url_trusted": settings.base_url is None or settings.base_url != config.settings.get("base_url"),
    }


async def _with_model(settings: Settings, audience: Audience, environ: Mapping[str, str]) -> Settings:
    """The settings with a model: the one named, or what answers here; the simulated one where nothing does."""
    if settings.local_model is not None:
        from koderz.models import parse_model_name

        return replace(settings, local_model=str(parse_model_name(settings.local_model)))
    from koderz.models.discover import discover_ollama

    if settings.base_url is not None:
        raise KoderzError("--base-url says where, but not which model: name it with --model")
    found = await discover_ollama(environ)
    if found is None:
        audience.notice(
            "No model is named and no Ollama answers here, so this run uses the SIMULATED model: "
            "its results say nothing about any real one. Name one with --model."
        )
        return replace(settings, local_model="simulated")
    if len(found) == 1:
        return replace(settings, local_model=found[0])
    if not found:
        raise KoderzError("Ollama runs here but has no chat model; get one with: ollama pull qwen2.5-coder:7b")
    raise KoderzError(f"Ollama has several models; name one with --model: {', '.join(found)}")


def _specs(settings: Settings, plan: Plan) -> dict[str, str]:
    """Specifications that are in the cache, if they are to be used again."""
    model = settings.effective_spec_model
    if not (settings.reuse_spec and model):
        return {}
    from koderz.specs import cached_spec

    found = {}
    for task in plan.tasks:
        text = plan.prompts.render("spec", prompt=task.prompt.rstrip(), entry_point=task.entry_point)
        if spec := cached_spec(model, ({"role": "user", "content": text},)):
            found[task.id] = spec
    return found


def _require_own(tracker: Tracker, trust: bool, environ: Mapping[str, str]) -> None:
    """A plan that came from elsewhere could name a solver's file or an address of its own."""
    if risky := risky_settings(tracker.plan.config):
        what = f"{tracker.folder.name}: its plan sets {risky[0].replace('_', '-')}, and it wasn't begun here"
        require_trust(plan_line(tracker.folder), what, grant=trust, environ=environ)


def _last_end(tracker: Tracker) -> Ended:
    return Ended("incomplete" if tracker.tally.faults else "complete", NOTHING_TO_DO)


def _overrides(changes: Mapping[str, Any]) -> dict[str, Any]:
    for name in changes:
        if name not in CHANGEABLE:
            raise KoderzError(f"{name} is settled by the plan; only {', '.join(CHANGEABLE)} may differ")
    return {name: checked(name, value, _flag(name)) for name, value in changes.items() if value is not None}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
