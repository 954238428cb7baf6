"""The host's userland as commands see it: programs, libraries and the prefix of python3, read-only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from koderz.sandbox.launch import command
from koderz.sandbox.process import begin, reap
from koderz.sandbox.workspace import HOME
from koderz.settings.paths import home_folder
from koderz.systems.workspaces.inside.roots import Entry

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
OF_ETC = (
    *(
        "alternatives",
        "ca-certificates",
        "ld.so.cache",
        "ld.so.conf",
        "ld.so.conf.d",
        "localtime",
        "mime.types",
    ),
    *("ssl/certs", "ssl/openssl.cnf", "pki/tls/certs"),
)
"""What of this machine's /etc is seen."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_EMPTY = Path(__file__).parents[2] / "py.typed"
_PYTEST = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py")
_ASK = "import json, sys; print(json.dumps([sys.executable, sys.prefix, sys.base_prefix]))"
FILES = {  # of /etc, made up
    "passwd": f"root:x:0:0:root:/root:/bin/sh\nuser:x:65534:65534:user:{HOME}:/bin/sh\n",
    "group": "root:x:0:\nuser:x:65534:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


@dataclass(frozen=True, slots=True)
class Python:
    """An interpreter of the host's."""

    executable: str
    prefixes: tuple[str, ...]  # folders with all that belongs to it; none of them below another


@cache
def python() -> Python:
    """The python3 that PATH names; koderz' own where it names none that runs."""
    found = python_at(shutil.which("python3") or "")
    return found or Python(sys.executable, tuple(dict.fromkeys([sys.prefix, sys.base_prefix])))


def python_at(path: str) -> Python | None:
    """The interpreter at a path; None where none runs."""
    try:
        done = subprocess.run(
            [path, "-I", "-c", _ASK], capture_output=True, timeout=30, check=True, cwd="/"
        )
        executable, *prefixes = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return Python(executable, tuple(dict.fromkeys(prefixes)))


def own_python() -> Python:
    """The interpreter that koderz itself runs on, without what is installed beside it."""
    return Python(os.path.realpath(sys.executable), (sys.base_prefix,))


@cache
def pytest_modules() -> tuple[tuple[Path, str], ...]:
    """koderz' own pytest, for a python3 that has none: each file or folder, and its name."""
    specs = [find_spec(name) for name in _PYTEST]
    places = [Path(spec.origin) for spec in specs if spec and spec.origin]
    found = (path.parent if path.name == "__init__.py" else path for path in places)
    metadata = (Path(str(_metadata(name))) for name in ("pytest", "pluggy"))
    return tuple((path, path.name) for path in (*found, *metadata))


def _metadata(name: str) -> object:
    """The folder of a distribution's metadata."""
    from importlib.metadata import distribution

    found = distribution(name)
    return next(
        found.locate_file(each.parts[0])
        for each in found.files or ()
        if ".dist-info" in each.parts[0]
    )


def system_folders() -> list[str]:
    """The folders of this machine's programs and libraries, some of which may be links."""
    return [folder for folder in _SYSTEM if os.path.lexists(folder)]


def entries(etc: Path) -> Iterator[Entry]:
    """The tree but for what is a command's own. Files that are made up lie in the folder `etc`."""
    for folder in map(Path, _SYSTEM):
        if folder.is_symlink():
            yield Entry("link", str(folder.readlink()), str(folder))
        elif folder.is_dir():
            yield Entry("read", str(folder), str(folder))
    for name, text in FILES.items():
        path = etc / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        yield Entry("read", str(path), f"/etc/{name}")
    for name in OF_ETC:
        if Path("/etc", name).exists():
            yield Entry("read", f"/etc/{name}", f"/etc/{name}")


def prefixes(of: Python) -> Iterator[Entry]:
    """Prefixes of an interpreter that aren't visible already."""
    for prefix in sorted(of.prefixes):
        inside = any(prefix == folder or prefix.startswith(f"{folder}/") for folder in _SYSTEM)
        if not inside and prefix not in ("/", str(home_folder())):
            yield Entry("read", prefix, prefix)
            if (found := _own_entry_points()) and found.startswith(f"{prefix}/"):
                yield Entry("read", str(_EMPTY), found)


@cache
def _own_entry_points() -> str:
    """The file that names koderz' plugin to any pytest, which fails where it finds the name and not the plugin.

    A command may see what is installed beside koderz, and doesn't see koderz.
    """
    from importlib.metadata import PackageNotFoundError

    try:
        found = Path(str(_metadata("koderz"))) / "entry_points.txt"
    except (PackageNotFoundError, StopIteration):
        return ""
    return str(found) if found.is_file() else ""


def environment(*, with_python: bool = True) -> dict[str, str]:
    """The variables of every command; where the host's python3 is among its programs, PATH has that first."""
    folders = (
        [f"{prefix}/bin" for prefix in python().prefixes if prefix != "/usr"] if with_python else []
    )
    return {
        "PATH": ":".join([*folders, _PATH]),
        "HOME": HOME,
        "USER": "user",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",  # noqa: S108 the command's own
        "TERM": "dumb",
        "PYTHONDONTWRITEBYTECODE": "1",
        "GIT_CONFIG_NOSYSTEM": "1",
    }


_LOAD_SECONDS = 30.0
_END_SECONDS = 1.0
# variables that `python3 -I` heeds as it starts
_OF_THE_START = ("PATH", "LD_", "GLIBC_", "MALLOC_")


class Interpreter:
    """The host's python3 with what a script needs loaded, from which the sandboxes that run it are forked."""

    def __init__(self, process: asyncio.subprocess.Process, orders: socket.socket) -> None:
        self._process, self._orders = process, orders

    @classmethod
    async def started(cls, script: Path) -> Self | None:
        """With what the script's `load()` loads; None where that isn't to be had, or can't be forked."""
        orders, theirs = socket.socketpair()
        orders.setblocking(False)
        with theirs:
            boot = command("koderz.systems.workspaces.inside.warm", [])[-1]
            process = await begin(
                [python().executable, "-I", "-B", "-c", boot, str(script)], theirs
            )
        ready = b""
        try:
            async with asyncio.timeout(_LOAD_SECONDS):
                ready = await asyncio.get_running_loop().sock_recv(orders, 1)
        except (TimeoutError, OSError):
            pass
        finally:
            if not ready:
                await cls(process, orders).end()
        return cls(process, orders) if ready else None

    @asynccontextmanager
    async def forked(self, control: socket.socket) -> AsyncIterator[asyncio.StreamReader]:
        """Output of a fork that becomes process 1 of a sandbox with that socket; None if it can't be made."""
        reading, writing = os.pipe()
        printed = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(printed), os.fdopen(reading, "rb", 0)
        )
        try:
            with contextlib.suppress(OSError):
                socket.send_fds(self._orders, [b"."], [control.fileno(), writing])
            os.close(writing)
            yield printed
        finally:
            # all that had the other end is gone when it closes
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_SECONDS):
                    await asyncio.sleep(0)
                    while await printed.read(1 << 16):
                        pass
            transport.close()

    async def end(self) -> None:
        """Ends it, and what is forked from it."""
        self._orders.close()
        await reap(self._process)


def fits(environment: Mapping[str, str]) -> bool:
    """Whether `python3 -I` with these variables would start as one that is running already."""
    return not any(name.startswith(_OF_THE_START) for name in environment)
