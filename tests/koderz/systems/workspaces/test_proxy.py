"""The proxy of commands that may reach some hosts: those, and nothing else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from koderz.systems.workspaces.proxy import AllowedHosts, proxying


async def _told(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    body = head.replace(b"\r\n", b"|")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    await writer.drain()
    writer.close()


@asynccontextmanager
async def _world(*hosts: str) -> AsyncIterator[tuple[int, Callable[[bytes], Awaitable[bytes]]]]:
    """A web server's port, and a function that sends bytes to a proxy and reads what comes back."""
    server = await asyncio.start_server(_told, "127.0.0.1", 0)
    listening = socket.create_server(("127.0.0.1", 0))
    address = listening.getsockname()
    async with server, proxying(listening, hosts):

        async def ask(data: bytes) -> bytes:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(data)
            found = await asyncio.wait_for(reader.read(), 30)
            writer.close()
            return found

        yield server.sockets[0].getsockname()[1], ask


async def test_proxy_connects_to_allowed_hosts_only() -> None:
    async with _world("127.0.0.0/8", "example.org") as (port, ask):
        tunnelled = await ask(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\nGET /in HTTP/1.1\r\n\r\n".encode())
        assert tunnelled.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK")
        assert b"GET /in HTTP/1.1" in tunnelled
        head = f"GET http://127.0.0.1:{port}/a?b=//c HTTP/1.1\r\nHost: x\r\nProxy-Connection: keep-alive\r\n\r\n"
        plain = await ask(head.encode())
        assert b"GET /a?b=//c HTTP/1.1|Connection: close|Host: x||" in plain
        for target in ("10.0.0.1:80", "[::1]:80", "pypi.org:443", "example.org.evil.com:443", "sub.example.org:443"):
            refused = await ask(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
            assert refused.startswith(b"HTTP/1.1 403 Forbidden"), target
            assert b"is not among the hosts that the task may reach" in refused


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n\r\n", b"nonsense\r\n\r\n", b"GET ftp://x/ HTTP/1.1\r\n\r\n", b"x" * 100_000 + b"\r\n\r\n"],
)
async def test_proxy_refuses_what_is_no_request(data: bytes) -> None:
    async with _world("*") as (_, ask):
        assert (await ask(data)).startswith(b"HTTP/1.1 400 Bad Request")


async def test_name_that_leads_to_this_machine_is_refused() -> None:
    assert await AllowedHosts(["localhost"]).addresses("localhost", 80) == []
    listed = AllowedHosts(["localhost", "127.0.0.1"])
    assert "127.0.0.1" in await listed.addresses("LOCALHOST", 80)
    assert await AllowedHosts(["0.0.0.0/0"]).addresses("::ffff:127.0.0.1", 80) == ["::ffff:127.0.0.1"]
    assert await AllowedHosts(["10.0.0.0/8"]).addresses("::ffff:127.0.0.1", 80) == []
    wild = AllowedHosts(["*.localhost", "127.0.0.1", "::1"])
    assert await wild.addresses("localhost", 80) == []


async def test_proxy_listens_at_a_unix_socket_too(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        async with proxying(listening, []):
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
            writer.write(b"CONNECT a:1 HTTP/1.1\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 403")
            writer.close()
