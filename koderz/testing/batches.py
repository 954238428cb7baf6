"""A loopback server that also speaks the batch APIs of OpenAI and Anthropic, through a batch's whole life."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal
from zlib import crc32

import orjson
from aiohttp import web

from koderz.testing.server import ModelServer
from koderz.testing.service import HttpRequest, SentReply
from koderz.testing.wire import CREATED, Json

Outcome = Literal["succeeded", "expired", "errored", "refused", "canceled"]

_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ENDED = ("completed", "expired", "cancelled", "failed", "ended")
_DATE = "2026-01-31T00:00:00Z"


@dataclass
class ServedBatch:
    """A batch as the server keeps it."""

    id: str
    style: Literal["openai", "anthropic"]
    lines: list[Json]  # custom_id, body
    path: str
    state: str
    metadata: Json = field(default_factory=dict)
    input_file: str = ""
    problems: list[Json] = field(default_factory=list)
    looks: int = 0
    results: list[tuple[str, Outcome, SentReply | None]] = field(default_factory=list)
    is_deleted: bool = False


class BatchServer(ModelServer):
    """A model server with `/v1/files`, `/v1/batches` and `/v1/messages/batches`.

    A batch is over once it was looked at `looks` times; None: never. `outcome` says what becomes of a try of a call,
    by its custom id. `keeps_metadata`: whether OpenAI's batches are listed with theirs. `upset` is asked before each
    answer to a new batch: "before" has it lost and "after" has it sent, and the connection is cut; "hang before" and
    "hang after" have no answer at all. Results come in another order than calls. `delete_results` does what 29 days do.
    All else is as `ModelServer` has it.
    """

    def __init__(
        self,
        replies: Any = None,
        *,
        looks: int | None = 1,
        outcome: Callable[[str], Outcome] = lambda custom_id: "succeeded",  # noqa: ARG005
        keeps_metadata: bool = True,
        upset: Callable[[], str] = str,
        refuses: str = "",
        **more: Any,
    ) -> None:
        """`refuses`: the message with which every batch fails its validation."""
        super().__init__(replies, **more)
        self.looks, self.outcome, self.upset, self.refuses = looks, outcome, upset, refuses
        self.keeps_metadata = keeps_metadata
        self.batches: list[ServedBatch] = []
        self.files: dict[str, bytes] = {}
        self.paid: list[str] = []  # the custom ids of calls that were answered, which are billed
        # what is sent in place of results
        self.garbled: Callable[[bytes], bytes] = lambda lines: lines
        self._random = random.Random(0)  # noqa: S311 for the order of results

    def delete_results(self) -> None:
        """Deletes the results of all batches."""
        for batch in self.batches:
            batch.is_deleted = True

    def _routes(self) -> Iterable[web.AbstractRouteDef]:
        messages = "/v1/messages/batches"
        return (
            web.post("/v1/files", self._upload),
            web.get("/v1/files/{id}/content", self._content),
            web.post("/v1/batches", self._create),
            web.post(messages, self._create_messages),
            *(web.get(path, self._list) for path in ("/v1/batches", messages)),
            *(web.get(f"{path}/{{id}}", self._look) for path in ("/v1/batches", messages)),
            *(
                web.post(f"{path}/{{id}}/cancel", self._cancel)
                for path in ("/v1/batches", messages)
            ),
            web.get(f"{messages}/{{id}}/results", self._results),
            *super()._routes(),
        )

    # What is sent

    async def _upload(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        sent = form.get("file")
        if form.get("purpose") != "batch" or not isinstance(sent, web.FileField):
            return _error(400, "purpose has to be batch, and file a file")
        name = f"file-{len(self.files)}"
        self.files[name] = sent.file.read()
        about = {
            "id": name,
            "object": "file",
            "bytes": len(self.files[name]),
            "created_at": CREATED,
        }
        return web.json_response(
            about | {"filename": sent.filename, "purpose": "batch", "status": "processed"}
        )

    async def _create(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        if asked.get("completion_window") != "24h" or asked.get("input_file_id") not in self.files:
            return _error(400, "completion_window has to be 24h, and input_file_id that of a file")
        lines = [orjson.loads(line) for line in self.files[asked["input_file_id"]].splitlines()]
        problems = [
            _problem(f"line {n}: wrong url")
            for n, line in enumerate(lines)
            if line["url"] != asked["endpoint"]
        ]
        problems += _doubles(line["custom_id"] for line in lines)
        problems += [_problem("more than one model")] * (
            len({line["body"]["model"] for line in lines}) > 1
        )
        problems += [_problem(self.refuses)] if self.refuses else []
        batch = ServedBatch(
            f"batch_{len(self.batches)}",
            "openai",
            lines,
            asked["endpoint"],
            "validating",
            input_file=asked["input_file_id"],
        )
        batch.metadata, batch.problems = asked.get("metadata") or {}, problems
        return await self._created(request, batch)

    async def _create_messages(self, request: web.Request) -> web.StreamResponse:
        asked = orjson.loads(await request.read())
        lines = [
            {"custom_id": each["custom_id"], "body": each["params"]} for each in asked["requests"]
        ]
        if self.refuses or _doubles(line["custom_id"] for line in lines):
            return _error(400, self.refuses or "custom_id has to be unique")
        if not all(_ID.fullmatch(line["custom_id"]) for line in lines):
            return _error(400, "custom_id: 1 to 64 of a-z, A-Z, 0-9, _ and -")
        batch = ServedBatch(
            f"msgbatch_{len(self.batches)}", "anthropic", lines, "/v1/messages", "in_progress"
        )
        return await self._created(request, batch)

    async def _created(self, request: web.Request, batch: ServedBatch) -> web.StreamResponse:
        upset = self.upset()
        if not upset.endswith("before"):
            self.batches.append(batch)
        if upset.startswith("hang"):
            await asyncio.Event().wait()
        if upset:
            assert request.transport is not None
            request.transport.close()
        return web.json_response(self._told(batch))

    # What is asked

    def _batch(self, request: web.Request) -> ServedBatch:
        for batch in self.batches:
            if batch.id == request.match_info["id"]:
                return batch
        raise web.HTTPNotFound(
            text='{"error": {"message": "No batch found"}}', content_type="application/json"
        )

    async def _look(self, request: web.Request) -> web.StreamResponse:
        batch = self._batch(request)
        batch.looks += 1
        if batch.state in ("cancelling", "canceling"):
            await self._end(batch, "cancelled", all_done=False)
        elif batch.problems:
            batch.state = "failed"
        elif batch.state not in _ENDED and self.looks is not None and batch.looks >= self.looks:
            await self._end(batch, "completed")
        elif batch.state == "validating":
            batch.state = "in_progress"
        return web.json_response(self._told(batch))

    async def _end(self, batch: ServedBatch, state: str, *, all_done: bool = True) -> None:
        for line in batch.lines:
            name = line["custom_id"]
            outcome = self.outcome(name) if all_done or crc32(name.encode()) % 2 else "canceled"
            sent = None
            if outcome == "succeeded":
                body = orjson.dumps(line["body"])
                http = HttpRequest("POST", batch.path, {"anthropic-version": "1"}, body)
                wire = self._service.wire_of(http)
                assert wire
                asked = self._service.check(wire, http)
                sent = (
                    asked
                    if isinstance(asked, SentReply)
                    else await self._service.complete(wire, asked)
                )
                self.requests += (
                    [] if isinstance(asked, SentReply) or not self._keep_requests else [asked]
                )
                if sent.http_status == 200:
                    self.paid.append(name)
            batch.results.append((name, outcome, sent))
        self._random.shuffle(batch.results)
        if all_done and any(outcome == "expired" for _, outcome, _ in batch.results):
            state = "expired"
        batch.state = "ended" if batch.style == "anthropic" else state

    async def _list(self, request: web.Request) -> web.StreamResponse:
        style = "anthropic" if "messages" in request.path else "openai"
        found = [batch for batch in reversed(self.batches) if batch.style == style]
        after = request.query.get("after") or request.query.get("after_id")
        if after:
            found = found[[batch.id for batch in found].index(after) + 1 :]
        page = found[: int(request.query.get("limit", 20))]
        ids = (
            {"first_id": page[0].id, "last_id": page[-1].id}
            if page
            else {"first_id": None, "last_id": None}
        )
        told = {
            "object": "list",
            "data": [self._told(batch) for batch in page],
            "has_more": len(page) < len(found),
        }
        return web.json_response(told | ids)

    async def _cancel(self, request: web.Request) -> web.StreamResponse:
        batch = self._batch(request)
        if batch.state not in _ENDED:
            batch.state = "cancelling" if batch.style == "openai" else "canceling"
        return web.json_response(self._told(batch))

    async def _content(self, request: web.Request) -> web.StreamResponse:
        number, _, kind = request.match_info["id"].partition("-")
        batch = next((batch for batch in self.batches if batch.id == f"batch_{number}"), None)
        if batch is None or batch.is_deleted:
            return _error(404, "No such File object")
        lines = [
            _openai_result(*each)
            for each in batch.results
            if (_is_reply(each[2]) == (kind == "output"))
        ]
        return web.Response(
            body=self.garbled(_jsonl(lines)), content_type="application/octet-stream"
        )

    async def _results(self, request: web.Request) -> web.StreamResponse:
        batch = self._batch(request)
        if batch.is_deleted or batch.state != "ended":
            return _error(404, "there are no results")
        lines = [_anthropic_result(*each) for each in batch.results]
        return web.Response(body=self.garbled(_jsonl(lines)), content_type="application/x-jsonl")

    def _told(self, batch: ServedBatch) -> Json:
        done = sum(_is_reply(sent) for _, _, sent in batch.results)
        failed = len(batch.results) - done
        if batch.style == "anthropic":
            kinds = ("succeeded", "errored", "canceled", "expired")
            outcomes: list[str] = [
                ("errored" if kind == "refused" else kind) for _, kind, _ in batch.results
            ]
            counts = (
                {kind: outcomes.count(kind) for kind in kinds}
                if batch.state == "ended"
                else dict.fromkeys(kinds, 0)
            )
            counts["processing"] = len(batch.lines) - len(batch.results)
            url = (
                f"{self.url}/v1/messages/batches/{batch.id}/results"
                if batch.state == "ended"
                else None
            )
            dates = dict.fromkeys(("archived_at", "cancel_initiated_at", "ended_at"), None)
            if batch.is_deleted:
                url, dates["archived_at"] = None, _DATE
            about = {
                "id": batch.id,
                "type": "message_batch",
                "processing_status": batch.state,
                "results_url": url,
            }
            return (
                about | dates | {"request_counts": counts, "created_at": _DATE, "expires_at": _DATE}
            )
        number = batch.id.removeprefix("batch_")
        total = 0 if batch.state == "validating" else len(batch.lines)
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": batch.path,
            "completion_window": "24h",
            "created_at": CREATED,
            "input_file_id": batch.input_file,
            "status": batch.state,
            "errors": {"object": "list", "data": batch.problems}
            if batch.state == "failed"
            else None,
            "output_file_id": f"{number}-output" if done else None,
            "error_file_id": f"{number}-error" if failed else None,
            "request_counts": {"total": total, "completed": done, "failed": failed},
            "metadata": batch.metadata if self.keeps_metadata else None,
        }


def _is_reply(sent: SentReply | None) -> bool:
    return sent is not None and sent.http_status == 200


def _openai_result(custom_id: str, outcome: Outcome, sent: SentReply | None) -> Json:
    about: Json = {
        "id": f"batch_req_{custom_id}",
        "custom_id": custom_id,
        "response": None,
        "error": None,
    }
    if sent is not None:
        body = orjson.loads(b"".join(sent.pieces))
        return about | {
            "response": {"status_code": sent.http_status, "request_id": "r", "body": body}
        }
    if outcome in ("errored", "refused"):
        status = 500 if outcome == "errored" else 400
        body = {"error": {"message": f"this call was told to be {outcome}", "type": "some_error"}}
        return about | {"response": {"status_code": status, "request_id": "r", "body": body}}
    code = {"expired": "batch_expired", "canceled": "batch_cancelled"}[outcome]
    return about | {"error": {"code": code, "message": f"this call {outcome}"}}


def _anthropic_result(custom_id: str, outcome: Outcome, sent: SentReply | None) -> Json:
    if _is_reply(sent):
        assert sent is not None
        return {
            "custom_id": custom_id,
            "result": {"type": "succeeded", "message": orjson.loads(b"".join(sent.pieces))},
        }
    if outcome in ("expired", "canceled"):
        return {"custom_id": custom_id, "result": {"type": outcome}}
    kind = "api_error" if outcome == "errored" else "invalid_request_error"
    error: Json = {
        "type": "error",
        "error": {"type": kind, "message": f"this call was told to be {outcome}"},
    }
    if sent is not None:
        error = orjson.loads(b"".join(sent.pieces))
    return {"custom_id": custom_id, "result": {"type": "errored", "error": error}}


def _jsonl(lines: Iterable[Json]) -> bytes:
    return b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines)


def _doubles(names: Iterable[str]) -> list[Json]:
    found = [*names]
    return [_problem("custom_id has to be unique")] if len({*found}) < len(found) else []


def _problem(message: str) -> Json:
    return {"code": "invalid", "message": message, "line": None, "param": None}


def _error(status: int, message: str) -> web.Response:
    return web.json_response(
        {"error": {"message": message, "type": "invalid_request_error"}}, status=status
    )
