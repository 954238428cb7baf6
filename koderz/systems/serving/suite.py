"""The suite `serving`: one task, a load on the server at --base-url; its figures are vLLM's."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import orjson

from koderz.errors import Fault
from koderz.models.names import ModelName, parse_model_name
from koderz.models.providers import endpoint_for
from koderz.settings.schema import Settings
from koderz.solvers.definition import JudgeHandle, asks_nothing, solver
from koderz.suites import task_digest
from koderz.suites.suite import ExperimentContext, JudgeContext, Suite, SuiteSource
from koderz.systems.serving.figures import MEASURES, lines_of, metrics_of, result_of
from koderz.systems.serving.options import ServingOptions
from koderz.systems.serving.prompts import Prompt, counter_of, load_prompts
from koderz.types import Headline, Reply, Task, Verdict

if TYPE_CHECKING:
    from koderz.systems.serving.client import Load, Target


BASE_URL = "http://127.0.0.1:8000"
EVALUATOR = "evaluator"


class ServingSuite(Suite):
    """A load on a server of completions: koderz perf serve-bench.

    The load is the only task. It is measured by the handle `evaluator`, once, and judged from what was measured.
    """

    name = "serving"
    options = ServingOptions
    modes: ClassVar[Mapping[str, Sequence[str]]] = {"": ("serve-bench",)}
    listed = False
    mode = "serving"
    measures = MEASURES
    headline = Headline("median_e2el_ms", passed="", panels=("cost", "trend"))
    required = frozenset({EVALUATOR})

    def __init__(self, options: ServingOptions, seed: int) -> None:
        """Loads the prompts. Raises KoderzError if that fails."""
        self._options, self._prompts = options, load_prompts(options, seed)
        source = (
            options.dataset_path.name
            if options.dataset_path
            else f"{options.random_input_len}+{options.random_output_len}"
        )
        self.source = f"{options.dataset_name} {source}, {options.num_prompts} requests"
        texts = (f"{each.output_tokens} {each.text}" for each in self._prompts)
        shape = (
            options.request_rate,
            options.burstiness,
            str(options.max_concurrency),
            str(options.ignore_eos),
        )
        digest = task_digest(*shape, *texts)
        self.tasks: tuple[Task, ...] = (
            Task(
                f"{options.dataset_name}/{source}",
                self.source,
                needs=frozenset({EVALUATOR}),
                digest=digest,
            ),
        )

    @classmethod
    def load(cls, source: SuiteSource) -> ServingSuite:
        """Raises KoderzError where the prompts can't be had."""
        return cls(source.options, source.seed)

    @asynccontextmanager
    async def open_evaluator(self, context: ExperimentContext) -> AsyncIterator[LoadTest]:
        """The load on the server, for one experiment."""
        yield LoadTest(self._options, self._prompts, context.handles, context.settings)

    async def judge(self, task: Task, answer: Reply | str, context: JudgeContext) -> Verdict:  # noqa: ARG002
        """The figures of a recorded load, which `answer` is as JSON. Passed: some request was answered."""
        result = result_of(orjson.loads(answer.text if isinstance(answer, Reply) else answer))
        return Verdict(
            "passed",
            detail=f"{result['completed']} requests answered, {result['failed']} failed",
            metrics=metrics_of(result),
            artifacts={
                "result.json": orjson.dumps(result).decode(),
                "result.txt": "\n".join(lines_of(result)),
            },
        )


class LoadTest:
    """The handle `evaluator` for the solver `serve-bench`."""

    def __init__(
        self, options: ServingOptions, prompts: Sequence[Prompt], handles: Any, settings: Settings
    ) -> None:
        self._options, self._prompts, self._settings = options, prompts, settings
        self._once = handles.once
        self._target = target_of(
            parse_model_name(handles.identity.arm.model).name, options, settings
        )
        self._is_new = False

    async def measure(self) -> str:
        """The measurement as JSON. Raises Fault if no request was answered; `retry` measures anew then."""
        for number in count(1):
            record = await self._once(f"load/{number}", self._measured)
            errors = [each["error"] for each in record["requests"]]
            if not all(errors):
                return orjson.dumps(record).decode()
            if self._is_new:
                raise Fault(
                    f"all {len(errors)} requests failed, the first with: {errors[0]}",
                    cause="unreachable",
                )
        raise AssertionError

    async def _measured(self) -> dict[str, Any]:
        from koderz.systems.serving.client import measured

        self._is_new = True
        options = self._options
        about = about_of(options, self._target.model)
        found = await measured(self._target, self._prompts, load_of(options, self._settings.seed))
        return found.record(about, counter_of(options.tokenizer) if options.tokenizer else None)


def about_of(options: ServingOptions, model: str) -> dict[str, Any]:
    """The description of a load for its record, with the present time."""
    return {
        "date": f"{datetime.now():%Y%m%d-%H%M%S}",
        "endpoint_type": options.backend,
        "backend": options.backend,
        "label": options.label,
        "model_id": model,
        "tokenizer_id": options.tokenizer,
        "num_prompts": options.num_prompts,
        "request_rate": "inf" if options.request_rate == "inf" else float(options.request_rate),
        "burstiness": float(options.burstiness),
        "max_concurrency": options.max_concurrency,
        "goodput": options.goodput,
        "percentiles": [float(word) for word in options.metric_percentiles],
    }


def load_of(options: ServingOptions, seed: int) -> Load:
    """The schedule of requests."""
    from koderz.systems.serving.client import Load

    return Load(
        float(options.request_rate),
        float(options.burstiness),
        options.max_concurrency,
        options.num_warmups,
        options.ready_check_timeout_sec,
        seed,
    )


def target_of(model: str, options: ServingOptions, settings: Settings) -> Target:
    """The target of requests. Raises KoderzError for an invalid address, Unreachable if its key is missing."""
    from koderz.systems.serving.client import Target

    endpoint = endpoint_for(
        ModelName("openai", model),
        environ=os.environ,
        base_url=settings.base_url or BASE_URL,
        api_key_env=settings.api_key_env,
    )
    chosen = {
        "temperature": settings.sampling_temperature,
        "top_p": settings.top_p,
        "ignore_eos": options.ignore_eos or None,
    }
    is_chat = options.backend == "openai-chat"
    return Target(
        str(endpoint.base_url),
        options.endpoint or ("/v1/chat/completions" if is_chat else "/v1/completions"),
        model,
        chat=is_chat,
        api_key=endpoint.api_key,
        sampling={name: value for name, value in chosen.items() if value is not None},
        timeout=settings.request_timeout,
    )


class LoadHandle(Protocol):
    """A load on a server."""

    async def measure(self) -> str:
        """The measurement as JSON."""
        ...


@solver(asks=False, roles=(), estimate=asks_nothing)
async def serve_bench(task: Task, judge: JudgeHandle, evaluator: LoadHandle) -> Verdict:
    """Measures the load and has the measurement judged."""
    return await judge(task, await evaluator.measure())
