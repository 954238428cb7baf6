"""Sessions for the experiments of one run: in WASM, at a remote manager, or contained natively."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from koderz.errors import KoderzError, Unreachable
from koderz.settings.installation import extra_command
from koderz.settings.schema import Settings
from koderz.systems.long_context.wasm.cells import TOKEN_VARIABLE, SessionOptions
from koderz.systems.long_context.wasm.client import RemotePool, RemoteSession
from koderz.systems.long_context.wasm.image import Say, missing_packages
from koderz.systems.long_context.wasm.session import Pool, Session
from koderz_tracker.scrubber import shown_address

AnySession = Session | RemoteSession
"""A session on this machine or at a manager."""

AHEAD = 32
"""The largest number of sessions prepared in advance: a manager's default limit."""

PATIENCE = 5.0  # seconds


class Sessions:
    """The handle `session`: makes sessions for solvers. All experiments of a run share it."""

    def __init__(
        self, pool: Pool | RemotePool, notices: Sequence[str] = (), *, ahead: int = 0
    ) -> None:
        """`notices`: texts for the user; `ahead`: sessions prepared in advance, each replaced when taken."""
        self.pool, self.notices = pool, notices
        self._ahead = {asyncio.create_task(_started(pool)) for _ in range(ahead)}

    @property
    def container(self) -> str:
        """The kind of interpreter: wasm or native."""
        return self.pool.kind

    @property
    def image(self) -> str:
        """The digest of the sessions' image; empty if unknown."""
        return self.pool.image

    async def open(self) -> AnySession:
        """A new empty session; one prepared in advance if there is any."""
        while self._ahead:
            await asyncio.wait(self._ahead, return_when=asyncio.FIRST_COMPLETED)
            made = next((one for one in self._ahead if one.done()), None)
            if made is None:  # somebody else has taken it
                continue
            self._ahead.remove(made)
            if not made.exception():  # else there is no room to spare, and no other takes its place
                self._ahead.add(asyncio.create_task(_started(self.pool)))
                return made.result()
        return self.pool.open()

    async def close(self) -> None:
        """Closes the prepared sessions. One that is still being made is waited for, as nobody else would close it."""
        if self._ahead:
            await asyncio.wait(self._ahead, timeout=PATIENCE)
        for made in self._ahead:
            made.cancel()
        for found in await asyncio.gather(*self._ahead, return_exceptions=True):
            if not isinstance(found, BaseException):
                await found.close()


async def _started(pool: Pool | RemotePool) -> AnySession:
    session = pool.open()
    await session.start()
    return session


@asynccontextmanager
async def open_sessions(
    settings: Settings, environ: Mapping[str, str], say: Say = lambda _: None
) -> AsyncIterator[Sessions]:
    """Opens the sessions that settings ask for. Raises Unreachable if that fails."""
    own = next((one for one in settings.own if isinstance(one, SessionOptions)), SessionOptions())
    pool, notices = _pool(own, environ, say)
    async with pool:
        sessions = Sessions(pool, notices, ahead=min(own.pool_size or 0, AHEAD))
        try:
            yield sessions
        finally:
            await sessions.close()


def _pool(
    own: SessionOptions, environ: Mapping[str, str], say: Say
) -> tuple[Pool | RemotePool, Sequence[str]]:
    """The source of sessions, and notices about it for the user."""
    if own.wasm_url:
        if own.session == "native":
            raise KoderzError("--session native and --wasm-url: choose one of them")
        token = own.wasm_token or environ.get(TOKEN_VARIABLE, "")
        return RemotePool(own.wasm_url, token, at_once=own.pool_size), [
            f"code runs in WASM at {shown_address(own.wasm_url)}"
        ]
    absent = missing_packages()
    if absent and own.session == "wasm":
        raise Unreachable(
            f"--session wasm needs {absent}; run: {extra_command('wasm')}; or take --session native"
        )
    kind = own.session or ("native" if absent else "wasm")
    notices = [f"code runs natively, contained; to have it run in WASM: {extra_command('wasm')}"]
    pool = Pool(kind, os.cpu_count() or 1, at_once=own.pool_size, say=say)
    return pool, notices if kind == "native" and own.session is None else []
