"""The load `completions`, on a server of completions that a suite has started in a sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from aiohttp import ClientError

from koderz.sandbox.workspace import Running
from koderz.suites.loads import LoadError, LoadResult, SandboxedLoad
from koderz.systems.serving.beside import first_model_beside, measured_beside
from koderz.systems.serving.client import Target, first_model
from koderz.systems.serving.figures import MEASURES, metrics_of, result_of
from koderz.systems.serving.load import measured
from koderz.systems.serving.options import ServingOptions
from koderz.systems.serving.prompts import Prompt, load_prompts
from koderz.systems.serving.suite import about_of, load_of

_CHECKS, _CHECKED_TOKENS = 20, 16  # prompts whose answers are compared whole, and their length


class CompletionsLoad(SandboxedLoad):
    """Prompts sent as `koderz perf serve-bench` sends them."""

    options = ServingOptions
    measures = MEASURES

    async def find_model(self, running: Running, port: int, options: ServingOptions, seconds: float) -> str:
        """The first model of the server's list."""
        find = partial(first_model_beside, running.beside) if running.beside else first_model
        try:
            return await find(_target(running, port, "", options, min(seconds, 10.0)))
        except (ClientError, AttributeError, IndexError) as error:
            raise ValueError(f"the server's models can't be listed: {error}") from None

    async def send(
        self, running: Running, port: int, model: str, options: ServingOptions, *, seed: int, seconds: float
    ) -> LoadResult:
        """Sends 20 short requests at once and then the load, without sampling."""
        send = partial(measured_beside, running.beside) if running.beside else measured
        target = _target(running, port, model, options, seconds)
        checked = _checks(load_prompts(replace(options, num_prompts=_CHECKS), seed + 1))
        checks = await send(target, checked, load_of(replace(options, request_rate="inf", num_warmups=0), 0))
        loaded = await send(target, load_prompts(options, seed), load_of(options, seed))
        record = loaded.record(about_of(options, model), None)
        if errors := [each.error for each in (*checks.timings, *loaded.timings) if each.error]:
            raise LoadError(f"{len(errors)} requests failed, the first with: {errors[0]}")
        return LoadResult(
            metrics_of(result_of(record)),
            [each.text for each in checks.timings],
            [each.text for each in loaded.timings],
        )


def _checks(prompts: Sequence[Prompt]) -> list[Prompt]:
    return [Prompt(each.text, each.tokens, min(each.output_tokens, _CHECKED_TOKENS)) for each in prompts]


def _target(running: Running, port: int, model: str, options: ServingOptions, seconds: float) -> Target:
    is_chat = options.backend == "openai-chat"
    chosen: dict[str, Any] = {"temperature": 0.0} | ({"ignore_eos": True} if options.ignore_eos else {})
    return Target(
        f"http://127.0.0.1:{port}",
        options.endpoint or ("/v1/chat/completions" if is_chat else "/v1/completions"),
        model,
        chat=is_chat,
        sampling=chosen,
        timeout=seconds,
        sockets=running.sockets,
    )
