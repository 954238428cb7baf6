"""Anthropic's messages from a server's side, for clients of models that may speak another format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from koderz.models.clients import MalformedError, Translated, event, no_place, offer

if TYPE_CHECKING:
    from koderz.types import Message, Reply

_TAKEN = {
    *(
        "messages",
        "system",
        "tools",
        "tool_choice",
        "temperature",
        "top_p",
        "stop_sequences",
        "max_tokens",
    ),
    *("metadata",),
}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_STOPS = {"length": "max_tokens", "refusal": "refusal"}


def translated(body: Mapping[str, Any]) -> Translated:
    """See `Client`."""
    tools, dropped = [], []
    for tool in body.get("tools") or ():
        if isinstance(tool, dict) and isinstance(tool.get("input_schema"), dict):
            function = {"name": tool.get("name"), "parameters": tool["input_schema"]}
            tools.append(
                {
                    "type": "function",
                    "function": function | {k: tool[k] for k in ("description",) if k in tool},
                }
            )
        else:
            dropped.append(
                f"tool {tool.get('name') or tool.get('type')}" if isinstance(tool, dict) else "tool"
            )
    dropped += [name for name in body if name not in _TAKEN]
    choice = body.get("tool_choice") or {}
    chosen: Any = _CHOICES.get(choice.get("type", "auto"))
    if choice.get("type") == "tool":
        chosen = {"type": "function", "function": {"name": choice.get("name")}}
    messages: list[Message] = offer(tools, chosen)
    if system := body.get("system"):
        messages.append({"role": "system", "content": _plain(_blocks(system))})
    for message in body["messages"]:
        if message.get("role") == "assistant":
            messages.append(_of_assistant(_blocks(message.get("content"))))
        elif message.get("role") in ("user", "system"):
            messages += _of_user(str(message["role"]), _blocks(message.get("content")))
        else:
            raise MalformedError(f"{message.get('role')!r:.40} is no role of a message")
    return Translated(messages, tuple(dropped))


def answer(reply: Reply, body: Mapping[str, Any]) -> dict[str, Any]:
    """See `Client`."""
    content: list[dict[str, Any]] = []
    if reply.reasoning:
        content.append({"type": "thinking", "thinking": reply.reasoning, "signature": ""})
    if reply.text:
        content.append({"type": "text", "text": reply.text})
    for call in reply.tool_calls:
        function = call["function"]
        content.append(
            {
                "type": "tool_use",
                "id": call["id"],
                "name": function["name"],
                "input": _read(function["arguments"]),
            }
        )
    return {
        "id": f"msg_{reply.call}",
        "type": "message",
        "role": "assistant",
        "model": str(body.get("model", "")),
        "content": content,
        "stop_reason": "tool_use"
        if reply.tool_calls
        else _STOPS.get(reply.finish_reason, "end_turn"),
        "stop_sequence": None,
        "usage": {"input_tokens": reply.tokens_in, "output_tokens": reply.tokens_out},
    }


def events(answer: Mapping[str, Any]) -> Iterator[bytes]:
    """See `Client`."""
    usage = answer.get("usage") or {}
    begun = {
        **answer,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**usage, "output_tokens": 0},
    }
    yield event({"type": "message_start", "message": begun})
    for index, block in enumerate(answer["content"]):
        empty, deltas = _pieces(block)
        yield event({"type": "content_block_start", "index": index, "content_block": empty})
        for delta in deltas:
            yield event({"type": "content_block_delta", "index": index, "delta": delta})
        yield event({"type": "content_block_stop", "index": index})
    ended = {name: answer.get(name) for name in ("stop_reason", "stop_sequence")}
    yield event({"type": "message_delta", "delta": ended, "usage": usage})
    yield event({"type": "message_stop"})


def error(status: int, message: str) -> dict[str, Any]:
    """See `Client`."""
    kind = {
        401: "authentication_error",
        402: "billing_error",
        404: "not_found_error",
        413: "request_too_large",
    }
    return {
        "type": "error",
        "error": {
            "type": kind.get(status, "invalid_request_error" if status < 500 else "api_error"),
            "message": message,
        },
    }


def _blocks(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())


def _of_assistant(blocks: Sequence[Any]) -> Message:
    said: list[Any] = []
    thought, calls = [], []
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "thinking":
            thought.append(str(block.get("thinking", "")))
        elif kind == "tool_use":
            function = {
                "name": block.get("name"),
                "arguments": orjson.dumps(block.get("input") or {}).decode(),
            }
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind != "redacted_thinking":
            said.append(block)
    message: Message = {"role": "assistant", "content": _plain(said) or None}
    if calls:
        message["tool_calls"] = calls
    if any(thought):
        message["reasoning_content"] = "\n\n".join(thought)
    return message


def _of_user(role: str, blocks: Sequence[Any]) -> list[Message]:
    """The messages of a user's turn: tool results, then the pictures in them, which a tool's message can't hold."""
    results: list[Message] = []
    others: list[Any] = []
    for block in blocks:
        if not isinstance(block, dict) or block.get("type") != "tool_result":
            others.append(block)
            continue
        inner = _blocks(block.get("content"))
        pictures = [
            each for each in inner if isinstance(each, dict) and each.get("type") == "image"
        ]
        told = _plain([each for each in inner if each not in pictures])
        text = f"Error: {told}" if block.get("is_error") and isinstance(told, str) else told
        results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text})
        others += pictures
    return [*results, *([{"role": role, "content": _plain(others)}] if others else [])]


def _plain(blocks: Sequence[Any]) -> str | list[dict[str, Any]]:
    """A string if all blocks are text, else parts as in chat completions."""
    parts: list[dict[str, Any]] = []
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text":
            parts.append({"type": "text", "text": str(block.get("text", ""))})
        elif kind == "image":
            source = block.get("source") or {}
            inline = f"data:{source.get('media_type')};base64,{source.get('data')}"
            parts.append({"type": "image_url", "image_url": {"url": source.get("url") or inline}})
        else:
            raise no_place(block)
    if all(part["type"] == "text" for part in parts):
        return "\n\n".join(part["text"] for part in parts)
    return parts


def _pieces(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The events of a block: its beginning, and the deltas that complete it."""
    kind = block.get("type")
    if kind == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if kind == "tool_use":
        text = orjson.dumps(block.get("input") or {}).decode()
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": text}]
    if kind == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": block.get("thinking", "")}]
        deltas += (
            [{"type": "signature_delta", "signature": block["signature"]}]
            if block.get("signature")
            else []
        )
        return {**block, "thinking": "", "signature": ""}, deltas
    return dict(block), []


def _read(arguments: Any) -> Any:
    try:
        found = orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        found = None
    return found if isinstance(found, dict) else {"arguments": arguments}
