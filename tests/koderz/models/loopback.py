"""A server that answers as a test tells it to: a real one on loopback, or routes of respx."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import respx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True)
class Asked:
    """A request as the server saw it."""

    method: str
    path: str
    headers: dict[str, str]
    json: Any


@dataclass(frozen=True)
class Answer:
    """What the server does with a request."""

    body: bytes = b"{}"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    drop: int | None = None  # bytes of the body after which the connection is closed
    hang: bool = False
    raw: bytes | None = None  # sent as it is, head and all


def chat(text: str | None = "hello", **message: Any) -> Answer:
    """A chat completion as OpenAI sends it."""
    choice = {"message": {"role": "assistant", "content": text, **message}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 11, "completion_tokens": 7}
    return Answer(json.dumps({"model": "m-2026-01-31", "choices": [choice], "usage": usage}).encode())


def refusal(message: str, status: int = 400, **headers: str) -> Answer:
    """An error as OpenAI sends it."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(json.dumps({"error": {"message": message}}).encode(), status, named)


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what a server or a pool comes to."""
    while not condition():  # noqa: ASYNC110 - whatever it is, it sets no event
        await asyncio.sleep(0.001)


class Server:
    """Answers one request after the other from `answers`; the last one for ever."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[Asked] = []
        self.answers: list[Answer] = [chat()]
        self.decide: Callable[[Asked], Answer] | None = None
        self.gate: asyncio.Event | None = None  # where set, requests wait for it
        self.in_flight = 0
        self.peak = 0
        self.connections = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        asked = Asked(method, path, headers, json.loads(body) if body else None)
        self.asked.append(asked)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            if self.gate is not None:
                await self.gate.wait()
            answer = self.decide(asked) if self.decide else self._next()
        finally:
            self.in_flight -= 1
        return await _send(writer, answer)

    def _next(self) -> Answer:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class Routes:
    """Answers as a `Server` does, by a route of respx for each method and path that no test has a route of its own for.

    Its hosts are all there are, and nothing of a connection's can befall a request.
    """

    url = "http://127.0.0.1:9"

    def __init__(self, router: respx.MockRouter) -> None:
        self.router = router
        self.asked: list[Asked] = []
        self.answers: list[Answer] = [chat()]
        self.decide: Callable[[Asked], Answer] | None = None
        router.route().mock(side_effect=self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        body, path = request.content, request.url.raw_path.decode()
        asked = Asked(request.method, path, dict(request.headers), json.loads(body) if body else None)
        self.asked.append(asked)
        if self.decide:
            answer = self.decide(asked)
        else:
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        assert (answer.drop, answer.hang, answer.raw) == (None, False, None), "that is a connection's: use `server`"
        headers = {name.encode(): value.encode() for name, value in answer.headers.items()}
        return httpx.Response(answer.status, headers=headers, content=answer.body)


async def _send(writer: asyncio.StreamWriter, answer: Answer) -> bool:
    if answer.hang:
        await asyncio.sleep(3600)
    headers = {"content-type": "application/json", "content-length": str(len(answer.body)), **answer.headers}
    lines = [f"HTTP/1.1 {answer.status} x", *(f"{name}: {value}" for name, value in headers.items())]
    sent = "\r\n".join(lines).encode() + b"\r\n\r\n" + answer.body[: answer.drop]
    writer.write(sent if answer.raw is None else answer.raw)
    await writer.drain()
    return answer.drop is None and answer.raw is None


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """A server that listens at its `url`."""
    served = Server()
    handlers: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(served.handle(reader, writer))
        handlers.add(task)
        task.add_done_callback(handlers.discard)

    listening = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    served.url = f"{'https' if tls else 'http'}://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening:
        yield served
        for task in handlers:
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)


def self_signed(folder: Path, *hosts: str) -> tuple[Path, ssl.SSLContext]:
    """A certificate for some hosts, and what a server presents it with."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, hosts[0])])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
    named = x509.SubjectAlternativeName([_named(host) for host in hosts])
    signed = builder.add_extension(named, critical=False).sign(key, hashes.SHA256())
    certificate, private = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    own = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, *own))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, private)
    return certificate, context


def _named(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
