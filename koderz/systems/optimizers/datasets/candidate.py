"""Candidates: prompts with placeholders and worked examples, as a search tries them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from koderz.suites.reviews import json_object
from koderz.suites.tables import fill, placeholders
from koderz.systems.optimizers.datasets.payload import normalised, shingles
from koderz.types import Message

if TYPE_CHECKING:
    from koderz.systems.optimizers.datasets.payload import Dataset, Item

LONGEST = 20_000
"""The most characters of a proposal."""

_HELD = 0.8  # share of a test item's runs of five words that a proposal may not hold


@dataclass(frozen=True)
class Candidate:
    """A prompt: messages with placeholders, the system's first, and the ids of train items as examples."""

    messages: tuple[Message, ...]
    demos: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def instruction(self) -> str:
        """The text of the system message, without the fixed line on the format."""
        return str(self.messages[0]["content"])

    @cached_property
    def digest(self) -> str:
        """A digest of the messages and the examples, 16 hex digits."""
        data = json.dumps([self.messages, self.demos], sort_keys=True)
        return hashlib.sha256(data.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def with_system(self, text: str) -> Candidate:
        """A copy with another instruction."""
        return replace(self, messages=({**self.messages[0], "content": text}, *self.messages[1:]))

    def with_user(self, template: str) -> Candidate:
        """A copy with another user's message, which has to end with an item's placeholder."""
        return replace(
            self, messages=(*self.messages[:-1], {**self.messages[-1], "content": template})
        )

    def with_demos(self, ids: Sequence[str]) -> Candidate:
        """A copy with these train items as worked examples, in this order."""
        return replace(self, demos=tuple(ids))


class Template:
    """The form of a dataset's candidates, and the rules for accepting them."""

    def __init__(self, dataset: Dataset) -> None:
        self.initial = Candidate(tuple(dataset.messages))
        self._dataset = dataset
        self._train = {item.id: item for item in dataset.train}

    def messages(self, candidate: Candidate, item: Item) -> list[Message]:
        """The messages for a model. Only the item's own placeholders are filled in, and only once."""
        system, *others = candidate.messages
        told = "\n\n".join(
            part for part in (str(system["content"]), self._dataset.format_line) if part
        )
        found: list[Message] = [{"role": "system", "content": told}] if told else []
        for demo in candidate.demos:
            asked, answered = self._dataset.demonstrate(self._train[demo])
            found += [
                {"role": "user", "content": asked},
                {"role": "assistant", "content": answered},
            ]
        return found + [
            {**each, "content": fill(str(each["content"]), item.columns)} for each in others
        ]

    def size(self, candidate: Candidate) -> int:
        """The number of characters of the messages and the examples."""
        demos = (self._dataset.demonstrate(self._train[demo]) for demo in candidate.demos)
        return sum(len(str(each["content"])) for each in candidate.messages) + sum(
            len(a) + len(b) for a, b in demos
        )

    def refusal(self, candidate: Candidate) -> str:
        """The reason why a proposal isn't accepted; empty if it is."""
        if unknown := [demo for demo in candidate.demos if demo not in self._train]:
            return f"the example {unknown[0]!r} is no train item"
        texts = [str(each["content"]) for each in candidate.messages]
        if sum(map(len, texts)) > LONGEST:
            return f"it has more than {LONGEST:,} characters"
        if candidate.messages[1:] != self.initial.messages[1:] and not self._ends_in_item(
            texts[-1]
        ):
            return "its user's message doesn't end with the item's placeholder"
        return "it holds a test item" if self._holds_test_item("\n".join(texts)) else ""

    def _ends_in_item(self, template: str) -> bool:
        known = self._dataset.validation[0].columns
        needed = placeholders(str(self.initial.messages[-1]["content"]), known)
        ends = re.search(r"\{(\w[^{}]*)\}\s*$", template)
        return needed <= placeholders(template, known) and ends is not None and ends[1] in known

    def _holds_test_item(self, text: str) -> bool:
        runs = shingles(normalised(text))
        touched = {number for run in runs for number in self._test_runs.get(run, ())}
        return any(
            len(self._test_texts[number] & runs) >= _HELD * len(self._test_texts[number])
            for number in touched
        )

    @cached_property
    def _test_texts(self) -> list[frozenset[str]]:
        """The runs of five words in each text of a test item, except texts that other splits have too."""
        others = {
            normalised(text)
            for item in (*self._dataset.train, *self._dataset.validation)
            for text in _texts(item)
        }
        texts = dict.fromkeys(
            normalised(text) for item in self._dataset.test for text in _texts(item)
        )
        known = normalised("\n".join(str(each["content"]) for each in self.initial.messages))
        return [
            frozenset(shingles(text))
            for text in texts
            if text not in others and len(text.split()) >= 5 and text not in known
        ]

    @cached_property
    def _test_runs(self) -> Mapping[str, list[int]]:
        found: dict[str, list[int]] = {}
        for number, runs in enumerate(self._test_texts):
            for run in runs:
                found.setdefault(run, []).append(number)
        return found


def _texts(item: Item) -> Sequence[str]:
    return tuple(item.columns.values())


def read_object(text: str) -> dict[str, Any] | None:
    """The first JSON object in a reply with `prompts` or `failure_modes`, even within a fence or prose.

    `prompts` are texts, `failure_modes` have `name`, `description` and `root_cause`; None where neither is there.
    """
    found = json_object(text, *_KEYS) or {}
    read = {key: kept for key, keep in _KEYS.items() if (kept := _listed(found.get(key), keep))}
    return read or None


def _listed(values: object, keep: Callable[[object], Any]) -> list[Any]:
    return [kept for value in values if (kept := keep(value))] if isinstance(values, list) else []


def _text(value: object) -> str:
    """The text without halves of surrogate pairs, which no JSON can hold."""
    return value.strip().encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _mode(value: object) -> dict[str, str] | None:
    if not isinstance(value, dict) or not _text(value.get("name")):
        return None
    return {key: _text(value.get(key)) for key in ("name", "description", "root_cause")}


_KEYS: Mapping[str, Callable[[object], Any]] = {"prompts": _text, "failure_modes": _mode}
