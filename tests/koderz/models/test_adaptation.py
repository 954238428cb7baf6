"""Parameters that a model refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from koderz.errors import Fault
from koderz.types import Message, Sampling

from .conftest import Models
from .loopback import Answer, Asked, Routes, Server, chat, refusal, until

ALL = Sampling(temperature=0.0, max_tokens=99, top_p=0.5, seed=7, stop=("\ndef",))


def refusing(messages: dict[str, str], **fields: str) -> Callable[[Asked], Answer]:
    """A server that refuses, with a message each, requests that have a key."""

    def decide(asked: Asked) -> Answer:
        for key, message in messages.items():
            if key in asked.json:
                return Answer(json.dumps({"error": {"message": message, **fields}}).encode(), 400)
        return chat()

    return decide


@pytest.mark.parametrize(
    ("key", "message", "change"),
    [
        (
            "temperature",
            "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) is supported.",
            "temperature dropped",
        ),
        ("temperature", "`temperature` is deprecated for this model.", "temperature dropped"),
        ("top_p", "top_p: Extra inputs are not permitted", "top_p dropped"),
        ("top_p", "`temperature` and `top_p` cannot both be specified for this model.", "top_p dropped"),
        ("seed", "property 'seed' is unsupported", "seed dropped"),
        ("stop", "Unsupported parameter: 'stop' is not supported with this model.", "stop dropped"),
        (
            "max_tokens",
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'.",
            "max_tokens sent as max_completion_tokens",
        ),
    ],
)
async def test_refused_parameter_is_changed_once_and_remembered(
    routes: Routes, models: Models, prompt: list[Message], key: str, message: str, change: str
) -> None:
    routes.decide = refusing({key: message})
    model = await models.open()
    for _ in range(2):
        completion = await model.complete(prompt, ALL)
        assert (completion.text, completion.adapted, completion.retries) == ("hello", (change,), 0)
    assert len(routes.asked) == 3
    assert models.pool.notices == [f"{change} for openai/m: the server said 400: {message}"]


async def test_token_limit_goes_out_under_its_other_name(routes: Routes, models: Models, prompt: list[Message]) -> None:
    routes.decide = refusing({"max_tokens": "unknown parameter max_tokens"})
    await (await models.open()).complete(prompt, ALL)
    assert routes.asked[-1].json["max_completion_tokens"] == 99
    assert "max_tokens" not in routes.asked[-1].json


async def test_token_limit_refused_under_both_names_is_dropped(
    routes: Routes, models: Models, prompt: list[Message]
) -> None:
    routes.decide = refusing(
        {"max_tokens": "no max_tokens here", "max_completion_tokens": "no max_completion_tokens either"}
    )
    completion = await (await models.open()).complete(prompt, ALL)
    assert completion.adapted == ("max_tokens sent as max_completion_tokens", "max_completion_tokens dropped")


async def test_refusals_are_followed_one_by_one(routes: Routes, models: Models, prompt: list[Message]) -> None:
    routes.decide = refusing({"temperature": "no temperature", "seed": "no seed", "top_p": "no top_p"})
    completion = await (await models.open()).complete(prompt, ALL)
    assert completion.adapted == ("temperature dropped", "seed dropped", "top_p dropped")


async def test_refusal_goes_by_its_field_before_its_words(
    routes: Routes, models: Models, prompt: list[Message]
) -> None:
    routes.decide = refusing({"seed": "with this temperature, that is unsupported"}, param="seed")
    completion = await (await models.open()).complete(prompt, ALL)
    assert completion.adapted == ("seed dropped",)


@pytest.mark.parametrize(
    "message",
    [
        "max_tokens: 100000 > 4096, which is the maximum allowed number of output tokens for claude-x",
        "max_tokens is too large: 100000. This model supports at most 4096 completion tokens, whereas you gave 100000.",
    ],
)
async def test_token_limit_beyond_the_models_own_is_lowered(
    routes: Routes, models: Models, prompt: list[Message], message: str
) -> None:
    def decide(asked: Asked) -> Answer:
        return chat() if asked.json["max_tokens"] <= 4096 else refusal(message)

    routes.decide = decide
    model = await models.open()
    assert (await model.complete(prompt, Sampling(max_tokens=100_000))).adapted == ("max_tokens lowered to 4096",)
    assert (await model.complete(prompt, Sampling(max_tokens=100))).adapted == ()
    assert routes.asked[-1].json["max_tokens"] == 100


@pytest.mark.parametrize(
    "message",
    [
        "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 5 instead.",
        "temperature: Input should be less than or equal to 1",
        "please stop sending this",
        "max_tokens is too large: this model supports at most 999999 completion tokens",
    ],
)
async def test_refusal_that_the_user_has_to_mend_is_a_fault(
    routes: Routes, models: Models, prompt: list[Message], message: str
) -> None:
    routes.answers = [refusal(message)]
    model = await models.open()
    with pytest.raises(Fault):
        await model.complete(prompt, ALL)
    assert len(routes.asked) == 1
    assert models.pool.notices == []


async def test_calls_that_are_refused_together_say_it_once(
    server: Server, models: Models, prompt: list[Message]
) -> None:
    server.gate = asyncio.Event()
    server.decide = refusing({"temperature": "no temperature"})
    model = await models.open(concurrency=8)
    calls = [asyncio.create_task(model.complete(prompt, ALL)) for _ in range(8)]
    await until(lambda: server.in_flight == 8)
    server.gate.set()
    completions = await asyncio.gather(*calls)
    assert {completion.adapted for completion in completions} == {("temperature dropped",)}
    assert len(server.asked) == 16
    assert len(models.pool.notices) == 1


async def test_adaptation_holds_for_its_model_alone(routes: Routes, models: Models, prompt: list[Message]) -> None:
    def decide(asked: Asked) -> Answer:
        refused = asked.json["model"] == "m" and "temperature" in asked.json
        return refusal("no temperature") if refused else chat()

    routes.decide = decide
    pool = await models.pooled()
    await pool.open("openai/m").complete(prompt, ALL)
    assert (await pool.open("openai/m-2026-01-31").complete(prompt, ALL)).adapted == ()
