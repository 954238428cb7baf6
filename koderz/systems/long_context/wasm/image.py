"""The image of WASM sessions: Python for WASI with the guest in it, built once and cached.

Two files in one folder of the user's own, named by digests of what they are made from: the portable image, and the
native code that this machine runs, which wasmtime loads without checks and which therefore comes from nowhere else.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock

from koderz.errors import KoderzError, Unreachable
from koderz.sandbox.launch import ENVIRONMENT, command, folders_of
from koderz.settings.installation import extra_command
from koderz.settings.paths import cache_folder

VARIABLE = "KODERZ_WASM_CACHE"  # another folder for both files
_GUEST = Path(__file__).with_name("guest")
_PARTS = ("app.py", "repl.py", "repl.wit")
_PACKAGES = ("componentize-py", "wasmtime")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CompiledImage:
    """An image that is ready to run."""

    compiled: Path  # native code for this machine
    digest: str  # 16 hex digits of the portable image


def missing_packages() -> str:
    """The missing packages of the extra; empty if all are installed."""
    absent = [
        name for name in _PACKAGES if importlib.util.find_spec(name.replace("-", "_")) is None
    ]
    return ", ".join(absent)


def require_packages() -> None:
    """Raises Unreachable, which names the extra, if its packages are missing."""
    if absent := missing_packages():
        raise Unreachable(f"sessions in WASM need {absent}; run: {extra_command('wasm')}")


def ready_image(say: Say = lambda _: None) -> CompiledImage:
    """The image, built if it doesn't exist, which takes 50 s of one core; `say` is called before that.

    Raises Unreachable without the extra, KoderzError where it can't be built or kept.
    """
    require_packages()
    place = os.environ.get(VARIABLE)
    folder = _folder(Path(place) if place else cache_folder() / "wasm")
    name = f"repl-{_digest()}"
    portable, compiled = folder / f"{name}.wasm", folder / f"{name}-{_machine()}.cwasm"
    if portable.is_file() and not (compiled.is_file() or os.access(folder, os.W_OK)):
        # it was built for another machine
        folder = _folder(cache_folder() / "wasm")
        compiled = folder / compiled.name
    if not (portable.is_file() and compiled.is_file()):
        if not os.access(folder, os.W_OK):
            raise KoderzError(
                f"{folder} has no WASM image for this machine, and can't be written; set {VARIABLE}"
            )
        with FileLock(folder / "lock"):
            if not portable.is_file():
                say("building the WASM image: about a minute, once")
                _made(portable, _build)
            if not compiled.is_file():
                say("compiling the WASM image for this machine: about half a minute, once")
                _made(compiled, lambda target: _compile(portable, target))
            say(f"the WASM image is ready in {folder}")
    return CompiledImage(compiled, _file_digest(portable))


def _folder(folder: Path) -> Path:
    """The folder, created if missing. Raises KoderzError if others may write to it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise KoderzError(
            f"{folder}: no folder for the image of sessions ({error.strerror})"
        ) from None
    if found.st_uid not in (0, os.getuid()) or found.st_mode & 0o022:
        raise KoderzError(
            f"{folder}: others may write what would be run from there; chmod go-w it, or set {VARIABLE}"
        )
    return folder


def _digest() -> str:
    """A digest of everything that the portable image is made from, 16 hex digits."""
    parts = [(_GUEST / name).read_bytes() for name in _PARTS]
    parts.append(importlib.metadata.version("componentize-py").encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _machine() -> str:
    """A digest of what native code also depends on, 16 hex digits: processor, wasmtime and its settings."""
    from koderz.systems.long_context.wasm.engine import SETTINGS

    processor = platform.processor()
    listed = Path("/proc/cpuinfo")
    if listed.is_file():
        lines = listed.read_text(errors="replace").splitlines()
        processor = next(
            (line for line in lines if line.startswith(("flags", "Features"))), processor
        )
    parts = (platform.machine(), processor, importlib.metadata.version("wasmtime"), SETTINGS)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@cache
def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _made(target: Path, make: Callable[[Path], None]) -> None:
    """Makes a file that appears whole or not at all."""
    with TemporaryDirectory(prefix="building-", dir=target.parent) as folder:
        draft = Path(folder) / target.name
        make(draft)
        draft.replace(target)


def _build(target: Path) -> None:
    with TemporaryDirectory() as folder:
        for name in _PARTS:
            shutil.copy(_GUEST / name, folder)
        see = f"import sys; sys.path += {folders_of(['componentize_py'])!r}"
        tool = [
            sys.executable,
            "-P",
            "-c",
            f"{see}; from componentize_py import script; sys.exit(script())",
        ]
        arguments = [
            "-d",
            "repl.wit",
            "-w",
            "repl",
            "componentize",
            "-p",
            ".",
            "app",
            "-o",
            str(target),
        ]
        # Without a PATH it finds no other Python, whose packages it would look through.
        _run([*tool, *arguments], Path(folder), {"HOME": folder, "PYTHONDONTWRITEBYTECODE": "1"})


def _compile(source: Path, target: Path) -> None:
    line = command(f"{__package__}.engine", [str(source), str(target)], packages=("wasmtime",))
    _run(line, target.parent, dict(ENVIRONMENT))


def _run(arguments: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (
            done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        ).splitlines()[-1]
        raise KoderzError(f"the WASM image can't be built: {last}")
