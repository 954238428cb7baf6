"""A command whose stdin and stdout are those of an interpreter in a new Modal sandbox: APP MEMORY_MB.

Modal's token is in its environment, and stays out of the sandbox. When its stdin ends, also because the judge was
killed, it terminates the sandbox; should it be killed itself, the sandbox ends when it has heard nothing of it for
`SILENCE`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from threading import Event, Thread
from typing import TYPE_CHECKING

from koderz.errors import KoderzError
from koderz.modal.cloud import spoken
from koderz.modal.names import SANDBOX_CORES
from koderz.modal.sandbox import PYTHON
from koderz.sandbox.judge.launch import ENVIRONMENT
from koderz.sandbox.judge.remote import BOOT
from koderz.sandbox.linux import kernel

if TYPE_CHECKING:
    import modal

LIFETIME = 12 * 3600  # seconds, after which a sandbox ends and the judge gets another
SILENCE, BEAT = 120, 30.0  # seconds
_WATCH = f"import os, select\nwhile select.select([0], [], [], {SILENCE})[0] and os.read(0, 99): pass"
_CHUNK = 64 << 10
_CLEAN = 'exec env -i "PATH=$PATH" "$@"'  # Modal's own variables are none of a candidate's business


def main(arguments: Sequence[str]) -> None:
    """Runs the bridge. `arguments`: the app's name, and the sandbox' memory in MB."""
    app, memory_mb = arguments
    if os.getpgrp() != os.getpid():
        os.setsid()  # the judge's process group is killed as one: the sandbox has to be terminated then
    kernel.hide_memory()
    try:
        with spoken("a sandbox", offline="is there a network?"):
            sandbox = _created(app, int(memory_mb))
            try:
                Thread(target=_keep_alive, args=[sandbox], daemon=True).start()
                _carry(sandbox)
            finally:
                sandbox.terminate()
    except KoderzError as error:
        sys.exit(str(error))


def _created(app: str, memory_mb: int) -> modal.Sandbox:
    import modal

    return modal.Sandbox.create(
        *("python", "-I", "-S", "-c", _WATCH),
        app=modal.App.lookup(app, create_if_missing=True),
        image=modal.Image.debian_slim(python_version=PYTHON),
        block_network=True,
        cpu=SANDBOX_CORES,
        memory=(memory_mb, memory_mb),
        timeout=LIFETIME,
    )


def _keep_alive(sandbox: modal.Sandbox) -> None:
    """Tells the sandbox now and then that it is still in use; does nothing if it is gone."""
    from modal import exception

    with suppress(exception.Error):
        while not Event().wait(BEAT):
            sandbox.stdin.write(b".")
            sandbox.stdin.drain()


def _carry(sandbox: modal.Sandbox) -> None:
    """Carries stdin to the sandbox until it ends."""
    variables = [f"{name}={value}" for name, value in ENVIRONMENT.items() if name != "PATH"]
    interpreter = ["python", "-s", "-P", "-B", "-S", "-X", "utf8", "-c", BOOT]
    process = sandbox.exec("sh", "-c", _CLEAN, "sh", *variables, *interpreter, text=False, workdir="/")
    Thread(target=_bring_back, args=[process], daemon=True).start()
    while data := os.read(0, _CHUNK):
        process.stdin.write(data)
        process.stdin.drain()


def _bring_back(process: modal.container_process.ContainerProcess[bytes]) -> None:
    """Carries the sandbox' output to the judge, which learns of its end by the end of stdout."""
    from modal import exception

    began = False
    with suppress(BrokenPipeError, exception.Error):
        for piece in process.stdout:
            began = True
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(1, rest) :]
        if not began:  # why it doesn't begin is all there is to say
            os.write(2, process.stderr.read())
    os.close(1)
