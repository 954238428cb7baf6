"""Splits as they are cut, and what must not stand in two of them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import chain

import pytest

from koderz.errors import KoderzError
from koderz.systems.optimizers.datasets.payload import (
    Item,
    OnLeak,
    Piece,
    Preset,
    SplitDataset,
    Texts,
    cut,
    normalised,
    shingles,
)

TWO: Preset = {"train": Piece("train", 0, 4), "validation": Piece("train", 4, 4), "test": Piece("test", 0, 4)}
ONE: Preset = {"train": Piece("all", 0, 4), "validation": Piece("all", 4, 4), "test": Piece("all", 8, 4)}
_WORDS = "amber birch cedar delta ember frost grove heath inlet jetty knoll larch marsh north ocean pearl quartz"
WORDS = _WORDS.split()


def texts(count: int, seed: int = 0) -> list[str]:
    """So many texts of twenty words, none like another."""
    draw = random.Random(seed)
    return [" ".join(f"{draw.choice(WORDS)}{draw.randrange(99)}" for _ in range(20)) for _ in range(count)]


def items(source: str, said: Sequence[str]) -> list[Item]:
    return [Item(f"d/{source}/{row}", {"text": text}, "yes") for row, text in enumerate(said)]


def cut_of(sources: Mapping[str, Sequence[str]], preset: Preset, policy: OnLeak = "drop") -> SplitDataset:
    return cut("d", {name: items(name, said) for name, said in sources.items()}, preset, seed=42, policy=policy)


def ids(found: SplitDataset) -> dict[str, list[str]]:
    return {split: [item.id.removeprefix("d/") for item in each] for split, each in found.splits.items()}


def order_of(count: int) -> list[int]:
    from numpy.random import default_rng

    return [int(row) for row in default_rng(42).permutation(count)]


@pytest.mark.parametrize(
    ("count", "first"), [(7473, [3082, 2184, 5897, 2437, 6330, 819]), (1319, [30, 754, 429, 1010, 1284, 953])]
)
def test_cut_draws_the_rows_of_the_original(count: int, first: list[int]) -> None:
    said = {"train": [f"row {row}" for row in range(count)], "test": texts(4)}
    preset: Preset = {**TWO, "train": Piece("train", 0, 6), "validation": Piece("train", 6, 4)}

    assert ids(cut_of(said, preset))["train"] == [f"train/{row}" for row in first]


def test_cut_shuffles_a_source_once() -> None:
    order = order_of(12)

    found = ids(cut_of({"all": texts(12)}, ONE))

    assert found == {
        "train": [f"all/{row}" for row in order[:4]],
        "validation": [f"all/{row}" for row in order[4:8]],
        "test": [f"all/{row}" for row in order[8:]],
    }


def test_normalizing_ignores_case_punctuation_space_and_forms() -> None:
    assert normalised("  Ｗhat’s\tthe ﬁne, “STRASSE”? ") == normalised("what's the fine straße")
    assert normalised("3 + 4") != normalised("3 - 4")
    assert shingles("a b c d e f") == {"a b c d e", "b c d e f"}
    assert shingles("a b") == {"a b"}


def brute(known: Sequence[str], text: str) -> str | None:
    if normalised(text) in map(normalised, known):
        return "exact"
    own = shingles(normalised(text))
    others = [shingles(normalised(each)) for each in known]
    return "near" if any(len(own & each) >= len(own | each) * 4 / 5 for each in others) else None


def test_similar_texts_are_found_as_by_all_pairs() -> None:
    draw = random.Random(5)
    said = texts(60)
    for text in said[:40]:
        words = text.split() * draw.choice((1, 2))
        for _ in range(draw.choice((0, 1, 1, 2))):
            words[draw.choice((0, 1, -1, -2, draw.randrange(len(words))))] = "other"
        said.append(" ".join(words[: draw.choice((None, -1, -2, -3))]))
    said.append(said[0])
    draw.shuffle(said)
    index = Texts(said[::2])

    found, wanted = [], []
    for number, text in enumerate(said):
        found.append(index.like(text))
        wanted.append(brute(said[:number], text))
        index.add(text)

    assert found == wanted
    assert {*found} == {"exact", "near", None}


def test_test_items_are_dropped_from_train_and_validation() -> None:
    own, test = texts(20), texts(4, seed=1)
    order = order_of(20)
    own[order[0]] = test[0].upper()  # of train
    own[order[5]] = f"{test[1]} indeed"  # of validation

    found = cut_of({"train": own, "test": test}, TWO)

    assert ids(found)["validation"] == [f"train/{order[place]}" for place in (4, 6, 7, 8)]
    assert ids(found)["train"] == [f"train/{order[place]}" for place in (1, 2, 3, 9)]
    assert len(found.splits["test"]) == 4
    assert found.leakage.exact == {"train": 1, "validation": 0, "test": 0}
    assert found.leakage.near == {"train": 0, "validation": 1, "test": 0}
    assert found.notes == ("1 items that have the text of another one, and 1 nearly so, were dropped",)


def test_rows_that_repeat_an_earlier_one_of_their_source_go_first() -> None:
    said = texts(14)
    order = order_of(14)
    early, late = sorted((order[8], order[1]))  # of test and of train
    said[late] = said[early]

    found = cut_of({"all": said}, ONE)

    drawn = [*chain.from_iterable(ids(found).values())]
    assert f"all/{early}" in drawn
    assert f"all/{late}" not in drawn
    assert [len(each) for each in found.splits.values()] == [4, 4, 4]
    assert found.leakage.total == (1, 0)


def test_source_for_test_alone_may_repeat_itself() -> None:
    test = texts(2) * 2

    found = cut_of({"train": texts(8, seed=1), "test": test}, TWO)

    assert len(found.splits["test"]) == 4
    assert found.leakage.total == (0, 0)


def test_item_near_two_others_is_dropped_once() -> None:
    own, test = texts(12), texts(4, seed=1)
    order = order_of(12)
    own[order[0]] = own[order[5]] = test[0]

    assert cut_of({"train": own, "test": test}, TWO).leakage.total == (2, 0)


def test_kept_leaks_are_counted_and_refused_ones_end_it() -> None:
    own, test = texts(12), texts(4, seed=1)
    order = order_of(12)
    own[order[0]] = test[0]
    said = {"train": own, "test": test}

    kept = cut_of(said, TWO, "keep")

    assert ids(kept)["train"] == [f"train/{row}" for row in order[:4]]
    assert kept.leakage.total == (1, 0)
    with pytest.raises(KoderzError, match=rf"d: 1 items have the text of another one .* such as d/train/{order[0]}"):
        cut_of(said, TWO, "refuse")
    assert cut_of({"train": texts(12), "test": test}, TWO, "refuse").leakage.total == (0, 0)


def test_refill_may_reach_far_behind() -> None:
    test = texts(4, seed=1)
    own = [test[0]] * 3000 + texts(40)

    found = cut_of({"train": own, "test": test}, TWO)

    assert [len(each) for each in found.splits.values()] == [4, 4, 4]


def test_small_source_gives_what_it_has() -> None:
    found = cut_of({"all": texts(10)}, ONE)

    assert [len(each) for each in found.splits.values()] == [4, 4, 2]
    assert found.notes == ("test has 2 of 4 items: all has no more",)


def test_splits_follow_each_other_in_a_small_source() -> None:
    preset: Preset = {split: Piece("all", 150 * n, 2) for n, split in enumerate(("train", "validation", "test"))}  # type: ignore[misc]

    assert [len(each) for each in cut_of({"all": texts(6)}, preset).splits.values()] == [2, 2, 2]


def test_empty_split_is_refused() -> None:
    with pytest.raises(KoderzError, match="the split test is empty, as all has 8 rows in all"):
        cut_of({"all": texts(8)}, ONE)
