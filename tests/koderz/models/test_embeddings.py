"""Vectors of a server's model: normalised, in order, and whatever a server answers instead is said in one line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from koderz.connections import MOUNTED, httpx
from koderz.models import embeddings
from koderz.models.embeddings import Served
from koderz_tracker.memory import open_cortex
from koderz_tracker.memory.vectors import NoVectors
from tests.koderz.models.loopback import Answer, Asked, Server


def embedded(asked: Asked) -> Answer:
    """Unnormalised vectors of two numbers, the last text's first."""
    rows = [[9.0, 0.0] if "hound" in text or "puppy" in text else [0.0, 4.0] for text in asked.json["input"]]
    data = [{"object": "embedding", "index": n, "embedding": row} for n, row in enumerate(rows)]
    return Answer(json.dumps({"object": "list", "model": "m", "data": data[::-1]}).encode())


def data(*rows: Any) -> Answer:
    return Answer(json.dumps({"data": [{"index": n, "embedding": row} for n, row in enumerate(rows)]}).encode())


async def recalled(server: Server, folder: Path, words: str = "puppy") -> tuple[list[dict[str, Any]], str | None]:
    async with open_cortex(folder / "memory.db", embeddings=f"{server.url}/v1#m") as cortex:
        await cortex.remember("On a hound", "-", key="hound")
        await cortex.remember("On a car", "-", key="car")
        return await cortex.recall(words), cortex.trouble


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/embeddings/"])
async def test_server_is_asked_for_a_model_at_any_form_of_its_address(server: Server, path: str) -> None:
    server.decide = embedded
    served = Served(f"{server.url}{path}#nomic-embed-text")

    rows = await asyncio.to_thread(served.embed, ["hound", "puppy", "car"])

    assert rows == [[9.0, 0.0], [9.0, 0.0], [0.0, 4.0]]
    assert {asked.path for asked in server.asked} == {"/v1/embeddings"}
    assert [asked.json["input"] for asked in server.asked] == [["hound", "puppy", "car"]]
    assert {asked.json["model"] for asked in server.asked} == {"nomic-embed-text"}
    assert await asyncio.to_thread(lambda: served.name) == f"nomic-embed-text at {server.url[7:]}, marks 1-0"


async def test_recall_by_a_server_finds_what_is_meant(server: Server, tmp_path: Path) -> None:
    server.decide = embedded

    found, trouble = await recalled(server, tmp_path)

    assert [hit["title"] for hit in found] == ["On a hound"]
    assert trouble is None


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer(b'{"error": "no such model"}', status=404), "HTTP 404"),
        (Answer(b"not found", status=500), "HTTP 500"),
        (Answer(b"<html>"), "another form"),
        (Answer(b"[" * 100_000), "another form"),
        (Answer(b'{"data": [{"embedding": "AAAA"}]}'), "another form"),
        (Answer(b'{"data": [{"embedding": [1e999]}]}'), "another form"),
        (data(), "0 vectors for 1 texts"),
        (data([1.0], [2.0]), "2 vectors for 1 texts"),
        (data([]), "no vectors of numbers"),
        (Answer(b'{"data": [', drop=5), "connection lost"),
        (Answer(status=307, headers={"location": "http://example.com/"}), "HTTP 307"),
        (Answer(b"[]", headers={"content-length": str(1 << 40)}), "longer than 32 MB"),
        (Answer(hang=True), "(no answer within 0.2 s)"),
    ],
)
async def test_recall_goes_on_without_a_server_that_fails(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer, why: str
) -> None:
    if answer.hang:
        monkeypatch.setattr(embeddings, "SECONDS", 0.2)
    server.answers = [answer]

    found, trouble = await recalled(server, tmp_path, "hound")
    nothing, _ = await recalled(server, tmp_path, "puppy")

    assert [hit["title"] for hit in found] == ["On a hound"]
    assert found[0]["note"] == trouble
    assert str(trouble).startswith("only words were compared: ")
    assert why in str(trouble)
    assert nothing == []


async def test_server_that_is_gone_is_named_by_its_address() -> None:
    with pytest.raises(NoVectors, match=r"^http://127.0.0.1:9/v1 gives no vectors of m \(cannot connect"):
        await asyncio.to_thread(Served("http://127.0.0.1:9#m").embed, ["text"])


async def test_other_lengths_of_vectors_are_made_anew(server: Server, tmp_path: Path) -> None:
    server.decide = embedded
    await recalled(server, tmp_path)
    server.decide = lambda asked: data(*[[0.1, 0.0, float("hound" in text)] for text in asked.json["input"]])

    found, trouble = await recalled(server, tmp_path, "what a hound")

    assert trouble is None
    assert {hit["title"] for hit in found} == {"On a hound", "On a car"}
    assert found[0]["title"] == "On a hound"


async def test_other_weights_by_the_same_name_are_noticed(server: Server, tmp_path: Path) -> None:
    server.decide = embedded
    await recalled(server, tmp_path)
    server.decide = lambda asked: data(*[[1.0, 3.0] if "hound" in text else [4.0, 1.0] for text in asked.json["input"]])

    found, _ = await recalled(server, tmp_path, "a fox")

    assert [hit["title"] for hit in found] == ["On a car", "On a hound"]


async def test_transport_of_the_context_stands_in_for_connections(tmp_path: Path) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        texts = json.loads(request.content)["input"]
        return httpx.Response(200, json={"data": [{"embedding": [1.0, 0.0]} for _ in texts]})

    mounted = MOUNTED.set(httpx.MockTransport(answer))
    try:
        async with open_cortex(tmp_path / "memory.db", embeddings="https://models.invalid#m") as cortex:
            await cortex.remember("On a hound", "-")
            (found,) = await cortex.recall("x" * 5000 + "\ud800")
    finally:
        MOUNTED.reset(mounted)

    assert found["title"] == "On a hound"
    assert "note" not in found
