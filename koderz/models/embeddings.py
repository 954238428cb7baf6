"""Vectors of texts from a server, as OpenAI, Ollama, vLLM and others offer them at /v1/embeddings."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from koderz.errors import KoderzError
from koderz.models.faults import Retryable, TimedOut
from koderz.models.transport import Http
from koderz_tracker.memory.vectors import SECONDS, NoVectors

if TYPE_CHECKING:
    from collections.abc import Sequence

_SAMPLE, _MARKS = "Which model are you?", 3


class _Embedding(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _Answer(msgspec.Struct):
    data: list[_Embedding]


class Served:
    """A model of a server. It is asked from a thread that has no event loop."""

    at_once = 32

    def __init__(self, address: str) -> None:
        """`address` is the server's, with the model behind a hash. Raises KoderzError where it is none."""
        url, _, self._model = address.partition("#")
        parts = urlsplit(url)
        try:
            is_address = (
                bool(parts.hostname) and parts.port != 0 and not (parts.username or parts.password)
            )
        except ValueError:
            is_address = False
        if not is_address or parts.query or not self._model:
            raise KoderzError(
                "embeddings: write the address as http://HOST:PORT/v1#MODEL, without a name and password"
            )
        path = parts.path.rstrip("/").removesuffix("/embeddings") or "/v1"
        self._base = f"{parts.scheme}://{parts.netloc}{path}"
        self._server = parts.netloc

    @cached_property
    def name(self) -> str:
        """The model, its server, and where the vector of one text is largest, since other weights may get its name."""
        (row,) = self.embed([_SAMPLE])
        largest = sorted(range(len(row)), key=lambda at: (-abs(row[at]), at))[:_MARKS]
        return f"{self._model} at {self._server}, marks {'-'.join(map(str, largest))}"

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return asyncio.run(self._asked(texts))

    async def _asked(self, texts: Sequence[str]) -> list[list[float]]:
        http = Http(self._base, timeout=SECONDS)
        try:
            return await self._answered(http, texts)
        except (KoderzError, Retryable, ValueError, RecursionError) as error:
            match error:
                case TimedOut():
                    why = f"no answer within {SECONDS:g} s"
                case KoderzError() | Retryable():
                    why = str(error)
                case _:
                    why = "its answer is of another form"
            raise NoVectors(f"{http.address} gives no vectors of {self._model} ({why})") from error
        finally:
            await http.aclose()

    async def _answered(self, http: Http, texts: Sequence[str]) -> list[list[float]]:
        body: dict[str, Any] = {
            "model": self._model,
            "input": list(texts),
            "encoding_format": "float",
        }
        answer = await http.post("/embeddings", msgspec.json.encode(body), {})
        if answer.status != 200:
            raise NoVectors(f"HTTP {answer.status}")
        found = msgspec.json.decode(answer.body, type=_Answer).data
        places = [at if each.index is None else each.index for at, each in enumerate(found)]
        if sorted(places) != [*range(len(texts))]:
            raise NoVectors(f"{len(found)} vectors for {len(texts)} texts")
        return [
            each.embedding
            for _, each in sorted(zip(places, found, strict=True), key=lambda pair: pair[0])
        ]
