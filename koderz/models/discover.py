"""Which models are at hand where the user names none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from koderz.errors import Fault
from koderz.models.endpoints import endpoint_for
from koderz.models.faults import Retryable
from koderz.models.names import ModelName

if TYPE_CHECKING:
    from collections.abc import Mapping
_PATIENCE = 0.5  # seconds; an Ollama is near, or there is none


async def discover_ollama(environ: Mapping[str, str]) -> list[str] | None:
    """The names of the chat models of the Ollama at OLLAMA_HOST or its default address.

    None where no Ollama answers within half a second. Raises KoderzError for a malformed OLLAMA_HOST.
    """
    endpoint = endpoint_for(ModelName("ollama", ""), environ=environ)
    assert endpoint.base_url
    if not await _listens(endpoint.base_url):
        return None
    from koderz.models.ollama import OllamaWire
    from koderz.models.transport import Http

    http = Http(endpoint.base_url, timeout=_PATIENCE, secret=endpoint.api_key)
    try:
        return await OllamaWire(endpoint).chat_models(http)
    except (Retryable, Fault):
        return None
    finally:
        await http.aclose()


async def _listens(base_url: str) -> bool:
    """Whether anything takes a connection there; far cheaper than finding out by HTTP."""
    parts = urlsplit(base_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(_PATIENCE):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
