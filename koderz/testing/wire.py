"""The wire formats of model servers: their interface, and those of Ollama, OpenAI and Anthropic.

Sources: the API reference in the Ollama documentation, OpenAI's API reference, and Anthropic's of the Messages API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from typing import Any, Literal, Protocol

import orjson

from koderz.models.clients import packed, responses, translated
from koderz.types import Completion, Message, Reply, Sampling

Kind = Literal["ollama", "openai", "anthropic"]
Json = dict[str, Any]

# the time that every reply claims: 2026-01-01, so that equal requests get equal bytes
CREATED = 1_767_225_600


@dataclass(frozen=True, slots=True)
class Request:
    """One request to a model, in a form that is the same for all wire formats."""

    kind: Kind
    model: str
    messages: tuple[Message, ...]  # the system prompt first
    sampling: Sampling
    stream: bool
    body: Mapping[str, Any] = field(repr=False)  # as sent
    headers: Mapping[str, str] = field(repr=False, default_factory=dict)  # names in lower case
    digest: str = field(init=False)
    """A digest of the conversation, 16 hex digits: equal for equal messages, whatever the wire, model or sampling."""

    def __post_init__(self) -> None:
        text = orjson.dumps([(message["role"], message["content"]) for message in self.messages])
        object.__setattr__(self, "digest", blake2b(text, digest_size=8).hexdigest())


class Wire(Protocol):
    """The wire format of one kind of server."""

    @property
    def kind(self) -> Kind: ...

    @property
    def content_type(self) -> str:
        """The content type of a stream."""

    def parse(self, body: Json, headers: Mapping[str, str], /) -> Request:
        """The parsed request. Raises KeyError, TypeError or ValueError for a body that the real server would refuse."""

    def reply(self, request: Request, completion: Completion, /) -> Json:
        """The body of a whole reply."""

    def stream(self, request: Request, completion: Completion, /) -> Sequence[bytes]:
        """The pieces of a streamed reply."""

    def error(self, status: int, message: str, /) -> Json:
        """The body of an error."""

    def unknown_model(self, model: str, /) -> Json:
        """The body of the 404 for an unknown model."""

    def refused(self, parameter: str, value: object, /) -> Json:
        """The body of the 400 for a parameter that this model doesn't take."""

    def key_of(self, headers: Mapping[str, str], /) -> str | None:
        """The API key of a request; None if this kind of server asks for none."""


def messages_of(body: Json) -> tuple[Message, ...]:
    """The conversation, with text parts of each message joined. Raises as `Wire.parse` does."""
    messages = body["messages"]
    if not isinstance(messages, list) or not messages:
        raise ValueError("'messages' has to be a list of at least one message")
    return tuple(
        {"role": str(one["role"]), "content": text_of(one.get("content"))} for one in messages
    )


def text_of(content: object) -> str:
    """The text of a message's content: a string, or a list of parts."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise TypeError("'content' has to be text or a list of parts")
    return "".join(str(part.get("text", "")) for part in content)


def sampling_of(
    given: Mapping[str, Any], *, max_tokens: Sequence[str], stop: str = "stop"
) -> Sampling:
    """The sampling settings among `given`; `max_tokens` lists the possible names of the limit."""
    limits = (given[name] for name in max_tokens if given.get(name) is not None)
    stops = given.get(stop) or ()
    return Sampling(
        temperature=_number(given.get("temperature")),
        max_tokens=next((int(limit) for limit in limits), None),
        top_p=_number(given.get("top_p")),
        seed=None if given.get("seed") is None else int(given["seed"]),
        stop=(stops,) if isinstance(stops, str) else tuple(map(str, stops)),
    )


def pieces_of(text: str, *, count: int = 4) -> list[str]:
    """A text in about `count` pieces, as streamed; empty for an empty text."""
    size = max(1, -(-len(text) // count))
    return [text[start : start + size] for start in range(0, len(text), size)]


def event(data: Json, *, name: str = "") -> bytes:
    """A server-sent event."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + orjson.dumps(data) + b"\n\n"


def bearer_token(headers: Mapping[str, str]) -> str:
    """The key in an Authorization header; empty without one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _number(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"a number was expected, not {value!r}")
    return float(value)


CREATED_AT = "2026-01-01T00:00:00Z"
NANOSECONDS = 1_000_000  # what every duration claims
VERSION: Json = {"version": "0.12.0"}


class OllamaWire:
    kind: Kind = "ollama"
    content_type = "application/x-ndjson"

    def parse(self, body: Json, headers: Mapping[str, str]) -> Request:
        options = body.get("options") or {}
        return Request(
            kind=self.kind,
            model=str(body["model"]),
            messages=messages_of(body),
            sampling=sampling_of(options, max_tokens=("num_predict",)),
            stream=bool(body.get("stream", True)),
            body=body,
            headers=headers,
        )

    def reply(self, request: Request, completion: Completion) -> Json:
        return _part(request, completion.text, completion.reasoning) | _end(completion)

    def stream(self, request: Request, completion: Completion) -> Sequence[bytes]:
        thoughts = [_part(request, "", piece) for piece in pieces_of(completion.reasoning)]
        texts = [_part(request, piece) for piece in pieces_of(completion.text)]
        lines = [*thoughts, *texts, _part(request, "") | _end(completion)]
        return [orjson.dumps(line) + b"\n" for line in lines]

    def error(self, _status: int, message: str) -> Json:
        return {"error": message}

    def unknown_model(self, model: str) -> Json:
        return self.error(404, f"model '{model}' not found")

    def refused(self, parameter: str, value: object) -> Json:
        return self.error(400, f"invalid option provided: {parameter} = {value}")

    def key_of(self, _headers: Mapping[str, str]) -> str | None:
        return None


def tags(models: Sequence[str]) -> Json:
    """The available models, as `/api/tags` lists them."""
    return {"models": [_tag(name) for name in models]}


def show() -> Json:
    """The answer of `/api/show` for every model."""
    return {
        "details": _details(),
        "model_info": {"general.architecture": "simulated", "simulated.context_length": 32768},
        "capabilities": ["completion"],
    }


def _tag(name: str) -> Json:
    full = name if ":" in name else f"{name}:latest"
    digest = sha256(full.encode()).hexdigest()
    return {
        "name": full,
        "model": full,
        "modified_at": CREATED_AT,
        "size": 1 << 30,
        "digest": digest,
        "details": _details(),
    }


def _details() -> Json:
    return {
        "format": "gguf",
        "family": "simulated",
        "parameter_size": "1B",
        "quantization_level": "Q4_K_M",
    }


def _part(request: Request, text: str, thinking: str = "") -> Json:
    message = {"role": "assistant", "content": text} | ({"thinking": thinking} if thinking else {})
    return {"model": request.model, "created_at": CREATED_AT, "message": message, "done": False}


def _end(completion: Completion) -> Json:
    return {
        "done": True,
        "done_reason": completion.finish_reason,
        "total_duration": NANOSECONDS,
        "load_duration": NANOSECONDS,
        "prompt_eval_count": completion.tokens_in,
        "prompt_eval_duration": NANOSECONDS,
        "eval_count": completion.tokens_out,
        "eval_duration": NANOSECONDS,
    }


_OPENAI_ERRORS: Mapping[int, str] = {
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
        return _envelope(request, "chat.completion", [choice]) | {
            "usage": _openai_usage(completion)
        }

    def stream(self, request: Request, completion: Completion) -> Sequence[bytes]:
        deltas: list[Json] = [{"role": "assistant", "content": ""}]
        deltas += [{self.reasoning_field: piece} for piece in pieces_of(completion.reasoning)]
        deltas += [{"content": piece} for piece in pieces_of(completion.text)]
        chunks = [_chunk(request, delta, None) for delta in deltas]
        chunks.append(_chunk(request, {}, _finish(completion)))
        if (request.body.get("stream_options") or {}).get("include_usage"):
            chunks.append(
                _envelope(request, "chat.completion.chunk", [])
                | {"usage": _openai_usage(completion)}
            )
        return [*map(event, chunks), b"data: [DONE]\n\n"]

    def error(self, status: int, message: str) -> Json:
        return _error(message, _OPENAI_ERRORS.get(status, "server_error"))

    def unknown_model(self, model: str) -> Json:
        message = f"The model `{model}` does not exist or you do not have access to it."
        return _error(message, _OPENAI_ERRORS[404], code="model_not_found")

    def refused(self, parameter: str, value: object) -> Json:
        if parameter == "max_tokens":
            message = (
                "Unsupported parameter: 'max_tokens' is not supported with this model. "
                "Use 'max_completion_tokens' instead."
            )
            return _error(
                message, _OPENAI_ERRORS[400], param=parameter, code="unsupported_parameter"
            )
        if parameter == "temperature":
            message = (
                f"Unsupported value: 'temperature' does not support {value} with this model. "
                "Only the default (1) value is supported."
            )
            return _error(message, _OPENAI_ERRORS[400], param=parameter, code="unsupported_value")
        message = f"Unsupported parameter: '{parameter}' is not supported with this model."
        return _error(message, _OPENAI_ERRORS[400], param=parameter, code="unsupported_parameter")

    def key_of(self, headers: Mapping[str, str]) -> str | None:
        return bearer_token(headers)


def openai_list(models: Sequence[str]) -> Json:
    """The available models, as `/v1/models` lists them."""
    return {"object": "list", "data": [openai_entry(name) for name in models]}


def openai_entry(name: str) -> Json:
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


def _openai_usage(completion: Completion) -> Json:
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


_ANTHROPIC_ERRORS: Mapping[int, str] = {
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
        return _message(
            request, _blocks(completion), _stop(completion), _anthropic_usage(completion)
        )

    def stream(self, request: Request, completion: Completion) -> Sequence[bytes]:
        begin = _message(request, [], None, {**_anthropic_usage(completion), "output_tokens": 1})
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
            "error": {"type": _ANTHROPIC_ERRORS.get(status, "api_error"), "message": message},
        }

    def unknown_model(self, model: str) -> Json:
        return self.error(404, f"model: {model}")

    def refused(self, parameter: str, value: object) -> Json:
        return self.error(400, f"{parameter}: {value} is not supported by this model")

    def key_of(self, headers: Mapping[str, str]) -> str | None:
        return headers.get("x-api-key") or bearer_token(headers)


def anthropic_list(models: Sequence[str]) -> Json:
    """The available models, as `/v1/models` lists them."""
    ends = (
        {"first_id": models[0], "last_id": models[-1]}
        if models
        else {"first_id": None, "last_id": None}
    )
    return {"data": [anthropic_entry(name) for name in models], "has_more": False, **ends}


def anthropic_entry(name: str) -> Json:
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


def _anthropic_usage(completion: Completion) -> Json:
    return {"input_tokens": completion.tokens_in, "output_tokens": completion.tokens_out}
