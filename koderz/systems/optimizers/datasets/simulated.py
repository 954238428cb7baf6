"""The simulated model's answers to items, and the prompts that it writes.

It answers an item rightly with a chance that depends on the item, and that a rule for the item's kind in the system
message raises, and examples of its kind raise, too. Whether it is right is drawn by prompt and item, so that the same
prompt always scores the same, and a prompt that is no better may look so on few items.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from koderz.suites.scorers import squad_f1
from koderz.suites.tables import placeholders
from koderz.systems.optimizers.datasets.payload import Dataset, Item
from koderz.types import Message
from koderz_tracker.messages import text_of


class Rule(NamedTuple):
    """A rule that helps with items of a kind, as a sentence for an instruction."""

    sentence: str
    pattern: str  # by which it is found there, however it is put


RULES: Mapping[str, Rule] = {
    "distractor": Rule(
        "Leave out every number that is not needed.", r"not need|leave out|irrelevant|ignore"
    ),
    "chain": Rule("Write down the result of each step before the next one.", r"\bsteps?\b"),
    "rate": Rule("Multiply where something is sold for so much each.", r"multipl"),
    "share": Rule("Divide where something is shared equally.", r"divid|equally"),
    "billing": Rule(
        "Whoever wants money back or disputes a charge means billing.",
        r"(money|refund|charge).*billing",
    ),
    "delivery": Rule(
        "Whoever asks where goods are or when they come means delivery.",
        r"(where|when|come).*delivery",
    ),
    "technical": Rule(
        "Something that crashes or ends in an error means technical.", r"(crash|error).*technical"
    ),
    "account": Rule(
        "Names, passwords and addresses of customers mean account.",
        r"(name|password|address).*account",
    ),
    "detail": Rule("Look at every detail before you answer.", r"detail"),
    "doubt": Rule("Doubt what sounds familiar.", r"doubt|familiar"),
    "source": Rule("Rest on what is given alone.", r"given|source|context"),
    "choice": Rule("Compare all possible answers with each other.", r"compare|possible"),
}
_OF_OTHERS = ("detail", "doubt", "source", "choice")  # kinds of items that aren't generated

_BASE, _MIXED = 0.4, 0.25  # chance of an item, and of one that is ambiguous
# how much is added, and by how many examples at most
_BY_RULE, _BY_EXAMPLE, _EXAMPLES = 0.4, 0.1, 3
_SPREAD = 0.15  # how much easier or harder an item may be
_MOST = 0.95

_WANTED = re.compile(r"^Reply with a JSON object.*\Z", re.MULTILINE | re.DOTALL)
# as gepa asks
_REFLECTION = re.compile(r"^```\n(.*?)\n```$.*``` blocks\.?\s*\Z", re.MULTILINE | re.DOTALL)
_INPUTS = re.compile(r"^## Inputs\n(.*?)\n\n## Generated Outputs$", re.MULTILINE | re.DOTALL)
_INSTRUCTION = re.compile(r"<instruction>\n(.*?)\n</instruction>", re.DOTALL)
_ITEM = re.compile(r'<item id="([^"\n]+)">')
_MODE = re.compile(r'<mode name="([^"\n]+)">')
_COUNT = re.compile(r"Write (\d+) instruction")
_BETWEEN = re.compile(r"<(gold|reply)>\n(.*?)\n</\1>", re.DOTALL)
_OPENINGS = (
    "Take your time.",
    "You are an expert.",
    "Be precise.",
    "Think first.",
    "Work with care.",
    "Stay calm.",
)
_CLOSINGS = (
    "Check the result.",
    "Be brief.",
    "Give one answer.",
    "Say it plainly.",
    "Read it twice.",
    "Do your best.",
)
_SUFFIX = 24  # characters by which an item is looked up


class SimulatedReader:
    """The simulated model over the items of some datasets."""

    def __init__(self, datasets: Iterable[Dataset]) -> None:
        self._items: dict[str, tuple[Dataset, Item]] = {}
        self._by_end: dict[str, list[tuple[str, str]]] = {}
        for dataset in datasets:
            for item in (item for split in dataset.splits.values() for item in split):
                self._items[item.id] = dataset, item
                text = _last_value(dataset, item).rstrip()
                self._by_end.setdefault(text[-_SUFFIX:], []).append((text, item.id))
        self._lengths = sorted({len(end) for end in self._by_end}, reverse=True)

    def reply(self, messages: Sequence[Message], sampling: Any) -> str:
        """The reply, a pure function of messages and sampling."""
        asked = text_of(messages[-1])
        wanted = _WANTED.search(asked)
        if wanted and '"score"' in wanted[0]:
            shown = dict(_BETWEEN.findall(asked))
            score = squad_f1(shown.get("gold", ""), shown.get("reply", ""))
            return json.dumps({"score": round(score, 3), "reason": "by the words that both have"})
        if wanted:
            draw = random.Random(_digest(asked, getattr(sampling, "seed", None)))  # noqa: S311 repeatable on purpose
            return json.dumps(
                self._modes(asked) if '"failure_modes"' in wanted[0] else self._prompts(asked, draw)
            )
        if reflection := _REFLECTION.search(asked):
            return self._reflected(asked, reflection[1], getattr(sampling, "seed", None))
        found = self._find(asked)
        if found is None:
            return "I do not know."
        varied = sampling.seed if getattr(sampling, "temperature", None) else None
        return self._answer(*found, messages, varied)

    def _answer(
        self, dataset: Dataset, item: Item, messages: Sequence[Message], varied: int | None
    ) -> str:
        instruction = " ".join(text_of(each) for each in messages if each["role"] == "system")
        shown = [
            found[1]
            for each in messages[:-1]
            if each["role"] == "user"
            if (found := self._find(text_of(each)))
        ]
        examples = sum(kind_of(each) == kind_of(item) for each in shown)
        own = random.Random(item.id)  # noqa: S311 repeatable on purpose
        chance = _MIXED if item.kind.endswith("mixed") else _BASE
        chance += own.uniform(-_SPREAD, _SPREAD)
        chance += _BY_RULE * _has_rule(instruction, kind_of(item)) + _BY_EXAMPLE * min(
            examples, _EXAMPLES
        )
        drawn = random.Random(_digest(instruction, [each.id for each in shown], item.id, varied))  # noqa: S311
        is_right = drawn.random() < min(chance, _MOST)
        return dataset.metric.demonstrated(item if is_right else _wrong(dataset, item, drawn))

    def _prompts(self, asked: str, draw: random.Random) -> dict[str, Any]:
        """New prompts: if kinds are shown, mostly with a rule for one of them; otherwise with other words."""
        instructions = _INSTRUCTION.findall(asked) or ["Answer."]
        known = _INSTRUCTION.sub("", asked)
        kinds = self._kinds(known)
        count = min(int(found[1]), 100) if (found := _COUNT.search(known)) else 1
        return {"prompts": [_rewritten(instructions, kinds, draw) for _ in range(count)]}

    def _reflected(self, asked: str, instruction: str, seed: int | None) -> str:
        """A new instruction in a fence, mostly with a rule for one of the shown items."""
        draw = random.Random(_digest(asked, seed))  # noqa: S311 repeatable on purpose
        items = [found[1] for shown in _INPUTS.findall(asked) if (found := self._find(shown))]
        return (
            f"```\n{_rewritten([instruction], list(dict.fromkeys(map(kind_of, items))), draw)}\n```"
        )

    def _modes(self, asked: str) -> dict[str, Any]:
        modes = [
            {
                "name": kind,
                "description": f"It fails on {kind} items.",
                "root_cause": f"No rule for {kind} items.",
            }
            for kind in self._kinds(_INSTRUCTION.sub("", asked))
        ]
        return {"failure_modes": modes}

    def _kinds(self, shown: str) -> list[str]:
        """The kinds of the items and failure modes in a request, the most frequent first."""
        items = [
            kind_of(self._items[each][1]) for each in _ITEM.findall(shown) if each in self._items
        ]
        kinds = items + [name for name in _MODE.findall(shown) if name in RULES]
        return sorted(dict.fromkeys(kinds), key=kinds.count, reverse=True)

    def _find(self, asked: str) -> tuple[Dataset, Item] | None:
        asked = asked.rstrip()
        for length in self._lengths:
            known = [
                each for each in self._by_end.get(asked[-length:], ()) if asked.endswith(each[0])
            ]
            if known:
                return self._items[max(known, key=lambda each: len(each[0]))[1]]
        return None


def kind_of(item: Item) -> str:
    """The kind of an item; one of four by its id if it has none."""
    if item.kind:
        return item.kind.partition(" ")[0]
    return _OF_OTHERS[int(_digest(item.id), 16) % len(_OF_OTHERS)]


def _last_value(dataset: Dataset, item: Item) -> str:
    """The value of the last placeholder in the message that asks about an item."""
    template = dataset.messages[-1]["content"]
    named = placeholders(template, item.columns)
    return item.columns[max(named, key=lambda name: template.rfind(f"{{{name}}}"))]


def _has_rule(instruction: str, kind: str) -> bool:
    return re.search(RULES[kind].pattern, instruction, re.IGNORECASE) is not None


def _wrong(dataset: Dataset, item: Item, draw: random.Random) -> Item:
    """The item with another gold."""
    others = [option for option in item.options if option != item.gold] or [
        other.gold for other in dataset.train if other.gold != item.gold
    ]
    return Item(item.id, item.columns, draw.choice(others or ["nothing"]), item.options)


def _rewritten(instructions: Sequence[str], kinds: Sequence[str], draw: random.Random) -> str:
    base, *others = instructions
    missing = [kind for kind in kinds if not _has_rule(base, kind)]
    added = [
        RULES[kind].sentence for kind in draw.sample(missing, min(len(missing), draw.randint(1, 2)))
    ]
    if not kinds or draw.random() < 0.2:
        added = [draw.choice(_OPENINGS), draw.choice(_CLOSINGS)]
    taken = [rule.sentence for other in others for rule in RULES.values() if rule.sentence in other]
    new = [sentence for sentence in dict.fromkeys([*taken, *added]) if sentence not in base]
    return " ".join([base, *(new or [draw.choice(_CLOSINGS)])])


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
