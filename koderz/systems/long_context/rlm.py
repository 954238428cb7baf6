"""The Python front for long contexts: OOLONG, BrowseComp-Plus and RULER, with recursive language models.

from koderz.rlm import create_rlm_repl_with_sidecar, run_all_benchmarks

rlm = create_rlm_repl_with_sidecar(api_key="…", model="gpt-4o")
results = run_all_benchmarks(rlm, {"max_tasks": 10}, output_dir="results")
print(results["oolong"]["metrics"]["overall_accuracy"])

Each benchmark is a run as `koderz benchmark` makes it, in the results folder, with everything that runs can do.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from koderz.errors import KoderzError
from koderz.runs.observer import Observer, StepLog
from koderz.runs.prepare import prepare
from koderz.runs.session import begin, lay_down, raise_if_failed, settle_sinks
from koderz.suites.suite import JudgeContext, SuiteSource
from koderz.systems.long_context.benchmarks import (
    BENCHMARKS,
    SIDECAR,
    BenchmarkParameters,
    about,
    carry_out,
    model_name,
    plan_benchmarks,
    sidecar,
    sub_model,
    with_key,
)
from koderz.systems.long_context.contexts import (
    NEEDS,
    LongContextSuite,
    Reading,
    Recipe,
    in_characters,
)
from koderz.systems.long_context.results import benchmark_document
from koderz.systems.long_context.simulated import Player
from koderz.types import Reply, Task, Verdict


@dataclass(frozen=True, slots=True)
class Rlm:
    """A recursive language model: its model, its depth, and the place where its code runs."""

    model: str
    max_depth: int
    settings: Mapping[str, Any] = field(repr=False)
    environ: Mapping[str, str] = field(repr=False)
    enable_logging: bool = False

    def completion(self, context: str, query: str | None = None) -> str:
        """The answer about a text, in one experiment like that of `koderz run`; without a query, to the text itself."""
        return asyncio.run(self.completion_async(context, query))

    async def completion_async(self, context: str, query: str | None = None) -> str:
        """`completion` within an event loop."""
        from koderz.plans.plan import Subject
        from koderz.prompts import load_prompts

        suite = completion_suite(context, query or "")
        settings = {
            **self.settings,
            "suite": suite.name,
            "solver": "rlm",
            "max_depth": self.max_depth,
        }
        settings["wasm_url"] = await sidecar(self.settings.get("wasm_url"), self.environ)
        subject = Subject(suite, suite.tasks, load_prompts(None))
        overrides = {name: value for name, value in settings.items() if value is not None}
        plan = await prepare(overrides, None, single=True, environ=self.environ, subject=subject)
        summary = raise_if_failed(await begin(plan, self.observer, self.environ))
        if summary.faults:
            raise KoderzError(str(summary.faults[0]["reason"]))
        return suite.answer

    @property
    def observer(self) -> Observer | None:
        """An observer that logs each step as `koderz`, if wanted."""
        return StepLog() if self.enable_logging else None


def create_rlm_repl_with_sidecar(
    api_key: str | None = None,
    model: str = "gpt-5",
    base_url: str | None = None,
    max_depth: int = 3,
    wasm_service_url: str = SIDECAR,
    wasm_timeout: float = 30,
    enable_logging: bool = False,
) -> Rlm:
    """A recursive language model at OpenAI, or at the OpenAI-compatible `base_url`.

    Without `api_key` the variables LLM_API_KEY and OPENAI_API_KEY count; the model `simulated` needs none. The usual
    `wasm_service_url` counts as none given. `wasm_timeout`: seconds that a cell of code may take. Raises KoderzError
    where a key is missing.
    """
    settings: dict[str, Any] = {}
    environ = dict(os.environ)
    base_url = None if model == "simulated" else base_url or environ.get("LLM_BASE_URL")
    if model != "simulated":
        settings, environ = with_key(api_key, environ)
    settings |= {
        "local_model": model_name(model, base_url),
        "base_url": base_url,
        "wasm_url": None if wasm_service_url == SIDECAR else wasm_service_url,
        "wasm_timeout": wasm_timeout,
        **sub_model(environ, base_url),
    }
    return Rlm(model, max_depth, settings, environ, enable_logging)


def create_rlm_pool(pool_size: int = 3, **arguments: Any) -> list[Rlm]:
    """A pool that allows `pool_size` cells at once; other arguments as for `create_rlm_repl_with_sidecar`."""
    return [create_rlm_repl_with_sidecar(**arguments)] * pool_size


def run_oolong_benchmark(
    rlm: Rlm, config: Mapping[str, Any] | None = None, output_dir: str | None = "results"
) -> dict[str, Any]:
    """Runs OOLONG; returns `{name, results, metrics, total_time, avg_time_per_task}`, times in seconds.

    `config`: `max_tasks` (10), `timeout` (seconds of a cell), and settings and options of the suite by their names,
    such as `context_lengths`. `output_dir` None writes no files. Raises KoderzError for an unknown key.
    """
    return asyncio.run(_run(("oolong",), [rlm], config, output_dir))["oolong"]


def run_deep_research_benchmark(
    rlm: Rlm, config: Mapping[str, Any] | None = None, output_dir: str | None = "results"
) -> dict[str, Any]:
    """Runs BrowseComp-Plus, or its generated substitute; see `run_oolong_benchmark`."""
    return asyncio.run(_run(("deep_research",), [rlm], config, output_dir))["deep_research"]


def run_ruler_benchmark(
    rlm: Rlm, config: Mapping[str, Any] | None = None, output_dir: str | None = "results"
) -> dict[str, Any]:
    """Runs RULER; see `run_oolong_benchmark`."""
    return asyncio.run(_run(("ruler",), [rlm], config, output_dir))["ruler"]


def run_all_benchmarks(
    rlm: Rlm, config: Mapping[str, Any] | None = None, output_dir: str | None = "results"
) -> dict[str, dict[str, Any]]:
    """Runs all benchmarks in turn; returns the result of each by name, see `run_oolong_benchmark`."""
    return asyncio.run(_run(tuple(BENCHMARKS), [rlm], config, output_dir))


async def run_oolong_benchmark_async(
    rlm_pool: Sequence[Rlm],
    config: Mapping[str, Any] | None = None,
    output_dir: str | None = "results",
    max_concurrency: int = 5,
) -> dict[str, Any]:
    """Runs `run_oolong_benchmark` with `max_concurrency` tasks at once, and as many cells as the pool has members."""
    return (await _run(("oolong",), rlm_pool, config, output_dir, max_concurrency))["oolong"]


async def run_deep_research_benchmark_async(
    rlm_pool: Sequence[Rlm],
    config: Mapping[str, Any] | None = None,
    output_dir: str | None = "results",
    max_concurrency: int = 5,
) -> dict[str, Any]:
    """Runs `run_deep_research_benchmark` with several tasks at once; see `run_oolong_benchmark_async`."""
    return (await _run(("deep_research",), rlm_pool, config, output_dir, max_concurrency))[
        "deep_research"
    ]


async def run_ruler_benchmark_async(
    rlm_pool: Sequence[Rlm],
    config: Mapping[str, Any] | None = None,
    output_dir: str | None = "results",
    max_concurrency: int = 5,
) -> dict[str, Any]:
    """Runs `run_ruler_benchmark` with several tasks at once; see `run_oolong_benchmark_async`."""
    return (await _run(("ruler",), rlm_pool, config, output_dir, max_concurrency))["ruler"]


async def run_all_benchmarks_async(
    rlm_pool: Sequence[Rlm],
    config: Mapping[str, Any] | None = None,
    output_dir: str | None = "results",
    max_concurrency: int = 5,
) -> dict[str, dict[str, Any]]:
    """Runs `run_all_benchmarks` with several tasks at once; see `run_oolong_benchmark_async`."""
    return await _run(tuple(BENCHMARKS), rlm_pool, config, output_dir, max_concurrency)


async def _run(
    names: Sequence[str],
    pool: Sequence[Rlm],
    config: Mapping[str, Any] | None,
    output_dir: str | None,
    max_concurrency: int | None = None,
) -> dict[str, dict[str, Any]]:
    rlm, own = pool[0], {name: _as_words(value) for name, value in (config or {}).items()}
    most, seconds = own.pop("max_tasks", 10), own.pop("timeout", None)
    place = await sidecar(rlm.settings.get("wasm_url"), rlm.environ)
    settings = {
        **rlm.settings,
        "wasm_url": place,
        **({"wasm_timeout": seconds} if seconds else {}),
        **own,
    }
    parameters = BenchmarkParameters(
        model=rlm.model,
        max_depth=rlm.max_depth,
        max_tasks=most,
        settings=settings,
        output=output_dir,
        concurrency=max_concurrency or 1,
        pool_size=len(pool) if max_concurrency else None,
    )
    plans = await plan_benchmarks(names, parameters, rlm.environ)
    await lay_down([*plans.values()], rlm.environ)
    runs = {name: plan.name for name, plan in plans.items()}
    found: dict[str, dict[str, Any]] = {}
    async for session in carry_out([*plans.values()], rlm.environ, rlm.observer):
        name = list(plans)[len(found)]
        await settle_sinks(session)
        if session.ended.was_called_off:
            raise KeyboardInterrupt
        document = benchmark_document(
            session.folder, raise_if_failed(session), about(name, runs, parameters)
        )
        each = document["metrics"]["average_time_per_task"]
        found[name] = {"name": document.pop("benchmark"), **document, "avg_time_per_task": each}
    return found


def _as_words(value: Any) -> Any:
    """The value of an option in its flag's form: a list of words."""
    return [str(each) for each in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class LoadedText:
    """A recipe for a text that is already in memory."""

    reading: Reading = field(repr=False)
    digest: str

    def make(self) -> tuple[Reading, Any]:
        return self.reading, None


class CompletionSuite(LongContextSuite):
    """A question about a text that a program holds, by rlm.completion: none that can be loaded.

    Its only task is the question. Nobody judges the answer.
    """

    listed = False
    answer = ""

    @classmethod
    def load(cls, source: SuiteSource) -> CompletionSuite:  # noqa: ARG003
        """Raises KoderzError."""
        raise KoderzError(
            "the text of a completion is held by the program that asked for it, by rlm.completion(…)"
        )

    async def judge(
        self,
        task: Task[Recipe],  # noqa: ARG002
        answer: Reply | str,
        context: JudgeContext,  # noqa: ARG002
    ) -> Verdict:
        """A verdict that passes any answer."""
        self.answer = answer.text if isinstance(answer, Reply) else answer
        return Verdict(
            "passed", detail="an answer that nobody judges", artifacts={"answer": self.answer}
        )


def completion_suite(context: str, question: str) -> CompletionSuite:
    """The suite of one question about a text."""
    reading = in_characters(context, question)
    digest = hashlib.sha256(f"{question}\0{context}".encode("utf-8", "surrogatepass")).hexdigest()[
        :32
    ]
    task: Task[Recipe] = Task(
        f"completion/{digest[:8]}",
        payload=LoadedText(reading, digest),
        needs=NEEDS,
        digest=digest,
        tokens=reading.tokens,
    )
    return CompletionSuite(
        "completion", "a text of the program that asks", (task,), _unscored, Player(_nothing)
    )


def _unscored(_task: Task[Recipe], _answers: Any, _reply: str) -> tuple[float, Mapping[str, float]]:
    return 0.0, {}


def _nothing(_asked: str) -> list[str]:
    return []
