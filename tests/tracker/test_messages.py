"""How long conversations with tools are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from koderz.testing import a_journal
from koderz_tracker.messages import letters_of, share_messages
from koderz_tracker.records import Call, encode
from koderz_tracker.stories import Stories
from tests.tracker import builders


def _call(number: int, turns: list[dict[str, Any]]) -> Call:
    request: dict[str, Any] = {
        "role": "request",
        "content": None,
        "wire": "messages",
        "fields": {"metadata": number},
        "parts": [],
    }
    tools = {"role": "tools", "content": [{"name": "x", "description": "y" * 48_000}]}
    system = {"role": "system", "content": [{"type": "text", "text": "z" * 29_000}]}
    return builders.call(0, number, messages=[request, tools, system, *turns])


def test_messages_of_a_hundred_turns_take_little_room() -> None:
    turns: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "u" * 12_000}]}]
    stored: set[int] = set()
    size = 0
    for number in range(100):
        lines = share_messages(_call(number, turns), stored)
        size += sum(len(encode(line)) for line in lines)
        use = {"type": "tool_use", "id": f"t{number}", "name": "Bash", "input": {"command": "ls " + "-" * 300}}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "o" * 900}
        turns += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    assert len(orjson.dumps(turns)) > 100_000
    assert size < 1_500_000


def test_messages_are_read_back_whole(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": [{"type": "text", "text": f"{number} " * 400}]} for number in range(10)]
    call = _call(1, turns)
    folder = a_journal(tmp_path, call, builders.judged(0))
    stories = Stories(folder)
    stories.refresh()
    found = next(record for record in stories.of(call.experiment_id) if isinstance(record, Call))
    assert found.messages == call.messages


def test_encoded_pictures_are_no_text() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    assert letters_of({"role": "user", "content": "abc"}) == 3
    assert letters_of({"role": "user", "content": [{"type": "text", "text": "a b"}, picture]}) < 100
