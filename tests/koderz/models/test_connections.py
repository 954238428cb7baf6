"""What befalls a connection, and that it is told as what it is."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from koderz.errors import FatalFault
from koderz.models.faults import Retryable
from koderz.models.transport import Http

from .loopback import Answer, Server, serving

pytestmark = pytest.mark.anyio


async def asked(url: str) -> bytes:
    http = Http(url, timeout=5.0)
    try:
        return (await http.get("/", {})).body
    finally:
        await http.aclose()


async def test_a_refused_connection_is_no_timeout() -> None:
    with pytest.raises(Retryable, match=r"^cannot connect: Connection refused$"):
        await asked("http://127.0.0.1:9")


async def test_a_host_that_nobody_knows_is_said() -> None:
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
async def test_an_answer_that_is_none_is_a_lost_connection(server: Server, answer: Answer) -> None:
    server.answers = [answer]
    with pytest.raises(Retryable, match=r"^connection lost: [^{}=]+$"):
        await asked(server.url)


async def test_a_connection_that_the_server_closed_meanwhile_is_made_anew(server: Server) -> None:
    server.answers = [Answer(raw=b"HTTP/1.1 200 x\r\ncontent-length: 1\r\n\r\na"), Answer(b"b")]
    http = Http(server.url, timeout=5.0)
    assert [(await http.get("/", {})).body for _ in range(2)] == [b"a", b"b"]
    await http.aclose()
    assert server.connections == 2


async def test_a_certificate_is_trusted_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, context = self_signed(tmp_path)
    async with serving(context) as server:
        server.answers = [Answer(b"hello")]
        with pytest.raises(FatalFault, match=r"^the server's certificate is not trusted: .* self-signed certificate"):
            await asked(server.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert await asked(server.url) == b"hello"


def self_signed(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate for 127.0.0.1, and what a server presents it with."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
    signed = builder.add_extension(address, critical=False).sign(key, hashes.SHA256())
    certificate, private = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    own = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, *own))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, private)
    return certificate, context
