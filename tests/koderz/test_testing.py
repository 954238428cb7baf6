from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from koderz.errors import Fault, KoderzError
from koderz.testing import ModelServer, NoReply, Request
from koderz.testing.service import Faults, read_shares
from koderz.types import Completion
from tests.conftest import PATIENCE

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Write def add(a, b)."}]
CLAUDE = {"anthropic-version": "2023-06-01"}
Body = dict[str, Any]


def body_for(kind: str, *, model: str = "recorded", **more: Any) -> Body:
    if kind == "anthropic":
        claude = {"system": ASKED[0]["content"], "messages": ASKED[1:], "max_tokens": 100}
        return {"model": model, **claude, **more}
    return {"model": model, "messages": ASKED, "stream": False, **more}


PATHS = {"ollama": "/api/chat", "openai": "/v1/chat/completions", "anthropic": "/v1/messages"}
KINDS = pytest.mark.parametrize("kind", PATHS)


@asynccontextmanager
async def client_of(server: ModelServer) -> AsyncIterator[httpx.AsyncClient]:
    async with server, httpx.AsyncClient(base_url=server.url, timeout=PATIENCE, headers=CLAUDE) as client:
        yield client


def exchanged(
    server: ModelServer, kind: str, *, headers: Mapping[str, str] | None = None, **more: Any
) -> httpx.Response:
    async def exchange() -> httpx.Response:
        async with client_of(server) as client:
            return await client.post(PATHS[kind], json=body_for(kind, **more), headers=headers)

    return asyncio.run(exchange())


def got(server: ModelServer, path: str, **more: Any) -> httpx.Response:
    async def get() -> httpx.Response:
        async with server, httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
            return await client.get(path, **more)

    return asyncio.run(get())


def text_of(kind: str, reply: Body) -> str:
    if kind == "ollama":
        return str(reply["message"]["content"])
    if kind == "openai":
        return str(reply["choices"][0]["message"]["content"])
    return "".join(block["text"] for block in reply["content"] if block["type"] == "text")


def error_of(kind: str, reply: Body) -> str:
    return str(reply["error"] if kind == "ollama" else reply["error"]["message"])


@KINDS
def test_wires_bring_reply_finish_reason_and_tokens(kind: str) -> None:
    reply = exchanged(ModelServer("pass it on"), kind).json()
    assert text_of(kind, reply) == "pass it on"
    assert reply["model"] == "recorded"
    if kind == "ollama":
        assert (reply["done"], reply["done_reason"]) == (True, "stop")
        assert (reply["prompt_eval_count"], reply["eval_count"]) == (8, 3)
    elif kind == "openai":
        assert reply["choices"][0]["finish_reason"] == "stop"
        assert reply["usage"] == {"prompt_tokens": 8, "completion_tokens": 3, "total_tokens": 11}
    else:
        assert reply["stop_reason"] == "end_turn"
        assert reply["usage"] == {"input_tokens": 8, "output_tokens": 3}


def test_ollama_streams_lines_unless_told_not_to() -> None:
    response = exchanged(ModelServer("pass it on"), "ollama", stream=True)
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert response.headers["content-type"] == "application/x-ndjson"
    assert "".join(line["message"]["content"] for line in lines) == "pass it on"
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1]["eval_count"] == 3


def test_openai_streams_events_with_the_usage_when_asked() -> None:
    response = exchanged(ModelServer("pass it on"), "openai", stream=True, stream_options={"include_usage": True})
    *events, done = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    chunks = [json.loads(event) for event in events]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert done == "[DONE]"
    assert "".join(delta.get("content", "") for delta in deltas) == "pass it on"
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["completion_tokens"] == 3


def test_anthropic_streams_named_events() -> None:
    response = exchanged(ModelServer("pass it on"), "anthropic", stream=True)
    events = [event.split("\ndata: ") for event in response.text.split("\n\n") if event]
    data = [json.loads(text) for _, text in events]
    assert [name for name, _ in events] == [f"event: {one['type']}" for one in data]
    assert data[0]["type"] == "message_start"
    assert data[-1]["type"] == "message_stop"
    texts = [one["delta"]["text"] for one in data if one["type"] == "content_block_delta"]
    assert "".join(texts) == "pass it on"


@KINDS
def test_requests_are_kept_in_one_form_whichever_wire_they_came_over(kind: str) -> None:
    server = ModelServer("yes")
    options = {"temperature": 0.5, "top_p": 0.9}
    more = {"options": options | {"num_predict": 100}} if kind == "ollama" else options | {"max_tokens": 100}
    exchanged(server, kind, headers={"X-Marker": "here"}, **more)
    (request,) = server.requests
    assert request.kind == kind
    assert list(request.messages) == ASKED
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.max_tokens) == (0.5, 0.9, 100)
    assert request.headers["x-marker"] == "here"
    assert server.counts == {200: 1}


def test_conversation_has_the_same_digest_on_every_wire() -> None:
    server = ModelServer("yes")

    async def ask_all() -> None:
        async with client_of(server) as client:
            for kind, path in PATHS.items():
                await client.post(path, json=body_for(kind))

    asyncio.run(ask_all())
    assert len({request.digest for request in server.requests}) == 1
    assert len(server.requests) == 3


def test_content_in_parts_is_read_as_text() -> None:
    server = ModelServer("yes")
    parts = [{"type": "text", "text": "Write "}, {"type": "text", "text": "add"}]
    exchanged(server, "openai", messages=[{"role": "user", "content": parts}])
    assert server.requests[0].messages[0]["content"] == "Write add"


def test_mapping_answers_by_words_and_turns() -> None:
    server = ModelServer({"subtract": "never", "add": ["first", "second"]})

    async def ask() -> list[str]:
        turn = {"role": "assistant", "content": "first"}
        async with client_of(server) as client:
            talks = [ASKED, [*ASKED, turn], [*ASKED, turn, turn]]
            replies = [await client.post("/api/chat", json=body_for("ollama", messages=talk)) for talk in talks]
            return [text_of("ollama", reply.json()) for reply in replies]

    assert asyncio.run(ask()) == ["first", "second", "second"]


def test_conversation_without_a_reply_is_refused_with_the_reason() -> None:
    response = exchanged(ModelServer({"subtract": "never"}), "openai")
    assert response.status_code == 400
    assert "holds none of: subtract" in response.json()["error"]["message"]


def a_text(request: Request) -> str:
    return f"seen {len(request.messages)}"


async def a_text_later(request: Request) -> str:
    await asyncio.sleep(0)
    return a_text(request)


def a_completion(request: Request) -> Completion:
    return Completion(a_text(request), finish_reason="length", tokens_in=7, tokens_out=9)


@pytest.mark.parametrize("replies", [a_text, a_text_later, a_completion])
def test_function_answers_with_a_text_or_a_completion(
    replies: Callable[[Request], str | Awaitable[str] | Completion],
) -> None:
    reply = exchanged(ModelServer(replies), "openai").json()
    assert text_of("openai", reply) == "seen 2"
    if replies is a_completion:
        assert reply["choices"][0]["finish_reason"] == "length"
        assert reply["usage"]["total_tokens"] == 16


@pytest.mark.parametrize(("error", "status"), [(NoReply("nothing left"), 400), (Fault("worn out"), 500)])
def test_function_that_raises_is_an_error_of_the_server(error: Exception, status: int) -> None:
    def fail(_: Request) -> str:
        raise error

    response = exchanged(ModelServer(fail), "ollama")
    assert response.status_code == status
    assert response.json() == {"error": error.args[0]}


def test_simulated_model_answers_humaneval_by_default() -> None:
    asked = [{"role": "user", "content": "Complete:\ndef has_close_elements(numbers, threshold):"}]
    reply = exchanged(ModelServer(), "ollama", messages=asked).json()
    assert "threshold" in text_of("ollama", reply)


@KINDS
def test_unknown_model_is_not_found(kind: str) -> None:
    response = exchanged(ModelServer("yes"), kind, model="other")
    assert response.status_code == 404
    assert "other" in error_of(kind, response.json())


def test_ollama_s_latest_tag_may_be_left_out() -> None:
    assert exchanged(ModelServer("yes"), "ollama", model="recorded:latest").status_code == 200


@KINDS
@pytest.mark.parametrize(("key", "status"), [("right", 200), ("wrong", 401), (None, 401)])
def test_api_key_is_asked_for_as_by_the_real_server(kind: str, key: str | None, status: int) -> None:
    given = {} if key is None else {"x-api-key": key} if kind == "anthropic" else {"authorization": f"Bearer {key}"}
    response = exchanged(ModelServer("yes", api_key="right"), kind, headers=given)
    assert response.status_code == (200 if kind == "ollama" else status)


@KINDS
def test_refused_parameter_is_named(kind: str) -> None:
    more: Body = {"options": {"temperature": 0.8}} if kind == "ollama" else {"temperature": 0.8}
    server = ModelServer("yes", refuse={"temperature"})
    response = exchanged(server, kind, **more)
    assert response.status_code == 400
    assert "temperature" in error_of(kind, response.json())
    assert server.counts == {400: 1}


def test_openai_says_which_limit_to_use_instead() -> None:
    server = ModelServer("yes", refuse={"max_tokens"})
    error = exchanged(server, "openai", max_tokens=5).json()["error"]
    assert (error["param"], error["code"]) == ("max_tokens", "unsupported_parameter")
    assert "max_completion_tokens" in error["message"]


@KINDS
@pytest.mark.parametrize("messages", [[], "none", [{"content": "x"}], [3]])
def test_malformed_body_is_a_bad_request(kind: str, messages: object) -> None:
    assert exchanged(ModelServer("yes"), kind, messages=messages).status_code == 400


def test_anthropic_wire_insists_on_version_limit_and_system_prompt() -> None:
    async def statuses() -> list[int]:
        async with ModelServer("yes") as server, httpx.AsyncClient(base_url=server.url) as client:
            body = body_for("anthropic")
            unlimited = {name: value for name, value in body.items() if name != "max_tokens"}
            wrong = [(body, {}), (unlimited, CLAUDE), ({**body, "messages": ASKED}, CLAUDE)]
            replies = [await client.post("/v1/messages", json=each, headers=headers) for each, headers in wrong]
            return [reply.status_code for reply in replies]

    assert asyncio.run(statuses()) == [400, 400, 400]


def test_thoughts_are_inline_unless_a_field_is_asked_for() -> None:
    said = "<think>\nhm\n</think>\n\nyes"
    assert text_of("openai", exchanged(ModelServer(said), "openai").json()) == said
    apart = exchanged(ModelServer(said, reasoning="reasoning_content"), "openai").json()
    message = apart["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("yes", "hm")
    message = exchanged(ModelServer(said, reasoning="reasoning"), "ollama").json()["message"]
    assert (message["content"], message["thinking"]) == ("yes", "hm")
    content = exchanged(ModelServer(said, reasoning="reasoning"), "anthropic").json()["content"]
    assert [block["type"] for block in content] == ["thinking", "text"]


@KINDS
@pytest.mark.parametrize("status", ["429", "500", "529"])
def test_http_status_can_be_a_fault(kind: str, status: str) -> None:
    server = ModelServer("yes", faults={status: 1.0}, retry_after="3")
    response = exchanged(server, kind)
    assert response.status_code == int(status)
    assert response.headers.get("retry-after") == (None if status == "500" else "3")
    assert server.counts == {int(status): 1}


@KINDS
def test_hollow_reply_is_json_without_a_reply(kind: str) -> None:
    response = exchanged(ModelServer("yes", faults={"hollow": 1.0}), kind)
    assert (response.status_code, response.json()) == (200, {})


def test_garbage_reply_is_no_json() -> None:
    response = exchanged(ModelServer("yes", faults={"garbage": 1.0}), "openai")
    assert response.status_code == 200
    with pytest.raises(ValueError, match="decode"):
        response.json()


@KINDS
def test_empty_reply_is_well_formed(kind: str) -> None:
    server = ModelServer("yes", faults={"empty": 1.0})
    assert text_of(kind, exchanged(server, kind).json()) == ""
    assert server.counts == {"empty": 1}


@KINDS
def test_truncated_reply_has_the_finish_reason_length(kind: str) -> None:
    reply = exchanged(ModelServer("pass it on", faults={"truncated": 1.0}), kind).json()
    assert text_of(kind, reply) == "pass "
    ends = {
        "ollama": reply.get("done_reason"),
        "openai": reply.get("choices", [{}])[0].get("finish_reason"),
        "anthropic": reply.get("stop_reason"),
    }
    assert ends[kind] == ("max_tokens" if kind == "anthropic" else "length")


@KINDS
@pytest.mark.parametrize("stream", [False, True])
def test_dropped_reply_breaks_off(kind: str, stream: bool) -> None:
    server = ModelServer("yes", faults={"drop": 1.0})
    with pytest.raises(httpx.RemoteProtocolError):
        exchanged(server, kind, stream=stream)
    assert server.counts == {"drop": 1}


def test_hanging_request_does_not_hold_the_server_up() -> None:
    server = ModelServer("yes", faults={"hang": 1.0})

    async def ask() -> None:
        async with client_of(server) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/api/chat", json=body_for("ollama"), timeout=httpx.Timeout(PATIENCE, read=0.1))
            hanging = asyncio.create_task(client.post("/api/chat", json=body_for("ollama")))
            while len(server.requests) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        with pytest.raises(httpx.HTTPError):
            await hanging

    asyncio.run(ask())


def test_first_requests_of_each_conversation_can_fail() -> None:
    server = ModelServer("yes", fail_first=2)

    async def statuses(client: httpx.AsyncClient, content: str) -> list[int]:
        body = body_for("ollama", messages=[{"role": "user", "content": content}])
        return [(await client.post("/api/chat", json=body)).status_code for _ in range(3)]

    async def ask() -> list[list[int]]:
        async with client_of(server) as client:
            return [await statuses(client, "one"), await statuses(client, "two")]

    assert asyncio.run(ask()) == [[500, 500, 200], [500, 500, 200]]


def test_faults_come_at_their_shares_in_any_order() -> None:
    shares = {"429": 0.2, "drop": 0.1}
    conversations = [f"conversation {number}" for number in range(2000)]
    one, other = Faults(shares, seed=3), Faults(shares, seed=3)
    drawn = {name: one.draw(name) for name in conversations}
    assert drawn == {name: other.draw(name) for name in reversed(conversations)}
    assert 300 < sum(fault == "429" for fault in drawn.values()) < 500
    assert 130 < sum(fault == "drop" for fault in drawn.values()) < 270
    another = Faults(shares, seed=4)
    assert drawn != {name: another.draw(name) for name in conversations}


@pytest.mark.parametrize("shares", [{"flood": 0.1}, {"200": 0.1}, {"429": -0.1}, {"429": 0.6, "500": 0.6}])
def test_faults_that_can_t_be_are_said_at_once(shares: Mapping[str, float]) -> None:
    with pytest.raises(KoderzError):
        ModelServer("yes", faults=shares)


def test_faults_are_read_from_a_command_line() -> None:
    assert read_shares("429:0.1,drop:.02") == {"429": 0.1, "drop": 0.02}
    with pytest.raises(KoderzError, match="write 429"):
        read_shares("429")


def test_models_have_to_be_given_as_names() -> None:
    with pytest.raises(KoderzError, match="names of the models"):
        ModelServer("yes", models="recorded")


def test_rate_limit_refuses_excess_requests() -> None:
    async def ask() -> list[int]:
        released = asyncio.Event()

        async def wait(_: Request) -> str:
            await released.wait()
            return "yes"

        server = ModelServer(wait, max_in_flight=2)
        async with client_of(server) as client:
            statuses = []
            for call in asyncio.as_completed([client.post("/api/chat", json=body_for("ollama")) for _ in range(5)]):
                statuses.append((await call).status_code)
                if len(statuses) == 3:
                    released.set()
            return statuses

    assert asyncio.run(ask()) == [429, 429, 429, 200, 200]


@pytest.mark.slow
def test_256_connections_are_served_at_once_and_kept_alive() -> None:
    server = ModelServer("yes", latency=0.3, keep_requests=False)
    body = json.dumps(body_for("ollama")).encode()
    sent = b"POST /api/chat HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)

    async def ask_twice() -> list[bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
        heads = []
        for _ in range(2):
            writer.write(sent)
            heads.append((await reader.readuntil(b"\r\n\r\n")).lower())
            length = next(line for line in heads[-1].splitlines() if line.startswith(b"content-length"))
            await reader.readexactly(int(length.split()[1]))
        writer.close()
        return heads

    async def ask() -> list[list[bytes]]:
        async with server:
            return await asyncio.gather(*(ask_twice() for _ in range(256)))

    heads = [head for pair in asyncio.run(ask()) for head in pair]
    assert all(head.startswith(b"http/1.1 200") for head in heads)
    assert server.counts == {200: 512}
    assert 1 < server.peak_in_flight <= 256
    assert server.requests == []


def test_models_are_listed_in_each_wires_way() -> None:
    models = ("one", "two:7b")
    tags = got(ModelServer("yes", models=models), "/api/tags").json()["models"]
    assert [tag["name"] for tag in tags] == ["one:latest", "two:7b"]
    assert all(len(tag["digest"]) == 64 for tag in tags)
    assert "version" in got(ModelServer("yes"), "/api/version").json()
    listed = got(ModelServer("yes", models=models), "/v1/models").json()
    assert [one["id"] for one in listed["data"]] == ["one", "two:7b"]
    claude = got(ModelServer("yes", models=models), "/v1/models", headers=CLAUDE).json()
    assert [one["type"] for one in claude["data"]] == ["model", "model"]
    assert got(ModelServer("yes", models=models), "/v1/models/two%3A7b").json()["id"] == "two:7b"
    assert got(ModelServer("yes"), "/v1/models/three").status_code == 404
    assert got(ModelServer("yes", api_key="right"), "/v1/models").status_code == 401
    assert got(ModelServer("yes"), "/nowhere").status_code == 404


@pytest.mark.parametrize(("body", "status"), [({"model": "recorded"}, 200), ({"model": "x"}, 404), ({}, 400)])
def test_ollama_shows_a_model(body: Body, status: int) -> None:
    async def show() -> httpx.Response:
        async with client_of(ModelServer("yes")) as client:
            return await client.post("/api/show", json=body)

    response = asyncio.run(show())
    assert response.status_code == status
    assert status != 200 or response.json()["capabilities"] == ["completion"]


@pytest.mark.parametrize("sent", [b"nonsense\r\n\r\n", b"GET / HTTP/2\r\n\r\n", b"x" * 70_000 + b"\r\n\r\n"])
def test_non_http_input_is_turned_away(sent: bytes) -> None:
    async def send() -> bytes:
        async with ModelServer("yes") as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
            writer.write(sent)
            answer = await reader.readline()
            writer.close()
            return answer

    assert b" 400 " in asyncio.run(send())


def test_client_that_leaves_early_is_counted_as_gone(tmp_path: Path) -> None:
    async def second_alone(_: Request) -> str:
        if len(server.requests) == 1:
            await asyncio.Event().wait()
        return "yes"

    server = ModelServer(second_alone, log=tmp_path / "log.jsonl")

    async def leave() -> None:
        async with client_of(server) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/api/chat", json=body_for("ollama"), timeout=httpx.Timeout(PATIENCE, read=0.2))
            await client.post("/api/chat", json=body_for("ollama"))

    asyncio.run(leave())
    assert server.counts == {"gone": 1, 200: 1}
    assert [json.loads(line)["status"] for line in (tmp_path / "log.jsonl").read_text().splitlines()] == ["gone", 200]


def begun(*arguments: str, env: Mapping[str, str] | None = None) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "koderz.testing", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
    assert process.stdout is not None
    return process, process.stdout.readline()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_command_prints_its_address_logs_and_ends_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "log.jsonl"
    arguments = ["--log", str(log), "--model", "mine", "--fail-first", "1", "--api-key-var", "KEY_OF_A_TEST"]
    process, line = begun(*arguments, env={"KEY_OF_A_TEST": "secret"})
    assert line.startswith("listening on http://127.0.0.1:")
    url = line.split()[-1]
    for kind in ("ollama", "ollama", "openai"):
        httpx.post(url + PATHS[kind], json=body_for(kind, model="mine", options={"seed": 7}), timeout=PATIENCE)
    answers = [json.loads(row) for row in log.read_text().splitlines()]
    process.send_signal(number)
    rest, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, rest) == (0, "")
    assert [row["status"] for row in answers] == [500, 200, 401]
    assert [row["kind"] for row in answers] == ["ollama", "ollama", "openai"]
    assert answers[0]["digest"] == answers[1]["digest"]
    assert (answers[1]["model"], answers[1]["seed"]) == ("mine", 7)
    assert "secret" not in log.read_text()


def test_command_refuses_unknown_faults() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "koderz.testing", "--faults", "flood:0.5"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("unknown fault 'flood'")
    assert done.stderr.count("\n") == 1
