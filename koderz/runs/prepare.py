"""From what the user says to the plan of a new run: nothing is created, no model is asked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from koderz.engines import require_able, traits_of
from koderz.errors import KoderzError
from koderz.experiments.recall import memory_details
from koderz.models.spending import could_spend
from koderz.plans.arms import draft_arms, settle_arms
from koderz.plans.matrix import read_matrix
from koderz.plans.plan import Plan, Subject, load_subject, make_plan
from koderz.plans.selection import select_tasks
from koderz.runs.observer import NullObserver, Observer
from koderz.settings.schema import FIELDS, Settings
from koderz.settings.toml import Sources, read_sources


async def prepare(
    given: Mapping[str, Any],
    span: range | None,
    *,
    solver_arguments: Mapping[str, str] | None = None,
    trust_config: bool = False,
    single: bool = False,
    observer: Observer | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Plan:
    """The plan of a new run. Nothing is created, no model is asked; KoderzError for what doesn't fit."""
    unknown = set(given) - set(FIELDS)
    if unknown:
        raise KoderzError(f"there is no setting {min(unknown)!r}")
    every = (*FIELDS, "prices")
    sources = read_sources(given, environ, names=every, trust_config=trust_config, spends=could_spend)
    settings = sources.settings
    if single:
        settings = replace(settings, samples=1)
    if single and settings.mode == "comparative":
        raise KoderzError("one experiment has one solver: --mode zero-shot or iterative")
    engine = traits_of(settings.engine)
    settings = engine.settle(settings, {*sources.is_ours, *sources.config.settings})
    if settings.use_memory != "off" and "memory" not in engine.can:
        raise KoderzError(f"--use-memory: the engine {settings.engine} can't reach this machine's memory store")
    # Whatever is wrong is said before anybody is asked.
    subject = load_subject(settings, _selection(settings, span))
    arguments = dict(solver_arguments or {})
    matrix = read_matrix(settings.matrix) if settings.matrix else None
    drafts = draft_arms(settings, arguments, matrix)
    memory = await memory_details(settings, any("recall" in draft.solver.wants for draft in drafts), environ)
    if all(draft.model for draft in drafts):  # whom the run is about is said by its arms
        settings = replace(settings, local_model=drafts[0].model, models=())
    settings = await _with_model(settings, observer or NullObserver(), environ)
    specs = _specs(settings, subject)
    details = _details(sources, settings)
    details |= {"solver_arguments": arguments, "specs": specs, **memory}
    plan = make_plan(
        settings,
        subject,
        settle_arms(drafts, settings, arguments, specs),
        cells=matrix.cells_of([task.id for task in subject.tasks], settings.samples) if matrix else None,
        problem_range=f"{span.start}-{span.stop}" if span is not None else None,
        details=details,
        single=single,
    )
    require_able(plan)
    return plan


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


def _details(sources: Sources, settings: Settings) -> dict[str, Any]:
    return {
        "prices": dict(sources.config.prices),
        "base_url_trusted": "base_url" in sources.is_ours or settings.base_url is None,
    }


async def _with_model(settings: Settings, observer: Observer, environ: Mapping[str, str]) -> Settings:
    """The settings with a model: the one named, or what answers here; the simulated one where nothing does."""
    if settings.models or settings.local_model is not None:
        from koderz.models import parse_model_name

        names = tuple(dict.fromkeys(str(parse_model_name(name)) for name in settings.main_models))
        return replace(settings, local_model=names[0], models=names if len(names) > 1 else ())
    from koderz.models.discover import discover_ollama

    if settings.base_url is not None:
        raise KoderzError("--base-url says where, but not which model: name it with --model")
    found = await discover_ollama(environ)
    if found is None:
        observer.notice(
            "No model is named and no Ollama answers here, so this run uses the SIMULATED model: "
            "its results say nothing about any real one. Name one with --model."
        )
        return replace(settings, local_model="simulated")
    if len(found) == 1:
        return replace(settings, local_model=found[0])
    if not found:
        raise KoderzError("Ollama runs here but has no chat model; get one with: ollama pull qwen2.5-coder:7b")
    raise KoderzError(f"Ollama has several models; name one with --model: {', '.join(found)}")


def _specs(settings: Settings, subject: Subject) -> dict[str, str]:
    """Specifications that are in the cache, if they are to be used again."""
    model = settings.frontier_spec_model
    if not (settings.reuse_spec and settings.spec and model):
        return {}
    from koderz.solvers.specifications import cached_spec

    found = {}
    for task in subject.tasks:
        text = subject.prompts.render("spec", **task.values)
        if spec := cached_spec(model, ({"role": "user", "content": text},)):
            found[task.id] = spec
    return found
