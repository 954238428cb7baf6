"""Makes the plan of a new run from the user's settings; creates nothing and asks no model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from koderz.engines import ENGINES, require_able
from koderz.engines.local import require_batchable
from koderz.engines.reuse import runs_named
from koderz.engines.sources import EVERYTHING, SOLVING, Scope, Sources, read_sources
from koderz.errors import KoderzError
from koderz.experiments.recall import memory_details
from koderz.models.names import base_url_of, is_deployment, parse_model_name
from koderz.models.prices import could_spend
from koderz.models.providers import provider_of
from koderz.plans.arms import Arm, asked_models, make_arms, with_solvers
from koderz.plans.plan import Plan, Subject, load_subject, make_plan
from koderz.plans.selection import select_tasks
from koderz.runs.observer import NullObserver, Observer
from koderz.runs.sinks import left_out
from koderz.settings.layers import options_in, values_in
from koderz.settings.options import flag_of
from koderz.settings.registry import sources_of
from koderz.settings.requests import (
    ModelOptions,
    base_urls,
    headers_in,
    plain_body,
    plain_models,
    plain_roles,
    read_models,
)
from koderz.settings.schema import Settings
from koderz.solvers import SettledSolver
from koderz.suites.matrix import Matrix, read_matrix
from koderz.suites.suite import Suite
from koderz_tracker.plain_text import REDACTED
from koderz_tracker.records import Cell
from koderz_tracker.scrubber import KEY_VARIABLES, is_secret_variable, shown_address


async def prepare(
    given: Mapping[str, Any],
    span: range | None,
    *,
    solver_arguments: Mapping[str, str] | None = None,
    trust_config: bool = False,
    single: bool = False,
    matrix: Matrix | None = None,
    observer: Observer | None = None,
    environ: Mapping[str, str] = os.environ,
    subject: Subject | None = None,
    suite: Suite | None = None,
    scope: Scope = EVERYTHING,
) -> Plan:
    """The plan of a new run. Creates nothing and asks no model. Raises KoderzError for invalid settings.

    `matrix`: its arms and cells, where neither options nor the suite state them; `subject`: what it is about, where
    the suite's name alone doesn't say it; `suite`: the settings' own, if it is loaded already; `scope`: the options
    that have an effect in the command.
    """
    observer = observer or NullObserver()
    sources = read_sources(
        given, environ, scope=scope, schema=None, trust_config=trust_config, spends=could_spend
    )
    settings = _with_requests(_fitting(sources, single=single))
    arguments = dict(solver_arguments or {})
    subject = subject or load_subject(settings, partial(select_tasks, settings, span), suite=suite)
    matrix = read_matrix(settings.matrix) if settings.matrix else matrix
    if not (matrix or single or sources.given & {*SOLVING}):
        matrix = _of_suite(subject, settings)
    if not single:  # the sinks that this installation lacks are left out
        absent = left_out(settings.chosen_sinks, observer.notice, named="sinks" in sources.is_ours)
        settings = replace(settings, no_sinks=(*settings.no_sinks, *absent))
    settings = await _with_model(settings, matrix, observer, environ)
    at_hand: dict[str, Any] = {}

    def found_at_hand(solver: SettledSolver) -> Mapping[str, Any]:
        found = solver.at_hand(
            values_in(settings) | {"given": sources.given}, subject.tasks, subject.prompts
        )
        at_hand.update(found)
        return found

    arms = make_arms(
        settings,
        arguments,
        matrix,
        tables=sources.config.solvers,
        at_hand=found_at_hand,
        judged_by_model=subject.suite.asks_judge,
    )
    _require_askable(settings, arms)
    about, cells = _with_cells(matrix, subject, settings, arms) if matrix else (subject, None)
    memory = await memory_details(
        settings, any("recall" in arm.solver.wants for arm in arms), environ
    )
    plan = make_plan(
        settings,
        about,
        arms,
        cells=cells,
        problem_range=f"{span.start}-{span.stop}" if span is not None else None,
        details=_details(sources, settings, arms)
        | {"solver_arguments": arguments, "at_hand": at_hand, **memory},
        single=single,
    )
    require_able(plan)
    require_batchable(plan)
    for note in (*plan.suite.notices, *plan.record.notes):
        observer.notice(note)
    return plan


def _fitting(sources: Sources, *, single: bool) -> Settings:
    """The settings, after checking that they fit each other."""
    settings = replace(sources.settings, samples=1) if single else sources.settings
    settings = replace(
        with_solvers(settings, sources.given), reuse=settings.reuse or bool(settings.reuse_from)
    )
    if single and (
        (settings.mode == "comparative" and not settings.solver) or len(settings.solvers) > 1
    ):
        raise KoderzError(
            "one experiment has one solver: --mode zero-shot or iterative, or --solver"
        )
    if single and settings.models:
        raise KoderzError("one experiment has one model: give --model once")
    engine = ENGINES.load(settings.engine)
    settings = engine.settle(settings, sources.given)
    if settings.use_memory != "off" and "memory" not in engine.can:
        raise KoderzError(
            f"--use-memory: the engine {settings.engine} can't reach this machine's memory store"
        )
    if settings.reuse and "reuse" not in engine.can:
        raise KoderzError(
            f"--reuse: the engine {settings.engine} can't reach the runs on this machine"
        )
    for source in settings.reuse_from:
        runs_named(source, settings.results)
    for field, address in options_in(settings):
        if field.about.is_address and address and REDACTED in address:
            raise KoderzError(
                f"{flag_of(field.name)}: {address} is what a record has of an address, without what could be a secret; "
                "give the address itself"
            )
    return settings


def _with_requests(settings: Settings) -> Settings:
    """The settings with what files say of requests, after checking that these can be made and recorded."""
    if settings.reasoning_effort is not None and settings.reasoning_tokens is not None:
        raise KoderzError("--reasoning-effort and --reasoning-tokens: give one of them")
    if settings.api_version and settings.base_url and not is_deployment(settings.base_url):
        raise KoderzError(
            "--api-version is for a deployment on Azure: --base-url https://NAME.openai.azure.com/openai/deployments/NAME"
        )
    try:
        body = plain_body(settings.extra_body) if settings.extra_body else None
    except ValueError as error:
        raise KoderzError(f"--extra-body: {error}") from None
    try:
        settings = replace(
            settings, extra_body=body, role_options=plain_roles(settings.role_options)
        )
        urls = {
            f"--role-option {role}": base_url_of(url)
            for role, url in settings.roles_elsewhere.items()
        }
    except ValueError as error:
        raise KoderzError(f"--role-option: {error}") from None
    try:
        settings = replace(settings, model_options=plain_models(settings.model_options, _full_name))
        own = settings.options_of_models
        urls |= {
            f"--model-option {name}": base_url_of(each.base_url)
            for name, each in own.items()
            if each.base_url
        }
    except (ValueError, KoderzError) as error:
        raise KoderzError(f"--model-option: {error}") from None
    for whose, url in urls.items():
        if shown_address(url) != url:
            raise KoderzError(
                f"{whose}.base-url: a part of the address could be a secret, which no record may hold; "
                "give that by a header or a key"
            )
    for header in headers_in(settings.extra_headers):
        if header.value is None and not header.variable:
            raise KoderzError(
                f"--extra-header {header.name}: write {header.name}=VALUE or {header.name}=$VARIABLE"
            )
        if header.value is not None and settings.engine != "local":
            raise KoderzError(
                f"--extra-header {header.name}: its value can't be sent to the engine {settings.engine}; "
                f"put it into the engine's environment, and write {header.name}=$VARIABLE"
            )
    return settings


def _full_name(model: str) -> str:
    return str(parse_model_name(model))


def _of_suite(subject: Subject, settings: Settings) -> Matrix | None:
    """The arms and cells that the suite states, if it does."""
    matrix = subject.suite.arms(subject.tasks, settings)
    if matrix is None:
        return None
    source = f"the suite {subject.suite.name}"
    if not isinstance(matrix, Matrix):
        raise KoderzError(
            f"{source}: its arms are no Matrix, but of the type {type(matrix).__name__}"
        )
    return matrix._replace(source=matrix.source or source).checked()


async def _with_model(
    settings: Settings, matrix: Matrix | None, observer: Observer, environ: Mapping[str, str]
) -> Settings:
    """The settings with a model: the named one, else one that answers here, else the simulated one."""
    # whom the run is about is said by its arms
    if matrix and all(arm.model for arm in matrix.arms):
        settings = replace(settings, local_model=matrix.arms[0].model, models=())
    if settings.models or settings.local_model is not None:
        names = tuple(dict.fromkeys(str(parse_model_name(name)) for name in settings.main_models))
        return replace(settings, local_model=names[0], models=names if len(names) > 1 else ())
    from koderz.models.ollama import discover_ollama

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
        raise KoderzError(
            "Ollama runs here but has no chat model; get one with: ollama pull qwen2.5-coder:7b"
        )
    raise KoderzError(f"Ollama has several models; name one with --model: {', '.join(found)}")


def _require_askable(settings: Settings, arms: Sequence[Arm]) -> None:
    """Raises KoderzError for an option of a role that no arm has, and for responses that no model could speak."""
    known = {role for arm in arms for role in arm.models}
    if strange := next((role for role in settings.options_of_roles if role not in known), ""):
        raise KoderzError(
            f"--role-option {strange}.…: no model has this role here; name one by --role {strange}=MODEL"
        )
    asked = [parse_model_name(name) for name in asked_models(arms)]
    if strange := next(
        (name for name in settings.options_of_models if name not in map(str, asked)), ""
    ):
        raise KoderzError(
            f"--model-option {strange}.…: no such model is asked here; asked are {', '.join(map(str, asked))}"
        )
    if settings.wire == "responses" and not any(
        provider_of(name.provider).wire == "chat" for name in asked
    ):
        raise KoderzError(
            f"--wire responses: {asked[0]} isn't asked in one of OpenAI's wire formats"
        )


def _with_cells(
    matrix: Matrix, subject: Subject, settings: Settings, arms: Sequence[Arm]
) -> tuple[Subject, Sequence[Cell] | None]:
    """The cells of a matrix, if it lists any, and the subject without the tasks that no cell is about."""
    made: dict[str, list[str]] = {}
    for arm in arms:
        made.setdefault(arm.stated, []).append(arm.name)
    cells = matrix.cells_of([task.id for task in subject.tasks], settings.samples, made)
    if cells is None:
        return subject, None
    having = {cell.task for cell in cells}
    return subject._replace(tasks=tuple(task for task in subject.tasks if task.id in having)), cells


def _details(sources: Sources, settings: Settings, arms: Sequence[Arm]) -> dict[str, Any]:
    trusted = "base_url" in sources.is_ours or settings.base_url is None
    details: dict[str, Any] = {"prices": dict(sources.config.prices), "base_url_trusted": trusted}
    own = base_urls(sources.is_ours.get("role_options", ()))
    if foreign := sorted(
        role for role, url in settings.roles_elsewhere.items() if own.get(role) != url
    ):
        details["untrusted_roles"] = foreign
    program = {
        name: about
        for value in values_in(settings).values()
        for name, about in sources_of(value).items()
    }
    if program:
        details["program"] = program
    given = read_models(plain_models(sources.is_ours.get("model_options", ()), _full_name))
    elsewhere = {
        name: own.base_url for name, own in settings.options_of_models.items() if own.base_url
    }
    if foreign := sorted(
        name for name, url in elsewhere.items() if given.get(name, ModelOptions()).base_url != url
    ):
        details["untrusted_models"] = foreign
    providers = {provider_of(parse_model_name(name).provider) for name in asked_models(arms)}
    variables = sorted(
        {each.key_variable for each in providers if not is_secret_variable(each.key_variable)}
        - {""}
    )
    return details | ({KEY_VARIABLES: variables} if variables else {})
