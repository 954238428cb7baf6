"""A proxy for commands that have no network: it connects to the hosts that they may reach, and to no others."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

PROXY_PORT = 16162
"""The port of a command's own loopback at which it reaches the proxy."""


def variables(url: str) -> dict[str, str]:
    """The variables by which programs find a proxy."""
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
    return {
        **dict.fromkeys(names, url),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost,::1"),
    }


VARIABLES = variables(f"http://127.0.0.1:{PROXY_PORT}")
"""The variables by which programs find the proxy at that port."""

_LONGEST_HEAD, _HEAD_SECONDS, _CONNECT_SECONDS = 1 << 16, 30.0, 30.0
_OWN = re.compile(rb"\r\n(?:proxy-[\w-]+|connection):[^\r\n]*", re.IGNORECASE)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class AllowedHosts:
    """Hosts that may be connected to: names, `*.NAME`, addresses and CIDR ranges."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._names: set[str] = set()
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for host in hosts:
            try:
                self._networks.append(ipaddress.ip_network(host.strip("[]"), strict=False))
            except ValueError:
                self._names.add(_plain(host))

    async def addresses(self, host: str, port: int) -> list[str]:
        """The addresses at which a host may be reached; empty if it may not.

        A name leads to public addresses alone, unless others are listed by themselves: whoever owns a name could have
        it lead to this machine.
        """
        literal = _address(host)
        if literal:
            return [host] if self._lists(literal) else []
        if not self._names_it(host):
            return []
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )
        except (OSError, UnicodeError):
            return []
        every = dict.fromkeys(str(each[4][0]) for each in found)
        return [
            text
            for text in every
            if (each := _address(text)) and (each.is_global or self._lists(each))
        ]

    def _names_it(self, host: str) -> bool:
        name = _plain(host)
        parents = [name[place + 1 :] for place, letter in enumerate(name) if letter == "."]
        return name in self._names or any(f"*.{parent}" in self._names for parent in parents)

    def _lists(self, address: Address) -> bool:
        return any(
            address in network for network in self._networks if network.version == address.version
        )


class PublicHosts(AllowedHosts):
    """All hosts at public addresses, none of which is this machine or in its own networks."""

    def __init__(self) -> None:
        super().__init__(())

    def _names_it(self, host: str) -> bool:
        return bool(host)

    def _lists(self, address: Address) -> bool:
        return address.is_global


@asynccontextmanager
async def proxying(
    listening: socket.socket, hosts: Sequence[str] | AllowedHosts
) -> AsyncIterator[None]:
    """Answers CONNECT, and http:// requests, of whoever connects to a socket that listens, within the block."""
    allowed, busy = (
        hosts if isinstance(hosts, AllowedHosts) else AllowedHosts(hosts),
        set[asyncio.Task[None]](),
    )

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        busy.add(task)
        task.add_done_callback(busy.discard)
        with (
            contextlib.closing(writer),
            contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError),
        ):
            await _answer(reader, writer, allowed)

    kind = asyncio.start_unix_server if listening.family == socket.AF_UNIX else asyncio.start_server
    server = await kind(answer, sock=listening, limit=_LONGEST_HEAD)
    try:
        yield
    finally:
        server.close()
        for task in [*busy]:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, allowed: AllowedHosts
) -> None:
    try:
        async with asyncio.timeout(_HEAD_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
        host, port, passed_on = _target(head)
    except (asyncio.LimitOverrunError, ValueError):
        await _refuse(writer, "400 Bad Request", "this is no request to a proxy")
        return
    addresses = await allowed.addresses(host, port)
    if not addresses:
        await _refuse(
            writer, "403 Forbidden", f"{host} is not among the hosts that the task may reach"
        )
        return
    far = await _connected(addresses, port)
    if far is None:
        await _refuse(writer, "502 Bad Gateway", f"{host} can't be reached")
        return
    far_reader, far_writer = far
    with contextlib.closing(far_writer):
        (far_writer if passed_on else writer).write(
            passed_on or b"HTTP/1.1 200 Connection established\r\n\r\n"
        )
        await asyncio.gather(_pumped(reader, far_writer), _pumped(far_reader, writer))


def _target(head: bytes) -> tuple[str, int, bytes]:
    """The host and port that a request is for, and what is passed on to it; nothing of CONNECT. ValueError for none."""
    method, target, version = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    connects = method == "CONNECT"
    parts = urlsplit(f"//{target}" if connects else target)
    if not parts.hostname or (not connects and parts.scheme != "http"):
        raise ValueError(target)
    port = parts.port or (443 if connects else 80)
    if connects:
        return parts.hostname, port, b""
    path = target.split("/", 3)[3] if target.count("/") > 2 else ""
    rest = _OWN.sub(b"", b"\r\n" + head.split(b"\r\n", 1)[1])
    line = f"{method} /{path} {version}".encode("latin-1")
    return parts.hostname, port, line + b"\r\nConnection: close" + rest


async def _connected(
    addresses: Sequence[str], port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    for address in addresses:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CONNECT_SECONDS):
                return await asyncio.open_connection(address, port)
    return None


async def _pumped(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while part := await source.read(1 << 16):
            target.write(part)
            await target.drain()
        if target.can_write_eof():
            target.write_eof()


async def _refuse(writer: asyncio.StreamWriter, status: str, why: str) -> None:
    body = f"koderz: {why}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


def _plain(host: str) -> str:
    return host.strip().lower().rstrip(".")


def _address(host: str) -> Address | None:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    return (found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None) or found
