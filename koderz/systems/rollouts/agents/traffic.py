"""The record of what passes between an agent and its MCP servers: tool calls, and what a server does wrong.

An agent can have anything recorded, by what it calls and by what it does to a server beside it, so that the record
never changes a verdict. It is bounded, whatever is sent.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import orjson

# bytes of a message that is a finding, and of one that ends its server
LARGE, LARGEST = 1 << 20, 16 << 20
_ROOM, _TEXT = 1 << 20, 4000  # characters of all recorded calls to a server, and of one text
_FINDINGS, _OPEN = 20, 1000  # different texts, and requests that are open at once
_PARTS = 1 << 20  # of a message that is read: an empty list of two bytes takes 64 once it is
# the codes of JSON-RPC for an unknown method, and of MCP for an unknown tool
_REFUSED = (-32601, -32602)


class OpenRequest(NamedTuple):
    """A request that isn't answered yet."""

    id: Any
    method: str
    tool: str
    arguments: str
    is_part: bool  # whether it asks for a later page of a list
    begun: str
    clock: float


@dataclass(slots=True)
class Traffic:
    """The record of what passes between the agent of one rollout and one server."""

    # a digest by name, as listed before the agent began
    tools: Mapping[str, str] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)  # as far as there is room
    counts: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)  # what no sound server does
    _open: dict[str, OpenRequest] = field(default_factory=dict)
    _given_up: set[str] = field(default_factory=set)
    _room: int = _ROOM

    def find(self, text: str) -> None:
        """Counts a finding."""
        if (text := " ".join(text[:_TEXT].split())) in self.findings or len(
            self.findings
        ) < _FINDINGS:
            self.findings[text] += 1

    def asked(self, link: object, line: bytes) -> list[str]:
        """Takes a message of the agent's. Returns the keys of its requests."""
        found = []
        for message in messages_of(line):
            key, params = f"{link} {message.get('id')!r}", _table(message.get("params"))
            if (
                "method" in message
                and message.get("id") is not None
                and len(self._open) < _OPEN
                and len(key) < _TEXT
            ):
                tool, arguments = (
                    str(params.get("name", ""))[:200],
                    _cut(_json(params.get("arguments"))),
                )
                begun, clock, is_part = (
                    datetime.now().isoformat(),
                    time.monotonic(),
                    "cursor" in params,
                )
                method = str(message["method"])[:200]
                self._open[key] = OpenRequest(
                    message["id"], method, tool, arguments, is_part, begun, clock
                )
                found.append(key)
        return found

    def answered(self, link: object, line: bytes) -> bool:
        """Takes a message of the server's. Returns False for an answer that comes too late."""
        if len(line) > LARGE:
            self.find(f"it floods: a message has more than {LARGE >> 20} MB")
        messages = messages_of(line)
        if not messages and len(line) <= LARGE:
            self.find("it prints what is no message of JSON-RPC")
        if any(each.get("method") == "notifications/tools/list_changed" for each in messages):
            self.find("it says that its tools have changed")
        answers = {f"{link} {each.get('id')!r}": each for each in messages if "method" not in each}
        for key in answers.keys() & self._open.keys():
            self._close(key, answers[key], len(line))
        return self._given_up.isdisjoint(answers)

    def give_up(self, key: str, why: str) -> bytes:
        """Answers a request in its server's place: the line for the agent, empty if the request isn't open."""
        if key not in self._open:
            return b""
        request = self._open[key]
        if request.method.startswith(("initialize", "tools/")):  # others needn't be known
            self.find(f"{why} ({request.method} {request.tool}".rstrip() + ")")
        answer = {
            "jsonrpc": "2.0",
            "id": request.id,
            "error": {"code": -32001, "message": f"koderz: {why}"},
        }
        self._close(key, answer, 0)
        self._given_up.add(key)
        return orjson.dumps(answer) + b"\n"

    def record(self) -> dict[str, Any]:
        """The numbers and findings. Calls that are still open end now, without an answer."""
        for key in [*self._open]:
            self._close(key, {"error": "(no answer until the end)"}, 0)
        found: dict[str, Any] = {name: self.counts[name] for name in ("calls", "errors", "bytes")}
        found |= {"seconds": round(self.counts["us"] / 1e6, 3), "tools": sorted(self.tools)}
        texts = [
            text if times == 1 else f"{text} ({times} times)"
            for text, times in self.findings.items()
        ]
        return {**found, "findings": texts}

    def _close(self, key: str, answer: Mapping[str, Any], size: int) -> None:
        """Ends an open request by its answer."""
        request = self._open.pop(key)
        result, error = _table(answer.get("result")), answer.get("error")
        if request.method == "tools/list" and error is None:
            self._compare(
                digests_of(listed_in(result)),
                is_whole=not (request.is_part or result.get("nextCursor")),
            )
        if request.method != "tools/call":
            return
        told, is_error = text_of_answer(answer)
        if request.tool not in self.tools and not is_error:
            self.find(f"it answers for {request.tool}, which it doesn't list")
        if request.tool in self.tools and _table(error).get("code") in _REFUSED:
            self.find(f"it lists {request.tool}, and refuses it: {_table(error).get('message')}")
        seconds = time.monotonic() - request.clock
        self.counts.update(calls=1, errors=int(is_error), bytes=size, us=round(seconds * 1e6))
        call: dict[str, Any] = {
            "tool": request.tool,
            "arguments": request.arguments,
            "result": _cut(told),
        }
        call |= {
            "is_error": is_error,
            "begun": request.begun,
            "seconds": round(seconds, 4),
            "bytes": size,
        }
        self._room -= len(request.arguments) + len(call["result"]) + 200
        if self._room >= 0:
            self.calls.append(call)

    def _compare(self, now: Mapping[str, str], *, is_whole: bool) -> None:
        """Compares a list of tools, or a page of one, with that from before the agent began."""
        gone = self.tools.keys() - now.keys() if is_whole else set[str]()
        other = {name for name in now.keys() & self.tools.keys() if now[name] != self.tools[name]}
        for names, what in (
            (now.keys() - self.tools.keys(), "new"),
            (gone, "gone"),
            (other, "described otherwise"),
        ):
            for name in sorted(names):
                self.find(f"its tools have changed: {name[:200]} is {what}")


def messages_of(line: bytes) -> list[dict[str, Any]]:
    """The messages in a line, one or a batch; none where it can't be read."""
    if len(line) > LARGE and sum(map(line.count, (b",", b"[", b"{"))) > _PARTS:
        return []
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return []
    return [
        each for each in (found if isinstance(found, list) else [found]) if isinstance(each, dict)
    ]


def listed_in(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tools in an answer to `tools/list`."""
    listed = result.get("tools")
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def digests_of(tools: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """A digest of each tool by its name."""
    return {
        str(each.get("name")): hashlib.sha256(_json(each).encode()).hexdigest()[:16]
        for each in tools
    }


def text_of_answer(answer: Mapping[str, Any]) -> tuple[str, bool]:
    """The text of an answer to `tools/call`, in which other content is named, and whether it is an error."""
    result, error = _table(answer.get("result")), answer.get("error")
    content = result.get("content")
    parts = [_table(part) for part in (content if isinstance(content, list) else ())]
    text = "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in parts) or _json(
        error or result
    )
    return text, error is not None or result.get("isError") is True


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _json(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}… ({len(text):,} characters)"
