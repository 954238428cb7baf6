"""Turns of models whose server keeps no state: the items that a later request has to bring along."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from koderz.experiments.lines import Ask, digest_of
from koderz.types import Message
from koderz_tracker.records import Blob, Call

Items = Sequence[Mapping[str, Any]]


class Turns:
    """The items of the turns in one experiment, found by the conversation in which they came.

    A solver's messages hold a turn's text and tool calls alone, and so does the key by which a replay finds a request.
    """

    def __init__(self) -> None:
        self._in_place: dict[str, Items] = {}
        self._anywhere: dict[str, list[Items]] = defaultdict(list)

    def learn(self, ask: Ask, call: Call) -> None:
        """Takes in a call that is made or on record."""
        if not call.items or isinstance(call.items, Blob):
            return
        text = call.reply if call.text is None else call.text
        turn = _turn(ask.model, text if isinstance(text, str) else "", call.tool_calls)
        self._in_place[_place(ask.messages, turn)] = call.items
        if call.items not in self._anywhere[turn]:
            self._anywhere[turn].append(call.items)

    def brought_along(self, ask: Ask) -> Ask:
        """The call with the items of each turn of the model, in messages that are sent and not recorded.

        They are those of the conversation up to there; where it was shortened since, of the only turn that reads so.
        """
        if not self._anywhere:
            return ask
        return replace(ask, messages=tuple(self._with_items(ask, number) for number in range(len(ask.messages))))

    def _with_items(self, ask: Ask, number: int) -> Message:
        message = ask.messages[number]
        if message["role"] != "assistant":
            return message
        turn = _turn(ask.model, message["content"], message.get("tool_calls") or ())
        items = self._in_place.get(_place(ask.messages[:number], turn))
        if items is None:
            alike = self._anywhere.get(turn, ())
            items = alike[0] if len(alike) == 1 else None
        return message if items is None else {**message, "items": [*items]}


def _turn(model: str | None, content: Any, calls: Sequence[Mapping[str, Any]]) -> str:
    return digest_of([model, content or "", [call.get("id") for call in calls]])


def _place(messages: Sequence[Message], turn: str) -> str:
    return digest_of([messages, turn])
