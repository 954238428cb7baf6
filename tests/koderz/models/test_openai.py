from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from koderz.errors import FatalFault, Fault, Unreachable
from koderz.types import Completion, Message, Sampling

from .conftest import Models
from .loopback import Answer, Routes, chat, refusal

ALL = Sampling(temperature=0.0, max_tokens=99, top_p=0.5, seed=7, stop=("\ndef",))


async def completed(routes: Routes, models: Models, answer: Any) -> Completion:
    routes.answers = [answer if isinstance(answer, Answer) else Answer(json.dumps(answer).encode())]
    model = await models.open()
    return await model.complete([{"role": "user", "content": "Write f."}], Sampling())


async def test_request_has_openais_format(routes: Routes, models: Models, prompt: list[Message]) -> None:
    model = await models.open(api_key="sk-0123456789")
    await model.complete(prompt, ALL)
    (asked,) = routes.asked
    assert (asked.method, asked.path) == ("POST", "/chat/completions")
    assert asked.headers["authorization"] == "Bearer sk-0123456789"
    assert asked.headers["content-type"] == "application/json"
    assert asked.json == {
        "model": "m",
        "messages": prompt,
        "temperature": 0.0,
        "top_p": 0.5,
        "seed": 7,
        "max_tokens": 99,
        "stop": ["\ndef"],
    }


async def test_schema_is_dropped_where_a_server_refuses_it(
    routes: Routes, models: Models, prompt: list[Message]
) -> None:
    schema = {"type": "object", "properties": {"score": {"type": "number"}}}
    routes.answers = [
        refusal("response_format is not supported by this model"),
        chat("hi"),
    ]
    model = await models.open()
    completion = await model.complete(prompt, Sampling(response_format=schema))
    sent = {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}
    assert [asked.json.get("response_format") for asked in routes.asked] == [sent, None]
    assert (completion.text, completion.adapted) == ("hi", ("response_format dropped",))


async def test_request_leaves_out_unset_parameters(routes: Routes, models: Models, prompt: list[Message]) -> None:
    model = await models.open()
    await model.complete(prompt, Sampling())
    assert routes.asked[0].json == {"model": "m", "messages": prompt}
    assert "authorization" not in routes.asked[0].headers


async def test_reasoning_in_a_field_of_its_own_is_kept_apart(routes: Routes, models: Models) -> None:
    for field in ("reasoning_content", "reasoning"):
        completion = await completed(routes, models, chat("def f(): ...", **{field: "hm"}))
        assert (completion.text, completion.reasoning, completion.raw) == ("def f(): ...", "hm", None)


async def test_reasoning_in_the_text_is_cut_out_and_the_reply_kept_as_sent(routes: Routes, models: Models) -> None:
    completion = await completed(routes, models, chat("<think>hm</think>\ndef f(): ..."))
    assert (completion.text, completion.reasoning) == ("def f(): ...", "hm")
    assert completion.raw == "<think>hm</think>\ndef f(): ..."


async def test_reasoning_that_used_up_the_tokens_leaves_no_text(routes: Routes, models: Models) -> None:
    choice = {"message": {"content": "<think>on and on"}, "finish_reason": "length"}
    completion = await completed(routes, models, {"choices": [choice]})
    assert (completion.text, completion.reasoning, completion.finish_reason) == ("", "on and on", "length")
    assert completion.raw == "<think>on and on"


async def test_parts_are_put_together(routes: Routes, models: Models) -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    content = [thinking, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    completion = await completed(routes, models, {"choices": [{"message": {"content": content}}]})
    assert (completion.text, completion.reasoning) == ("ab", "hm")


@pytest.mark.parametrize(
    ("word", "finish"),
    [
        ("stop", "stop"),
        ("eos", "stop"),
        ("length", "length"),
        ("content_filter", "refusal"),
        ("tool_calls", "tool_calls"),
        ("odd\x1b[31m", "odd [31m"),
    ],
)
async def test_finish_reason_is_translated(routes: Routes, models: Models, word: str, finish: str) -> None:
    completion = await completed(routes, models, {"choices": [{"message": {"content": "x"}, "finish_reason": word}]})
    assert completion.finish_reason == finish


async def test_refusal_is_a_refusal(routes: Routes, models: Models) -> None:
    completion = await completed(routes, models, chat(None, refusal="I won't."))
    assert (completion.text, completion.finish_reason) == ("I won't.", "refusal")


@pytest.mark.parametrize("tokens", [None, -5, 1e300, 10**12])
async def test_token_counts_that_can_not_be_are_estimated_and_that_is_said(
    routes: Routes, models: Models, tokens: float | None
) -> None:
    usage = {"prompt_tokens": tokens, "completion_tokens": tokens}
    completion = await completed(routes, models, {"choices": [{"message": {"content": "12345678"}}], "usage": usage})
    assert (completion.tokens_in, completion.tokens_out) == (2, 2)
    assert completion.adapted == ("tokens estimated",)
    assert models.pool.notices == ["the server of openai/m doesn't count tokens: they are estimated"]


async def test_reply_field_of_a_wrong_type_is_told_by_its_place(routes: Routes, models: Models) -> None:
    with pytest.raises(Fault, match=r"got `int` - at `\$\.choices\[0\]\.message\.content`"):
        await completed(routes, models, {"choices": [{"message": {"content": 5}}]})


async def test_cached_tokens_of_a_hosted_model_cost_less(models: Models, routes: Routes, prompt: list[Message]) -> None:
    def answer(cached: int) -> dict[str, Any]:
        usage = {"prompt_tokens": 1000, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": cached}}
        return {"choices": [{"message": {"content": "x"}}], "usage": usage}

    model = await models.open("gpt-4o-mini", base_url=None)
    costs = []
    for cached in (0, 1000):
        routes.answers = [Answer(json.dumps(answer(cached)).encode())]
        costs.append((await model.complete(prompt, Sampling())).cost)
    assert costs[0] > costs[1] > 0
    assert (routes.asked[0].headers["host"], routes.asked[0].path) == ("api.openai.com", "/v1/chat/completions")


async def test_price_that_is_unknown_is_announced_once_and_counts_zero(
    models: Models, routes: Routes, prompt: list[Message]
) -> None:
    routes.answers = [chat("x")]
    model = await models.open("openai/m", base_url="https://elsewhere.example/v1", prices={})
    for _ in range(2):
        completion = await model.complete(prompt, Sampling())
        assert (completion.cost, completion.cost_known) == (0.0, False)
    assert model.price() is None
    assert len(models.pool.notices) == 1
    assert "no price is known for openai/m" in models.pool.notices[0]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("openai/m", "openai/m is reckoned free, since it is asked on this machine and has no published price"),
        ("gpt-4o-mini", "openai/gpt-4o-mini is reckoned $"),
    ],
)
async def test_price_that_is_assumed_is_announced_once(
    models: Models, prompt: list[Message], name: str, told: str
) -> None:
    model = await models.open(name, prices={})
    for _ in range(2):
        assert (await model.complete(prompt, Sampling())).cost_known
    (notice,) = (notice for notice in models.pool.notices if "reckoned" in notice)
    assert notice.startswith(told)


async def test_check_finds_an_unknown_openai_model_before_the_run(models: Models, routes: Routes) -> None:
    routes.answers = [refusal("no gpt-99", 404)]
    model = await models.open("gpt-99", base_url=None)
    with pytest.raises(FatalFault, match="no gpt-99"):
        await model.check()
    assert (routes.asked[0].headers["host"], routes.asked[0].path) == ("api.openai.com", "/v1/models/gpt-99")


def listing(names: Sequence[str]) -> Answer:
    return Answer(json.dumps({"data": [{"id": name} for name in names]}).encode())


async def test_check_tells_of_a_server_that_does_not_list_the_model(routes: Routes, models: Models) -> None:
    routes.answers = [listing("abcdefg")]
    model = await models.open("openai/gpt4o-mini")
    assert await model.check() == {}
    assert routes.asked[0].path == "/models"
    assert models.pool.notices == [f"{routes.url} doesn't list gpt4o-mini; it has a, b, c, d, e, …"]


async def test_check_ends_with_the_nearest_of_a_servers_models(routes: Routes, models: Models) -> None:
    routes.answers = [listing(["qwen", "codestral-22b-v0.1-q4"])]
    model = await models.open("openai/codestral-22b-v0.1")
    with pytest.raises(Unreachable, match=r"doesn't list codestral-22b-v0.1; did you mean codestral-22b-v0.1-q4\?"):
        await model.check()


@pytest.mark.parametrize("name", ["gpt-4o:nitro", "gpt-4o-2024-08-06", "gpt-4o-latest", "GPT-4o"])
async def test_check_takes_other_names_of_a_listed_model(routes: Routes, models: Models, name: str) -> None:
    routes.answers = [listing(["gpt-4o", "gpt-4o-mini"])]
    assert await (await models.open(f"openai/{name}")).check() == {}
    assert models.pool.notices == []
