"""The sandbox `modal`: a judge here, and for each a long-lived sandbox in Modal's cloud for its candidates.

The judge has the tests; a process, `koderz.systems.modal.sandbox.bridge`, carries its orders to a warm interpreter.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

from koderz.sandbox import ROOM_MB, Opening
from koderz.sandbox.contained import RemoteSandbox
from koderz.sandbox.judge.pool import Premises
from koderz.sandbox.linux import isolation
from koderz.systems.modal.names import names_of
from koderz.systems.modal.sandbox import START_SECONDS, bridge, make_ready, process

if TYPE_CHECKING:
    from koderz.sandbox.workspace import Backend
    from koderz.settings.schema import Settings

WALL_EXTRA = 15.0  # seconds: each call of a candidate goes to the cloud and back
_PASSED = ("MODAL_*", "HOME", "SSL_CERT_*")


class ModalSandbox(RemoteSandbox):
    """Judges in warm sandboxes of the app that `KODERZ_MODAL_APP` names, which is created if missing.

    Entering raises Unreachable without a token or the network, and where the SDK isn't installed.
    """

    name = "modal"
    places = "the sandboxes there"
    is_calibrated = False  # since the speed of one says nothing of the next one's

    @classmethod
    def open(cls, wanted: Opening) -> ModalSandbox:
        """The sandbox."""
        return cls(judges=wanted.judges, memory_mb=wanted.memory_mb)

    @classmethod
    def open_workspaces(cls, settings: Settings) -> Backend:  # noqa: ARG003
        """Commands in sandboxes of the same app."""
        from koderz.systems.modal.workspace import Modal

        return Modal()

    def __init__(self, *, judges: int, memory_mb: int = 1024) -> None:
        self._app = names_of(os.environ).app
        command = process(bridge, self._app, str(memory_mb + ROOM_MB))  # stdin and stdout there
        premises = Premises(
            isolation.LAYERS, {}, command, passed=_PASSED, start_seconds=START_SECONDS
        )
        super().__init__(judges=judges, premises=premises, wall_extra=WALL_EXTRA)

    async def __aenter__(self) -> Self:
        await make_ready(self._app)
        return await super().__aenter__()
