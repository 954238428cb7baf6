"""The corners of each wire format, as routes of respx."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import respx

from koderz.errors import FatalFault, Fault
from koderz.models import Model
from koderz.types import Completion, Message, Sampling

from .conftest import Clock, Models

URL = "https://wire.example/v1"
KEY = "sk-wire-0123456789"


@dataclass(frozen=True)
class Format:
    """A wire format, and how it says what each of them can say."""

    model: str
    path: str
    reply: dict[str, Any]  # "hello", of 11 tokens and 7, by model m
    call: dict[str, Any]  # the tool `shell` with the command `ls`
    cut: dict[str, Any]  # "hel", which the limit of tokens cut
    key_header: str = "authorization"
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"https://wire.example{self.path}"


def chat(message: dict[str, Any], reason: str) -> dict[str, Any]:
    choice = {"message": {"role": "assistant", **message}, "finish_reason": reason}
    return {"model": "m", "choices": [choice], "usage": {"prompt_tokens": 11, "completion_tokens": 7}}


def responses(item: dict[str, Any], **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": 11, "output_tokens": 7}
    return {"model": "m", "status": "completed", "output": [item], "usage": usage, **more}


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def messages(block: dict[str, Any], reason: str) -> dict[str, Any]:
    return {"model": "m", "content": [block], "stop_reason": reason, "usage": {"input_tokens": 11, "output_tokens": 7}}


def ollama(message: dict[str, Any], reason: str = "stop") -> dict[str, Any]:
    counted = {"prompt_eval_count": 11, "eval_count": 7}
    return {"model": "m", "message": {"role": "assistant", **message}, "done": True, "done_reason": reason, **counted}


ARGUMENTS = '{"command":"ls"}'
CALL = {"id": "c1", "type": "function", "function": {"name": "shell", "arguments": ARGUMENTS}}
FORMATS = {
    "chat": Format(
        "openai/m",
        "/v1/chat/completions",
        chat({"content": "hello"}, "stop"),
        chat({"content": None, "tool_calls": [CALL]}, "tool_calls"),
        chat({"content": "hel"}, "length"),
        options={"wire": "chat"},
    ),
    "responses": Format(
        "openai/m",
        "/v1/responses",
        responses(said("hello")),
        responses({"type": "function_call", "call_id": "c1", "name": "shell", "arguments": ARGUMENTS}),
        responses(said("hel"), status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
        options={"wire": "responses"},
    ),
    "messages": Format(
        "anthropic/m",
        "/v1/messages",
        messages({"type": "text", "text": "hello"}, "end_turn"),
        messages({"type": "tool_use", "id": "c1", "name": "shell", "input": {"command": "ls"}}, "tool_use"),
        messages({"type": "text", "text": "hel"}, "max_tokens"),
        "x-api-key",
        {"base_url": "https://wire.example"},
    ),
    "ollama": Format(
        "ollama/m",
        "/api/chat",
        ollama({"content": "hello"}),
        ollama({"content": "", "tool_calls": [{"function": {"name": "shell", "arguments": {"command": "ls"}}}]}),
        ollama({"content": "hel"}, "length"),
        options={"base_url": "https://wire.example"},
    ),
}
SHELL = {"type": "function", "function": {"name": "shell", "parameters": {"type": "object", "properties": {}}}}
PROMPT: list[Message] = [{"role": "user", "content": "Write f."}]


@pytest.fixture(params=FORMATS)
def wire(request: pytest.FixtureRequest) -> Format:
    return FORMATS[request.param]


async def opened(models: Models, wire: Format, **more: Any) -> Model:
    return await models.open(wire.model, **{"base_url": URL, "api_key": KEY, "max_retries": 1, **wire.options, **more})


async def asked(models: Models, wire: Format, prompt: list[Message] = PROMPT, **more: Any) -> Completion:
    return await (await opened(models, wire, **more)).complete(prompt, Sampling())


async def test_reply_is_read_and_the_key_sent(wire: Format, router: respx.MockRouter, models: Models) -> None:
    route = router.post(wire.url).respond(json=wire.reply)
    completion = await asked(models, wire)
    assert (completion.text, completion.finish_reason, completion.model) == ("hello", "stop", "m")
    assert (completion.tokens_in, completion.tokens_out) == (11, 7)
    sent = route.calls.last.request
    assert sent.headers[wire.key_header].removeprefix("Bearer ") == KEY
    assert json.loads(sent.content)["model"] == "m"


async def test_tool_call_is_read(wire: Format, router: respx.MockRouter, models: Models) -> None:
    router.post(wire.url).respond(json=wire.call)
    completion = await asked(models, wire, [{"role": "tools", "content": [SHELL]}, *PROMPT])
    (call,) = completion.tool_calls
    assert call["function"]["name"] == "shell"
    assert json.loads(call["function"]["arguments"]) == {"command": "ls"}


async def test_reply_that_was_cut_says_so(wire: Format, router: respx.MockRouter, models: Models) -> None:
    router.post(wire.url).respond(json=wire.cut)
    completion = await asked(models, wire)
    assert (completion.text, completion.finish_reason) == ("hel", "length")


async def test_reply_without_counts_is_estimated(wire: Format, router: respx.MockRouter, models: Models) -> None:
    counts = ("usage", "prompt_eval_count", "eval_count")
    router.post(wire.url).respond(json={name: value for name, value in wire.reply.items() if name not in counts})
    assert (await asked(models, wire)).adapted == ("tokens estimated",)


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, json={"error": {"message": "overloaded", "code": 503}}),
        httpx.Response(200, json=[]),
        httpx.Response(200, content=b'{"model": "m", "choi'),
        httpx.Response(200, content=b""),
        httpx.Response(502, text="<html>bad gateway</html>"),
        httpx.Response(200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(b"\x1f\x8b")),
    ],
    ids=["error", "list", "torn", "empty", "gateway", "compressed"],
)
async def test_answer_that_is_none_is_asked_for_again(
    wire: Format, router: respx.MockRouter, models: Models, answer: httpx.Response
) -> None:
    route = router.post(wire.url).mock(side_effect=[answer, httpx.Response(200, json=wire.reply)])
    completion = await asked(models, wire)
    assert (completion.text, completion.retries, route.call_count) == ("hello", 1, 2)


async def test_wait_that_the_server_asks_for_is_kept(
    wire: Format, router: respx.MockRouter, models: Models, clock: Clock
) -> None:
    limited = httpx.Response(429, headers={"retry-after": "3"}, json={"error": {"message": "slow down"}})
    router.post(wire.url).mock(side_effect=[limited, httpx.Response(200, json=wire.reply)])
    completion = await asked(models, wire)
    assert completion.throttled == 1
    assert sum(clock.slept) >= 3


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_refused_key_or_model_ends_the_run_without_telling_the_key(
    wire: Format, router: respx.MockRouter, models: Models, status: int
) -> None:
    route = router.post(wire.url).respond(status, json={"error": {"message": f"{KEY} has no m"}})
    with pytest.raises(FatalFault, match=f"{status}: ") as caught:
        await asked(models, wire)
    assert KEY not in str(caught.value)
    assert route.call_count == 1


async def test_redirect_is_not_followed(wire: Format, router: respx.MockRouter, models: Models) -> None:
    router.post(wire.url).respond(307, headers={"location": "https://other.example/"})
    other = router.route(host="other.example").respond(json=wire.reply)
    with pytest.raises(FatalFault, match=r"redirected to https://other\.example/"):
        await asked(models, wire)
    assert not other.called


async def test_prompt_that_is_too_long_is_the_models_end(
    wire: Format, router: respx.MockRouter, models: Models
) -> None:
    words = "This model's maximum context length is 8 tokens. However, your messages resulted in 9 tokens."
    router.post(wire.url).respond(400, json={"error": {"message": words}})
    assert (await asked(models, wire)).finish_reason == "context"


async def test_answer_without_end_is_read_up_to_the_limit(
    wire: Format, router: respx.MockRouter, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("koderz.models.transport.MAX_BYTES", 1000)
    sent: list[int] = []

    async def endless() -> AsyncIterator[bytes]:
        while True:
            sent.append(100)
            yield b" " * 100

    router.post(wire.url).mock(return_value=httpx.Response(200, content=endless()))
    with pytest.raises(Fault, match="longer than"):
        await asked(models, wire)
    assert sum(sent) == 1100


async def test_request_without_a_route_is_named(wire: Format, router: respx.MockRouter, models: Models) -> None:
    router.get(wire.url).respond(json=wire.reply)
    with pytest.raises(FatalFault, match=f"respx has no route for POST {wire.url}"):
        await asked(models, wire)
