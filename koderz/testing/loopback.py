"""The base of loopback servers for tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import orjson
from aiohttp import web


class LoopbackServer(ABC):
    """An HTTP server at 127.0.0.1, on a free port by default. Usable once, as an async context manager."""

    def __init__(self, *, port: int = 0, log: Path | None = None) -> None:
        self._port, self._log_path = port, log
        self._log: BinaryIO | None = None

    @abstractmethod
    def _routes(self) -> Iterable[web.AbstractRouteDef]:
        """The handlers of requests, by path and method."""

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT`, once the server is entered."""
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        if self._log_path is not None:
            self._log = self._log_path.open("ab", buffering=0)
        app = web.Application(client_max_size=0)
        app.add_routes(self._routes())
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=4096).start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        if self._log is not None:
            self._log.close()

    def _note(self, line: Mapping[str, Any]) -> None:
        """Writes one line of the log, if there is one."""
        if self._log is not None:
            self._log.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


def lowered(request: web.Request) -> dict[str, str]:
    """The headers of a request, their names in lower case."""
    return {name.lower(): value for name, value in request.headers.items()}
