"""MCP servers of a rollout: `guest/relay.py` stands for each where the agent starts it, and links it to koderz.

A server of stdio works beside the agent or, where it may reach hosts, in a sandbox of its own. One of HTTP is asked by
koderz, so that the agent knows nothing of it but its name.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp
import orjson
from aiohttp import web

import koderz
import koderz_tracker
from koderz.connections import httpx, open_client, told
from koderz.errors import Fault, KoderzError
from koderz.models.transport import proxy_for
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import BRIDGE_URL, Command, Ended, Mount
from koderz.systems.rollouts.additions import Addition, server_name
from koderz.systems.rollouts.agents.traffic import (
    LARGEST,
    Traffic,
    digests_of,
    listed_in,
    messages_of,
    text_of_answer,
)
from koderz.systems.workspaces.folders import TREE
from koderz_tracker.scrubber import is_secret_variable

RELAY = Path(__file__).parents[1] / "guest/relay.py"
# that a server has to answer a request, and to list its tools
ANSWER_SECONDS, START_SECONDS = 300.0, 30.0
_END_SECONDS, _PAGES, _LINKS, _WORDS, _SECRET = 2.0, 50, 16, 600, 8
_CLIENT = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "koderz", "version": "1"},
}
_KINDS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
# koderz writes into a store that it serves.
_ON_A_COPY = (
    'd=$(mktemp -d) && { [ -z "$0" ] || cp -r "$0/." "$d"; } && '
    'chmod -R u+w "$d" && KODERZ_RESULTS="$d" exec "$@"'
)

Run = Callable[[Command, Path], Awaitable[Ended]]
Send = Callable[[bytes], Awaitable[Any]]


class Link:
    """A link between an agent and a server: lines go over it from either end to the other."""

    def __init__(self, traffic: Traffic) -> None:
        loop = asyncio.get_running_loop()
        self.agent: asyncio.Future[Send] = loop.create_future()  # what sends to each
        self.server: asyncio.Future[Send] = loop.create_future()
        self.over: asyncio.Future[str] = loop.create_future()  # how the server ended
        # what kept a server from being begun that isn't its own doing
        self.fault: KoderzError | None = None
        self.traffic, self._is_left = traffic, False
        self._leave: Callable[[], Any] | None = None  # has the server end
        self._tasks = set[asyncio.Task[None]]()

    async def of_agent(self, request: web.Request) -> web.StreamResponse:
        """Serves the agent's end until either is gone; what a server says once the agent has left is carried, too."""
        response = await _opened(request, self.agent)
        reading = asyncio.create_task(_carried(request.content, self.ask))
        try:
            await asyncio.wait((reading, self.over), return_when=asyncio.FIRST_COMPLETED)
            self.leave()
            await asyncio.shield(self.over)
        finally:
            reading.cancel()
            self.leave()
            _close(request)
        return response

    async def of_server(self, request: web.Request) -> web.StreamResponse:
        """Serves the server's end until that is gone."""
        response = await _opened(request, self.server)
        self._leave = partial(_end_input, request)
        if self._is_left:
            self.leave()
        try:
            if await _carried(request.content, self.answer):
                self.traffic.find(
                    f"it floods, for which it is ended: a message has more than {LARGEST >> 20} MB"
                )
        finally:
            self.end("ended")
            _close(request)
        return response

    async def of_url(self, server: Mapping[str, Any]) -> None:
        """Asks a server of HTTP what the agent asks, until the agent leaves."""
        url, headers, session = (
            server["url"],
            {**_KINDS, **server.get("headers", {})},
            dict[str, str](),
        )
        self._leave, slots = lambda: self.end("ended"), asyncio.Semaphore(_LINKS)
        async with open_client(url, proxy=proxy_for(url)) as client:

            async def post(line: bytes) -> None:
                begins = any(message.get("method") == "initialize" for message in messages_of(line))
                if begins:  # what an agent asks before may get an id that is none of a session
                    session.clear()
                try:
                    async with client.stream(
                        "POST", url, content=line, headers={**headers, **session}
                    ) as answer:
                        await self._hear(answer, session if begins else {})
                except (httpx.TransportError, httpx.InvalidURL, ValueError) as error:
                    why = (
                        str(error)
                        if isinstance(error, ValueError)
                        else f"can't be reached: {told(error)}"
                    )
                    for message in messages_of(line):
                        self._give_up(f"{id(self)} {message.get('id')!r}", f"it {why}")

            async def send(line: bytes) -> None:
                await slots.acquire()
                posting = self._begin(post(line))
                posting.add_done_callback(lambda _: slots.release())
                if not any("id" in message for message in messages_of(line)):
                    await posting  # what follows a notification may depend on it

            self.server.set_result(send)
            try:
                await asyncio.shield(self.over)
            finally:
                for task in self._tasks:
                    task.cancel()

    async def ask(self, line: bytes) -> None:
        """Takes a line of the agent's."""
        for key in self.traffic.asked(id(self), line):
            hangs = f"it hangs: no answer in {ANSWER_SECONDS:g} s"
            asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._give_up, key, hangs)
        await (await self.server)(line)

    async def answer(self, line: bytes) -> None:
        """Takes a line of the server's; the last of one of stdio says how it ended, see the relay."""
        if line.startswith(b"\0"):
            ended = (messages_of(line[1:]) or [{}])[0]
            words = " ".join(str(ended.get("words")).split())[-_WORDS:]
            self.end(f"ended with exit code {ended.get('status')}: {words}".rstrip(": "))
        elif self.traffic.answered(id(self), line):
            await (await self.agent)(line)

    def leave(self) -> None:
        """The agent is gone."""
        self._is_left = True
        if self._leave:
            self._leave()

    def end(self, words: str) -> None:
        """The server is gone."""
        if not self.over.done():
            self.over.set_result(words)
            if not self._is_left and words != "ended":
                self.traffic.find(f"it {words}")

    async def _hear(self, answer: httpx.Response, session: dict[str, str]) -> None:
        """Takes what a server of HTTP answers, JSON or events, and the headers of the `session` that it begins."""
        if "mcp-session-id" in answer.headers:
            session["mcp-session-id"] = answer.headers["mcp-session-id"]

        async def take(line: bytearray) -> None:
            whole = bytes(line).replace(b"\n", b" ").strip() + b"\n"
            for result in (message.get("result") for message in messages_of(whole)):
                if isinstance(result, dict) and isinstance(
                    version := result.get("protocolVersion"), str
                ):
                    session["mcp-protocol-version"] = version
            await self.answer(whole)

        held, is_stream = (
            bytearray(),
            answer.headers.get("content-type", "").startswith("text/event-stream"),
        )
        async for piece in answer.aiter_bytes():
            *lines, held = (held + piece).split(b"\n") if is_stream else [held + piece]
            for line in lines:
                if line.startswith(b"data:"):
                    await take(line[5:])
            if len(held) > LARGEST:
                raise ValueError(f"floods: a message has more than {LARGEST >> 20} MB")
        if answer.status_code >= 300:
            raise ValueError(
                f"answers with HTTP {answer.status_code}: {held[:_WORDS].decode('utf-8', 'replace')}"
            )
        if held.strip() and not is_stream:
            await take(held)

    def _give_up(self, key: str, why: str) -> None:
        """Answers a request in the server's place."""
        if answer := self.traffic.give_up(key, why):
            self._begin(self._tell(answer))

    async def _tell(self, line: bytes) -> None:
        with suppress(OSError):
            await (await self.agent)(line)

    def _begin(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class Caller:
    """koderz itself at the agent's end of a link."""

    def __init__(self, link: Link) -> None:
        self.link, self._number = link, 0
        self._heard = asyncio.Queue[bytes]()
        link.agent.set_result(self._heard.put)

    async def asked(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a request. Raises ValueError where the server ends before it gives one."""
        self._number += 1
        asking = asyncio.create_task(self._ask(self._number, method, params))
        try:
            await asyncio.wait((asking, self.link.over), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise ValueError(self.link.over.result())
            return asking.result()
        finally:
            asking.cancel()

    async def tools(self) -> list[dict[str, Any]]:
        """The tools that the server lists. Raises ValueError if it doesn't in time."""
        try:
            async with asyncio.timeout(START_SECONDS):
                return await self._listed()
        except TimeoutError:
            how = await self.leave()
            raise ValueError(f"hasn't listed its tools in {START_SECONDS:g} s, and {how}") from None

    async def leave(self) -> str:
        """Ends the server as agents do, and returns how it did."""
        self.link.leave()
        await asyncio.wait([self.link.over], timeout=_END_SECONDS)
        return (
            self.link.over.result() if self.link.over.done() else "goes on when it is told to end"
        )

    async def _ask(self, number: int, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        await self.link.ask(orjson.dumps(message) + b"\n")
        while True:
            for each in messages_of(await self._heard.get()):
                if each.get("id") == number and "method" not in each:
                    return each

    async def _listed(self) -> list[dict[str, Any]]:
        async def result(method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
            answer = await self.asked(method, params)
            if isinstance(found := answer.get("result"), dict):
                return found
            raise ValueError(f"answers {method} by {orjson.dumps(answer).decode()[:_WORDS]}")

        greeted = await result("initialize", _CLIENT)
        await self.link.ask(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        tools, params = list[dict[str, Any]](), dict[str, Any]()
        for _ in range(1, _PAGES) if "tools" in (greeted.get("capabilities") or {}) else ():
            page = await result("tools/list", params)
            tools, params = [*tools, *listed_in(page)], {"cursor": page.get("nextCursor")}
            if not params["cursor"]:
                break
        return tools


class Tool(NamedTuple):
    """A tool of a server."""

    name: str
    listed: Mapping[str, Any]  # as its server describes it
    caller: Caller

    def described(self, name: str) -> dict[str, Any]:
        """The function, by that name, which a model is offered."""
        schema = self.listed.get("inputSchema")
        parameters = schema if isinstance(schema, dict) else {"type": "object"}
        about = {
            "name": name,
            "description": str(self.listed.get("description", "")),
            "parameters": parameters,
        }
        return {"type": "function", "function": about}

    async def call(self, arguments: Any) -> tuple[str, bool]:
        """The text that it answers, and whether that is an error."""
        try:
            params = {"name": self.name, "arguments": arguments}
            return text_of_answer(await self.caller.asked("tools/call", params))
        except (ValueError, OSError) as error:
            return f"its server {error}", True


class Servers:
    """The MCP servers of one rollout, but for those of HTTP that its task has beside the agent."""

    def __init__(self, additions: Sequence[Addition]) -> None:
        servers = [
            each
            for each in additions
            if each.kind == "mcp" and not (each.inside and "url" in each.server)
        ]
        self._additions, self._of = additions, {quote(each.name, safe=""): each for each in servers}
        self._traffic = {name: Traffic() for name in self._of}
        self._links: dict[tuple[str, str], Link] = {}
        self._working = set[asyncio.Task[None]]()
        self._run: Run
        self._command: Command
        self._checkout: Path | None = None  # that servers beside koderz' own agent see
        # that the agent's sandbox has to show, each at its own place
        self.folders = [str(RELAY)] if servers else []

    def configured(self, token: str) -> tuple[Addition, ...]:
        """The additions as the agent is told of them: each server is the relay that stands for it."""
        relays = {
            each: _relay(name, token, {} if each.is_apart else each.mounted.server)
            for name, each in self._of.items()
        }
        return tuple(
            replace(each.mounted, server=relays.get(each, each.mounted.server))
            for each in self._additions
        )

    async def begin(self, run: Run, command: Command, place: Path) -> None:
        """Asks each server for its tools, before the agent begins. Raises Fault for one that doesn't list them.

        They run as `command` does, those beside the agent in its `place`.
        """
        self._run, self._command = run, command
        for name, each in self._of.items():
            async with self._started(each, link := Link(Traffic()), place):
                self._traffic[name].tools = digests_of(await self._listed(each, Caller(link)))

    @asynccontextmanager
    async def called(
        self, run: Run, command: Command, checkout: Path
    ) -> AsyncIterator[dict[str, Tool]]:
        """The tools of servers that work for koderz' own agent, by names that models take. Raises as `begin`.

        Its commands come and go, so that none of them can be what the servers work beside: each has a sandbox of its
        own, in which it finds the checkout.
        """
        self._run, self._command, self._checkout = run, command, checkout
        found: dict[str, Tool] = {}
        async with AsyncExitStack() as stack:
            for name, each in self._of.items():
                caller = Caller(Link(Traffic()))
                await stack.enter_async_context(self._started(each, caller.link))
                stack.push_async_callback(caller.leave)
                listed = await self._listed(each, caller)
                caller.link.traffic = self._traffic[name]  # from now on it is the agent that asks
                self._traffic[name].tools = digests_of(listed)
                for tool in listed:
                    called = Tool(str(tool.get("name")), tool, caller)
                    found.setdefault(server_name(f"{each.bare_name}__{called.name}"), called)
            yield found

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serves an end of a link, /mcp/NAME/END/LINK, to whoever has the token of the bridge."""
        name, end, number = [*request.rel_url.raw_path.removeprefix("/mcp/").split("/"), "", ""][:3]
        server, key = self._of.get(name), (name, number)
        if server is None or not number or len(self._links) > _LINKS:
            return web.Response(
                status=404, text="koderz: this rollout has no such MCP server, or too many links"
            )
        link = self._links.setdefault(key, Link(self._traffic[name]))
        try:
            if server.is_apart:
                async with self._started(server, link):
                    return await link.of_agent(request)
            return await (link.of_server if end == "server" else link.of_agent)(request)
        finally:
            if end == "agent" or not link.agent.done():
                self._links.pop(key, None)

    async def end(self) -> None:
        """Waits for servers that are still ending; all of them have been told to, once no agent is served any more."""
        if self._working:
            await asyncio.wait({*self._working})

    def record(self) -> dict[str, Any]:
        """The record of all servers by name, and the calls of all in their order, without the secrets of their arm."""
        named = {self._of[name].name: traffic for name, traffic in self._traffic.items()}
        servers = {name: traffic.record() for name, traffic in named.items()}
        calls = [
            {"server": name, **call} for name, traffic in named.items() for call in traffic.calls
        ]
        found = {"servers": servers, "calls": sorted(calls, key=lambda call: str(call["begun"]))}
        return dict(orjson.loads(self._without_secrets(orjson.dumps(found).decode())))

    def _without_secrets(self, text: str) -> str:
        for secret in (secret for each in self._of.values() for secret in _secrets_of(each.server)):
            text = text.replace(secret, "[secret]")
        return text

    async def _listed(self, server: Addition, caller: Caller) -> list[dict[str, Any]]:
        try:
            return await caller.tools()
        except ValueError as error:
            why = self._without_secrets(f"the MCP server {server.name} {error}")
            raise caller.link.fault or Fault(why, cause="mcp") from None

    @asynccontextmanager
    async def _started(
        self, server: Addition, link: Link, place: Path | None = None
    ) -> AsyncIterator[None]:
        """A server at its end of a link: asked by koderz, or in a sandbox without the agent."""

        async def work() -> None:
            try:
                await (
                    link.of_url(server.server)
                    if "url" in server.server
                    else self._alone(server, link, place)
                )
            except KoderzError as error:
                link.fault = error
                link.end(f"can't be reached: {error}")

        working = asyncio.create_task(work())
        self._working.add(working)
        working.add_done_callback(self._working.discard)
        try:
            yield
        finally:
            working.cancel()
            await asyncio.wait([working])

    async def _alone(self, server: Addition, link: Link, place: Path | None) -> None:
        at, stated = server.mounted, dict(server.mounted.server)
        command, mounts = self._command, [*self._command.mounts]
        if server.is_apart:
            command = replace(
                command, services=None, network=False, allowed_hosts=stated.get("hosts", ())
            )
            mounts = [
                Mount(RELAY, str(RELAY)),
                *([Mount(Path(server.path), at.path)] if server.path else []),
            ]
        if stated["command"] == "koderz":
            stated, needed = _own(stated, at.path)
            command, mounts = replace(command, image=None), [*mounts, *needed]
        relay = _relay("server", "", stated, agent=False)
        app = web.Application()
        app.router.add_post("/{path:.*}", link.of_server)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0)

        async def serve(listening: Any) -> None:
            await web.SockSite(runner, listening).start()

        argv = [relay["command"], *relay["args"]]
        await runner.setup()
        try:
            with scratch() as own:
                where = own if server.is_apart or place is None else place
                if self._checkout and not server.is_apart:
                    (own / TREE[0]).symlink_to(self._checkout)
                ended = await self._run(
                    replace(command, argv=argv, mounts=mounts, bridge=serve), where
                )
            if not link.server.done():
                link.end(f"can't be started: {ended.output.strip()[-_WORDS:]}")
        finally:
            await runner.cleanup()


async def _opened(request: web.Request, end: asyncio.Future[Send]) -> web.StreamResponse:
    """The answer to a request that is an end of a link, which goes on for as long as that."""
    if end.done():
        raise web.HTTPConflict(text="koderz: the link has this end already")
    response = web.StreamResponse()
    response.force_close()
    response.content_length = 1 << 60  # without it, it would come in chunks
    await response.prepare(request)
    end.set_result(response.write)
    return response


async def _carried(content: aiohttp.StreamReader, take: Send) -> bool:
    """Carries the lines of an end of a link until that is gone. Returns whether it has sent one that is too large."""
    held = bytearray()
    with suppress(OSError, web.RequestPayloadError):
        async for piece in content.iter_any():
            *lines, rest = piece.split(b"\n")
            for line in lines:
                whole = bytes(held + line)
                held.clear()
                if whole.strip():
                    await take(whole + b"\n")
            held += rest
            if len(held) > LARGEST:
                return True
    return False


def _end_input(request: web.Request) -> None:
    """Ends what an end of a link reads; what it sends is carried on."""
    if (transport := request.transport) is not None and not transport.is_closing():
        transport.write_eof()


def _close(request: web.Request) -> None:
    if (transport := request.transport) is not None:
        transport.close()


def _relay(
    name: str, token: str, server: Mapping[str, Any], *, agent: bool = True
) -> dict[str, Any]:
    """The command of the relay, as the configuration of a server."""
    about = {"url": BRIDGE_URL, "token": token, "name": name, "agent": agent, "server": server}
    return {"command": "python3", "args": ["-I", "-B", str(RELAY), orjson.dumps(about).decode()]}


def _own(server: Mapping[str, Any], store: str) -> tuple[dict[str, Any], list[Mount]]:
    """A server that is koderz itself, on a copy of the store that it is given, and what it needs to be shown."""
    args = [*server.get("args", ())]
    if "--results" in args[:-1]:
        at = args.index("--results")
        store, args = args[at + 1], args[:at] + args[at + 2 :]
    packages = [str(Path(str(package.__file__)).parent) for package in (koderz, koderz_tracker)]
    shown = dict.fromkeys([sys.prefix, sys.base_prefix, *packages])
    words = [store, sys.executable, "-m", "koderz", *args]
    return {**server, "command": "sh", "args": ["-c", _ON_A_COPY, *words]}, [
        Mount(Path(each), each) for each in shown
    ]


def _secrets_of(server: Mapping[str, Any]) -> list[str]:
    """The secrets that a server is configured with, as they stand in JSON."""
    own = [value for name, value in server.get("env", {}).items() if is_secret_variable(name)]
    words = [
        value.split()[-1] for value in (*own, *server.get("headers", {}).values()) if value.strip()
    ]
    return [json.dumps(word, ensure_ascii=False)[1:-1] for word in words if len(word) >= _SECRET]
