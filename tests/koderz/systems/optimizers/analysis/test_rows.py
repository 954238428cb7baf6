"""The table of optimizers: how many answers couldn't be read, and what equal metric calls cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from koderz.analysis.blocks import Table, Text
from koderz.systems.optimizers.analysis.gains import GainRow, Search, rows_of, searches_of
from koderz.systems.optimizers.analysis.report import row_blocks
from koderz.testing import a_model
from koderz.types import Message, Sampling
from koderz_tracker.records import Plan
from tests.koderz.systems.optimizers.solvers.worlds import World, searched
from tests.koderz.world import Run


class Mute(World):
    """A world whose model says nothing to the items of one of four kinds."""

    def __call__(self, messages: Sequence[Message], sampling: Sampling) -> str:
        is_copper = str(messages[-1]["content"]).startswith("copper ")
        return "" if is_copper else super().__call__(messages, sampling)


def rows(run: Run, searches: Sequence[Search]) -> list[GainRow]:
    plan = run.lines[0]
    assert isinstance(plan, Plan)
    return rows_of(plan, searches)


def test_unread_answers_stand_beside_each_score(tmp_path: Path) -> None:
    world = Mute("nothing")
    run = searched(tmp_path, world, "none", "random_search", model=a_model(world), budget_calls=100)

    (row,) = rows(run, searches_of(run.folder))
    assert (row.unread, row.baseline_unread) == (0.25, 0.25)
    table = next(block for block in row_blocks([row]) if isinstance(block, Table))
    assert table.rows[0][table.header.index("UNREAD")] == "25.0 %"
    assert [outcome.metrics["unread"] for outcome in run.of("experiment") if "unread" in outcome.metrics]


def test_unread_answers_of_an_older_run_are_not_known(tmp_path: Path) -> None:
    run = searched(tmp_path, World("nothing"), "none", "random_search", budget_calls=100)
    searches = [
        replace(each, result={key: value for key, value in each.result.items() if key != "unread"})
        for each in searches_of(run.folder)
    ]

    (row,) = rows(run, searches)
    assert (row.unread, row.baseline_unread) == (None, None)
    table = next(block for block in row_blocks([row]) if isinstance(block, Table))
    assert table.rows[0][table.header.index("UNREAD")] == "-"


def test_equal_metric_calls_that_cost_unequal_dollars_are_told(tmp_path: Path) -> None:
    run = searched(tmp_path, World("nothing"), "none", "random_search", budget_calls=100)
    (row,) = rows(run, searches_of(run.folder))
    cheap = replace(row, optimizer="cheap", cost_usd=0.042, metric_calls=500)
    dear = replace(row, optimizer="dear", cost_usd=0.063, metric_calls=500)

    told = [block.text for block in row_blocks([cheap, dear]) if isinstance(block, Text)]
    assert any("$0.0840 with cheap and $0.1260 with dear" in text for text in told)
    assert not any("dollars" in block.text for block in row_blocks([cheap]) if isinstance(block, Text))
    table = next(block for block in row_blocks([cheap, dear]) if isinstance(block, Table))
    assert not {"CALLS", "$", "UNREAD"} & {*table.optional}


@pytest.mark.parametrize("known", [True, False])
def test_price_that_is_unknown_is_compared_with_none(tmp_path: Path, known: bool) -> None:
    run = searched(tmp_path, World("nothing"), "none", "random_search", budget_calls=100)
    (row,) = rows(run, searches_of(run.folder))
    pair = [replace(row, optimizer=name, cost_usd=cost, cost_known=known) for name, cost in (("a", 1.0), ("b", 2.0))]

    assert any("dollars" in block.text for block in row_blocks(pair) if isinstance(block, Text)) == known


def test_optimizers_beside_random_search_are_told_in_one_line(tmp_path: Path) -> None:
    run = searched(tmp_path, World("nothing"), "none", "random_search", budget_calls=100)
    (row,) = rows(run, searches_of(run.folder))

    def beside(gain: float, *, n: int = 5, better: bool = False) -> GainRow:
        versus = {"gain": gain, "beats": False, "prompts_better": better, "about": "prompts"}
        return replace(row, optimizer="meta_prompt", n=n, vs_random=versus)

    def told(*those: GainRow) -> list[str]:
        return [block.text for block in row_blocks(those) if isinstance(block, Text) and "random search" in block.text]

    place = row.dataset
    few = f"{place}: too few items (5) to tell; meta_prompt is 0.200 above random search"
    assert told(beside(0.2)) == [few]
    assert told(beside(0.2), beside(0.0)) == [f"{few}, meta_prompt is level with it"]
    assert told(beside(-0.02, n=200)) == [
        f"{place}: no difference shown on 200 items; meta_prompt is 0.020 below random search"
    ]
    assert told(beside(0.3, better=True)) == [
        f"{place}: of meta_prompt, this prompt is better than random search's by 0.300"
    ]


def test_one_seed_says_how_to_see_more(tmp_path: Path) -> None:
    run = searched(tmp_path, World("nothing"), "none", "random_search", budget_calls=100)

    told = [block.text for block in row_blocks(rows(run, searches_of(run.folder))) if isinstance(block, Text)]

    assert "One seed: use --seeds 5 to see how much results vary." in told
