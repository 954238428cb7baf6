"""What counts as an answer of a model: by the published reference of each wire format, and as real servers send it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koderz.errors import FatalFault, Fault
from koderz.types import Completion, Message, Sampling

from .conftest import Models
from .loopback import Answer, Routes

OPENAI, ANTHROPIC, OLLAMA = "openai/m", "anthropic/m", "m"


def choice(finish: str | None = "stop", **message: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", **message}, "finish_reason": finish}]}


async def asked(routes: Routes, models: Models, name: str, *answers: object) -> Completion:
    routes.answers = [Answer(json.dumps(answer).encode()) for answer in answers]
    return await (await models.open(name)).complete([{"role": "user", "content": "Write f."}], Sampling())


NOTHING: tuple[object, ...] = ({}, [], None, "hi", {"error": None})
NO_ANSWERS: list[tuple[str, object]] = [
    *((name, body) for name in (OPENAI, ANTHROPIC, OLLAMA) for body in NOTHING),
    (OPENAI, {"choices": []}),
    (OPENAI, {"choices": None}),
    (OPENAI, {"choices": [{}]}),
    (OPENAI, {"choices": [{"finish_reason": "stop"}]}),
    (OPENAI, {"choices": [{"message": None, "finish_reason": "stop"}]}),
    (OPENAI, {"choices": [{"message": {}, "finish_reason": "stop"}]}),
    (OPENAI, choice()),
    (OPENAI, choice(None, content=None)),
    (OPENAI, choice(None, content="")),
    (OPENAI, choice("", content="")),
    (OPENAI, choice("error", content="def f")),
    (OPENAI, choice("abort", content="def f")),
    (OPENAI, choice(content=5)),
    (OPENAI, choice(content=[{"text": "hi"}])),
    (OPENAI, choice(content=[{"type": "text"}])),
    (OPENAI, {"object": "text_completion", "choices": [{"text": "hi", "finish_reason": "stop"}]}),
    (ANTHROPIC, {"content": None, "stop_reason": "end_turn"}),
    (ANTHROPIC, {"content": "hi", "stop_reason": "end_turn"}),
    (ANTHROPIC, {"content": [{"text": "hi"}], "stop_reason": "end_turn"}),
    (ANTHROPIC, {"content": [{"type": "text"}], "stop_reason": "end_turn"}),
    (ANTHROPIC, {"content": []}),
    (ANTHROPIC, {"content": [{"type": "text", "text": "hi"}]}),
    (ANTHROPIC, {"content": [{"type": "text", "text": "hi"}], "stop_reason": None}),
    (OLLAMA, {"model": "m", "done": True}),
    (OLLAMA, {"message": None, "done": True}),
    (OLLAMA, {"message": {}, "done": True}),
    (OLLAMA, {"message": {"role": "assistant", "content": ""}}),
    (OLLAMA, {"message": {"role": "assistant", "content": "def f"}, "done": False}),
    (OLLAMA, {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "load"}),
    (OLLAMA, {"message": {"role": "assistant", "tool_calls": [{"function": {}}]}, "done": True, "done_reason": "stop"}),
    (OLLAMA, {"response": "hi", "done": True}),
]


@pytest.mark.parametrize(("name", "body"), NO_ANSWERS)
async def test_malformed_answer_is_a_fault(routes: Routes, models: Models, name: str, body: object) -> None:
    with pytest.raises(Fault, match=r"the server's answer is (none|not of its format)") as caught:
        await asked(routes, models, name, body)
    assert not isinstance(caught.value, FatalFault)
    assert len(routes.asked) == 3  # it is asked again, though not as often as one that is busy


async def test_malformed_answer_is_asked_for_again(routes: Routes, models: Models) -> None:
    completion = await asked(routes, models, OPENAI, {}, choice(content="hi"))
    assert (completion.text, completion.retries) == ("hi", 1)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        (OPENAI, choice(content=None)),
        (OPENAI, choice(content="")),
        (OPENAI, choice(content=None, tool_calls=[])),
        (OPENAI, choice(content=[])),
        (ANTHROPIC, {"content": [], "stop_reason": "end_turn"}),
        (ANTHROPIC, {"content": [{"type": "text", "text": ""}], "stop_reason": "end_turn"}),
        (OLLAMA, {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"}),
        (OLLAMA, {"message": {"role": "assistant"}, "done": True}),  # 0.3 left empty contents out
    ],
)
async def test_empty_reply_is_a_reply(routes: Routes, models: Models, name: str, body: object) -> None:
    completion = await asked(routes, models, name, body)
    assert (completion.text, completion.finish_reason, completion.model, len(routes.asked)) == ("", "stop", "m", 1)


@pytest.mark.parametrize(
    ("body", "text", "reasoning", "finish"),
    [
        pytest.param(choice(None, content="hi"), "hi", "", "stop", id="LocalAI without a finish reason"),
        pytest.param(choice("", content="hi"), "hi", "", "stop", id="with an empty one"),
        pytest.param({"choices": [{"message": {"content": "hi"}}]}, "hi", "", "stop", id="no more than the text"),
        pytest.param(choice("length", reasoning="hm"), "", "hm", "length", id="mlx-lm, cut off while it thinks"),
        pytest.param(choice("stop", reasoning="hm"), "", "hm", "stop", id="mlx-lm, ended while it thinks"),
        pytest.param(choice("length"), "", "", "length", id="Gemini, all tokens used up"),
        pytest.param(choice("content_filter"), "", "", "refusal", id="Gemini and Azure, filtered"),
        pytest.param(choice("eos_token", content="hi"), "hi", "", "stop", id="text-generation-inference"),
        pytest.param(choice(content="", reasoning_content="hm", tool_calls=[]), "", "hm", "stop", id="vLLM"),
        pytest.param(choice(content="hi", error=None) | {"error": None}, "hi", "", "stop", id="a gateway's null error"),
        pytest.param(
            choice("tool_calls", content="hi", tool_calls=[{"function": {}}]),
            "hi",
            "",
            "tool_calls",
            id="text and call",
        ),
    ],
)
async def test_reply_with_harmless_omissions_is_read(
    routes: Routes, models: Models, body: object, text: str, reasoning: str, finish: str
) -> None:
    completion = await asked(routes, models, OPENAI, body)
    assert (completion.text, completion.reasoning, completion.finish_reason) == (text, reasoning, finish)


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "provider is down", "code": 502}},
        {"error": {"message": "provider is down", "code": 502}, "choices": []},
        choice("error", content="def f") | {"error": {"message": "provider is down", "code": 502}},
        {"choices": [{"message": {"content": ""}, "error": {"message": "provider is down", "code": 502}}]},
        {"error": "provider is down"},
    ],
)
async def test_error_in_place_of_a_reply_is_quoted(
    routes: Routes, models: Models, prompt: list[Message], body: object
) -> None:
    routes.answers = [Answer(json.dumps(body).encode())]
    model = await models.open(OPENAI, max_retries=1)
    with pytest.raises(Fault, match="502: provider is down"):
        await model.complete(prompt, Sampling())
