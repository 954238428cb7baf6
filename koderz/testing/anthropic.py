"""Anthropic's messages. Source: the reference of the Messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koderz.testing.wire import (
    Json,
    Kind,
    Request,
    bearer_token,
    event,
    messages_of,
    pieces_of,
    sampling_of,
    text_of,
)
from koderz.types import Completion

TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
STOP_REASONS: Mapping[str, str] = {"stop": "end_turn", "length": "max_tokens"}


class AnthropicWire:
    kind: Kind = "anthropic"
    content_type = "text/event-stream"

    def parse(self, body: Json, headers: Mapping[str, str]) -> Request:
        if "anthropic-version" not in headers:
            raise ValueError("anthropic-version: header is required")
        if "max_tokens" not in body:
            raise ValueError("max_tokens: Field required")
        if any(message.get("role") == "system" for message in body["messages"]):
            raise ValueError(
                'messages: Unexpected role "system". Use the top-level "system" parameter.'
            )
        system = text_of(body.get("system"))
        before = ({"role": "system", "content": system},) if system else ()
        return Request(
            kind=self.kind,
            model=str(body["model"]),
            messages=before + messages_of(body),
            sampling=sampling_of(body, max_tokens=("max_tokens",), stop="stop_sequences"),
            stream=bool(body.get("stream", False)),
            body=body,
            headers=headers,
        )

    def reply(self, request: Request, completion: Completion) -> Json:
        return _message(request, _blocks(completion), _stop(completion), _usage(completion))

    def stream(self, request: Request, completion: Completion) -> Sequence[bytes]:
        begin = _message(request, [], None, {**_usage(completion), "output_tokens": 1})
        events: list[Json] = [{"type": "message_start", "message": begin}]
        for index, block in enumerate(_blocks(completion)):
            events += _block_events(index, block)
        delta = {"stop_reason": _stop(completion), "stop_sequence": None}
        usage = {"output_tokens": completion.tokens_out}
        events += [
            {"type": "message_delta", "delta": delta, "usage": usage},
            {"type": "message_stop"},
        ]
        return [event(one, name=one["type"]) for one in events]

    def error(self, status: int, message: str) -> Json:
        return {
            "type": "error",
            "error": {"type": TYPES.get(status, "api_error"), "message": message},
        }

    def unknown_model(self, model: str) -> Json:
        return self.error(404, f"model: {model}")

    def refused(self, parameter: str, value: object) -> Json:
        return self.error(400, f"{parameter}: {value} is not supported by this model")

    def key_of(self, headers: Mapping[str, str]) -> str | None:
        return headers.get("x-api-key") or bearer_token(headers)


def models_list(models: Sequence[str]) -> Json:
    """The available models, as `/v1/models` lists them."""
    ends = (
        {"first_id": models[0], "last_id": models[-1]}
        if models
        else {"first_id": None, "last_id": None}
    )
    return {"data": [model_entry(name) for name in models], "has_more": False, **ends}


def model_entry(name: str) -> Json:
    """One model, as `/v1/models/NAME` shows it."""
    created = {"created_at": "2026-01-01T00:00:00Z", "lifecycle": "active"}
    return {"type": "model", "id": name, "display_name": name, **created}


def _message(request: Request, content: list[Json], stop_reason: str | None, usage: Json) -> Json:
    return {
        "id": f"msg_{request.digest}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": usage,
    }


def _blocks(completion: Completion) -> list[Json]:
    """The reasoning if there is any, then the text; no block at all for a reply without text."""
    thinking = {"type": "thinking", "thinking": completion.reasoning, "signature": "simulated"}
    text = {"type": "text", "text": completion.text}
    return [thinking] * bool(completion.reasoning) + [text] * bool(completion.text)


def _block_events(index: int, block: Json) -> list[Json]:
    kind = block["type"]
    pieces = [{"type": f"{kind}_delta", kind: piece} for piece in pieces_of(block[kind])]
    begin = {"type": "content_block_start", "index": index, "content_block": {**block, kind: ""}}
    deltas = [{"type": "content_block_delta", "index": index, "delta": piece} for piece in pieces]
    return [begin, *deltas, {"type": "content_block_stop", "index": index}]


def _stop(completion: Completion) -> str:
    return STOP_REASONS.get(completion.finish_reason, completion.finish_reason)


def _usage(completion: Completion) -> Json:
    return {"input_tokens": completion.tokens_in, "output_tokens": completion.tokens_out}
