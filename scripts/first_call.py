"""Processor time of a command until its first call of a model, its children included.

The model is a server of this process behind https. What vouches for it stands at the end of a file with all
certificates that certifi has, so that to read them costs what it costs elsewhere.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PATIENCE = 60.0  # seconds until the first call
_LOOK = 0.1  # seconds between two looks at whether the command goes on
_FOUND_NOTHING = b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}"  # to a look before the run


class NoCall(Exception):
    """The command ended, or took too long, without a call."""


class FirstCall:
    """A server that no call is answered by; made in a folder that is its own."""

    def __init__(self, folder: Path) -> None:
        self._trusted = folder / "trusted.pem"
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(*_certified(folder, self._trusted))

    def processor_seconds(self, command: Sequence[str], folder: Path, env: Mapping[str, str]) -> float:
        """Processor time of the command when the call came; it is killed then. Raises NoCall."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(_LOOK)
            url = f"https://127.0.0.1:{server.getsockname()[1]}/v1"
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**env, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none", "SSL_CERT_FILE": str(self._trusted)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                self._wait_for_call(server, process)
                return _processor_seconds(process.pid)
            except OSError as error:
                raise NoCall(f"no call came: {error}") from error
            finally:
                _kill(process)

    def _wait_for_call(self, server: socket.socket, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise NoCall(f"exit code {process.returncode} before any call")
            with contextlib.suppress(TimeoutError):
                connection, _ = server.accept()
                if self._is_call(connection):
                    return
        raise NoCall(f"no call came in {PATIENCE:g} s")

    def _is_call(self, connection: socket.socket) -> bool:
        """Whether a connection brings a call; what else it brings is answered until it is closed."""
        with self._tls.wrap_socket(connection, server_side=True) as client:
            client.settimeout(PATIENCE)
            while asked := client.recv(65536):
                if asked.startswith(b"POST"):
                    return True
                client.sendall(_FOUND_NOTHING)
        return False


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a command and all that descends from it: what feeds the sinks would go on, beside the next command."""
    family = _family(process.pid)
    process.kill()  # first, so that it starts no other
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _processor_seconds(root: int) -> float:
    """User and system time of a process and all that descend from it, those included that have ended."""
    seconds = 0.0
    for pid, ended in _family(root).items():
        with contextlib.suppress(OSError):  # it ends just now
            seconds += time.clock_gettime((~pid << 3) | 2)  # the kernel's name for a process's clock, finer than ticks
            seconds += ended
    return seconds


def _family(root: int) -> dict[int, float]:
    """A process and all that descend from it, each with the seconds that its ended children took."""
    parents: dict[int, int] = {}
    ended: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1])
            ended[int(entry.name)] = sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return {pid: ended[pid] for pid in family if pid in ended}


def _certified(folder: Path, trusted: Path) -> tuple[Path, Path]:
    """A certificate for this machine and its key; `trusted` becomes what vouches for it and for all others."""
    import certifi
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = builder.add_extension(address, critical=False).sign(key, hashes.SHA256())
    certificate, private = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    own = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, *own))
    trusted.write_bytes(Path(certifi.where()).read_bytes() + certificate.read_bytes())
    return certificate, private
