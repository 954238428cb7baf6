"""The generated datasets: sums told as stories, and messages to sort. They are easier than any real one."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from koderz.suites.metrics import LabelMetric, Metric, NumberMetric
from koderz.suites.scorers import Labels
from koderz.systems.optimizers.datasets.payload import SPLITS, Item, Piece, Preset, Texts

ITEMS = 300  # of each split

Draw = Callable[[random.Random, int], Item]
"""Draws the item with a number, without its id."""


@dataclass(frozen=True, slots=True)
class Generated:
    """A dataset generated from a seed."""

    instruction: str
    user: str
    metric: Metric
    draw: Draw

    @property
    def preset(self) -> Preset:
        return {
            split: Piece("generated", ITEMS * number, ITEMS) for number, split in enumerate(SPLITS)
        }

    def items(self, name: str, seed: int) -> tuple[Item, ...]:
        """All items, no two equal or nearly so."""
        return _drawn(self.draw, name, seed)


# verification, and a program that begins several runs, load the same datasets again and again
@cache
def _drawn(draw: Draw, name: str, seed: int) -> tuple[Item, ...]:
    dice = random.Random(f"{name} {seed}")  # noqa: S311 repeatable on purpose
    items: list[Item] = []
    texts = Texts(())
    while len(items) < ITEMS * len(SPLITS):
        item = draw(dice, len(items))
        if not texts.like(item.text):
            items.append(replace(item, id=f"{name}/generated/{len(items)}"))
            texts.add(item.text)
    return tuple(items)


_WORDS = {
    "names": "Nora Emil Tessa Jonas Priya Mateo Ingrid Kofi Lena Akira Salma Bruno Freya Tomas Yara Anton Mirela Diego",
    "things": "marbles stamps seashells buttons postcards candles tulips notebooks badges walnuts lanterns ribbons",
    "days": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "towns": "Lund Porto Graz Bergen Tartu Leuven Turin Cork Brno Malaga Aarhus Gdansk",
}
_NAMES, _THINGS, _DAYS, _TOWNS = (words.split() for words in _WORDS.values())

_ASIDES = (
    "{a} is {n} years old.",
    "It is {n} degrees outside.",
    "The shop at the corner opened {n} years ago.",
    "{b}, who watches, has {n} cousins.",
    "The house where {a} lives has number {n}.",
)
_MORE = (
    "{b} gives {a} {n} more {thing}.",
    "{a} finds {n} {thing} in a drawer.",
    "{a} buys another {n} {thing}.",
)
_LESS = (
    "{a} gives {n} {thing} to {b}.",
    "{a} loses {n} {thing} on the way.",
    "{b} borrows {n} {thing} from {a}.",
)
_TIMES = (
    "Over the year the {thing} that {a} has become {n} times as many.",
    "{a} swaps each of the {thing} for {n}.",
)
_PRICE = "Each of the {thing} is sold for {n} dollars."
_PARTS = ("{a} shares the {thing} equally among {n} boxes and keeps one box.",)
# the fewest and the most
_STEPS = {"chain": (5, 8), "distractor": (1, 7), "rate": (1, 4), "share": (1, 4)}


def _arithmetic(draw: random.Random, number: int) -> Item:
    """A story of one to eight steps; a third of them have an irrelevant number."""
    kind = "distractor" if number % 3 == 0 else draw.choice(("chain", "rate", "share"))
    words = dict(zip("ab", draw.sample(_NAMES, 2), strict=True)) | {"thing": draw.choice(_THINGS)}
    count = draw.randint(*_STEPS[kind])
    value = draw.randint(12, 96)
    told, steps = ["{a} has {n} {thing}.".format(**words, n=value)], list[str]()
    for place in range(count):
        last = place == count - 1
        sign = {"rate": "x", "share": "/"}.get(kind, "") if last else ""
        sign, n, after = _step(draw, value, sign or draw.choice("+-"))
        is_price = last and kind == "rate"
        told.append((_PRICE if is_price else draw.choice(_SAID[sign])).format(**words, n=n))
        steps.append(f"{value} {sign} {n} = {after}")
        value = after
    if kind == "distractor":
        told.insert(
            draw.randint(1, len(told)), draw.choice(_ASIDES).format(**words, n=draw.randint(3, 80))
        )
    asked = (
        "How many dollars does {a} get?"
        if kind == "rate"
        else "How many {thing} does {a} have now?"
    )
    answer = "\n".join([*steps, f"#### {value}"])
    return Item("", {"question": " ".join([*told, asked.format(**words)])}, answer, kind=kind)


def _step(draw: random.Random, value: int, sign: str) -> tuple[str, int, int]:
    """A step of arithmetic: the sign, the number, and the result, which is whole and above 0."""
    if sign == "/":
        parts = [n for n in range(2, 10) if value % n == 0 and value > n]
        if parts:
            n = draw.choice(parts)
            return sign, n, value // n
        sign = "x"
    if sign == "x":
        n = draw.randint(2, 9)
        return sign, n, value * n
    if sign == "-" and value > 2:
        n = draw.randint(1, value - 1)
        return sign, n, value - n
    n = draw.randint(2, 60)
    return "+", n, value + n


_SAID: Mapping[str, tuple[str, ...]] = {"+": _MORE, "-": _LESS, "x": _TIMES, "/": _PARTS}

_LABELS = ("billing", "delivery", "technical", "account")
_CLEAR: Mapping[str, tuple[str, ...]] = {
    "billing": (
        "the invoice of {day} lists {n} dollars twice",
        "my card was charged {n} dollars for the {thing}",
    ),
    "delivery": (
        "the parcel with the {thing} hasn't come since {day}",
        "my {n} {thing} were left with a neighbour",
    ),
    "technical": (
        "the page freezes when I open my {n} {thing}",
        "the app crashes with error {n} since {day}",
    ),
    "account": ("I can't log in since {day}", "please change the address of customer {n}"),
}
_MIXED: Mapping[str, tuple[str, ...]] = {
    "billing": (
        "the parcel with {n} {thing} is late, so I want my money back",
        "after error {n} I want a refund",
    ),
    "delivery": (
        "the app shows nothing, but where are my {n} {thing}",
        "I paid on {day}; when do the {thing} come",
    ),
    "technical": (
        "paying for {n} {thing} ends in an error",
        "the tracking of my {thing} crashes at step {n}",
    ),
    "account": (
        "error {n} appears when I enter my password",
        "I was billed on {day} under my old name {a} {n}",
    ),
}
_HELLO = (
    "Hello, this is {a} from {town}:",
    "Dear team in {town},",
    "{a} here, order {m}:",
    "Hi, I write for {b} of {town},",
    "Good morning from {a},",
)
_BYE = (
    "Can {b} look into it by {other}?",
    "My number is {m}.",
    "I have written to {b} {few} times.",
    "Thanks, {a} and {b}.",
    "Please answer before {other}, says {b}.",
)


def _label(draw: random.Random, number: int) -> Item:
    """A message with a label; every second one has a phrase that belongs to another label."""
    label, mixed = draw.choice(_LABELS), number % 2 == 0
    names = draw.sample(_NAMES, 2)
    words = dict(zip("ab", names, strict=True)) | {
        "thing": draw.choice(_THINGS),
        "town": draw.choice(_TOWNS),
    }
    words |= dict(zip(("day", "other"), draw.sample(_DAYS, 2), strict=True))
    numbers = {
        "n": draw.randint(2, 999),
        "m": draw.randint(10_000, 99_999),
        "few": draw.randint(2, 9),
    }
    said = draw.choice((_MIXED if mixed else _CLEAR)[label])
    text = " ".join((draw.choice(_HELLO), f"{said}.", draw.choice(_BYE))).format(**words, **numbers)
    return Item("", {"text": text}, label, kind=f"{label}{' mixed' if mixed else ''}")


GENERATED: Mapping[str, Generated] = {
    "arithmetic": Generated(
        "Solve the problem.", "{question}", NumberMetric(("levenshtein_ratio",)), _arithmetic
    ),
    "labels": Generated(
        "Say what the message is about.",
        "{text}",
        LabelMetric(Labels({label: (label,) for label in _LABELS})),
        _label,
    ),
}
