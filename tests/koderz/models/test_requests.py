"""The exact bodies and headers by which each wire format is told how much to think, and what else a run adds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koderz.errors import Fault
from koderz.types import Completion, Message, Sampling
from tests.koderz.models.conftest import Models
from tests.koderz.models.loopback import Answer, Asked, Routes, chat, refusal

ASKED = Sampling(temperature=0.5, max_tokens=100, top_p=0.9)
LOW, BUDGET = (
    Sampling(temperature=0.5, max_tokens=100, top_p=0.9, reasoning_effort="low"),
    Sampling(temperature=0.5, max_tokens=100, top_p=0.9, reasoning_tokens=2000),
)
USER: list[Message] = [{"role": "user", "content": "Write f."}]
ITEMS = [
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": "E"},
    {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
     "content": [{"type": "output_text", "text": "hello", "annotations": []}]},
]  # fmt: skip


def responses(**more: Any) -> Answer:
    usage = {"input_tokens": 3, "output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 7}}
    return Answer(json.dumps({"model": "m", "status": "completed", "output": ITEMS, "usage": usage, **more}).encode())


def messages(**usage: Any) -> Answer:
    content = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "text", "text": "hello"}]
    counts = {"input_tokens": 3, "output_tokens": 9, "output_tokens_details": {"thinking_tokens": 7}, **usage}
    return Answer(json.dumps({"model": "m", "content": content, "stop_reason": "end_turn", "usage": counts}).encode())


def ollama(**shown: Any) -> Any:
    reply = {"model": "m", "message": {"role": "assistant", "content": "hello", "thinking": "Hm."}, "done": True}

    def decide(asked: Asked) -> Answer:
        return Answer(json.dumps(shown if asked.path == "/api/show" else reply).encode())

    return decide


def without(body: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in names}


async def asked_at(
    models: Models, routes: Routes, name: str, sampling: Sampling, **endpoint: Any
) -> tuple[Completion, dict[str, Any], Asked]:
    model = await models.open(name, **endpoint)
    completion = await model.complete(USER, sampling)
    asked = routes.asked[-1]
    return completion, without(asked.json, "model", "messages"), asked


# Chat completions, and Google's

CHAT = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 100}


async def test_chat_sends_an_effort(models: Models, routes: Routes) -> None:
    _, body, asked = await asked_at(models, routes, "openai/m", LOW)

    assert (asked.path, body) == ("/chat/completions", {**CHAT, "reasoning_effort": "low"})


async def test_chat_sends_a_budget_as_openrouter_takes_it(models: Models, routes: Routes) -> None:
    _, body, _ = await asked_at(models, routes, "openai/m", BUDGET)

    assert body == {**CHAT, "reasoning": {"max_tokens": 2000}}


async def test_gemini_sends_a_budget_in_its_extra_body(models: Models, routes: Routes) -> None:
    _, body, _ = await asked_at(models, routes, "gemini/m", BUDGET)
    config = {"google": {"thinking_config": {"thinking_budget": 2000}}}
    assert body == {**CHAT, "extra_body": config}

    _, body, _ = await asked_at(models, routes, "gemini/m", LOW)
    assert body == {**CHAT, "reasoning_effort": "low"}


async def test_request_without_reasoning_is_as_before(models: Models, routes: Routes) -> None:
    for name in ("openai/m", "gemini/m"):
        _, body, _ = await asked_at(models, routes, name, ASKED)
        assert body == CHAT


@pytest.mark.parametrize(
    "told",
    [
        "Unsupported value: 'reasoning_effort' does not support 'xhigh' with this model.",
        "Invalid value: 'xhigh'. Supported values are: 'low' and 'high'. (reasoning_effort)",
        "[{'loc': ('body', 'reasoning_effort'), 'msg': \"Input should be 'low' or 'high'\"}]",
    ],
)
async def test_refused_effort_is_left_out_and_no_other_is_sent(models: Models, routes: Routes, told: str) -> None:
    routes.decide = lambda asked: refusal(told) if asked.json.get("reasoning_effort") == "xhigh" else chat()
    model = await models.open("openai/m")
    completion = await model.complete(USER, Sampling(reasoning_effort="xhigh"))

    assert completion.adapted == ("reasoning_effort dropped",)
    assert [asked.json.get("reasoning_effort") for asked in routes.asked] == ["xhigh", None]
    assert any("xhigh dropped" in notice for notice in models.pool.notices)
    low = await model.complete(USER, Sampling(reasoning_effort="low"))
    assert (low.adapted, routes.asked[-1].json["reasoning_effort"]) == ((), "low")


# Responses


async def test_openai_itself_is_asked_by_responses_for_reasoning(models: Models, routes: Routes) -> None:
    routes.answers = [responses()]
    model = await models.open("openai/m", base_url="https://api.openai.com/v1", api_key="k" * 20)
    completion = await model.complete(USER, LOW)
    asked = routes.asked[-1]

    assert (asked.path, asked.headers["authorization"]) == ("/v1/responses", f"Bearer {'k' * 20}")
    assert asked.json == {
        "model": "m",
        "input": [{"role": "user", "content": "Write f."}],
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 100,
        "reasoning": {"effort": "low"},
    }
    assert (completion.text, completion.reasoning, completion.tokens_reasoning) == ("hello", "Hm.", 7)
    assert [*completion.items] == ITEMS

    routes.answers = [chat()]
    await model.complete(USER, ASKED)
    assert routes.asked[-1].path == "/v1/chat/completions"
    routes.answers = [responses()]
    budget = await model.complete(USER, BUDGET)
    assert "reasoning" not in routes.asked[-1].json
    assert budget.adapted == ("reasoning_tokens dropped",)


async def test_responses_have_items_tools_and_format(models: Models, routes: Routes) -> None:
    routes.answers = [responses(status="incomplete", incomplete_details={"reason": "max_output_tokens"})]
    model = await models.open("openai/m", wire="responses")
    function = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    conversation: list[Message] = [
        {"role": "tools", "content": [{"type": "function", "function": function}], "choice": "required"},
        {"role": "system", "content": "Be brief."},
        *USER,
        {"role": "assistant", "content": "hello", "items": ITEMS},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]
    completion = await model.complete(conversation, Sampling(seed=3, stop=("X",), response_format={"type": "object"}))
    body = routes.asked[-1].json

    assert completion.finish_reason == "length"
    assert completion.adapted == ("seed dropped", "stop dropped")
    assert body["input"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Write f."},
        *ITEMS,
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
    ]
    assert body["tools"] == [{"type": "function", "strict": False, **function}]
    assert body["tool_choice"] == "required"
    assert body["text"] == {"format": {"type": "json_schema", "name": "reply", "schema": {"type": "object"}}}


async def test_responses_are_told_the_name_of_the_tool_to_call(models: Models, routes: Routes) -> None:
    routes.answers = [responses()]
    choice = {"type": "function", "function": {"name": "add"}}
    model = await models.open("openai/m", wire="responses")
    await model.complete([{"role": "tools", "content": [choice], "choice": choice}, *USER], ASKED)
    assert routes.asked[-1].json["tool_choice"] == {"type": "function", "name": "add"}


async def test_items_stay_with_responses(models: Models, routes: Routes) -> None:
    model = await models.open("openai/m")
    await model.complete([*USER, {"role": "assistant", "content": "hello", "items": ITEMS}, *USER], ASKED)

    assert routes.asked[-1].json["messages"][1] == {"role": "assistant", "content": "hello"}


# Anthropic

THINKING = {"type": "adaptive"}


async def test_anthropic_is_told_an_effort(models: Models, routes: Routes) -> None:
    routes.answers = [messages()]
    completion, body, asked = await asked_at(models, routes, "anthropic/m", LOW, api_key="k" * 20)

    assert (asked.path, asked.headers["x-api-key"]) == ("/v1/messages", "k" * 20)
    assert body == {"max_tokens": 100, "thinking": THINKING, "output_config": {"effort": "low"}}
    assert completion.adapted == ("temperature dropped", "top_p dropped")
    assert (completion.tokens_reasoning, completion.reasoning) == (7, "Hm.")


async def test_anthropic_budget_raises_the_limit(models: Models, routes: Routes) -> None:
    routes.answers = [messages()]
    completion, body, _ = await asked_at(models, routes, "anthropic/m", BUDGET)

    assert body == {"max_tokens": 2100, "thinking": {"type": "enabled", "budget_tokens": 2000}}
    assert completion.adapted == ("temperature dropped", "top_p dropped")


@pytest.mark.parametrize(
    ("effort", "more", "adapted"),
    [
        ("none", {"thinking": {"type": "disabled"}}, ()),
        ("minimal", {}, ("reasoning_effort dropped",)),
    ],
)
async def test_anthropic_without_thought_keeps_the_temperature(
    models: Models, routes: Routes, effort: str, more: dict[str, Any], adapted: tuple[str, ...]
) -> None:
    routes.answers = [messages()]
    sampling = Sampling(temperature=0.5, max_tokens=100, reasoning_effort=effort)
    completion, body, _ = await asked_at(models, routes, "anthropic/m", sampling)

    assert body == {"max_tokens": 100, "temperature": 0.5, **more}
    assert completion.adapted == adapted


async def test_anthropic_budget_that_is_refused_leaves_the_request_as_without(models: Models, routes: Routes) -> None:
    told = '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive".'
    routes.decide = lambda asked: refusal(told) if "thinking" in asked.json else messages()
    completion, body, _ = await asked_at(models, routes, "anthropic/m", BUDGET)

    assert body == {"max_tokens": 100, "temperature": 0.5, "top_p": 0.9}
    assert completion.adapted == ("reasoning_tokens dropped",)


async def test_anthropic_effort_stays_where_only_adaptive_thought_is_refused(models: Models, routes: Routes) -> None:
    told = "adaptive thinking is not supported on this model"
    routes.decide = lambda asked: refusal(told) if asked.json.get("thinking") == THINKING else messages()
    completion, body, _ = await asked_at(models, routes, "anthropic/m", LOW)

    assert body == {"max_tokens": 100, "output_config": {"effort": "low"}}
    assert "thinking dropped" in completion.adapted


async def test_budget_out_of_range_is_the_users_to_mend(models: Models, routes: Routes) -> None:
    routes.answers = [refusal("thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")]
    model = await models.open("anthropic/m")

    with pytest.raises(Fault, match="1024"):
        await model.complete(USER, Sampling(reasoning_tokens=7))


# Ollama


@pytest.mark.parametrize(
    ("effort", "shown", "think", "adapted"),
    [
        ("low", {"thinking": {"values": ["low", "medium"], "default": "low"}}, "low", ()),
        ("high", {"thinking": {"values": ["low", "medium"]}}, None, ("reasoning_effort dropped",)),
        ("none", {"thinking": {"values": [True, False]}}, False, ()),
        ("none", {"thinking": {"values": ["low"]}}, None, ("reasoning_effort dropped",)),
        ("none", {"capabilities": ["completion", "thinking"]}, False, ()),
        ("low", {"capabilities": ["completion", "thinking"]}, None, ("reasoning_effort dropped",)),
        ("low", {"thinking": "yes"}, None, ("reasoning_effort dropped",)),
    ],
)
async def test_ollama_is_told_what_its_model_knows(
    models: Models, routes: Routes, effort: str, shown: Any, think: Any, adapted: tuple[str, ...]
) -> None:
    routes.decide = ollama(**shown)
    completion, body, _ = await asked_at(models, routes, "ollama/m", Sampling(reasoning_effort=effort))

    assert body.get("think") == think
    assert ("think" in body) is (think is not None)
    assert (completion.adapted[: len(adapted)], completion.tokens_reasoning) == (adapted, None)


async def test_ollama_has_no_budget(models: Models, routes: Routes) -> None:
    routes.decide = ollama()
    completion, body, _ = await asked_at(models, routes, "ollama/m", BUDGET)

    assert "think" not in body
    assert "reasoning_tokens dropped" in completion.adapted


# Extra fields and headers


async def test_extra_body_wins_in_every_format(models: Models, routes: Routes) -> None:
    extra = {"temperature": 2, "provider": {"order": ["x"]}}
    for name, answer in {"openai/m": chat(), "anthropic/m": messages()}.items():
        routes.answers = [answer]
        _, body, _ = await asked_at(models, routes, name, Sampling(temperature=0.5, extra_body=extra))
        assert body.items() >= extra.items()


async def test_refused_field_of_the_extra_body_is_not_asked_for_ever(models: Models, routes: Routes) -> None:
    routes.answers = [refusal("Unsupported parameter: 'temperature' is not supported")]
    model = await models.open("openai/m")

    with pytest.raises(Fault, match="temperature"):
        await model.complete(USER, Sampling(temperature=0.5, extra_body={"temperature": 2}))
    assert len(routes.asked) == 1


SECRET = 'pa/ss-"wörd"-seven'.replace("ö", "o")


async def test_header_is_sent_and_its_echo_hidden(models: Models, routes: Routes) -> None:
    echo = json.dumps({"x": SECRET})[7:-2].replace("/", "\\/")
    body = chat("TEXT", reasoning_content="TEXT").body.replace(b"TEXT", f"it was {echo}.".encode())
    routes.answers = [Answer(body)]
    completion, _, asked = await asked_at(
        models, routes, "openai/m", ASKED, headers={"X-Team": SECRET, "authorization": "Bearer of-the-gateway"}
    )

    assert asked.headers["x-team"] == SECRET
    assert asked.headers["authorization"] == "Bearer of-the-gateway"
    assert (completion.text, completion.reasoning) == ("it was ***.", "it was ***.")


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500])
async def test_header_is_in_no_error(models: Models, routes: Routes, status: int) -> None:
    routes.answers = [refusal(f"no such team: {SECRET} of-the-gateway", status)]
    model = await models.open("openai/m", max_retries=0, headers={"X-Team": SECRET, "X-Key": "Bearer of-the-gateway"})

    with pytest.raises(Fault) as raised:
        await model.complete(USER, ASKED)
    told = " ".join([str(raised.value), *models.pool.notices, repr(model)])
    assert SECRET not in told
    assert "of-the-gateway" not in told


# Azure


async def test_azure_deployment_has_a_version_and_its_own_key_header(models: Models, routes: Routes) -> None:
    base = f"{routes.url}/openai/deployments/gpt"
    _, _, asked = await asked_at(
        models, routes, "openai/m", ASKED, base_url=base, api_version="2024-10-21", api_key="k" * 20
    )

    assert asked.path == "/openai/deployments/gpt/chat/completions?api-version=2024-10-21"
    assert asked.headers["api-key"] == "k" * 20
    assert "authorization" not in asked.headers

    _, _, asked = await asked_at(
        models, routes, "openai/m", ASKED, base_url=f"{routes.url}/openai/v1", api_key="k" * 20
    )
    assert (asked.path, asked.headers["authorization"]) == ("/openai/v1/chat/completions", f"Bearer {'k' * 20}")


# Prices that servers state


@pytest.mark.parametrize(
    ("usage", "header", "cost", "source"),
    [
        ({"cost": 0.25}, None, 0.25, "server"),
        ({"cost": 0.25, "is_byok": True, "cost_details": {"upstream_inference_cost": 1.5}}, None, 1.75, "server"),
        ({"cost": 0.25, "is_byok": False, "cost_details": {"upstream_inference_cost": 1.5}}, None, 0.25, "server"),
        ({}, "0.5", 0.5, "server"),
        ({"cost": 0.25}, "-1", 0.25, "server"),
        ({"cost": 0}, None, 0.0, "server"),
        *(({"cost": wrong}, None, None, "free") for wrong in (-1, "much", True, [1])),
        *(({}, wrong, None, "free") for wrong in ("-0.1", "nan", "inf", "much")),
        ({}, None, None, "free"),
    ],
)
async def test_price_that_the_server_states_wins(
    models: Models, routes: Routes, usage: Any, header: str | None, cost: float | None, source: str
) -> None:
    told = json.loads(chat().body)
    told["usage"] |= usage
    headers = {"x-litellm-response-cost": header} if header else {}
    routes.answers = [Answer(json.dumps(told).encode(), headers=headers)]
    model = await models.open("openai/strange-one")
    completion = [await model.complete(USER, ASKED) for _ in range(2)][-1]

    assert (completion.cost, completion.cost_source) == (cost or 0.0, source)
    wrong = (cost is None and (usage or header)) or header == "-1"
    assert len([notice for notice in models.pool.notices if "ignored" in notice]) == bool(wrong)
