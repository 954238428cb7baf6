"""The official clients drive the batches of the loopback server, so that it is known to be right."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from koderz.testing.batches import BatchServer

pytestmark = pytest.mark.slow  # which is the import of the clients

ASKED = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def server() -> AsyncIterator[BatchServer]:
    def outcome(custom_id: str) -> Any:
        return {"late": "expired", "bad": "refused"}.get(custom_id, "succeeded")

    async with BatchServer("good day", looks=2, outcome=outcome) as served:
        yield served


async def test_openais_client_sends_a_batch_and_reads_its_results(server: BatchServer) -> None:
    openai = pytest.importorskip("openai", reason="openai is not installed")
    body = {"model": "recorded", "messages": ASKED}
    rows = [
        {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}
        for name in ("one", "two", "late", "bad")
    ]
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="sk-x", timeout=300, max_retries=0, _strict_response_validation=True
    ) as client:
        lines = "\n".join(map(json.dumps, rows)).encode()
        file = await client.files.create(file=("rows.jsonl", lines), purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"koderz_batch": "mine"},
        )
        states = [batch.status]
        while batch.status not in ("expired", "completed"):
            batch = await client.batches.retrieve(batch.id)
            states.append(batch.status)
        assert states == ["validating", "in_progress", "expired"]
        assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 2)
        done = [json.loads(line) for line in (await client.files.content(batch.output_file_id)).text.splitlines()]
        failed = [json.loads(line) for line in (await client.files.content(batch.error_file_id)).text.splitlines()]
        assert {row["custom_id"] for row in done} == {"one", "two"}
        assert {row["response"]["body"]["choices"][0]["message"]["content"] for row in done} == {"good day"}
        assert {row["custom_id"]: (row["error"] or {}).get("code") for row in failed} == {
            "late": "batch_expired",
            "bad": None,
        }
        assert [(each.id, each.metadata) async for each in client.batches.list()] == [
            (batch.id, {"koderz_batch": "mine"})
        ]
        server.delete_results()
        with pytest.raises(openai.NotFoundError):
            await client.files.content(batch.output_file_id)
        other = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        assert (await client.batches.cancel(other.id)).status == "cancelling"
        assert (await client.batches.retrieve(other.id)).status == "cancelled"


async def test_openais_client_is_told_why_a_batch_failed(server: BatchServer) -> None:
    openai = pytest.importorskip("openai", reason="openai is not installed")
    server.refuses = "Enqueued token limit reached"
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="sk-x", timeout=300, max_retries=0) as client:
        row = {
            "custom_id": "one",
            "method": "POST",
            "url": "/v1/responses",
            "body": {"model": "recorded", "input": "a"},
        }
        file = await client.files.create(file=("rows.jsonl", json.dumps(row).encode()), purpose="batch")
        batch = await client.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h")
        batch = await client.batches.retrieve(batch.id)
        assert (batch.status, batch.errors.data[0].message) == ("failed", "Enqueued token limit reached")


async def test_anthropics_client_sends_a_batch_and_reads_its_results(server: BatchServer) -> None:
    anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed")
    params = {"model": "recorded", "max_tokens": 9, "messages": ASKED}
    requests = [{"custom_id": name, "params": params} for name in ("one", "two", "late", "bad")]
    async with anthropic.AsyncAnthropic(
        base_url=server.url, api_key="sk-x", timeout=300, max_retries=0, _strict_response_validation=True
    ) as client:
        batch = await client.messages.batches.create(requests=requests)
        while batch.processing_status != "ended":
            assert (batch.request_counts.processing, batch.results_url) == (4, None)
            batch = await client.messages.batches.retrieve(batch.id)
        counts = batch.request_counts
        assert (counts.succeeded, counts.errored, counts.expired, counts.processing) == (2, 1, 1, 0)
        found = {each.custom_id: each.result async for each in await client.messages.batches.results(batch.id)}
        assert {name: each.type for name, each in found.items()} == {
            "one": "succeeded",
            "two": "succeeded",
            "late": "expired",
            "bad": "errored",
        }
        assert found["one"].message.content[0].text == "good day"
        assert found["bad"].error.error.type == "invalid_request_error"
        assert [each.id async for each in client.messages.batches.list(limit=1)] == [batch.id]
        server.delete_results()
        assert (await client.messages.batches.retrieve(batch.id)).results_url is None
        other = await client.messages.batches.create(requests=requests)
        assert (await client.messages.batches.cancel(other.id)).processing_status == "canceling"
        await asyncio.sleep(0)
        assert (await client.messages.batches.retrieve(other.id)).processing_status == "ended"
