"""Ollama's chat API. Source: the API reference in the Ollama documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256

import orjson

from koderz.testing.wire import Json, Kind, Request, messages_of, pieces_of, sampling_of
from koderz.types import Completion

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
