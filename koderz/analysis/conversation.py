"""The texts of a conversation for people: messages, tool calls and their results.

Messages are those of chat completions, or a client's request on any wire that the bridge speaks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import groupby, takewhile
from typing import Any, NamedTuple

import orjson

from koderz.models.clients import ITEM, REQUEST
from koderz_tracker.records import Call

RESULT = "result"
"""The speaker of a tool's result."""

_OUTPUT_CHARS = 4000  # of what a tool printed
_FOLDED_CHARS = 200
_WHERE = "koderz benchmark show --json has them"
_SILENT = "(no output)"

# by kind of part
_CALLS = {"tool_use": "input", "function_call": "arguments", "custom_tool_call": "input"}
_RESULTS = {
    "tool_result": "content",
    "function_call_output": "output",
    "custom_tool_call_output": "output",
}
_THOUGHTS = {"thinking": "thinking", "reasoning": "summary"}
_OWN = {"system", "developer", "tools"}  # what an agent says of itself
# what an agent adds to its user's words
_TAGGED = re.compile(r"\s*<([\w-][\w -]*)>.*</\1>\s*", re.DOTALL)
_UNTOLD = {"role", "content", "type", "id", "status", "tool_calls", "tool_call_id"}


class Utterance(NamedTuple):
    """A text and its speaker: a role, or the kind of text."""

    who: str
    text: str


def told_asked(call: Call, messages: Iterable[Mapping[str, Any]]) -> Iterator[Utterance]:
    """The texts of messages of a call, with long outputs cut and a client's own system text in one line."""
    folds = is_of_client(call)
    for message in messages:
        for who, group in groupby(_texts(message), key=lambda said: said.who):
            texts = [
                _folded(text) if folds and (who in _OWN or _TAGGED.fullmatch(text)) else text
                for _, text in group
            ]
            text = "\n".join(texts)
            yield Utterance(who, shortened(text, _OUTPUT_CHARS) if who == RESULT else text)


def told_results(call: Call) -> list[str]:
    """The tool results in a client's request that answer the previous reply; empty for other calls."""
    last = takewhile(
        lambda message: not is_own(message), reversed(call.messages if is_of_client(call) else ())
    )
    return [text for message in reversed([*last]) for who, text in _texts(message) if who == RESULT]


def told_reply(call: Call, *, raw: bool = False) -> str:
    """A model's reply: its text, with `raw` its reasoning, and its tool calls with their arguments."""
    text = str(call.reply if raw or call.text is None else call.text).strip()
    calls = (_called(each.get("function") or {}, "arguments") for each in call.tool_calls)
    return "\n\n".join(filter(None, [text, *calls])) or "(an empty reply)"


def is_of_client(call: Call) -> bool:
    """Whether the call is another agent's request passed on by the bridge."""
    return bool(call.messages) and call.messages[0]["role"] == REQUEST


def is_own(message: Mapping[str, Any]) -> bool:
    """Whether a message is the model's own."""
    if message["role"] == ITEM:
        return _kind(message["content"][0]) not in _RESULTS
    return bool(message["role"] == "assistant")


def known_by(message: Mapping[str, Any]) -> int:
    """A key that is equal for messages of equal content, whatever a client adds for caching."""
    if message["role"] == REQUEST:
        return hash(REQUEST)
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    said = [
        {**part, "cache_control": None} if isinstance(part, Mapping) else part for part in parts
    ]
    return hash(orjson.dumps({**message, "content": said}, option=orjson.OPT_SORT_KEYS))


def chat_of(messages: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Messages of any wire by their role (system, user, assistant or tool) with a text as content.

    One of the model's may have `reasoning` and `tool_calls`, each {id, name, arguments, error}; a tool's has the
    `tool_call_id` that it answers. Offers of tools are left out.
    """
    for message in messages:
        role, content = str(message["role"]), message.get("content")
        if role in (REQUEST, "tools"):
            continue
        texts: list[str] = []
        thoughts = [message["reasoning_content"]] if message.get("reasoning_content") else []
        calls = [*map(_chat_call, message.get("tool_calls") or ())]
        if role == "tool":
            content = [
                {
                    "type": "tool_result",
                    "tool_use_id": message.get("tool_call_id"),
                    "content": content,
                }
            ]
        for part in content if isinstance(content, list) else filter(None, [content]):
            kind = _kind(part)
            if kind in _RESULTS:
                answered = {"tool_call_id": part.get("tool_use_id") or part.get("call_id") or ""}
                yield {"role": "tool", "content": _flat(part.get(_RESULTS[kind])), **answered}
            elif kind in _THOUGHTS:
                thoughts.append(_flat(part.get(_THOUGHTS[kind])))
            elif kind in _CALLS:
                named = {"name": part.get("name"), "arguments": part.get(_CALLS[kind])}
                calls.append(
                    _chat_call({"id": part.get("call_id") or part.get("id"), "function": named})
                )
            else:
                texts.append(_flat(part))
        if texts or thoughts or calls:
            own = {"reasoning": "\n".join(filter(None, thoughts)), "tool_calls": calls}
            who = "system" if role in _OWN else "user"
            if is_own(message):
                who = "assistant"
            yield {"role": who, "content": "\n".join(texts), **(own if who == "assistant" else {})}


def chat_reply(call: Call) -> dict[str, Any]:
    """A model's reply as one of these messages."""
    return {
        "role": "assistant",
        "content": str(call.reply if call.text is None else call.text),
        "reasoning": str(call.reasoning),
        "tool_calls": [*map(_chat_call, call.tool_calls)],
    }


def _chat_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    given, error = function.get("arguments"), None
    if isinstance(given, str):
        try:
            given = orjson.loads(given or "{}")
        except orjson.JSONDecodeError as reason:  # a free text, or one that was cut off
            error = str(reason)
    arguments = given if isinstance(given, Mapping) else {"arguments": given}
    return {
        "id": str(call.get("id") or ""),
        "name": str(function.get("name") or ""),
        "arguments": dict(arguments),
        "error": error,
    }


def shortened(text: str, most: int, where: str = _WHERE) -> str:
    """The text without its middle if longer than `most`, with a note on the omitted characters."""
    if len(text) <= most:
        return text
    half = most // 2
    return (
        f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out; {where} …\n{text[-half:]}"
    )


def _folded(text: str) -> str:
    head = text.strip()[:_FOLDED_CHARS].partition("\n")[0]
    left = len(text.strip()) - len(head)
    return f"{head} … {left:,} more characters; {_WHERE}" if left else head


def _texts(message: Mapping[str, Any]) -> Iterator[Utterance]:
    """The parts of a message, in order."""
    role, content = str(message["role"]), message.get("content")
    if role == REQUEST:
        return
    if role == "tools" and isinstance(content, list):
        content = ", ".join(map(_tool, content))
    if role == "tool":
        content = [{"type": "tool_result", "content": content}]
    for part in content if isinstance(content, list) else filter(None, [content]):
        yield _part(role, part)
    for call in message.get("tool_calls") or ():
        yield Utterance(role, _called(call.get("function") or {}, "arguments"))
    others = [f"{name}: {_json(value)}" for name, value in message.items() if name not in _UNTOLD]
    yield from ([Utterance(role, "\n".join(others))] if others else ())


def _part(role: str, part: Any) -> Utterance:
    kind = _kind(part)
    if kind in _RESULTS:
        return Utterance(RESULT, _flat(part.get(_RESULTS[kind])).rstrip() or _SILENT)
    if kind in _THOUGHTS:
        return Utterance("reasoning", _flat(part.get(_THOUGHTS[kind])))
    if kind in _CALLS:
        return Utterance("assistant", _called(part, _CALLS[kind]))
    return Utterance(role, _flat(part))


def _kind(part: Any) -> str:
    return str(part.get("type", "")) if isinstance(part, Mapping) else ""


def _flat(content: Any) -> str:
    """The text of a part, or of several."""
    if isinstance(content, list):
        return "\n".join(map(_flat, content))
    if not isinstance(content, Mapping):
        return str(content or "")
    return (
        str(content["text"])
        if isinstance(content.get("text"), str)
        else f"[{_kind(content) or 'part'}]"
    )


def _tool(tool: Any) -> str:
    """The name of an offered tool."""
    if not isinstance(tool, Mapping):
        return str(tool)
    return str((tool.get("function") or tool).get("name") or _kind(tool))


def _called(call: Mapping[str, Any], field: str) -> str:
    """A tool's name and its arguments, a line each if short."""
    name, arguments = call.get("name"), call.get(field)
    if isinstance(arguments, str):
        with suppress(orjson.JSONDecodeError):  # of a free text
            arguments = orjson.loads(arguments or "{}")
    fields = arguments if isinstance(arguments, Mapping) else {field: arguments}
    values = {
        key: value if isinstance(value, str) else _json(value) for key, value in fields.items()
    }
    if len(values) == 1 and "\n" not in (only := next(iter(values.values()))).rstrip("\n"):
        return f"→ {name}: {only}".rstrip("\n")
    return "\n".join(
        [f"→ {name}", *(f"  {line}" for key, text in values.items() for line in _field(key, text))]
    )


def _field(name: str, text: str) -> list[str]:
    lines = text.splitlines()
    return (
        [f"{name}: {text}".rstrip()]
        if len(lines) < 2
        else [f"{name}:", *(f"  {line}" for line in lines)]
    )


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
