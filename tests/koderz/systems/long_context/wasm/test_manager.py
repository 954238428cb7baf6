"""The WASM manager over HTTP: what it answers, whom it refuses, and what becomes of its sessions."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from koderz.errors import Fault, Unreachable
from koderz.systems.long_context.wasm import manager as managers
from koderz.systems.long_context.wasm.cells import SessionFullError, SubCall
from koderz.systems.long_context.wasm.client import RemotePool
from koderz.systems.long_context.wasm.manager import Manager, ManagerLimits
from koderz.systems.long_context.wasm.opening import Sessions
from koderz.systems.long_context.wasm.session import Pool

pytestmark = pytest.mark.slow

Client = TestClient[Any, Any]


@pytest.fixture(scope="module")
async def pool() -> AsyncIterator[Pool]:
    async with Pool("wasm", 1) as found:
        yield found


@pytest.fixture
async def client(request: pytest.FixtureRequest, pool: Pool) -> AsyncIterator[Client]:
    """A client of a manager of its own, which takes what `managed` says."""
    about = getattr(request, "param", {})
    manager = Manager(pool, about.pop("limits", ManagerLimits()), **about)
    async with TestClient(TestServer(manager.application())) as found:
        yield found


def managed(**about: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("client", [about], indirect=True, ids=["manager"])


async def asked(client: Client, method: str, path: str, **body: Any) -> tuple[int, Any]:
    async with client.request(method, path, **body) as response:
        text = await response.text()
        return response.status, json.loads(text) if response.content_type == "application/json" else text


async def test_answers_are_those_of_the_original_service(client: Client) -> None:
    status, made = await asked(client, "POST", "/session")
    assert status == 200
    name = made["session_id"]
    assert name.startswith("session-")
    body = {"code": "x = n + 1\nprint(x)", "context": {"n": 1}}
    status, found = await asked(client, "POST", f"/session/{name}/execute", json=body)
    assert (status, found["stdout"], found["success"], found["error"]) == (200, "2\n", True, None)
    assert found["locals"] == {"n": 1, "x": 2}
    status, found = await asked(client, "POST", f"/session/{name}/execute", json={"code": "1/0", "context": None})
    assert (status, found["success"], found["error"]) == (200, False, "ZeroDivisionError: division by zero")
    assert found["stderr"].startswith("Traceback")
    assert await asked(client, "GET", "/sessions") == (200, {"sessions": [name]})
    assert await asked(client, "DELETE", f"/session/{name}") == (200, {"status": "ok"})
    assert await asked(client, "DELETE", f"/session/{name}") == (200, {"status": "ok"})
    assert (await asked(client, "POST", f"/session/{name}/execute", json=body))[0] == 404


async def test_spellings_details_and_health_are_served(client: Client) -> None:
    assert await asked(client, "POST", "/sessions", json={"session_id": "mine", "seed": 3}) == (
        *(201, {"session_id": "mine"}),
    )
    assert (await asked(client, "POST", "/sessions", json={"session_id": "mine"}))[0] == 409
    status, health = await asked(client, "GET", "/health")
    assert (status, health["status"], health["wasm"], health["sessions"]) == (200, "ok", True, 1)
    _, listed = await asked(client, "GET", "/sessions?detail=1")
    assert {*listed["sessions"][0]} == {"id", "created", "idle_seconds", "memory", "cells"}
    assert (await asked(client, "POST", "/sessions/mine/execute", json={"code": "print(1)"}))[1]["stdout"] == "1\n"


async def test_errors_are_told_in_detail(client: Client) -> None:
    await asked(client, "POST", "/sessions", json={"session_id": "a"})
    execute = "/session/a/execute"
    for path, body in [
        ("/sessions", {"unknown": 1}),
        ("/sessions", {"memory_mb": 10**6}),
        ("/sessions", {"session_id": "../x"}),
        (execute, {"code": 7}),
        (execute, {"cod": "1"}),
        (execute, {"code": "1", "timeout": -1}),
        (execute, {"code": "1", "context": {"not a name": 1}}),
    ]:
        status, found = await asked(client, "POST", path, json=body)
        assert status == 422, body
        assert found["detail"]
    assert (await asked(client, "POST", execute, data=b"{"))[0] == 422
    assert (await asked(client, "POST", execute, data=io.BytesIO(b" " * (17 << 20))))[0] == 413
    assert (await asked(client, "GET", "/nothing"))[0] == 404
    assert (await asked(client, "POST", "/session/a/calls/1", json={"result": []}))[0] == 404


async def test_deadline_is_a_504_with_what_was_printed(client: Client) -> None:
    await asked(client, "POST", "/sessions", json={"session_id": "a"})
    body = {"code": "print('before')\nwhile True: pass", "timeout": 2}
    status, found = await asked(client, "POST", "/session/a/execute", json=body)
    assert (status, found["stdout"]) == (504, "before\n")
    assert found["detail"] == "TimeoutError: Request timed out: more than 2 s"


async def test_variables_go_in_and_out_as_streams(client: Client) -> None:
    await asked(client, "POST", "/sessions", json={"session_id": "a", "memory_mb": 64})
    place = "/sessions/a/variables"
    text = "äöü\r\n" * 1_000_000
    assert await asked(client, "PUT", f"{place}/t", data=io.BytesIO(text.encode())) == (200, {"bytes": 8_000_000})
    assert (await asked(client, "GET", f"{place}/t"))[1] == text
    assert (await asked(client, "PUT", f"{place}/r", json={"a": [1]}))[0] == 200
    code = {"code": "print(len(t), r['a'])"}
    assert (await asked(client, "POST", "/session/a/execute", json=code))[1]["stdout"] == "5000000 [1]\n"
    assert (await asked(client, "GET", f"{place}/nothing"))[0] == 404
    assert (await asked(client, "PUT", f"{place}/much", data=io.BytesIO(b"x" * (33 << 20))))[0] == 413
    assert (await asked(client, "PUT", f"{place}/b", data=b"\xff\xfe"))[0] == 422
    headers = {"Content-Type": "application/json"}
    assert (await asked(client, "PUT", f"{place}/b", data=b"{", headers=headers))[0] == 422
    assert (await asked(client, "POST", "/session/a/execute", json=code))[0] == 200


async def test_sub_calls_come_as_a_stream_of_events(client: Client) -> None:
    await asked(client, "POST", "/sessions", json={"session_id": "a"})
    body = {"code": "print(llm_query_batched(['p', 'q']), rlm_query('r', 'm'))"}
    events = []
    headers = {"Accept": "application/x-ndjson"}
    async with client.post("/session/a/execute", json=body, headers=headers) as response:
        async for line in response.content:
            if line.strip():
                events.append(json.loads(line))
                if events[-1]["event"] == "call":
                    assert (await asked(client, "POST", "/session/a/execute", json={"code": "1"}))[0] == 409
                    answers = {"result": [prompt.upper() for prompt in events[-1]["prompts"]]}
                    found = await asked(client, "POST", f"/session/a/calls/{events[-1]['id']}", json=answers)
                    assert found[0] == 200

    first, second, result = events
    assert (first["name"], first["prompts"], first["model"]) == ("llm_query", ["p", "q"], None)
    assert (second["name"], second["prompts"], second["model"]) == ("rlm_query", ["r"], "m")
    assert (result["event"], result["stdout"], result["calls"]) == ("result", "['P', 'Q'] R\n", 3)


async def test_fork_repeats_the_history_of_its_session(client: Client) -> None:
    await asked(client, "POST", "/sessions", json={"session_id": "a"})
    await asked(client, "POST", "/session/a/execute", json={"code": "x = 5"})
    _, fork = await asked(client, "POST", "/session/a/fork")
    found = await asked(client, "POST", f"/session/{fork['session_id']}/execute", json={"code": "print(x)"})
    assert found[1]["stdout"] == "5\n"


async def test_private_sessions_are_used_by_whoever_has_their_secret_alone(client: Client) -> None:
    _, made = await asked(client, "POST", "/sessions", json={"session_id": "mine", "private": True})
    _, open_one = await asked(client, "POST", "/sessions", json={"session_id": "open"})
    assert "secret" not in open_one
    for wrong in ({}, {"X-Session-Secret": "x"}, {"X-Session-Secret": "\udcff"}):
        for method, path in [
            ("POST", "/session/mine/execute"),
            ("POST", "/session/mine/fork"),
            ("POST", "/session/mine/calls/1"),
            ("PUT", "/session/mine/variables/x"),
            ("GET", "/session/mine/variables/x"),
            ("DELETE", "/session/mine"),
        ]:
            status, found = await asked(client, method, path, headers=wrong)
            assert (status, found["detail"][:23]) == (403, "session mine is private"), (method, path)
        _, listed = await asked(client, "GET", "/sessions?detail=1", headers=wrong)
        assert [each["id"] for each in listed["sessions"]] == ["open"]
    own = {"X-Session-Secret": made["secret"]}
    status, _ = await asked(client, "POST", "/session/mine/execute", json={"code": "x = 1"}, headers=own)
    assert status == 200
    _, fork = await asked(client, "POST", "/session/mine/fork", headers=own)
    assert fork["secret"] not in ("", made["secret"])
    assert (await asked(client, "DELETE", "/session/mine", headers=own))[0] == 200


def stored_bytes() -> int:
    """Bytes of all files that managers of this process have stored."""
    return sum(file.stat().st_size for folder in STORED for file in Path(folder).iterdir())


STORED = list[str]()


@pytest.fixture
def _stored(monkeypatch: pytest.MonkeyPatch) -> None:
    STORED.clear()

    class Folder(TemporaryDirectory[str]):
        def __init__(self, **more: Any) -> None:
            super().__init__(**more)
            STORED.append(self.name)

    monkeypatch.setattr(managers, "TemporaryDirectory", Folder)


@pytest.mark.usefixtures("_stored")
async def test_replaced_values_are_dropped_and_contexts_bounded(client: Client) -> None:
    big = json.dumps("x" * (10 << 20)).encode()

    await asked(client, "POST", "/sessions", json={"session_id": "a"})
    json_type = {"Content-Type": "application/json"}
    for _ in range(4):
        put = await asked(client, "PUT", "/session/a/variables/v", data=io.BytesIO(big), headers=json_type)
        assert put == (200, {"bytes": len(big)})
        assert stored_bytes() == len(big)
    for _ in range(5):  # the same context is stored once
        body = b'{"code": "w[0]", "context": {"w": %b}}' % big
        assert (await asked(client, "POST", "/session/a/execute", data=io.BytesIO(body)))[0] == 200
        assert stored_bytes() == 2 * len(big)
    assert (await asked(client, "POST", "/session/a/fork"))[0] == 200
    for number in range(5):
        body = b'{"code": "w[0]", "context": {"w": "%d%b}}' % (number, big[1:])
        assert (await asked(client, "POST", "/session/a/execute", data=io.BytesIO(body)))[0] == 200
        assert stored_bytes() <= 64 << 20
    status, found = await asked(client, "POST", "/session/a/fork")
    assert (status, found["detail"][:28]) == (409, "session a can't be forked: i")
    for name in (await asked(client, "GET", "/sessions"))[1]["sessions"]:
        await asked(client, "DELETE", f"/session/{name}")
    assert not stored_bytes()


async def test_contexts_of_any_json_are_set_or_refused_by_422(client: Client) -> None:
    odd = {
        b"18446744073709551616000": 200,
        b'"\\ud800"': 422,
        b"1e999": 200,
        b"[" * 900 + b"]" * 900: 200,
        b"[" * 200_000 + b"]" * 200_000: 422,
        b"NaN": 422,
        b"{": 422,
        b'"\xff"': 422,
        b"[1,]": 422,
    }

    await asked(client, "POST", "/sessions", json={"session_id": "a"})
    for value, expected in odd.items():
        body = b'{"code": "print(1)", "context": {"x": %b}}' % value
        status, found = await asked(client, "POST", "/session/a/execute", data=body)
        assert (status, bool(found.get("detail"))) == (expected, expected == 422), value[:20]
    long = {"code": "1", "context": {"x" * 1000: 1}}
    assert (await asked(client, "POST", "/session/a/execute", json=long))[0] == 422


@managed(limits=ManagerLimits(sessions=2))
async def test_full_manager_says_so(client: Client) -> None:
    for _ in range(2):
        assert (await asked(client, "POST", "/session"))[0] == 200
    status, found = await asked(client, "POST", "/session")
    assert (status, found["detail"][:13]) == (429, "Out of memory")


@managed(limits=ManagerLimits(ttl=0.2))
async def test_sessions_end_with_their_time(client: Client) -> None:
    assert (await asked(client, "POST", "/session"))[0] == 200
    while (await asked(client, "GET", "/sessions"))[1]["sessions"]:  # noqa: ASYNC110 nothing tells of it
        await asyncio.sleep(0.1)


@managed(token="secret", hosts=["named"])
async def test_pages_foreign_hosts_and_clients_without_token_are_refused(client: Client) -> None:
    token = {"Authorization": "Bearer secret"}
    assert (await asked(client, "GET", "/health"))[0] == 200
    assert (await asked(client, "GET", "/sessions"))[0] == 401
    assert (await asked(client, "GET", "/sessions", headers={"Authorization": "Bearer other"}))[0] == 401
    assert (await asked(client, "GET", "/sessions", headers=token))[0] == 200
    assert (await asked(client, "GET", "/health", headers={"Host": "rebound.example"}))[0] == 403
    assert (await asked(client, "GET", "/sessions", headers={**token, "Host": "pod.example:80"}))[0] == 200
    assert (await asked(client, "GET", "/health", headers={"Host": "named"}))[0] == 200
    for origin in ("http://127.0.0.1:8080", "null"):
        assert (await asked(client, "GET", "/sessions", headers={**token, "Origin": origin}))[0] == 403


# The client


async def echo(call: SubCall) -> Sequence[str]:
    return [f"{call.name}: {prompt}" for prompt in call.prompts]


@managed(token="secret")
async def test_session_at_a_manager_is_like_one_here(client: Client) -> None:
    async with RemotePool(str(client.make_url("/")), "secret") as pool:
        session = pool.open()
        await session.put("context", "text " * 1000)
        found = [
            await session.run("n = len(context)\nprint(n, llm_query_batched(['p', 'q']))", echo),
            await session.run("print(1)\nwhile True: pass", timeout=2),
            await session.run("while True: llm_query('x')", echo, only_calls=2),
            await session.run("print(n)\nanswer.update(content=3, ready=True)"),
        ]
        assert (await session.get("n"), await session.get("nothing")) == ("5000", None)
        with pytest.raises(SessionFullError):
            await session.put("much", "x" * (300 << 20))
        await session.close()
        assert (await pool.get("/sessions"))["sessions"] == []

    first, late, stopped, last = found
    assert (first.stdout, first.calls) == ("5000 ['llm_query: p', 'llm_query: q']\n", 2)
    assert (late.stopped, late.stdout) == ("deadline", "1\n")
    assert (stopped.stopped, stopped.calls) == ("cut", 2)
    assert (last.stdout, last.final_answer) == ("5000\n", "3")


async def test_sessions_are_made_ahead_and_ended_where_nobody_takes_them(client: Client) -> None:
    async with RemotePool(str(client.make_url("/"))) as pool:
        pool.has_private = False  # so that all may be looked at
        sessions = Sessions(pool, ahead=2)
        await asyncio.gather(*sessions._ahead)
        ready = (await pool.get("/sessions"))["sessions"]
        taken = await sessions.open()
        assert (await taken.run("print(6 * 7)")).stdout == "42\n"
        await asyncio.gather(*sessions._ahead)
        found = (await pool.get("/sessions?detail=1"))["sessions"]
        used = [each["id"] for each in found if each["cells"]]
        assert (len(ready), len(found)) == (2, 3)
        assert {*used} < {*ready}
        others = await asyncio.gather(*(sessions.open() for _ in range(5)))
        assert len({*others, taken}) == 6
        await asyncio.gather(*(each.close() for each in others))
        await sessions.close()
        assert (await pool.get("/sessions"))["sessions"] == used


@managed(limits=ManagerLimits(sessions=1))
async def test_sessions_are_made_on_use_where_none_can_be_made_ahead(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("koderz.systems.long_context.wasm.client.PAUSES", (0.01,))
    async with RemotePool(str(client.make_url("/"))) as pool:
        sessions = Sessions(pool, ahead=3)
        for _ in range(3):  # there is room for one
            session = await sessions.open()
            assert (await session.run("print(6 * 7)")).stdout == "42\n"
            await asyncio.gather(*sessions._ahead, return_exceptions=True)
            await session.close()
        await sessions.close()
        assert (await pool.get("/sessions"))["sessions"] == []


async def test_session_comes_back_after_its_manager_restarted(client: Client) -> None:
    prompts: list[str] = []

    async def answer(call: SubCall) -> Sequence[str]:
        prompts.extend(call.prompts)
        return await echo(call)

    async with RemotePool(str(client.make_url("/"))) as pool:
        session = pool.open()
        await session.put("context", "text")
        await session.run("x = [context, llm_query('first')]", answer)
        for name in (await pool.get("/sessions"))["sessions"]:
            await asked(client, "DELETE", f"/session/{name}")
        found = await session.run("print(x, llm_query('second'))", answer)

    assert found.stdout == "['text', 'llm_query: first'] llm_query: second\n"
    assert prompts == ["first", "second"]


@managed(token="secret")
@pytest.mark.parametrize("token", ["", "wrong"])
async def test_missing_manager_or_token_is_told_before_spending(client: Client, token: str) -> None:
    for url, said in (
        ("http://127.0.0.1:9", "Failed to create WASM session"),
        (client.make_url("/"), "Authentication"),
    ):
        with pytest.raises(Unreachable, match=said):
            await RemotePool(str(url), token).__aenter__()


async def run_at(url: object) -> None:
    async with RemotePool(str(url)) as pool:
        await pool.open().run("1")


@contextlib.asynccontextmanager
async def answering(say: Callable[[aiohttp.web.Request], Awaitable[aiohttp.web.Response]]) -> AsyncIterator[object]:
    """The address of a server whose health is that of a manager, and which answers the rest by this."""

    async def answer(request: aiohttp.web.Request) -> aiohttp.web.Response:
        if request.path == "/health" or request.method == "GET":
            return aiohttp.web.json_response({"wasm": True, "sessions": []})
        return await say(request)

    app = aiohttp.web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        yield server.make_url("/")


@managed(limits=ManagerLimits(sessions=0))
async def test_full_manager_is_a_fault(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koderz.systems.long_context.wasm.client.PAUSES", (0.01,))
    with pytest.raises(Fault, match="Out of memory"):
        await run_at(client.make_url("/"))


async def test_garbled_manager_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koderz.systems.long_context.wasm.client.PAUSES", (0.01,))

    async def say(request: aiohttp.web.Request) -> aiohttp.web.Response:
        made = aiohttp.web.json_response({"session_id": "a"}, status=201)
        return made if request.path == "/sessions" else aiohttp.web.Response(text="{garbled")

    async with answering(say) as url:
        with pytest.raises(Fault, match="garbled"):
            await run_at(url)


async def test_manager_that_is_too_slow_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koderz.systems.long_context.wasm.client._LATE", 0.2)
    asked: list[str] = []
    over = asyncio.Event()

    async def say(request: aiohttp.web.Request) -> aiohttp.web.Response:
        asked.append(request.path)
        await over.wait()
        return aiohttp.web.json_response({"session_id": "a"}, status=201)

    async with answering(say) as url:
        with pytest.raises(Fault, match="Request timed out"):
            await run_at(url)
        over.set()
    assert len(asked) == 3
