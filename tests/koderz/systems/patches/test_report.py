"""Speed-ups and what they were estimated from: compared as ratios, drawn on a page and on a screen."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import koderz
from koderz.analysis.blocks import Table
from koderz.analysis.comparison import comparison_blocks
from koderz.analysis.runs import Run
from koderz.analysis.sections import Spread, Spreads, strips
from koderz.systems.patches.report import contents
from koderz.systems.patches.screen import told_of
from koderz.systems.reports.charts import spreads
from koderz_tracker.results import Result
from tests.koderz.analysis import builders

_MEASURES = [{"name": "speedup_base", "direction": "higher", "unit": "times"}]
FACTS = {
    "opt": "opt",
    "hack": None,
    "ratios": {"aa": [1.0, 1.01], "base": [2.0, 2.2], "human": [0.97, 1.1]},
    "limits": {"base": 1.15, "human": 0.95},
}
METRICS = {"blocks": 2.0, "speedup_base": 2.1, "speedup_base_low": 2.0, "speedup_base_high": 2.2, "speedup_human": 1.0}
RESULT = Result(problem_id="T/0", success=True, sample=1, metrics=METRICS, facts=FACTS, experiment_id="exp_1")


def _run(folder: Path, name: str, speedups: list[float]) -> Run:
    results = [builders.row(f"T/{i}", True, metrics={"speedup_base": value}) for i, value in enumerate(speedups)]
    more = {"results": results, "measures": _MEASURES, "run_id": builders.RUN if name == "a" else builders.OTHER}
    return builders.run(folder, [True] * len(speedups), f"{name}.json", **more)


def test_speed_ups_are_compared_by_geometric_means(tmp_path: Path) -> None:
    a, b = [1.0, 4.0] * 12, [2.0, 8.0, 1.0, 4.0] * 6
    found = koderz.compare(_run(tmp_path, "a", a), _run(tmp_path, "b", b))
    ratio = found.ratios["speedup_base"]
    assert (ratio.a, ratio.b, ratio.ratio) == pytest.approx((2.0, 2.0 * 2**0.5, 2**0.5))
    assert ratio.interval is not None
    assert 1 < ratio.interval[0] < 2**0.5 < ratio.interval[1] < 2
    table = next(block for block in comparison_blocks(found) if isinstance(block, Table))
    rows = {row[0]: row for row in table.rows}
    assert rows["GM speedup_base"][1:4] == ["2", "2.83", "×1.41"]
    assert "Avg speedup_base" not in rows


def test_ratio_of_nothing_is_none(tmp_path: Path) -> None:
    assert not koderz.compare(_run(tmp_path, "a", [0.0, 1.0]), _run(tmp_path, "b", [1.0, 1.0])).ratios


def test_table_marks_a_result_that_needs_review() -> None:
    marked = msgspec.structs.replace(RESULT, facts={**FACTS, "needs_review": "needs review: why"})
    table = next(iter(contents([("agent", marked)])))
    assert isinstance(table, Table)
    assert table.rows[0][2] == "opt, needs review"
    assert "needs review: why" in told_of(marked)


def test_comparison_marks_sides_that_need_review(tmp_path: Path) -> None:
    results = [builders.row("T/0", True, note="needs review: why"), builders.row("T/1", True)]
    marked = builders.run(tmp_path, [True, True], "b.json", results=results, run_id=builders.OTHER)
    found = koderz.compare(_run(tmp_path, "a", [1.0, 2.0]), marked)
    assert [note for note in found.notes if note.startswith("1 result needs review in B")]
    assert not [note for note in found.notes if "in A" in note]


def test_results_are_told_and_their_blocks_drawn() -> None:
    table, base, human = contents([("agent", RESULT)])
    assert isinstance(table, Table)
    assert table.rows == [["T/0, sample 1", "agent", "opt", "2", "2.10 [2.00, 2.20]", "1.00"]]
    assert isinstance(base, Spreads)
    assert isinstance(human, Spreads)
    assert (base.limits, human.limits) == ([1.15], [0.95])
    assert base.spreads[0].points == [2.0, 2.2]
    bare = Result(problem_id="T/1", success=False, cause="patch_failed", facts={"ratios": "x", "limits": None})
    assert len([*contents([("agent", bare)])]) == 1


def test_spreads_are_a_chart_with_their_intervals_and_limits() -> None:
    one = Spread("agent", "T/0", [2.0, 2.2], 2.1, (2.0, 2.2), "exp_1")
    plot = spreads(Spreads("Blocks", "times", [one] * 50, [1.15]))
    assert [mark.hollow for mark in plot.marks] == [True] * 80 + [False] * 40
    assert plot.x_label == "and 10 more, in the table"
    assert plot.bands[0].text == "T/0: 2.1 [2, 2.2]"
    assert (plot.lines[0][0], plot.marks[-1].interval is None) == (0, False)


def test_spreads_are_lines_of_text_on_one_scale() -> None:
    drawn = Spreads(
        "Blocks",
        "times",
        [Spread("a", "T/0", [2.0, 8.0], 4.0, (2.5, 6.0), "exp_1"), Spread("a", "T/11", [1.0], 1.0)],
        [1.15],
    )
    title, ticks, first, second = (line.text for line in strips(drawn))
    assert title == "Blocks"
    assert "2" in ticks
    assert first.startswith("T/0 ")
    assert first.index("·") < first.index("├") < first.index("●") < first.index("┤") < first.rindex("·")
    assert second.index("●") < second.index("┊") == first.index("┊")
    assert len([*strips(drawn, "exp_1")]) == 3
    assert not [*strips(drawn, "exp_2")]


def test_arm_has_one_colour_in_all_drawings() -> None:
    facts = {**FACTS, "ratios": {"base": [2.0, 2.2]}}
    human = Result(problem_id="T/0", success=True, metrics=METRICS, facts=facts, experiment_id="exp_2")
    _, base, of_human = contents([("human", human), ("agent", RESULT)])
    assert isinstance(base, Spreads)
    assert isinstance(of_human, Spreads)
    assert spreads(base).keys == [(1, "human"), (2, "agent")]
    assert spreads(of_human).keys == [(2, "agent")]
