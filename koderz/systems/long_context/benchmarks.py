"""OOLONG, BrowseComp-Plus and RULER planned together: a run for each, and the files of their results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from koderz.engines.sources import OWN, SOLVING, Scope
from koderz.errors import KoderzError, Unreachable
from koderz.models.names import PROVIDERS, foreign_provider
from koderz.plans.plan import Plan
from koderz.runs.observer import Observer
from koderz.runs.prepare import prepare
from koderz.runs.resume import ResumeOptions, resume_together
from koderz.runs.session import SessionResult
from koderz.runs.sinks import documented
from koderz.settings.layers import fields_in, secrets_in
from koderz.settings.options import flag_of
from koderz.systems.long_context.published import ENDINGS
from koderz.systems.long_context.results import SUMMARY, LongContextDocument, file_of

SIDECAR = "http://localhost:8080"
"""The default address of a WASM manager."""

KEYS = ("LLM_API_KEY", "OPENAI_API_KEY")
NO_KEY = (
    "API key is required. Use --api-key or set LLM_API_KEY environment variable. "
    "--simulated tries it without a key."
)
_PROBE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark, and the suite with its tasks."""

    name: str
    suite: str
    folders: Mapping[str, str]  # in the folder of all data sets, by the option that names each
    count: str  # the option that says how many tasks are generated
    share: int = 1  # with the others it gets one part in so many of tasks and concurrency


BENCHMARKS: Mapping[str, Benchmark] = {
    "oolong": Benchmark("OOLONG", "oolong", {"dataset": "oolong"}, "tasks_per_length"),
    "deep_research": Benchmark(
        "Deep Research",
        "browsecomp-plus",
        {"dataset": "browsecomp-plus", "corpus": "browsecomp-plus-corpus"},
        "questions",
        share=2,
    ),
    "ruler": Benchmark("RULER", "ruler", {}, "tasks_per_length"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkParameters:
    """The common parameters of runs of several benchmarks."""

    model: str = "gpt-5"  # as it is given: the name that the server has for it
    max_depth: int = 3
    max_tasks: int = 10
    # settings, and options of the suites that have them
    settings: Mapping[str, Any] = field(default_factory=dict)
    output: str | None = "results"  # None: no files
    dataset_dir: Path | None = None
    concurrency: int = 1  # tasks
    pool_size: int | None = None  # None: one task after the other

    @property
    def configuration(self) -> dict[str, Any]:
        """The parameters as the files state them."""
        at_once = {"max_concurrency": self.concurrency, "rlm_pool_size": self.pool_size}
        return {"max_tasks": self.max_tasks} | (at_once if self.pool_size is not None else {})


def with_key(
    api_key: str | None, environ: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Settings that name the key's variable, and the environment with the key in it.

    Raises Unreachable where there is none.
    """
    if api_key:
        return {"api_key_env": KEYS[0]}, {**environ, KEYS[0]: api_key}
    found = next((name for name in KEYS if environ.get(name)), None)
    if found is None:
        raise Unreachable(NO_KEY)
    return {"api_key_env": found}, dict(environ)


def model_name(name: str, base_url: str | None) -> str:
    """The model's name in koderz: a name at an address of its own is that server's, else by default OpenAI's."""
    own = "/" in name and (
        name.partition("/")[0] in PROVIDERS or foreign_provider(name) is not None
    )
    return name if name == "simulated" or (own and not base_url) else f"openai/{name}"


def sub_model(environ: Mapping[str, str], base_url: str | None) -> dict[str, str]:
    """The setting for the model that answers sub-calls, from LLM_RECURSIVE_MODEL."""
    named = environ.get("LLM_RECURSIVE_MODEL")
    return {"sub_model": model_name(named, base_url)} if named else {}


async def sidecar(given: str | None, environ: Mapping[str, str]) -> str | None:
    """The WASM manager: the given one, else one that answers on this machine; None for none.

    A variable that is set but empty says that there is none.
    """
    if given or "WASM_MANAGER_SERVICE_URL" in environ:
        return given or environ["WASM_MANAGER_SERVICE_URL"] or None
    from koderz.connections import httpx, open_client

    try:
        async with open_client(SIDECAR) as client:
            answer = await client.get(f"{SIDECAR}/health", timeout=_PROBE_SECONDS)
            return SIDECAR if answer.json().get("wasm") is True else None
    except (httpx.TransportError, ValueError, AttributeError):
        return None


async def plan_benchmarks(
    names: Sequence[str],
    parameters: BenchmarkParameters,
    environ: Mapping[str, str],
    observer: Observer | None = None,
    *,
    scope: Scope = OWN,
    trust_config: bool = False,
) -> dict[str, Plan]:
    """The plans of a run for each benchmark. Creates nothing and asks nobody. Raises KoderzError.

    `scope`: the options that have an effect; `trust_config`: whether koderz.toml is trusted.
    """
    plans = {}
    for name in names:
        shared = len(names) > 1
        settings = await asyncio.to_thread(
            _settings_of, BENCHMARKS[name], parameters, environ, shared=shared
        )
        plans[name] = await prepare(
            settings,
            None,
            observer=observer,
            environ=environ,
            scope=scope,
            trust_config=trust_config,
        )
    used = {name for plan in plans.values() for name in fields_in(plan.settings)}
    if unused := [
        name
        for name, value in parameters.settings.items()
        if name not in used and value is not None
    ]:
        raise KoderzError(f"{flag_of(unused[0])}: none of these benchmarks has such an option")
    runs = {name: plan.name for name, plan in plans.items()}
    return {name: _filed(plan, about(name, runs, parameters)) for name, plan in plans.items()}


def about(
    benchmark: str, runs: Mapping[str, str], parameters: BenchmarkParameters
) -> LongContextDocument:
    """The plan's notes on the files that its run belongs to."""
    return LongContextDocument(
        benchmark=benchmark,
        runs=dict(runs),
        names={name: BENCHMARKS[name].name for name in runs},
        configuration=parameters.configuration,
        model=parameters.model,
        max_depth=parameters.max_depth,
        output=parameters.output and str(Path(parameters.output).absolute()),
        files=[file_of(benchmark), SUMMARY],
    )


def carry_out(
    plans: Sequence[Plan], environ: Mapping[str, str], observer: Observer | None = None
) -> AsyncIterator[SessionResult]:
    """Runs the planned benchmarks one after the other, as sessions with one model and so the same secrets."""
    first = plans[0]
    environ = {**environ, **secrets_in(first.settings)}
    results = first.settings.results
    return resume_together(
        first.name, ResumeOptions(), results=results, observer=observer, environ=environ
    )


def _settings_of(
    benchmark: Benchmark,
    parameters: BenchmarkParameters,
    environ: Mapping[str, str],
    *,
    shared: bool,
) -> dict[str, Any]:
    from koderz.engines.sources import schema_here

    part = benchmark.share if shared else 1
    limit = max(1, parameters.max_tasks // part)
    chosen = {"solver": "rlm"} if parameters.settings.keys().isdisjoint(SOLVING) else {}
    settings = {
        "suite": benchmark.suite,
        **chosen,
        "max_depth": parameters.max_depth,
        "limit": limit,
        "concurrency": max(1, parameters.concurrency // part),
        "pool_size": parameters.pool_size,
        **_datasets(benchmark, parameters.dataset_dir),
        **parameters.settings,
    }
    known = schema_here(settings, environ, OWN).fields
    settings.setdefault(benchmark.count, max(limit, known[benchmark.count].default))
    return {name: value for name, value in settings.items() if name in known and value is not None}


def _datasets(benchmark: Benchmark, folder: Path | None) -> dict[str, Path]:
    """The files of a benchmark in the folder of all data sets."""
    if folder is None:
        return {}
    if not folder.is_dir():
        raise KoderzError(f"--dataset-dir {folder}: there is no such folder")
    return {
        option: found
        for option, name in benchmark.folders.items()
        if (found := _files(folder / name))
    }


def _files(folder: Path) -> Path | None:
    """The folder, or the only file in it; None if it is empty."""
    files = (
        [path for path in sorted(folder.rglob("*")) if path.name.endswith(ENDINGS)]
        if folder.is_dir()
        else []
    )
    if len(files) == 1:
        return files[0]
    return folder if files else None


def _filed(plan: Plan, files: LongContextDocument) -> Plan:
    """The plan with the files that its run is written into."""
    return plan if files.output is None else documented(plan, "long-context", to_builtins(files))
