"""Sessions for the experiments of one run: in WASM, at a manager somewhere else, or contained natively."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from koderz.errors import KoderzError
from koderz.sandbox.wasm.cells import TIMEOUT, Answering, CellResult
from koderz.sandbox.wasm.client import RemotePool
from koderz.sandbox.wasm.image import EXTRA, Say, missing_packages
from koderz.sandbox.wasm.options import TOKEN_VARIABLE, SessionOptions
from koderz.sandbox.wasm.pool import Pool
from koderz.settings.schema import Settings


class AnySession(Protocol):
    """A session, here or at a manager; see `session.Session`."""

    async def put(self, name: str, source: str | Path, kind: str = "text") -> int: ...

    async def get(self, name: str) -> str | None: ...

    async def run(
        self,
        code: str,
        answer: Answering | None = None,
        *,
        timeout: float = TIMEOUT,  # noqa: ASYNC109 the cell's
        only_calls: int | None = None,
    ) -> CellResult: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Sessions:
    """What solvers are handed as `session`: as many as they need. All experiments of a run share them."""

    pool: Pool | RemotePool
    notices: Sequence[str] = ()  # what the user is to be told

    @property
    def container(self) -> str:
        """Where code runs: wasm or native."""
        return self.pool.kind

    @property
    def image(self) -> str:
        """Digest of what they are made from; empty where that isn't known."""
        return self.pool.image

    def open(self) -> AnySession:
        """A new session with nothing in it."""
        return self.pool.open()


@asynccontextmanager
async def open_sessions(
    settings: Settings, environ: Mapping[str, str], say: Say = lambda _: None
) -> AsyncIterator[Sessions]:
    """The sessions that settings ask for. Raises Unreachable where they can't be had."""
    own = next((one for one in settings.own if isinstance(one, SessionOptions)), SessionOptions())
    token = own.wasm_token or environ.get(TOKEN_VARIABLE, "")
    if own.wasm_url:
        if own.session == "native":
            raise KoderzError("--session native and --wasm-url: choose one of them")
        async with RemotePool(own.wasm_url, token, at_once=own.pool_size) as remote:
            yield Sessions(remote, [f"code runs in WASM at {own.wasm_url}"])
        return
    absent = missing_packages()
    kind = own.session or ("native" if absent else "wasm")
    notices = [f"code runs natively, contained: {absent} is missing for WASM ({EXTRA})"] if own.session is None else []
    async with Pool(kind, os.cpu_count() or 1, at_once=own.pool_size, say=say) as pool:
        yield Sessions(pool, notices if kind == "native" else [])
