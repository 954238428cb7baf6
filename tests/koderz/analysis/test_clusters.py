"""Comparisons of tasks that are about one text or repository."""

from __future__ import annotations

from pathlib import Path

from koderz.analysis.blocks import as_markdown
from koderz.analysis.comparison import comparison_blocks, of_sides, side_blocks
from koderz.analysis.leaderboard import leaderboard, leaderboard_blocks
from koderz.analysis.measures import SUCCESS
from koderz.analysis.pairs import Side, match, sides_of
from koderz.analysis.runs import Run
from tests.koderz.analysis import builders
from tests.koderz.analysis.builders import OTHER, row


def run(folder: Path, passes: list[bool], per_cluster: int, name: str = "a.json", **more: object) -> Run:
    """Tasks T/0, T/1, …, of which each so many are about one text; none where that is 0."""
    results = [row(f"T/{n}", passed) for n, passed in enumerate(passes)]
    if per_cluster:
        results = [{**each, "cluster": f"text {n // per_cluster}"} for n, each in enumerate(results)]
    return builders.run(folder, passes, name, results=results, **more)


def test_clusters_of_a_comparison_are_those_of_either_run(tmp_path: Path) -> None:
    a, b = run(tmp_path, [True, False] * 6, 0), run(tmp_path, [True] * 12, 4, "b.json", run_id=OTHER)
    (first,), (second,) = sides_of(a), sides_of(b)

    assert match(first, second, SUCCESS).cluster_count == 3
    assert match(second, first, SUCCESS).cluster_count == 3
    assert match(first, first, SUCCESS).cluster_count is None


def test_clusters_are_in_the_notes_of_a_comparison(tmp_path: Path) -> None:
    passes = [True, False] * 6

    def notes(per_cluster: int) -> str:
        a, b = run(tmp_path, passes, per_cluster), run(tmp_path, passes[::-1], per_cluster, "b.json", run_id=OTHER)
        return " ".join(of_sides([(sides_of(a)[0], sides_of(b)[0])]).notes)

    assert "cluster" not in notes(0)
    assert "The tasks are in 6 clusters, which tests, intervals and power take into account." in notes(2)
    assert "3 clusters are too few to show anything: it takes 6 at least." in notes(4)
    assert "All tasks are of one cluster, so there is no interval, and no difference can be shown." in notes(12)


def test_clusters_decide_what_a_comparison_shows(tmp_path: Path) -> None:
    worse, better = [n >= 12 for n in range(24)], [True] * 24  # B is better at all twelve questions about two texts
    a, b = run(tmp_path, worse, 0), run(tmp_path, better, 0, "b.json", run_id=OTHER)
    alone = of_sides([(sides_of(a)[0], sides_of(b)[0])])
    assert (alone.significant, alone.clusters) == (True, None)

    a, b = run(tmp_path, worse, 6, "a6.json"), run(tmp_path, better, 6, "b6.json", run_id=OTHER)
    four = of_sides([(sides_of(a)[0], sides_of(b)[0])])
    assert (four.significant, four.clusters, four.difference) == (False, 4, 50.0)
    assert "in 4 clusters" in four.method
    assert four.interval
    assert four.interval[0] <= 0 < four.interval[1]
    assert "in 4 clusters" in (four.interval_method or "")


def test_clusters_leave_no_interval_of_a_difference_where_there_is_one(tmp_path: Path) -> None:
    a = run(tmp_path, [True, False] * 6, 12)
    b = run(tmp_path, [True] * 12, 12, "b.json", run_id=OTHER)
    found = of_sides([(sides_of(a)[0], sides_of(b)[0])])

    why = "none: all 12 tasks are of one cluster"
    assert (found.interval, found.interval_method, found.interval_holm_method) == (None, why, why)
    assert (found.significant, found.smallest_difference, found.clusters) == (False, None, 1)
    assert (found.measures["cost"].interval, found.measures["cost"].interval_method) == (None, why)
    told = "\n".join(as_markdown(comparison_blocks(found)))
    assert why in told
    board = leaderboard([*sides_of(a), *sides_of(b)])
    assert {standing.mean.interval_method for standing in board.standings} == {why}
    assert why in "\n".join(as_markdown(leaderboard_blocks(board)))


def test_clusters_stand_in_the_method_and_not_wilson_alone_in_the_head(tmp_path: Path) -> None:
    a, b = (run(tmp_path, [True, False] * 6, 2, f"{name}.json", run_id=name) for name in (builders.RUN, OTHER))
    board = leaderboard([*sides_of(a), *sides_of(b)])

    told = "\n".join(as_markdown(leaderboard_blocks(board)))
    assert "| 95% interval |" in told
    assert "95% Wilson" not in told
    assert "| 95% interval (Wilson, in 6 clusters) |" in "\n".join(as_markdown(side_blocks(*sides_of(a))))


def test_clusters_are_said_beside_the_power_of_a_comparison(tmp_path: Path) -> None:
    thirds, quarters = ([n % each == 0 for n in range(60)] for each in (3, 4))
    a, b = run(tmp_path, thirds, 3), run(tmp_path, quarters, 3, "b.json", run_id=OTHER)
    found = of_sides([(sides_of(a)[0], sides_of(b)[0])])

    told = "\n".join(as_markdown(comparison_blocks(found)))
    assert "With 60 tasks in 20 clusters only a difference of about" in told


def test_tasks_of_one_id_that_ask_something_else_are_not_paired(tmp_path: Path) -> None:
    passes = [True, False] * 10
    asked, anew = ({f"T/{n}": f"{first + n:012x}" for n in range(20)} for first in (0, 100))
    other = {task: anew[task] if number < 6 else digest for number, (task, digest) in enumerate(asked.items())}

    def side(name: str, per_cluster: int = 0, **more: object) -> Side:
        return sides_of(run(tmp_path, passes, per_cluster, f"{name}.json", run_id=name, **more))[0]

    a, b, old = side(builders.RUN, asked=asked), side(OTHER, asked=other), side("bench_0a1b2c3f_20260131_140000")
    some = of_sides([(a, b)])
    assert (some.pairs, some.a_compared.other_tasks, some.b_compared.other_tasks) == (14, 6, 6)
    assert "6 tasks of one id ask something else in A and in B, so they are not paired." in some.notes

    none = of_sides([(a, side(OTHER, per_cluster=2, asked=anew))])
    assert not none.paired
    assert "A and B have no task in common" in " ".join(none.notes)

    for one, two in ((a, a), (a, old), (old, b)):  # an older run doesn't tell what it asked
        assert of_sides([(one, two)]).pairs == 20
