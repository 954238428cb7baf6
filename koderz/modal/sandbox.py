"""The sandbox in Modal's cloud: a long-lived one for each judge, without network, secrets or volumes.

The judge stays here with its tests; `koderz.modal.bridge` carries its orders to a warm interpreter in the sandbox. The
variables that let the bridge talk to Modal reach neither the sandbox nor any candidate.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

from koderz.errors import KoderzError, Unreachable
from koderz.modal.names import names_of
from koderz.sandbox import ROOM_MB, Opening
from koderz.sandbox.contained import RemoteSandbox
from koderz.sandbox.judge.launch import Premises
from koderz.sandbox.linux import isolation

if TYPE_CHECKING:
    import modal

START_SECONDS = 120.0  # a sandbox may have to wait for a machine
WALL_EXTRA = 15.0  # seconds: each call of a candidate goes to the cloud and back
PYTHON = "3.12"  # of the image, as of the sandbox docker
_PASSED = ("MODAL_*", "HOME", "SSL_CERT_*")
_PROCESS = """
import sys
sys.path[:0] = {path!r}
from {module} import main
main(sys.argv[1:])
"""


class ModalSandbox(RemoteSandbox):
    """Judges in warm sandboxes of the app that `KODERZ_MODAL_APP` names, which is created if missing.

    Entering raises Unreachable without a token or the network, and where the SDK isn't installed.
    """

    name = "modal"
    places = "the sandboxes there"
    many_machines = True  # so that the speed of one says nothing of the next one's

    def __init__(self, wanted: Opening) -> None:
        self._app = names_of(os.environ).app
        command = process("koderz.modal.bridge", self._app, str(wanted.memory_mb + ROOM_MB))  # stdin and stdout there
        premises = Premises(isolation.LAYERS, {}, command, passed=_PASSED, start_seconds=START_SECONDS)
        super().__init__(judges=wanted.judges, premises=premises, wall_extra=WALL_EXTRA)

    async def __aenter__(self) -> Self:
        await make_ready(self._app)
        return await super().__aenter__()


def process(module: str, *arguments: str) -> list[str]:
    """The command that runs the function `main` of a module of koderz with these arguments."""
    path = list(dict.fromkeys(str(Path(folder).absolute()) for folder in sys.path))
    script = _PROCESS.format(path=path, module=module)
    return [sys.executable, "-P", "-B", "-X", "utf8", "-c", script, *arguments]


async def make_ready(app: str) -> modal.App:
    """The app, created if missing along with the image of its sandboxes. Raises Unreachable."""
    try:
        import modal

        from koderz.modal.cloud import require_access, spoken
    except ImportError:
        raise Unreachable("--sandbox modal needs Modal's SDK; run: pip install modal") from None
    try:
        await require_access()
        with spoken(f"the app {app}", offline="is there a network?"):
            found = await modal.App.lookup.aio(app, create_if_missing=True)
            await modal.Image.debian_slim(python_version=PYTHON).build.aio(found)
    except KoderzError as error:
        raise Unreachable(f"--sandbox modal: {error}") from error
    return found
