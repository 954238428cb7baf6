"""Routes of respx in place of connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from koderz.connections import MOUNTED, httpx

if TYPE_CHECKING:
    import respx


@contextmanager
def routed(router: respx.MockRouter | None = None) -> Iterator[respx.MockRouter]:
    """Answers what koderz asks models within the block by the routes of a router; nothing is sent.

    Without `router` it is a new one, which has no routes yet. It is the transport of httpx clients that are opened in
    the block's context, so nothing is patched, and tests may run at once. A request that no route matches ends the run
    as one that can't be made, and names it.
    """
    import respx
    from respx.models import AllMockedAssertionError

    router = respx.MockRouter(using=None) if router is None else router
    mounted = router

    async def answer(request: httpx.Request) -> httpx.Response:
        try:
            return await mounted.async_handler(request)
        except AllMockedAssertionError:
            raise httpx.UnsupportedProtocol(
                f"respx has no route for {request.method} {request.url}"
            ) from None

    token = MOUNTED.set(httpx.MockTransport(answer))
    try:
        yield router
    finally:
        MOUNTED.reset(token)
