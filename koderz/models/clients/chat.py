"""OpenAI's chat completions from a server's side, for clients of models that may speak another format."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from koderz.models.clients import MalformedError, Translated, event, no_place, offer, refuse

if TYPE_CHECKING:
    from koderz.types import Reply

_IMPOSSIBLE = {
    "n": lambda n: n == 1,
    "response_format": lambda how: isinstance(how, dict) and how.get("type") == "text",
    "logprobs": lambda wanted: wanted is False,
    "modalities": lambda kinds: kinds == ["text"],
    "audio": lambda _: False,
    "functions": lambda functions: not functions,
}
_TAKEN = {
    *("messages", "tools", "tool_choice", "temperature", "top_p", "seed", "stop", "max_tokens"),
    *("max_completion_tokens", "parallel_tool_calls", *_IMPOSSIBLE),
}
# what clients add is for themselves
_OF_MESSAGES = ("tool_calls", "tool_call_id", "reasoning_content")
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_FINISHES = {"length": "length", "refusal": "content_filter"}


def translated(body: Mapping[str, Any]) -> Translated:
    """See `Client`."""
    refuse(body, "chat/completions", _IMPOSSIBLE)
    tools = body.get("tools") or ()
    functions = [
        tool for tool in tools if isinstance(tool, dict) and tool.get("type") == "function"
    ]
    dropped = [
        f"tool {tool.get('type')}"
        for tool in tools
        if tool not in functions and isinstance(tool, dict)
    ]
    dropped += [name for name in body if name not in _TAKEN]
    messages = []
    for message in body["messages"]:
        if message.get("role") not in _ROLES:
            raise MalformedError(f"{message.get('role')!r:.40} is no role of a message")
        for part in message["content"] if isinstance(message.get("content"), list) else ():
            if not isinstance(part, dict) or part.get("type") not in ("text", "image_url"):
                raise no_place(part)
        kept = {name: message[name] for name in _OF_MESSAGES if message.get(name)}
        messages.append(
            {"role": _ROLES[message["role"]], "content": message.get("content"), **kept}
        )
    return Translated([*offer(functions, body.get("tool_choice")), *messages], tuple(dropped))


def answer(reply: Reply, body: Mapping[str, Any]) -> dict[str, Any]:
    """See `Client`."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": reply.text or (None if reply.tool_calls else ""),
    }
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [*reply.tool_calls]
    finish = "tool_calls" if reply.tool_calls else _FINISHES.get(reply.finish_reason, "stop")
    usage = {
        "prompt_tokens": reply.tokens_in,
        "completion_tokens": reply.tokens_out,
        "total_tokens": reply.tokens,
    }
    return {
        "id": f"chatcmpl-{reply.call}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": str(body.get("model", "")),
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": usage,
    }


def events(answer: Mapping[str, Any]) -> Iterator[bytes]:
    """See `Client`."""
    head = {name: answer[name] for name in ("id", "created", "model") if name in answer}
    head["object"] = "chat.completion.chunk"
    for choice in answer["choices"]:
        delta = {name: value for name, value in choice["message"].items() if value is not None}
        if calls := delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
        index = choice.get("index", 0)
        yield event(
            {**head, "choices": [{"index": index, "delta": delta, "finish_reason": None}]},
            name=False,
        )
        last = [{"index": index, "delta": {}, "finish_reason": choice.get("finish_reason")}]
        yield event({**head, "choices": last, "usage": answer.get("usage")}, name=False)
    yield b"data: [DONE]\n\n"


def error(status: int, message: str) -> dict[str, Any]:
    """See `Client`."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}
