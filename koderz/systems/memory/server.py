"""The memory store as an MCP server: over standard input and output, or over streamable HTTP with a token."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from koderz.systems.memory.tools import TOOLS, Tool, described, read_arguments, schema_of, text_of
from koderz_tracker.addresses import is_loopback
from koderz_tracker.errors import KoderzError
from koderz_tracker.memory.cortex import Cortex

if TYPE_CHECKING:
    from mcp.server import Server
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

PATH = "/mcp"
INSTRUCTIONS = (
    "What the koderz experiments of this project taught: every run (tag benchmark_run) and every experiment "
    "(tag result, with its task, run and whether it was completed), beside what was remembered by hand. "
    "recall finds by words, and answers in few; get_memory gives one whole; export_memories gives all that carry the "
    "same tags, in pages. Answers have at most 25,000 characters unless maxCharacters asks for more."
)
_MOST_BYTES = 64 << 20  # of a request
_DRAINED_BYTES, _DRAINED_SECONDS = 1 << 30, 30.0
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 refused
_LOCAL = ("127.0.0.1", "localhost", "::1")


def make_server(
    cortex: Cortex,
    tools: Mapping[str, type[Tool]] = TOOLS,
    work: Callable[[Tool], Awaitable[Any]] | None = None,
    *,
    name: str = "koderz-memory",
    instructions: str = INSTRUCTIONS,
    **handlers: Any,
) -> Server[Any]:
    """A server whose tools work on `cortex`, or as `work` has it. `handlers`: what else it answers, see `Server`."""
    import mcp_types as types
    from mcp.server import Server

    from koderz_tracker.memory.database import MIGRATIONS

    work = work or (lambda tool: tool.call(cortex))
    listed = [
        types.Tool(
            name=name,
            description=described(tool),
            input_schema=schema_of(tool),
            annotations=types.ToolAnnotations(
                read_only_hint=tool.reads_only, destructive_hint=name == "forget"
            ),
        )
        for name, tool in tools.items()
    ]

    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listed)

    async def call_tool(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            tool = read_arguments(params.name, params.arguments, tools)
            text = text_of(await work(tool), tool.max_characters)
            return types.CallToolResult(content=[types.TextContent(type="text", text=text)])
        except KoderzError as error:
            return types.CallToolResult(
                content=[types.TextContent(type="text", text=str(error))], is_error=True
            )

    return Server(
        name,
        version=f"schema {len(MIGRATIONS)}",
        instructions=instructions,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        **handlers,
    )


async def serve_stdio(cortex: Cortex, make: Callable[[Cortex], Server[Any]] = make_server) -> None:
    """Serves one client over standard input and output until it disconnects. Nothing else may be written there."""
    from mcp.server.stdio import stdio_server

    logging.basicConfig(stream=sys.stderr, level=logging.ERROR)
    server = make(cortex)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


async def serve_http(
    cortex: Cortex,
    host: str,
    port: int,
    token: str,
    *,
    ready: Callable[[str], None],
    make: Callable[[Cortex], Server[Any]] = make_server,
) -> None:
    """Serves over HTTP until interrupted; calls `ready` with the address once it answers there.

    Every request needs `Authorization: Bearer TOKEN`. A web page can't reach it by a name of its own: the
    Host and Origin headers have to be those of the address. Raises KoderzError where the port is taken.
    """
    import uvicorn
    from mcp.server.transport_security import TransportSecuritySettings

    bound = _bind(host, port)
    port = bound.getsockname()[1]
    names = [
        f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
        for name in {host, *(_LOCAL if is_loopback(host) else ())}
    ]
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=names,
        allowed_origins=[f"http://{name}" for name in names],
    )
    app = make(cortex).streamable_http_app(
        streamable_http_path=PATH,
        transport_security=security,
        host=host,
        max_request_body_size=_MOST_BYTES,
    )
    config = uvicorn.Config(
        guarded(read_out(app), token), log_level="error", access_log=False, lifespan="on"
    )
    server = uvicorn.Server(config)
    shown = f"[{host}]" if ":" in host else host
    ready(f"http://{shown}:{port}{PATH}")
    await server.serve(sockets=[bound])


def read_out(app: ASGIApp) -> ASGIApp:
    """Wraps an app so that it reads the rest of a request that is too large before answering.

    A connection that is closed with something unread is reset, and its client never sees the answer 413.
    """

    async def reading(scope: Scope, receive: Receive, send: Send) -> None:
        async def answered(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 413:
                await _drain(receive)
            await send(message)

        await app(scope, receive, answered)

    return reading


async def _drain(receive: Receive) -> None:
    """Reads and drops the rest of a body, up to the time and size that an honest client needs."""
    left = _DRAINED_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(_DRAINED_SECONDS):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if not message.get("more_body"):
                    return


def guarded(app: ASGIApp, token: str) -> ASGIApp:
    """Wraps an app so that requests without the token are answered with 401."""
    from starlette.responses import PlainTextResponse

    expected = f"Bearer {token}".encode()
    refusal = PlainTextResponse(
        "a token is needed: Authorization: Bearer TOKEN\n",
        401,
        headers={"www-authenticate": "Bearer"},
    )

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or secrets.compare_digest(
            dict(scope["headers"]).get(b"authorization", b""), expected
        ):
            await app(scope, receive, send)
        else:
            await refusal(scope, receive, send)

    return guard


def token_from(environ: Mapping[str, str], variable: str | None) -> str:
    """The token in a variable, or a new one. Raises KoderzError if the variable is empty or too short."""
    if variable is None:
        return secrets.token_urlsafe(24)
    token = environ.get(variable, "")
    if len(token) < 16:
        raise KoderzError(
            f"--token-env {variable}: it has to hold a token of at least 16 characters"
        )
    return token


def _bind(host: str, port: int) -> socket.socket:
    """A listening socket, bound here so that a taken port is reported in one line."""
    if host in _WILDCARDS:
        raise KoderzError(
            f"--http {host}:{port}: name the one address that clients use, since requests to any other are refused"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(128)
    except (OSError, OverflowError) as error:
        bound.close()
        raise KoderzError(
            f"--http {host}:{port}: nothing can listen there ({error}); choose another"
        ) from None
    return bound
