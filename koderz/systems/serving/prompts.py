"""The prompts of a load: random words, ShareGPT's conversations, or the user's own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any, NamedTuple

from koderz.errors import KoderzError
from koderz.suites.tables import read_rows
from koderz.suites.tokens import load_tokenizer
from koderz.systems.serving.options import ServingOptions

_COMMON = """
the of and to in is was he for it with as his on be at by had not are but from or have an they which one you
were all her she there would their we him been has when who will no more if out so up said what its about than
into them can only other time new some could these two may first then do any like my now over such our man me
even most made after also did many off before must well back through years much where your way down should
because long each just state those people too mr how little good world make very year still see own work men day
get here old life both between being under three never know same last another while us might great go come since
against right came take used himself few house american use place during high without again home around small
however found part school general once upon
"""
_WORDS = _COMMON.split()
"""Common English words, each of which is one token to most tokenizers."""

_TRIES = 10  # random texts of which one is cut between two tokens
# tokens of a ShareGPT prompt and answer that vLLM takes
_SHORTEST, _LONGEST_PROMPT, _LONGEST = 4, 1024, 2048


class Prompt(NamedTuple):
    """One request of a load."""

    text: str
    tokens: int  # of the text, as counted here
    output_tokens: int  # that are asked for


def counter_of(tokenizer: str | None) -> Callable[[str], int]:
    """A counter of tokens: a tokenizer's file, else words. Raises KoderzError or Unreachable."""
    return load_tokenizer(tokenizer).count if tokenizer else lambda text: len(text.split())


def load_prompts(options: ServingOptions, seed: int) -> list[Prompt]:
    """The requested number of prompts, repeating a smaller dataset. Raises KoderzError if there are none."""
    rng = random.Random(f"serving {seed}")  # noqa: S311 repeatable on purpose
    if options.dataset_name == "random":
        return [*_random(options, rng)]
    if options.dataset_path is None:
        raise KoderzError(f"--dataset-name {options.dataset_name} needs --dataset-path FILE")
    found = [*(_sharegpt if options.dataset_name == "sharegpt" else _custom)(options)]
    if not found:
        raise KoderzError(f"{options.dataset_path} has no prompt that could be used")
    if options.dataset_name == "sharegpt":
        rng.shuffle(found)
    return [*islice(cycle(found), options.num_prompts)]


def _random(options: ServingOptions, rng: random.Random) -> Iterator[Prompt]:
    """Random words; with a tokenizer, cut to the exact number of tokens."""
    wanted = options.random_input_len
    counting: Any = load_tokenizer(options.tokenizer) if options.tokenizer else None
    for _ in range(options.num_prompts):
        words, count = " ".join(rng.choices(_WORDS, k=wanted)), wanted
        for _ in range(_TRIES if counting else 0):
            text = f"{words} {' '.join(rng.choices(_WORDS, k=wanted))}"
            encoded = counting.tokenizer.encode(text, add_special_tokens=False)
            text = text[: encoded.offsets[min(wanted, len(encoded.ids)) - 1][1]]
            words, count = text, counting.count(text)
            if count == wanted:
                break
        yield Prompt(words, count, options.random_output_len)


def _sharegpt(options: ServingOptions) -> Iterator[Prompt]:
    """The first question and answer of each conversation, except those that vLLM leaves out."""
    assert options.dataset_path
    count = counter_of(options.tokenizer)
    for row in read_rows(options.dataset_path):
        turns: Any = row.fields.get("conversations", [])
        if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
            raise row.error("the field 'conversations' has to be a list of objects")
        if len(turns) < 2:
            continue
        prompt, answer = (str(turn.get("value", "")) for turn in turns[:2])
        asked, told = count(prompt), count(answer)
        if min(asked, told) >= _SHORTEST and asked <= _LONGEST_PROMPT and asked + told <= _LONGEST:
            yield Prompt(prompt, asked, told)


def _custom(options: ServingOptions) -> Iterator[Prompt]:
    assert options.dataset_path
    count = counter_of(options.tokenizer)
    for row in read_rows(options.dataset_path):
        text, wanted = (
            row.text("prompt"),
            int(row.number("output_tokens", options.random_output_len)),
        )
        if not text or wanted < 1:
            raise row.error("a prompt has a text and at least one output token")
        yield Prompt(text, count(text), wanted)
