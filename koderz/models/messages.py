"""Messages translated to each wire format, and a model's reasoning separated from its reply.

A solver's messages are those of OpenAI's chat completions, which OpenAI's wire sends as they are. The other formats
translate what they have a place for; what they have none for is a Fault that names it, and is never left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from koderz.errors import Fault
from koderz_tracker.messages import text_of

if TYPE_CHECKING:
    from koderz.types import Message


_DATA_URL = re.compile(r"data:(?P<type>[\w.+-]+/[\w.+-]+);base64,(?P<data>.*)", re.DOTALL)
_OF_OLLAMA = frozenset({"images", "thinking", "tool_name", "tool_call_id"})
_OF_ANTHROPIC = frozenset(
    {
        "text",
        "image",
        "document",
        "search_result",
        "tool_use",
        "tool_result",
        "thinking",
        "redacted_thinking",
    }
)


class Offer(NamedTuple):
    """The tools that a request offers, and which of them may be called: None for any, or as in chat completions."""

    tools: list[dict[str, Any]]
    choice: Any = None


def parted(messages: Sequence[Message]) -> tuple[Offer, list[Message]]:
    """The offered tools, and the conversation without them."""
    offers = [message for message in messages if message["role"] == "tools"]
    if not offers:
        return Offer([]), [*messages]
    tools = [tool for message in offers for tool in message["content"] or ()]
    return Offer(tools, offers[-1].get("choice")), [
        message for message in messages if message["role"] != "tools"
    ]


def ollama_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages for `/api/chat`: images apart from the text, arguments of tools as objects."""
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    tools = {
        call.get("id"): function["name"]
        for call, function in zip(calls, map(_function, calls), strict=True)
    }
    return [_ollama_message(message, tools) for message in messages]


def _ollama_message(message: Message, tools: Mapping[Any, str]) -> dict[str, Any]:
    """One message for `/api/chat`. `tools` are the names of called tools, by the call's id."""
    told: dict[str, Any] = {"role": message["role"], "content": message["content"]}
    for name, value in message.items():
        if name in _OF_OLLAMA:
            told[name] = value
        elif name == "tool_calls":
            told[name] = [_ollama_call(call) for call in value or ()]
        elif name == "reasoning_content":
            told["thinking"] = value
        elif name == "name" and message["role"] == "tool":
            told["tool_name"] = value
        elif name not in told:
            raise _no_place("Ollama's chat", message, f"the field {name!r}")
    if message["role"] == "tool" and message.get("tool_call_id") in tools:
        told.setdefault("tool_name", tools[message["tool_call_id"]])
    if isinstance(message["content"], str):
        return told
    texts, images = [], list(told.get("images") or ())
    for part in message["content"] or ():
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and part.keys() == {"type", "text"}:
            texts.append(str(part["text"]))
        elif kind == "image_url" and (inline := _DATA_URL.fullmatch(_image_url(part))):
            images.append(inline["data"])
        else:
            raise _no_place("Ollama's chat", message, f"this part of its content: {part!r:.80}")
    return {**told, "content": "\n".join(texts), **({"images": images} if images else {})}


def _ollama_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = _function(call)
    return {**call, "function": {**function, "arguments": _arguments(function)}}


def responses_input(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as items of `/responses`; a turn that came as items of its own goes back as these."""
    return [item for message in messages for item in _responses_items(message)]


def _responses_items(message: Message) -> Iterator[dict[str, Any]]:
    role, content = message["role"], message["content"]
    known = {"role", "content", "items", "reasoning_content", "tool_calls", "name"}
    if unknown := [
        name
        for name in message
        if name not in (known | {"tool_call_id"} if role == "tool" else known)
    ]:
        raise _no_place("OpenAI's responses", message, f"the field {unknown[0]!r}")
    if "items" in message:
        yield from message["items"]
    elif role == "tool":
        told = content if isinstance(content, str) else text_of({"content": content})
        yield {
            "type": "function_call_output",
            "call_id": message.get("tool_call_id"),
            "output": told,
        }
    else:
        if content:
            yield {"role": role, "content": _responses_content(message, content)}
        for call in message.get("tool_calls") or ():
            function = _function(call)
            arguments = function.get("arguments") or "{}"
            yield {
                "type": "function_call",
                "call_id": call.get("id"),
                "name": function["name"],
                "arguments": arguments
                if isinstance(arguments, str)
                else orjson.dumps(arguments).decode(),
            }


def _responses_content(message: Message, content: str | list[Any]) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    told: list[dict[str, Any]] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            told.append(
                {
                    "type": "output_text" if message["role"] == "assistant" else "input_text",
                    "text": part["text"],
                }
            )
        elif kind == "image_url":
            told.append({"type": "input_image", "detail": "auto", "image_url": _image_url(part)})
        else:
            raise _no_place(
                "OpenAI's responses", message, f"this part of its content: {part!r:.80}"
            )
    return told


def anthropic_messages(
    messages: Sequence[Message],
) -> tuple[str | list[dict[str, Any]], list[dict[str, Any]]]:
    """The system prompt, and the turns of user and assistant; consecutive messages of one role are joined.

    An empty turn, such as a reply without text, is left out, since the server refuses it.
    """
    system: list[str | list[dict[str, Any]]] = []
    turns: list[dict[str, Any]] = []
    for message in messages:
        content = _anthropic_content(message)
        if not content or (isinstance(content, str) and not content.strip()):
            continue
        role = "user" if message["role"] == "tool" else message["role"]
        if role == "system":
            system.append(content)
        elif turns and turns[-1]["role"] == role:
            turns[-1] = {"role": role, "content": _joined([turns[-1]["content"], content])}
        else:
            turns.append({"role": role, "content": content})
    return _joined(system), turns


def _anthropic_content(message: Message) -> str | list[dict[str, Any]]:
    """A string if the content is all text, else blocks."""
    content, calls = message["content"], message.get("tool_calls") or ()
    # Reasoning without the signature that Anthropic gave it isn't taken back.
    known = {"role", "content", "tool_calls", "reasoning_content"} | (
        {"tool_call_id"} if message["role"] == "tool" else set()
    )
    if unknown := [name for name in message if name not in known]:
        raise _no_place("Anthropic's messages", message, f"the field {unknown[0]!r}")
    told = content if isinstance(content, str) else list(_blocks(message, content or ()))
    if message["role"] == "tool":
        return [
            {"type": "tool_result", "tool_use_id": message.get("tool_call_id"), "content": told}
        ]
    if not calls:
        return told
    return [*_as_blocks(told), *map(_tool_use, calls)]


def _blocks(message: Message, parts: Sequence[Any]) -> Iterator[dict[str, Any]]:
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "image_url":
            url = _image_url(part)
            if inline := _DATA_URL.fullmatch(url):
                source = {"type": "base64", "media_type": inline["type"], "data": inline["data"]}
            else:
                source = {"type": "url", "url": url}
            yield {"type": "image", "source": source}
        elif kind not in _OF_ANTHROPIC or (
            kind == "text" and not isinstance(part.get("text"), str)
        ):
            raise _no_place(
                "Anthropic's messages", message, f"this part of its content: {part!r:.80}"
            )
        elif kind != "text" or part["text"].strip():
            yield part


def _tool_use(call: Mapping[str, Any]) -> dict[str, Any]:
    function = _function(call)
    return {
        "type": "tool_use",
        "id": call.get("id"),
        "name": function["name"],
        "input": _arguments(function),
    }


def _joined(contents: Sequence[str | list[dict[str, Any]]]) -> str | list[dict[str, Any]]:
    texts = [content for content in contents if isinstance(content, str)]
    if len(texts) == len(contents):
        return "\n\n".join(texts)
    return [block for content in contents for block in _as_blocks(content)]


def _as_blocks(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content.strip() else []


def _image_url(part: Mapping[str, Any]) -> str:
    image = part.get("image_url")
    return str(image.get("url", "")) if isinstance(image, dict) else str(image)


def _function(call: Any) -> Mapping[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or "name" not in function:
        raise Fault(
            f"ask: a tool call has to be a function with a name, not {call!r:.80}",
            cause="user_code",
        )
    return function


def _arguments(function: Mapping[str, Any]) -> Any:
    """The arguments of a call as an object; chat completions have them as JSON text."""
    arguments = function.get("arguments") or "{}"
    if not isinstance(arguments, str):
        return arguments
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        raise Fault(
            f"ask: the arguments of the tool call {function['name']} are no JSON: {arguments:.80}",
            cause="user_code",
        ) from None


def _no_place(wire: str, message: Message, what: str) -> Fault:
    return Fault(
        f"{wire} can't carry a message of the {message['role']} as asked: there is no place for {what}",
        cause="rejected",
    )


_OPENING = re.compile(r"\s*<(think|thinking)>")
# The chat templates of some reasoning models write the opening tag themselves, so that the reply has only
# the closing one, on its own line.
_CLOSING_ALONE = re.compile(r"^[ \t]*</think>[ \t]*$", re.MULTILINE)


class SplitText(NamedTuple):
    """A reply's `text` and `reasoning`; `cut` if the two came as one text."""

    text: str
    reasoning: str = ""
    cut: bool = False


def part(sent: str, *, complete: bool) -> SplitText:
    """Separates a leading `<think>` block from the rest of a reply.

    A block that isn't closed is all there is where the reply was not `complete`; in a complete reply it is
    no block, and stays.
    """
    opening = _OPENING.match(sent)
    if opening is None:
        alone = _CLOSING_ALONE.search(sent) if "</think>" in sent else None
        if (
            alone is None
            or sent.count("```", 0, alone.start()) % 2
            or "<think>" in sent[: alone.start()]
        ):
            return SplitText(sent)
        return _parted(sent, 0, alone.start(), alone.end())
    closing = f"</{opening[1]}>"
    end = sent.find(closing, opening.end())
    if end >= 0:
        return _parted(sent, opening.end(), end, end + len(closing))
    return SplitText(sent) if complete else SplitText("", sent[opening.end() :].strip(), cut=True)


def _parted(sent: str, start: int, end: int, after: int) -> SplitText:
    # Only line ends go: the indentation of a first line may be a program's.
    return SplitText(sent[after:].lstrip("\r\n"), sent[start:end].strip(), cut=True)
