"""What the bridge answers, and to whom."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

import aiohttp
import orjson
import pytest

from koderz.errors import Fault, KoderzError, StorageError
from koderz.experiments.budget import CapReached
from koderz.sandbox.gate import CONNECTIONS
from koderz.systems.rollouts.agents import bridge as bridges
from koderz.systems.rollouts.agents.bridge import Bridge, fingerprint
from koderz.types import Message, Reply
from tests.koderz.models.test_tools import BODIES

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


class Asked:
    """An `ask` that answers as it is told."""

    def __init__(self, reply: Reply | KoderzError) -> None:
        self.reply, self.calls = reply, list[tuple[Sequence[Message], dict[str, Any]]]()
        self.gate: asyncio.Event | None = None

    async def __call__(self, messages: Sequence[Message], *_: Any, **more: Any) -> Reply:
        self.calls.append((messages, more))
        if self.gate:
            await self.gate.wait()
        if isinstance(self.reply, KoderzError):
            raise self.reply
        return self.reply


@asynccontextmanager
async def served(ask: Any) -> AsyncIterator[tuple[Bridge, aiohttp.ClientSession]]:
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    async with Bridge(ask, "m") as bridge:
        await bridge.serve(listening)
        headers = {"authorization": f"Bearer {bridge.token}"}
        async with aiohttp.ClientSession(url, headers=headers) as session:
            yield bridge, session


async def test_bridge_answers_nobody_without_the_token() -> None:
    ask = Asked(Reply(1, "hi"))
    async with served(ask) as (bridge, session):
        for headers in ({"authorization": ""}, {"authorization": "Bearer x"}, {"authorization": "", "x-api-key": "x"}):
            async with session.post(PATHS["chat"], json=BODIES["chat"], headers=headers) as answer:
                assert answer.status == 401
        assert not ask.calls
        async with session.post(PATHS["chat"], json={**BODIES["chat"], "stream": False}) as answer:
            assert (await answer.json())["choices"][0]["message"]["content"] == "hi"
        own = {"authorization": "", "x-api-key": bridge.token}
        async with session.post(PATHS["chat"], json={**BODIES["chat"], "stream": False}, headers=own) as answer:
            assert answer.status == 200


async def test_token_that_is_no_utf8_is_wrong() -> None:
    async with served(Asked(Reply(1, "hi"))) as (_, session):
        reading, writing = await asyncio.open_connection("127.0.0.1", port_of(session))
        writing.write(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nX-Api-Key: \xff\xfe\r\nContent-Length: 2\r\n\r\n{}")
        assert (await reading.readline()).startswith(b"HTTP/1.1 401")
        writing.close()


@pytest.mark.slow
async def test_bodies_that_never_end_are_bounded_in_sum_and_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridges, "_HELD_BYTES", 300_000)
    monkeypatch.setattr(bridges, "SECONDS", 2.0)
    ask = Asked(Reply(1, "hi"))
    async with served(ask) as (bridge, session):
        head = f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nX-Api-Key: {bridge.token}\r\nContent-Length: 900000\r\n\r\n"
        answers = [asyncio.create_task(unfinished(port_of(session), head.encode() + b" " * 100_000)) for _ in range(8)]
        statuses = sorted(await asyncio.gather(*answers))
        assert {*statuses} == {b"408", b"413"}
        assert statuses.count(b"413") >= 5
        async with session.post(PATHS["chat"], json={**BODIES["chat"], "stream": False}) as answer:
            assert answer.status == 200  # what was held is free again


@pytest.mark.slow
async def test_bridge_bounds_connections_without_a_whole_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bridges, "SECONDS", 2.0)
    async with served(Asked(Reply(1, "hi"))) as (_, session):
        held = [asyncio.create_task(unfinished(port_of(session), b"POST /v1/mess")) for _ in range(CONNECTIONS + 20)]
        assert {*await asyncio.gather(*held)} == {b""}  # all of them were closed
        async with session.get("/v1/models") as answer:
            assert answer.status == 200


async def test_request_of_more_parts_than_bytes_can_hold_is_refused() -> None:
    ask = Asked(Reply(1, "hi"))
    async with (
        served(ask) as (_, session),
        session.post(PATHS["chat"], data=BytesIO(b"[" + b"0," * 1_100_000 + b"0]")) as answer,
    ):
        assert answer.status == 400
        assert "commas and brackets" in await answer.text()
    assert not ask.calls


async def unfinished(port: int, beginning: bytes) -> bytes:
    """The status that the beginning of a request is answered by; empty where the connection is closed instead."""
    reading, writing = await asyncio.open_connection("127.0.0.1", port)
    try:
        writing.write(beginning)
        return (await reading.readline())[9:12]
    except ConnectionError:
        return b""
    finally:
        writing.close()


def port_of(session: aiohttp.ClientSession) -> int:
    assert session._base_url
    assert session._base_url.port
    return session._base_url.port


async def test_bridge_token_holds_for_its_rollout_alone() -> None:
    ask = Asked(Reply(1, "hi"))
    async with served(ask) as (_, session), served(ask) as (other, _):
        own = {"authorization": f"Bearer {other.token}"}
        async with session.post(PATHS["chat"], json=BODIES["chat"], headers=own) as answer:
            assert answer.status == 401
    listening = socket.create_server(("127.0.0.1", 0))
    async with Bridge(ask, "m") as bridge:
        await bridge.serve(listening)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}{PATHS['chat']}"
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {bridge.token}"}) as session:
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.post(url, json=BODIES["chat"])
    assert not ask.calls


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/chat/completions"), ("POST", "/v1/files"), ("HEAD", "/")])
async def test_bridge_serves_no_other_path(method: str, path: str) -> None:
    async with served(Asked(Reply(1, ""))) as (_, session), session.request(method, path) as answer:
        assert answer.status == 404


async def test_models_are_listed_and_tokens_counted_without_a_call() -> None:
    ask = Asked(Reply(1, ""))
    async with served(ask) as (_, session):
        async with session.get("/v1/models") as answer:
            assert [each["id"] for each in (await answer.json())["data"]] == ["m"]
        async with session.post("/v1/messages/count_tokens", json=BODIES["messages"]) as answer:
            assert (await answer.json())["input_tokens"] > 10
    assert not ask.calls


@pytest.mark.parametrize("wire", PATHS)
async def test_bridge_hands_on_an_answer_on_the_clients_wire_whole(wire: str) -> None:
    body = '{"choices":[{"message":{"content":"x"}}],"content":[],"output":[],"of_a_new_kind":[1.50]}'
    async with served(Asked(Reply(1, "x", body=body))) as (_, session):
        async with session.post(PATHS[wire], json={**BODIES[wire], "stream": False}) as answer:
            assert await answer.text() == body
        async with session.post(PATHS[wire], json=BODIES[wire]) as answer:
            assert answer.content_type == "text/event-stream"


async def test_bridge_draws_by_the_clients_sampling() -> None:
    ask = Asked(Reply(1, ""))
    async with served(ask) as (_, session):
        await session.post(PATHS["messages"], json={**BODIES["messages"], "temperature": 1, "stop_sequences": ["a"]})
    _, more = ask.calls[0]
    assert (more["temperature"], more["max_tokens"], more["stop"], more["seed"]) == (1, 100, ("a",), None)


async def test_bridge_refuses_an_invalid_request_by_name() -> None:
    ask = Asked(Reply(1, "no such tool", finish_reason="rejected"))
    async with served(ask) as (bridge, session):
        deep = b'{"messages": [{"role": "user", "content": ' + b"[" * 900 + b"]" * 900 + b"}]}"
        for body in (b"{", b"[]", b'{"messages": 5}', deep):
            async with session.post(PATHS["chat"], data=body) as answer:
                assert answer.status == 400
        assert not ask.calls
        for stream in (True, False):
            async with session.post(PATHS["chat"], json={**BODIES["chat"], "stream": stream}) as answer:
                assert (answer.status, (await answer.json())["error"]["message"]) == (400, "no such tool")
        assert bridge.fault is None


@pytest.mark.parametrize(("wire", "status"), [("chat", 400), ("responses", 400), ("messages", 402)])
async def test_bridge_at_the_cap_answers_what_ends_an_agent(wire: str, status: int) -> None:
    ask = Asked(CapReached("the cost cap of $1 is reached"))
    async with served(ask) as (bridge, session):
        for stream in (True, False):
            async with session.post(PATHS[wire], json={**BODIES[wire], "stream": stream}) as answer:
                assert answer.status == status
                assert "cost cap" in (await answer.json())["error"]["message"]
        assert len(ask.calls) == 1
        with pytest.raises(CapReached):
            await bridge.beside(asyncio.sleep(0))


async def test_bridge_ends_the_work_on_a_full_disk() -> None:
    async with served(Asked(StorageError("the disk is full"))) as (bridge, session):
        async with session.post(PATHS["chat"], json=BODIES["chat"]) as answer:
            assert answer.status == 400
        with pytest.raises(StorageError):
            await bridge.beside(asyncio.sleep(0))


async def test_agent_that_goes_on_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridges, "GRACE", 0.01)
    ended = asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with served(Asked(Fault("gone"))) as (bridge, session):
        await session.post(PATHS["chat"], json=BODIES["chat"])
        with pytest.raises(Fault, match="gone"):
            await bridge.beside(endless())
    assert ended.is_set()


async def test_stream_shows_signs_of_life_until_the_reply_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridges, "_PATIENCE", 0.01)
    ask = Asked(Reply(1, "hi"))
    ask.gate = asyncio.Event()
    async with served(ask) as (_, session), session.post(PATHS["messages"], json=BODIES["messages"]) as answer:
        assert await answer.content.readline() == b"event: ping\n"
        ask.gate.set()
        assert b"message_stop" in await answer.content.read()


def test_requests_of_two_runs_are_known_by_what_they_ask() -> None:
    def body(noise: str, **more: Any) -> dict[str, Any]:
        text = {"type": "text", "text": "go", **({"cache_control": {"type": "ephemeral"}} if noise == "a" else {})}
        output = f"Chunk ID: {noise}1\nWall time: 0.{len(noise)}1 seconds\n<current_date>2026-01-0{len(noise)}<\nok"
        items = [{"id": f"item_{noise}", "call_id": f"call_{noise}", "output": output}]
        own = {"metadata": {"user": noise}, "prompt_cache_key": noise, "model": noise, "stream": noise == "a"}
        return {"messages": [text], "input": items, "temperature": 0.5, **own, **more}

    assert fingerprint(body("a")) == fingerprint(body("bb"))
    assert fingerprint(body("a")) != fingerprint(body("a", temperature=0.6))
    other = orjson.loads(json.dumps(body("a")).replace("ok", "no"))
    assert fingerprint(body("a")) != fingerprint(other)
