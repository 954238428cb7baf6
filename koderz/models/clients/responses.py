"""OpenAI's responses from a server's side, for clients of models that may speak another format."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from koderz.models.clients import MalformedError, Translated, event, no_place, offer, refuse
from koderz.models.clients.chat import error as error

if TYPE_CHECKING:
    from koderz.types import Message, Reply

_IMPOSSIBLE = {
    "previous_response_id": lambda _: False,
    "conversation": lambda _: False,
    "background": lambda wanted: wanted is False,
    "prompt": lambda _: False,
    "text": lambda how: (
        isinstance(how, dict) and (how.get("format") or {}).get("type", "text") == "text"
    ),
}
_TAKEN = {
    *(
        "input",
        "instructions",
        "tools",
        "tool_choice",
        "temperature",
        "top_p",
        "max_output_tokens",
        "store",
        "include",
    ),
    *("parallel_tool_calls", "metadata", "client_metadata", "prompt_cache_key", *_IMPOSSIBLE),
}
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXTS = ("input_text", "output_text", "text", "refusal")
_FREE_TEXT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
_ARGUMENTS = {  # by kind of item: the field that grows, and how its events are named
    "function_call": ("arguments", "function_call_arguments"),
    "custom_tool_call": ("input", "custom_tool_call_input"),
}
# likewise, of items that have parts
_PARTS: Mapping[Any, tuple[str, str, str, str, dict[str, Any]]] = {
    "message": ("content", "content_index", "content_part", "output_text", {"logprobs": []}),
    "reasoning": (
        "summary",
        "summary_index",
        "reasoning_summary_part",
        "reasoning_summary_text",
        {},
    ),
}
_ENDS = {"length": "max_output_tokens", "refusal": "content_filter"}


def translated(body: Mapping[str, Any]) -> Translated:
    """See `Client`. A tool of free text becomes a function of one string, `input`; one of a namespace has its name."""
    refuse(body, "responses", _IMPOSSIBLE)
    tools, dropped = [], []
    for tool in _flat(body):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind in ("function", "custom"):
            parameters = tool.get("parameters") if tool["type"] == "function" else _FREE_TEXT
            function = {
                "name": tool.get("name"),
                "parameters": parameters or {"type": "object", "properties": {}},
            }
            tools.append(
                {
                    "type": "function",
                    "function": function | {k: tool[k] for k in ("description",) if k in tool},
                }
            )
        else:
            dropped.append(f"tool {kind}")
    dropped += [name for name in body if name not in _TAKEN]
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    messages: list[Message] = offer(tools, choice)
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    return Translated([*messages, *_Conversation().of(body["input"])], tuple(dropped))


def answer(reply: Reply, body: Mapping[str, Any]) -> dict[str, Any]:
    """See `Client`."""
    tools = body.get("tools") or ()
    offered = {tool.get("name"): tool for tool in _flat(body) if isinstance(tool, dict)}
    output: list[dict[str, Any]] = []
    if reply.reasoning:
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        output.append({"type": "reasoning", "id": f"rs_{reply.call}", "summary": summary})
    if reply.text or not reply.tool_calls:
        text = {"type": "output_text", "text": reply.text, "annotations": []}
        output.append(
            {
                "type": "message",
                "id": f"msg_{reply.call}",
                "status": "completed",
                "role": "assistant",
                "content": [text],
            }
        )
    output += [
        _call(call, reply.call, number, offered) for number, call in enumerate(reply.tool_calls)
    ]
    cut = _ENDS.get(reply.finish_reason)
    return {
        "id": f"resp_{reply.call}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": cut} if cut else None,
        "error": None,
        "model": str(body.get("model", "")),
        "output": output,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": [*tools],
        "usage": {
            "input_tokens": reply.tokens_in,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": reply.tokens_out,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.tokens,
        },
    }


def events(answer: Mapping[str, Any]) -> Iterator[bytes]:
    """See `Client`. An item's text comes as one delta."""
    for number, told in enumerate(_told_in_order(answer)):
        yield event({**told, "sequence_number": number})


def _told_in_order(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    begun = {**answer, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    for index, item in enumerate(answer["output"]):
        empty, told = _pieces(item)
        yield {"type": "response.output_item.added", "output_index": index, "item": empty}
        for each in told:
            yield {
                "item_id": item.get("id"),
                "output_index": index,
                **each,
                "type": f"response.{each['type']}",
            }
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    ended = "incomplete" if answer.get("status") == "incomplete" else "completed"
    yield {"type": f"response.{ended}", "response": answer}


def _pieces(item: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The events of an item: its beginning, and the deltas that complete it."""
    kind = item.get("type")
    if kind in _ARGUMENTS:
        field, name = _ARGUMENTS[kind]
        known = {"name": item.get("name")} if kind == "function_call" else {}
        text = item.get(field, "")
        told = [
            {"type": f"{name}.delta", "delta": text},
            {"type": f"{name}.done", field: text, **known},
        ]
        return {**item, field: "", "status": "in_progress"}, told
    if kind not in _PARTS:
        return dict(item), []
    field, index, part, text, more = _PARTS[kind]
    told = []
    for number, each in enumerate(item.get(field) or ()):
        if "text" in each:
            at = {index: number}
            told += [
                {"type": f"{part}.added", **at, "part": {**each, "text": ""}},
                {"type": f"{text}.delta", **at, "delta": each["text"], **more},
                {"type": f"{text}.done", **at, "text": each["text"], **more},
                {"type": f"{part}.done", **at, "part": each},
            ]
    return {**item, field: [], **({"status": "in_progress"} if "status" in item else {})}, told


def _flat(body: Mapping[str, Any]) -> Iterator[Any]:
    """The tools, with those of a namespace, such as an MCP server's, beside the others and `within` it."""
    for tool in body.get("tools") or ():
        if not isinstance(tool, dict) or tool.get("type") != "namespace":
            yield tool
            continue
        for each in tool.get("tools") or ():
            if isinstance(each, dict):
                yield {
                    **each,
                    "name": f"{tool.get('name')}__{each.get('name')}",
                    "within": tool.get("name"),
                }


def _call(
    call: Mapping[str, Any], of: int, number: int, offered: Mapping[Any, Any]
) -> dict[str, Any]:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    known = {"id": f"fc_{of}_{number}", "call_id": call["id"], "name": name, "status": "completed"}
    tool = offered.get(name, {})
    if "within" in tool:
        known |= {"name": name.removeprefix(f"{tool['within']}__"), "namespace": tool["within"]}
    if tool.get("type") != "custom":
        return {"type": "function_call", **known, "arguments": arguments}
    try:
        text = orjson.loads(arguments)["input"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        text = arguments
    return {"type": "custom_tool_call", **known, "input": str(text)}


class _Conversation:
    """Joins items of a conversation into messages: reasoning, text and calls of one turn become one message."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._pictures: list[dict[str, Any]] = []  # of tools' results, which have no place for them

    def of(self, items: Sequence[Mapping[str, Any]]) -> list[Message]:
        for item in items:
            kind = item.get("type") or "message"
            if kind not in ("function_call_output", "custom_tool_call_output"):
                self._show()
            if kind == "message":
                self._say(item)
            elif kind == "reasoning":
                texts = [
                    str(each.get("text", ""))
                    for each in item.get("summary") or ()
                    if isinstance(each, dict)
                ]
                if any(texts):
                    self._turn()["reasoning_content"] = "\n\n".join(texts)
            elif kind in ("function_call", "custom_tool_call"):
                self._add_call(item)
            elif kind in ("function_call_output", "custom_tool_call_output"):
                self._add_result(item)
            else:
                raise no_place(item)
        self._show()
        return self._messages

    def _say(self, item: Mapping[str, Any]) -> None:
        role = _ROLES.get(str(item.get("role")))
        if role is None:
            raise MalformedError(f"{item.get('role')!r:.40} is no role of a message")
        content = _content(item.get("content"))
        if role != "assistant":
            self._messages.append({"role": role, "content": content})
            return
        turn = self._turn()
        if turn["content"] is not None or "tool_calls" in turn:
            self._messages.append(turn := {"role": role, "content": None})
        turn["content"] = content

    def _turn(self) -> Message:
        if not self._messages or self._messages[-1]["role"] != "assistant":
            self._messages.append({"role": "assistant", "content": None})
        return self._messages[-1]

    def _add_call(self, item: Mapping[str, Any]) -> None:
        within = item.get("namespace")
        text = (
            item.get("arguments")
            if "arguments" in item
            else orjson.dumps({"input": item.get("input")}).decode()
        )
        call = {
            "id": item.get("call_id"),
            "type": "function",
            "function": {
                "name": f"{within}__{item.get('name')}" if within else item.get("name"),
                "arguments": text,
            },
        }
        self._turn().setdefault("tool_calls", []).append(call)

    def _add_result(self, item: Mapping[str, Any]) -> None:
        content = _content(item.get("output"))
        if isinstance(content, list):
            self._pictures += [part for part in content if part["type"] != "text"]
            content = "\n\n".join(part["text"] for part in content if part["type"] == "text")
        self._messages.append(
            {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
        )

    def _show(self) -> None:
        if self._pictures:
            self._messages.append({"role": "user", "content": self._pictures})
            self._pictures = []


def _content(content: Any) -> str | list[dict[str, Any]]:
    """A string if the content is all text, else parts as in chat completions."""
    if isinstance(content, str) or content is None:
        return content or ""
    parts: list[dict[str, Any]] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _TEXTS:
            parts.append(
                {"type": "text", "text": str(part.get("text") or part.get("refusal") or "")}
            )
        elif kind == "input_image" and isinstance(part.get("image_url"), str):
            parts.append({"type": "image_url", "image_url": {"url": part["image_url"]}})
        else:
            raise no_place(part)
    if all(part["type"] == "text" for part in parts):
        return "\n\n".join(part["text"] for part in parts)
    return parts
