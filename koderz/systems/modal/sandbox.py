"""Sandboxes in Modal's cloud: what starts them, the process that carries a judge's orders there, and their end.

They have no network, secrets or volumes. The variables that let a process here talk to Modal don't reach them.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from koderz.errors import KoderzError, Unreachable
from koderz.sandbox.judge.remote import INTERPRETER, VARIABLES
from koderz.sandbox.linux import kernel
from koderz.settings.installation import dependency_command
from koderz.systems.modal.names import SANDBOX_CORES

if TYPE_CHECKING:
    import modal

START_SECONDS = 120.0  # a sandbox may have to wait for a machine
PYTHON = "3.12"  # of the image, as of the sandbox docker
_PROCESS = """
import sys
sys.path[:0] = {path!r}
from koderz.systems.modal.sandbox import {function}
{function}(sys.argv[1:])
"""
LIFETIME = 12 * 3600  # seconds, after which a sandbox ends and the judge gets another
SILENCE, BEAT = 120, 30.0  # seconds
_WATCH = (
    f"import os, select\nwhile select.select([0], [], [], {SILENCE})[0] and os.read(0, 99): pass"
)
_CHUNK = 64 << 10
_CLEAN = 'exec env -i "PATH=$PATH" "$@"'  # Modal's own variables are none of a candidate's business


def process(function: Callable[[Sequence[str]], None], *arguments: str) -> list[str]:
    """The command that runs a function of this module, in a process of its own, with these arguments."""
    path = list(dict.fromkeys(str(Path(folder).absolute()) for folder in sys.path))
    script = _PROCESS.format(path=path, function=function.__name__)
    return [sys.executable, "-P", "-B", "-X", "utf8", "-c", script, *arguments]


async def make_ready(app: str) -> modal.App:
    """The app, created if missing along with the image of its sandboxes. Raises Unreachable."""
    try:
        import modal

        from koderz.systems.modal.cloud import require_access, spoken
    except ImportError:
        raise Unreachable(
            f"--sandbox modal needs Modal's SDK; run: {dependency_command('modal')}"
        ) from None
    try:
        await require_access()
        with spoken(f"the app {app}", offline="is there a network?"):
            found = await modal.App.lookup.aio(app, create_if_missing=True)
            await modal.Image.debian_slim(python_version=PYTHON).build.aio(found)
    except KoderzError as error:
        raise Unreachable(f"--sandbox modal: {error}") from error
    return found


def bridge(arguments: Sequence[str]) -> None:
    """A process whose stdin and stdout are those of an interpreter in a new Modal sandbox.

    `arguments`: the app's name, and the sandbox' memory in MB. Modal's token is in its environment, and stays out of
    the sandbox. When its stdin ends, also because the judge was killed, it terminates the sandbox; should it be killed
    itself, the sandbox ends when it has heard nothing of it for `SILENCE`.
    """
    from koderz.systems.modal.cloud import spoken

    app, memory_mb = arguments
    if os.getpgrp() != os.getpid():
        # the judge's process group is killed as one: the sandbox has to be terminated then
        os.setsid()
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
    process = sandbox.exec(
        "sh", "-c", _CLEAN, "sh", *VARIABLES, *INTERPRETER, text=False, workdir="/"
    )
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


def end_leftovers(arguments: Sequence[str]) -> None:
    """A process that outlives koderz and ends the sandboxes that it left behind.

    `arguments`: the app's id, and the name and value of a tag that all of those sandboxes have. Its stdin ends with
    koderz. Where a byte comes before, there is nothing to be done.
    """
    app, name, value = arguments
    if not os.read(0, 1):
        from modal import exception

        with suppress(exception.Error, OSError):
            asyncio.run(end_sandboxes(app, {name: value}))


async def end_sandboxes(
    app: str, tags: Mapping[str, str], chosen: Callable[[Mapping[str, str]], bool] | None = None
) -> None:
    """Ends the sandboxes of an app, given by its id, that have these tags; `chosen` decides by all tags of each."""
    import modal

    async for sandbox in modal.Sandbox.list.aio(app_id=app, tags=dict(tags)):
        if chosen is None or chosen(await sandbox.get_tags.aio()):
            await sandbox.terminate.aio()
