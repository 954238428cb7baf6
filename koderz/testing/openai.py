"""OpenAI's chat completions and responses. Source: OpenAI's API reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from koderz.models.clients import packed, responses, translated
from koderz.testing.wire import (
    CREATED,
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
from koderz.types import Completion, Reply

TYPES: Mapping[int, str] = {
    401: "invalid_request_error",
    400: "invalid_request_error",
    404: "invalid_request_error",
    429: "rate_limit_error",
}
FINISH_REASONS: Mapping[str, str] = {"refusal": "content_filter"}


@dataclass(frozen=True, slots=True)
class OpenAIWire:
    """Chat completions; servers call the field of reasoning (`reasoning_field`) `reasoning_content` or `reasoning`."""

    reasoning_field: str = "reasoning_content"
    kind: Kind = "openai"
    content_type: str = "text/event-stream"

    def parse(self, body: Json, headers: Mapping[str, str]) -> Request:
        return Request(
            kind=self.kind,
            model=str(body["model"]),
            messages=messages_of(body),
            sampling=sampling_of(body, max_tokens=("max_completion_tokens", "max_tokens")),
            stream=bool(body.get("stream", False)),
            body=body,
            headers=headers,
        )

    def reply(self, request: Request, completion: Completion) -> Json:
        message = {"role": "assistant", "content": completion.text, "refusal": None}
        if completion.reasoning:
            message[self.reasoning_field] = completion.reasoning
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": _finish(completion),
        }
        return _envelope(request, "chat.completion", [choice]) | {"usage": _usage(completion)}

    def stream(self, request: Request, completion: Completion) -> Sequence[bytes]:
        deltas: list[Json] = [{"role": "assistant", "content": ""}]
        deltas += [{self.reasoning_field: piece} for piece in pieces_of(completion.reasoning)]
        deltas += [{"content": piece} for piece in pieces_of(completion.text)]
        chunks = [_chunk(request, delta, None) for delta in deltas]
        chunks.append(_chunk(request, {}, _finish(completion)))
        if (request.body.get("stream_options") or {}).get("include_usage"):
            chunks.append(
                _envelope(request, "chat.completion.chunk", []) | {"usage": _usage(completion)}
            )
        return [*map(event, chunks), b"data: [DONE]\n\n"]

    def error(self, status: int, message: str) -> Json:
        return _error(message, TYPES.get(status, "server_error"))

    def unknown_model(self, model: str) -> Json:
        message = f"The model `{model}` does not exist or you do not have access to it."
        return _error(message, TYPES[404], code="model_not_found")

    def refused(self, parameter: str, value: object) -> Json:
        if parameter == "max_tokens":
            message = (
                "Unsupported parameter: 'max_tokens' is not supported with this model. "
                "Use 'max_completion_tokens' instead."
            )
            return _error(message, TYPES[400], param=parameter, code="unsupported_parameter")
        if parameter == "temperature":
            message = (
                f"Unsupported value: 'temperature' does not support {value} with this model. "
                "Only the default (1) value is supported."
            )
            return _error(message, TYPES[400], param=parameter, code="unsupported_value")
        message = f"Unsupported parameter: '{parameter}' is not supported with this model."
        return _error(message, TYPES[400], param=parameter, code="unsupported_parameter")

    def key_of(self, headers: Mapping[str, str]) -> str | None:
        return bearer_token(headers)


def models_list(models: Sequence[str]) -> Json:
    """The available models, as `/v1/models` lists them."""
    return {"object": "list", "data": [model_entry(name) for name in models]}


def model_entry(name: str) -> Json:
    """One model, as `/v1/models/NAME` shows it."""
    return {"id": name, "object": "model", "created": CREATED, "owned_by": "koderz"}


def _envelope(request: Request, kind: str, choices: list[Json]) -> Json:
    identity = f"chatcmpl-{request.digest}"
    return {
        "id": identity,
        "object": kind,
        "created": CREATED,
        "model": request.model,
        "choices": choices,
    }


def _chunk(request: Request, delta: Json, finish_reason: str | None) -> Json:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return _envelope(request, "chat.completion.chunk", [choice])


def _usage(completion: Completion) -> Json:
    return {
        "prompt_tokens": completion.tokens_in,
        "completion_tokens": completion.tokens_out,
        "total_tokens": completion.tokens_in + completion.tokens_out,
    }


def _finish(completion: Completion) -> str:
    return FINISH_REASONS.get(completion.finish_reason, completion.finish_reason)


def _error(message: str, kind: str, *, param: str | None = None, code: str | None = None) -> Json:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class ResponsesWire(OpenAIWire):
    """The responses API. Errors, keys and unknown models are handled as in chat completions."""

    def parse(self, body: Json, headers: Mapping[str, str]) -> Request:
        messages = [
            message
            for message in translated(packed("responses", body)).messages
            if message["role"] != "tools"
        ]
        return Request(
            kind=self.kind,
            model=str(body["model"]),
            messages=tuple(
                {"role": one["role"], "content": text_of(one["content"])} for one in messages
            ),
            sampling=sampling_of(body, max_tokens=("max_output_tokens",)),
            stream=bool(body.get("stream", False)),
            body=body,
            headers=headers,
        )

    def reply(self, request: Request, completion: Completion) -> Json:
        reply = Reply(
            int(request.digest, 16),
            completion.text,
            reasoning=completion.reasoning,
            tokens_in=completion.tokens_in,
            tokens_out=completion.tokens_out,
            finish_reason=completion.finish_reason,
        )
        return {**responses.answer(reply, request.body), "created_at": CREATED}

    def stream(self, request: Request, completion: Completion) -> Sequence[bytes]:
        return [*responses.events(self.reply(request, completion))]
