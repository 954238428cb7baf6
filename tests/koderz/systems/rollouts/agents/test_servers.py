"""MCP servers between an agent and koderz: what passes, what is recorded of it, and what servers do wrong."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from koderz.analysis.story import Story, _steps, told_servers, told_tool
from koderz.errors import Fault, Unreachable
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import BRIDGE_URL, Backend, Command, Ended, Limits, Mount
from koderz.systems.rollouts.additions import Addition, Kind, read_additions
from koderz.systems.rollouts.agents import servers as module
from koderz.systems.rollouts.agents.servers import Servers
from koderz.systems.rollouts.agents.traffic import Traffic, messages_of
from koderz.systems.rollouts.results.figures import FIGURES, lines_of
from koderz.systems.workspaces.local import Local
from koderz.systems.workspaces.uncontained import Uncontained
from koderz.testing import a_plan
from koderz_tracker import open_cortex
from koderz_tracker.records import Experiment, Once, Record
from koderz_tracker.results import Result
from koderz_tracker.sinks.mlflow.trace import trace_of
from tests.tracker import builders

PARCELS = Path(__file__).parents[4] / "parcels.py"


def parcels(how: str = "") -> tuple[Addition, ...]:
    return (Addition("mcp", "parcels", "", "0", {"command": sys.executable, "args": [str(PARCELS), *how.split()]}),)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koderz.systems.rollouts.additions.cache_folder", lambda: tmp_path / "cache")


@pytest.fixture
def place() -> Iterator[Path]:
    with scratch() as folder:
        yield folder


class Bench:
    """Servers that have begun, and official clients as agents that start what they are configured with."""

    def __init__(self, servers: Servers, url: str) -> None:
        self.servers, self.url = servers, url

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Any]:
        from mcp.client.client import Client
        from mcp.client.stdio import StdioServerParameters

        (each,) = self.servers.configured("the-token")
        words = [word.replace(BRIDGE_URL, self.url) for word in each.server["args"]]
        async with Client(StdioServerParameters(command=each.server["command"], args=words)) as client:
            yield client

    async def called(self, **arguments: Any) -> str:
        """What a call comes to: the text of its result, or the error that the client raises."""
        async with self.client() as client:
            await client.list_tools()
            try:
                return str((await client.call_tool("parcel_code", arguments)).content[0].text)
            except Exception as error:
                return f"{type(error).__name__}: {error}"

    @property
    def record(self) -> Any:
        return self.servers.record()["servers"]["parcels"]


@asynccontextmanager
async def begun(servers: Servers, place: Path, backend: Backend | None = None) -> AsyncIterator[Bench]:
    app = web.Application()
    app.router.add_route("*", "/mcp/{path:.*}", servers.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        await servers.begin((backend or Uncontained()).run, Command([], limits=Limits(seconds=60)), place)
        yield Bench(servers, "http://127.0.0.1:{}".format(*site._server.sockets[0].getsockname()[1:]))  # type: ignore[union-attr]
    finally:
        await runner.cleanup()
        await servers.end()


async def test_calls_of_a_server_are_recorded_with_their_results(place: Path) -> None:
    async with begun(Servers(parcels()), place) as bench:
        assert await bench.called(key="abc") == "P-2058"
        found = bench.servers.record()
    (call,) = found["calls"]
    assert (call["server"], call["tool"], json.loads(call["arguments"])) == ("parcels", "parcel_code", {"key": "abc"})
    assert (call["result"], call["is_error"]) == ("P-2058", False)
    assert call["seconds"] > 0 < call["bytes"]
    own = found["servers"]["parcels"]
    assert (own["calls"], own["errors"], own["tools"], own["findings"]) == (1, 0, ["parcel_code"], [])


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("dead", "ended with exit code 4: parcels: no key 31"),
        ("mute", "hasn't listed its tools in 1 s, and ended with exit code 0: parcels: waiting for the lock"),
    ],
)
async def test_server_that_does_not_list_its_tools_is_a_fault_before_anything_is_paid(
    place: Path, monkeypatch: pytest.MonkeyPatch, how: str, why: str
) -> None:
    monkeypatch.setattr(module, "START_SECONDS", 1.0 if how == "mute" else 30.0)
    with pytest.raises(Fault, match=f"the MCP server parcels {why}") as caught:
        async with begun(Servers(parcels(how)), place):
            pass
    assert caught.value.cause == "mcp"


async def test_program_that_is_missing_is_a_fault(place: Path) -> None:
    missing = (Addition("mcp", "parcels", "", "0", {"command": "no-such-program"}),)
    with pytest.raises(Fault, match="ended with exit code 127: no-such-program: No such file"):
        async with begun(Servers(missing), place):
            pass


async def test_sandbox_that_cannot_be_made_is_no_fault_of_the_server(place: Path) -> None:
    class Down(Uncontained):
        async def run(self, command: Command, place: Path) -> Ended:
            raise Fault("docker doesn't answer", cause="sandbox")

    with pytest.raises(Fault, match=r"^docker doesn't answer$") as caught:
        async with begun(Servers(parcels()), place, Down()):
            pass
    assert caught.value.cause == "sandbox"


async def test_server_that_dies_is_a_finding_with_its_words(place: Path) -> None:
    async with begun(Servers(parcels("dies")), place) as bench:
        assert re.search(r"(?i)closed", await bench.called(key="abc"))
        assert bench.record["findings"] == ["it ended with exit code 1: parcels: no key 31"]
        assert (bench.record["calls"], bench.record["errors"]) == (1, 1)


async def test_server_that_hangs_is_answered_for(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with begun(Servers(parcels("hangs")), place) as bench, bench.client() as client:
        await client.list_tools()
        monkeypatch.setattr(module, "ANSWER_SECONDS", 0.5)
        with pytest.raises(Exception, match=r"koderz: it hangs: no answer in 0\.5 s"):
            await client.call_tool("parcel_code", {"key": "abc"})
        assert bench.record["findings"] == ["it hangs: no answer in 0.5 s (tools/call parcel_code)"]


async def test_large_answer_arrives_and_is_a_finding(place: Path) -> None:
    async with begun(Servers(parcels(f"floods {10 << 20}")), place) as bench:
        assert len(await bench.called(key="abc")) == 10 << 20
        assert bench.record["findings"] == ["it floods: a message has more than 1 MB"]
        assert len(json.dumps(bench.servers.record())) < 10_000


async def test_endless_answer_ends_its_server(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST", 1 << 20)
    async with begun(Servers(parcels(f"floods {10 << 20}")), place) as bench:
        assert re.search(r"(?i)closed", await bench.called(key="abc"))
        assert "it floods, for which it is ended: a message has more than 1 MB" in bench.record["findings"]


async def test_server_that_changes_its_tools_is_a_finding(place: Path) -> None:
    async with begun(Servers(parcels("changes")), place) as bench, bench.client() as client:
        await client.call_tool("parcel_code", {"key": "abc"})
        await client.list_tools()
        assert [finding.partition(" (")[0] for finding in bench.record["findings"]] == [
            "it says that its tools have changed",
            "its tools have changed: parcel_code is described otherwise",
        ]


async def test_server_that_lies_about_its_tools_is_a_finding(place: Path) -> None:
    async with begun(Servers(parcels("lies")), place) as bench:
        assert re.search("Unknown: tools/call", await bench.called(key="abc"))
        assert bench.record["findings"] == ["it lists parcel_code, and refuses it: Unknown: tools/call"]


async def test_server_that_prints_something_else_is_a_finding(place: Path) -> None:
    async with begun(Servers(parcels("prints")), place) as bench:
        await bench.called(key="abc")
        assert bench.record["findings"] == ["it prints what is no message of JSON-RPC"]


async def test_server_has_the_variables_of_its_arm_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-operator")
    (server,) = parcels("shows")
    own = replace(
        server, server={**server.server, "env": {"PARCELS_API_KEY": "secret-of-the-arm", "PARCELS_MODE": "fast-mode"}}
    )
    async with begun(Servers((own,)), place) as bench:
        told = json.loads(await bench.called(key="abc"))["env"]
        recorded = json.dumps(bench.servers.record())
    assert (told["PARCELS_API_KEY"], told["PARCELS_MODE"]) == ("secret-of-the-arm", "fast-mode")
    assert "fast-mode" in recorded
    assert "secret-of-the-arm" not in recorded
    assert not {*told} - {
        "PARCELS_API_KEY",
        "PARCELS_MODE",
        "PATH",
        "HOME",
        "TMPDIR",
        "LANG",
        "LC_ALL",
        "TZ",
        "LC_CTYPE",
    }


async def test_server_that_is_flooded_with_calls_is_counted_and_recorded_in_part(place: Path) -> None:
    found = Traffic(tools={"a": ""})
    for number in range(3000):
        call = {"id": number, "method": "tools/call", "params": {"name": "a", "arguments": {"text": "x" * 5000}}}
        found.asked("link", json.dumps(call).encode())
        found.answered("link", json.dumps({"id": number, "result": {"content": []}}).encode())
    assert found.record()["calls"] == 3000
    assert len(json.dumps(found.calls)) < 2 << 20
    for number in range(3000):
        found.asked("link", json.dumps({"id": number, "method": "tools/call", "params": {"name": "a"}}).encode())
        found.find(f"finding {number}")
    assert len(found.record()["findings"]) == 20
    assert found.counts["calls"] == 4000


@pytest.mark.parametrize(
    "answer", [b"{", b"[]", b"[1, 2]", b'{"id": {"a": 1}}', b"[" * 5000, b"\xff", b'{"result": 3}']
)
async def test_answers_that_make_no_sense_are_taken(answer: bytes) -> None:
    found = Traffic()
    found.asked("link", b'{"id": 1, "method": "tools/call", "params": [1]}')
    found.answered("link", answer)
    assert found.record()["calls"] == 1


def test_large_message_of_many_parts_is_not_read() -> None:
    assert messages_of(b'{"id": 1, "result": [' + b"[]," * (1 << 20) + b"[]]}") == []


async def test_agent_that_forges_ends_of_links_harms_its_own_record_alone(place: Path) -> None:
    async with begun(Servers(parcels()), place) as bench, aiohttp.ClientSession(bench.url) as session:

        async def posted(path: str, *lines: bytes) -> int:
            async def body() -> AsyncIterator[bytes]:
                for line in lines:
                    yield line + b"\n"

            with suppress(aiohttp.ClientError, TimeoutError):
                async with asyncio.timeout(5), session.post(path, data=body()) as answer:
                    return answer.status
            return 0

        assert await posted("/mcp/other/agent/1") == 404
        assert await posted("/mcp/parcels") == 404
        call = b'{"id": 1, "method": "tools/call", "params": {"name": "parcel_code"}}'
        forged = posted("/mcp/parcels/agent/1", call, b"not JSON", b"[1, {}]")
        died = posted("/mcp/parcels/server/1", b'{"id": 1, "result": {"content": 5}}', b"\0{", b'\0{"status": []}')
        assert [*await asyncio.gather(forged, died)] == [200, 200]
        ends = [posted(f"/mcp/parcels/server/{number}", b"x" * 100_000) for number in range(2, 60)]
        assert {*await asyncio.gather(*ends)} == {200, 404}
        found = bench.record
    assert found["calls"] == 1
    assert found["tools"] == ["parcel_code"]
    assert len(found["findings"]) <= 3


class Remote:
    """A server of HTTP, which answers as the official one does, or as it is told."""

    def __init__(self) -> None:
        self.headers: list[Any] = []
        self.sessions = 0
        self.status = 200
        self.stream = False

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(dict(request.headers))
        asked = await request.json()
        is_known = request.headers.get("mcp-session-id") == ("s-1" if self.sessions else None)
        if asked["method"] == "server/discover":  # as the official server, which gives an id that is none of a session
            return web.Response(status=400, text="no session", headers={"mcp-session-id": "s-0"})
        if asked["method"] != "initialize" and not (is_known and "mcp-protocol-version" in request.headers):
            return web.Response(status=404, text="no such session")
        self.sessions += asked["method"] == "initialize"
        if self.status != 200 and asked["method"] == "tools/call":
            return web.Response(status=self.status, text="over quota")
        if "id" not in asked:
            return web.Response(status=202)
        about = {"name": "parcels", "version": "1.0.0"}
        results = {
            "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about},
            "tools/list": {"tools": [{"name": "parcel_code", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": "P-1"}]},
        }
        found = results.get(asked["method"])
        error = {"error": {"code": -32601, "message": "no such method"}}
        answer = {"jsonrpc": "2.0", "id": asked["id"], **({"result": found} if found else error)}
        own = {"mcp-session-id": "s-1"} if asked["method"] == "initialize" else {}
        if self.stream:
            text = f"event: message\r\ndata: {json.dumps(answer)}\r\n\r\n"
            return web.Response(text=text, content_type="text/event-stream", headers=own)
        return web.Response(text=json.dumps(answer, indent=1), content_type="application/json", headers=own)


@pytest.fixture
async def remote() -> AsyncIterator[tuple[Remote, tuple[Addition, ...]]]:
    found = Remote()
    app = web.Application()
    app.router.add_post("/sse", found.handle)
    async with TestServer(app) as server:
        stated = {"type": "http", "url": str(server.make_url("/sse")), "headers": {"x-key": "secret-of-the-operator"}}
        yield found, (Addition("mcp", "parcels", "", "0", stated),)


@pytest.mark.parametrize("stream", [False, True])
async def test_server_of_http_is_asked_by_koderz_so_that_the_agent_knows_but_its_name(
    place: Path, remote: tuple[Remote, tuple[Addition, ...]], stream: bool
) -> None:
    remote[0].stream = stream
    servers = Servers(remote[1])
    async with begun(servers, place) as bench:
        assert await bench.called(key="abc") == "P-1"
        assert bench.record["calls"] == 1
        assert bench.record["findings"] == []
    told = str(servers.configured("the-token"))
    assert "secret-of-the-operator" not in told
    assert str(remote[1][0].server["url"]) not in told
    assert {headers["x-key"] for headers in remote[0].headers} == {"secret-of-the-operator"}
    assert remote[0].headers[-1]["mcp-session-id"] == "s-1"


async def test_server_of_http_that_refuses_a_call_is_a_finding(
    place: Path, remote: tuple[Remote, tuple[Addition, ...]]
) -> None:
    async with begun(Servers(remote[1]), place) as bench:
        remote[0].status = 429
        assert "koderz: it answers with HTTP 429: over quota" in await bench.called(key="abc")
        assert bench.record["findings"] == ["it answers with HTTP 429: over quota (tools/call parcel_code)"]


async def test_server_of_http_that_is_gone_is_a_fault(place: Path) -> None:
    gone = (Addition("mcp", "parcels", "", "0", {"type": "http", "url": "http://127.0.0.1:1/mcp"}),)
    with pytest.raises(
        Fault, match=r"the MCP server parcels answers initialize by .*it can't be reached: cannot connect"
    ):
        async with begun(Servers(gone), place):
            pass


class Noted:
    """A sandbox that notes the commands which it is given."""

    def __init__(self) -> None:
        self.local, self.commands = Local(), list[Command]()

    async def run(self, command: Command, place: Path) -> Ended:
        self.commands.append(command)
        return await self.local.run(command, place)


AGENT = """
import json, os, subprocess, sys
program = subprocess.Popen(json.loads(sys.argv[1]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "agent", "version": "1"}}
call = {"name": "parcel_code", "arguments": {"key": "abc"}}
for number, (method, params) in enumerate([("initialize", about), ("tools/list", {}), ("tools/call", call)]):
    program.stdin.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\\n")
    program.stdin.flush()
    print(program.stdout.readline())
program.stdin.close()
print("ended", program.stdout.read(), program.wait())
"""


@pytest.mark.parametrize("hosts", [[], ["example.org"]])
async def test_server_works_in_the_sandbox_of_its_agent_or_in_one_of_its_own(place: Path, hosts: list[str]) -> None:
    (place / "checkout").mkdir()
    (place / "checkout/own.txt").write_text("of the task")
    (read,) = read_additions("mcp", f"python3 {PARCELS} shows", place)
    servers, sandbox = Servers((replace(read, server={**read.server, **({"hosts": hosts} if hosts else {})}),)), Noted()
    try:
        await sandbox.local.__aenter__()
    except Unreachable as error:
        pytest.skip(str(error))
    app = web.Application()
    app.router.add_post("/mcp/{path:.*}", servers.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0)
    await runner.setup()

    async def serve(listening: Any) -> None:
        await web.SockSite(runner, listening).start()

    mounts = [Mount(Path(read.path), read.mounted.path), *(Mount(Path(each), each) for each in servers.folders)]
    command = Command([], {"OF_THE_AGENT": "1"}, mounts, limits=Limits(seconds=60), bridge=serve)
    await servers.begin(sandbox.run, command, place)
    (told,) = servers.configured("the-token")
    words = json.dumps([told.server["command"], *told.server["args"]])
    ended = await sandbox.local.run(replace(command, argv=["python3", "-c", AGENT, words]), place)
    await runner.cleanup()
    await servers.end()
    assert "ended  0" in ended.output
    (call,) = servers.record()["calls"]
    shown = json.loads(call["result"])
    assert ("own.txt" in shown["files"]) is not bool(hosts)
    assert "OF_THE_AGENT" not in shown["env"]
    assert {tuple(each.allowed_hosts) for each in sandbox.commands} == {tuple(hosts)}
    for each in sandbox.commands:
        targets = [mount.target for mount in each.mounts]
        assert len(targets) == len({*targets}) == 2  # a container takes no place twice
    assert len(sandbox.commands) == (2 if hosts else 1)


@pytest.mark.parametrize(("kind", "said"), [("memory", "store"), ("mcp", "koderz mcp serve --results ./store")])
async def test_memory_of_koderz_is_a_server_on_a_copy_of_its_store(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, said: str
) -> None:
    async with open_cortex(str(tmp_path / "store/memory.db")) as cortex:
        await cortex.remember("Parcels", "The code of abc is P-7.")
    monkeypatch.chdir(tmp_path)
    (read,) = read_additions(kind, said, tmp_path)
    (kept,) = Path(read.path).rglob("memory.db")  # noqa: ASYNC240
    before = kept.read_bytes()
    servers, sandbox = Servers((read,)), Noted()
    await servers.begin(sandbox.run, Command([], limits=Limits(seconds=60)), place)
    assert "recall" in servers.record()["servers"][read.name]["tools"]
    assert kept.read_bytes() == before
    assert str(read.path) not in str(servers.configured("the-token")[0].server)


def story_of_an_agent() -> list[Record]:
    """The records of an agent that called a tool between its two calls of a model."""
    first, last = (builders.call(0, number, time=f"2026-01-31T12:00:0{number * 2}.000000") for number in (1, 2))
    called = {"server": "parcels", "tool": "parcel_code", "arguments": "{}", "result": "P-7", "is_error": False}
    called |= {"begun": "2026-01-31T12:00:03.000000", "seconds": 0.5, "bytes": 90}
    numbers = {"calls": 1, "errors": 0, "seconds": 0.5, "bytes": 90, "tools": ["parcel_code"], "findings": ["it hangs"]}
    worked = {"output": "", "mcp": {"servers": {"parcels": numbers}, "calls": [called]}}
    once = Once(experiment_id=first.experiment_id, name="agent", value=worked, time="2026-01-31T12:00:05.000000")
    judged = builders.judged(0, time="2026-01-31T12:00:06.000000")
    return [first, last, once, builders.attempt(0, 1, time="2026-01-31T12:00:06.000000"), judged]


def test_calls_of_tools_stand_between_those_of_the_model() -> None:
    records = story_of_an_agent()
    first, second = _steps(records)
    assert [told_tool(tool) for tool in first.tools] == [("parcels.parcel_code · 0.500 s, 90 bytes", "{}\nP-7")]
    assert not second.tools
    outcome = records[-1]
    assert isinstance(outcome, Experiment)
    made = {record.name: record.value for record in records if isinstance(record, Once)}
    story = Story("e", "t", "s", "a", 0, (first, second), outcome, made=made)
    assert [*told_servers(story)] == ["parcels: 1 calls, 0 failed, 0.500 s", "parcels: it hangs"]


def test_traces_have_a_span_for_each_call_of_a_tool() -> None:
    records = story_of_an_agent()
    outcome = records[-1]
    assert isinstance(outcome, Experiment)
    _, spans = trace_of(a_plan(1), records, outcome, place="1", run="r")
    (span,) = [span for span in spans if span.name == "parcels.parcel_code"]
    assert (span.span_type, span.outputs) == ("TOOL", "P-7")
    assert (span.end_time_ns or 0) - span.start_time_ns == 500_000_000


def test_summary_counts_the_use_of_servers_and_their_findings() -> None:
    numbers = {"calls": 2, "errors": 1, "seconds": 0.5, "findings": ["it hangs"]}
    idle = {**numbers, "calls": 0, "errors": 0, "findings": []}
    results = [
        Result(problem_id="a", success=True, score=1.0, sample=sample, facts={"mcp": [{"parcels": own}]})
        for sample, own in enumerate((numbers, idle))
    ]
    found = FIGURES.summary(a_plan(1), {"arm": results, "plain": [Result(problem_id="a", success=True)]})
    sums = {"rollouts": 1, "calls": 2, "errors": 1, "seconds": 1.0, "findings": {"it hangs": 1}}
    assert found["arm"]["mcp"] == {"parcels": sums}
    assert "mcp" not in found["plain"]
    assert "parcels used in 1 rollouts: 2 calls, 1 failed; parcels: it hangs in 1 rollouts" in next(lines_of(found))
