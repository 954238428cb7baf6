"""What befalls a connection, and that it is told as what it is."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from koderz.errors import FatalFault
from koderz.models.faults import Retryable
from koderz.models.transport import Http

from .loopback import Answer, Server, self_signed, serving


async def asked(url: str) -> bytes:
    http = Http(url, timeout=60.0)
    try:
        return (await http.get("/", {})).body
    finally:
        await http.aclose()


async def test_connection_that_is_refused_is_no_timeout() -> None:
    with pytest.raises(Retryable, match=r"^cannot connect: Connection refused$"):
        await asked("http://127.0.0.1:9")


async def test_host_that_is_unknown_is_told() -> None:
    with pytest.raises(Retryable, match=r"^cannot connect: .*(not known|resolution)"):
        await asked("http://nowhere.invalid")


@pytest.mark.parametrize(
    "answer",
    [
        Answer(raw=b""),
        Answer(raw=b"220 mail.example ESMTP\r\n\r\n"),
        Answer(b"x" * 1000, drop=10),
        Answer(headers={"x-long": "x" * 100_000}),
        Answer(headers={f"x-{number}": "x" for number in range(100_000)}),
    ],
)
async def test_answer_that_is_not_http_is_a_lost_connection(server: Server, answer: Answer) -> None:
    server.answers = [answer]
    with pytest.raises(Retryable, match=r"^connection lost: [^{}=]+$"):
        await asked(server.url)


async def test_connection_closed_by_the_server_is_made_anew(server: Server) -> None:
    server.answers = [Answer(raw=b"HTTP/1.1 200 x\r\ncontent-length: 1\r\n\r\na"), Answer(b"b")]
    http = Http(server.url, timeout=60.0)
    assert [(await http.get("/", {})).body for _ in range(2)] == [b"a", b"b"]
    await http.aclose()
    assert server.connections == 2


GET = """
import asyncio, ssl, sys

made = []
for name in ("load_default_certs", "load_verify_locations"):
    load = getattr(ssl.SSLContext, name)
    setattr(ssl.SSLContext, name, lambda *given, load=load, **named: made.append(1) or load(*given, **named))

from koderz.models.transport import Http


async def main():
    http = Http(sys.argv[1], timeout=60.0)
    print((await http.get("/", {})).body.decode(), len(made))
    await http.aclose()


asyncio.run(main())
"""


def test_certificates_are_read_once(tmp_path: Path) -> None:
    """In a process of its own: they are read when the library that asks is loaded."""
    certificate, context = self_signed(tmp_path, "127.0.0.1")

    async def told() -> str:
        async with serving(context) as server:
            server.answers = [Answer(b"hello")]
            env = {**os.environ, "SSL_CERT_FILE": str(certificate)}
            command = (sys.executable, "-c", GET, server.url)
            process = await asyncio.create_subprocess_exec(*command, env=env, stdout=subprocess.PIPE)
            return (await process.communicate())[0].decode()

    assert asyncio.run(told()).split() == ["hello", "1"]


async def test_certificate_without_authority_is_told(tmp_path: Path) -> None:
    _, context = self_signed(tmp_path, "127.0.0.1")
    async with serving(context) as server:
        with pytest.raises(FatalFault, match=r"^the server's certificate is not trusted: .* self-signed certificate"):
            await asked(server.url)


async def test_certificates_of_certifi_stand_in_for_the_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, context = self_signed(tmp_path, "127.0.0.1")
    monkeypatch.setattr(
        "ssl.get_default_verify_paths", lambda: SimpleNamespace(cafile=None, capath=str(tmp_path / "none"))
    )
    (tmp_path / "none").mkdir()
    monkeypatch.setattr("certifi.where", lambda: str(certificate))
    async with serving(context) as server:
        server.answers = [Answer(b"hello")]
        assert await asked(server.url) == b"hello"


async def test_proxy_is_used_for_remote_hosts(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("http_proxy", server.url.replace("//", "//me:secret@"))
    server.answers = [Answer(b"hello")]
    assert await asked("http://elsewhere.example") == b"hello"
    assert server.asked[0].path == "http://elsewhere.example/"
    assert server.asked[0].headers["proxy-authorization"] == "Basic bWU6c2VjcmV0"


@pytest.mark.parametrize(("status", "told"), [(407, "the proxy refuses: 407"), (None, "cannot connect to the proxy")])
async def test_proxy_that_refuses_is_named(
    server: Server, monkeypatch: pytest.MonkeyPatch, status: int | None, told: str
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("https_proxy", server.url if status else "http://me:secret@127.0.0.1:9")
    server.answers = [Answer(status=status or 0)]
    with pytest.raises(Retryable, match=f"^{told}") as caught:
        await asked("https://elsewhere.example")
    assert "secret" not in str(caught.value)


async def test_socks_proxy_is_used_with_its_password(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answers = [Answer(b"hello")]
    wanted: list[bytes] = []

    async def socks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A proxy as RFC 1928 and 1929 have it, for one host that only it knows."""
        await reader.readexactly((await reader.readexactly(2))[1])
        writer.write(b"\x05\x02")
        wanted.append(await reader.readexactly(11))
        writer.write(b"\x01\x00")
        wanted.append((await reader.readexactly(5 + len("elsewhere.example") + 2))[5:-2])
        far, to = await asyncio.open_connection(*server.url.removeprefix("http://").split(":"))
        writer.write(b"\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x00")
        to.write(await reader.readuntil(b"\r\n\r\n"))
        writer.write(await far.readuntil(b"hello"))
        for each in (to, writer):
            each.close()

    async with await asyncio.start_server(socks, "127.0.0.1", 0) as listening:
        proxy = f"socks5://me:secret@127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.setenv("all_proxy", proxy)
        assert await asked("http://elsewhere.example") == b"hello"
    assert wanted == [b"\x01\x02me\x06secret", b"elsewhere.example"]


async def test_address_is_not_logged(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        await asked(server.url)
    assert server.url not in caplog.text


async def test_cookies_are_not_kept(server: Server) -> None:
    server.answers = [Answer(headers={"set-cookie": "a=b"})]
    http = Http(server.url, timeout=60.0)
    for _ in range(2):
        await http.get("/", {})
    await http.aclose()
    assert "cookie" not in server.asked[1].headers


async def test_answer_leaves_nothing_to_collect(server: Server) -> None:
    """koderz' commands let garbage be collected rarely, so a cycle a call would be megabytes."""
    gc.collect()
    gc.disable()
    try:
        await asked(server.url)
        left = [each for each in gc.get_objects() if type(each) is httpx.Response]
    finally:
        gc.enable()
    assert left == []
