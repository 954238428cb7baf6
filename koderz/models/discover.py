"""Which models are at hand where the user names none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from koderz.errors import Fault
from koderz.models.endpoints import endpoint_for
from koderz.models.faults import Retryable
from koderz.models.names import ModelName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koderz.models.ollama import Tagged
    from koderz.models.transport import Http

_PATIENCE = 0.5  # seconds; an Ollama is near, or there is none


class _Shown(msgspec.Struct):
    capabilities: list[str] | None = None


async def discover_ollama(environ: Mapping[str, str]) -> list[str] | None:
    """The names of the chat models of the Ollama at OLLAMA_HOST or its default address.

    None where no Ollama answers within half a second. Raises KoderzError for a malformed OLLAMA_HOST.
    """
    endpoint = endpoint_for(ModelName("ollama", ""), environ=environ)
    assert endpoint.base_url
    if not await _listens(endpoint.base_url):
        return None
    from koderz.models.transport import Http

    http = Http(endpoint.base_url, timeout=_PATIENCE, secret=endpoint.api_key)
    headers = {"authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    try:
        return await _chat_models(http, headers)
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


async def _chat_models(http: Http, headers: Mapping[str, str]) -> list[str] | None:
    from koderz.models.ollama import Tags
    from koderz.models.wire import decode

    response = await http.get("/api/tags", headers, timeout=_PATIENCE)
    if response.status != 200:
        return None
    candidates = [tagged for tagged in decode(response.body, Tags).models or () if not _embeds(tagged)]
    chats = await asyncio.gather(*(_chats(http, headers, tagged.name) for tagged in candidates))
    return [tagged.name for tagged, chat in zip(candidates, chats, strict=True) if chat]


def _embeds(tagged: Tagged) -> bool:
    family = (tagged.details.family if tagged.details else None) or ""
    return "bert" in family or "embed" in tagged.name


async def _chats(http: Http, headers: Mapping[str, str], name: str) -> bool:
    """Whether a model can be talked to, as far as its Ollama knows: older ones don't say."""
    from koderz.models.wire import decode, encode

    try:
        shown = decode((await http.post("/api/show", encode({"model": name}), headers)).body, _Shown)
    except (Retryable, Fault):
        return True
    return shown.capabilities is None or "completion" in shown.capabilities
