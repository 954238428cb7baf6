"""The official clients against the loopback server, which they validate strictly where they can.

They are imported where they are used: each takes as long as all else here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from koderz.testing import ModelServer

ASKED = "Write f."
THOUGHT = "<think>hm</think>def f(): ..."


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer(THOUGHT, reasoning="reasoning_content", api_key="sk-x") as served:
        yield served


@pytest.mark.slow
async def test_openais_client_reads_replies_streams_models_and_errors(server: ModelServer) -> None:
    import openai

    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="sk-x", max_retries=0, _strict_response_validation=True
    ) as client:
        whole = await client.chat.completions.create(model="recorded", messages=[{"role": "user", "content": ASKED}])
        assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("def f(): ...", "stop")
        assert whole.usage is not None
        stream = await client.chat.completions.create(
            model="recorded",
            messages=[{"role": "user", "content": ASKED}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "def f(): ..."
        assert chunks[-1].usage == whole.usage
        assert [model.id async for model in client.models.list()] == ["recorded"]
        assert (await client.models.retrieve("recorded")).id == "recorded"
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="nope", messages=[{"role": "user", "content": ASKED}])
        assert caught.value.code == "model_not_found"
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="sk-y").models.list()


async def test_openais_client_reads_responses_whole_and_streamed(server: ModelServer) -> None:
    import openai

    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="sk-x", max_retries=0, _strict_response_validation=True
    ) as client:
        whole = await client.responses.create(model="recorded", input=ASKED, instructions="Be brief.")
        assert (whole.output_text, whole.status) == ("def f(): ...", "completed")
        assert [item.type for item in whole.output] == ["reasoning", "message"]
        assert server.requests[-1].messages == (
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": ASKED},
        )
        asked = [{"role": "user", "content": [{"type": "input_text", "text": ASKED}]}]
        events = [event async for event in await client.responses.create(model="recorded", input=asked, stream=True)]
        assert events[-1].response.output_text == "def f(): ..."
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "def f(): ..."
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="nope", input=ASKED)
        with pytest.raises(openai.BadRequestError):
            await client.responses.create(model="recorded", input=[])


@pytest.mark.slow  # seconds to import
async def test_anthropics_client_reads_replies_streams_models_and_errors(server: ModelServer) -> None:
    import anthropic

    async with anthropic.AsyncAnthropic(
        base_url=server.url, api_key="sk-x", max_retries=0, _strict_response_validation=True
    ) as client:
        whole = await client.messages.create(
            model="recorded", max_tokens=99, messages=[{"role": "user", "content": ASKED}]
        )
        assert [block.type for block in whole.content] == ["thinking", "text"]
        counted = await client.messages.count_tokens(
            model="recorded", system="x" * 400, messages=[{"role": "user", "content": ASKED}]
        )
        assert counted.input_tokens == (400 + len(ASKED)) // 4
        async with client.messages.stream(
            model="recorded", max_tokens=99, messages=[{"role": "user", "content": ASKED}]
        ) as stream:
            streamed = await stream.get_final_message()
        assert [block.type for block in streamed.content] == ["thinking", "text"]
        assert (streamed.stop_reason, streamed.usage) == ("end_turn", whole.usage)
        assert [model.id async for model in client.models.list()] == ["recorded"]
        assert (await client.models.retrieve("recorded")).id == "recorded"
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.create(model="nope", max_tokens=9, messages=[{"role": "user", "content": ASKED}])
        with pytest.raises(anthropic.AuthenticationError):
            await client.with_options(api_key="sk-y").models.list()


async def test_ollamas_client_reads_replies_streams_models_and_errors(server: ModelServer) -> None:
    import ollama

    async with ollama.AsyncClient(host=server.url) as client:
        whole = await client.chat(model="recorded", messages=[{"role": "user", "content": ASKED}])
        assert (whole.message.content, whole.message.thinking, whole.done_reason) == ("def f(): ...", "hm", "stop")
        streamed = [
            part async for part in await client.chat("recorded", [{"role": "user", "content": ASKED}], stream=True)
        ]
        assert "".join(part.message.content or "" for part in streamed) == "def f(): ..."
        assert (streamed[-1].done, streamed[-1].eval_count) == (True, whole.eval_count)
        assert [model.model for model in (await client.list()).models] == ["recorded:latest"]
        assert (await client.show("recorded")).capabilities == ["completion"]
        with pytest.raises(ollama.ResponseError, match="not found"):
            await client.chat("nope", [{"role": "user", "content": ASKED}])
