"""Leaderboards of logs: published tables, pages that are made anew, and what tells nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from koderz import compare
from koderz.analysis.boards import make_board, verify_board
from koderz.analysis.compare import compare_runs
from koderz.cli import app
from koderz.errors import KoderzError
from tests.koderz.systems.publishing.logs.writers import inspect_eval, swe_bench_submission

PUBLISHED = [
    # of SWE-bench #621: how many of 500 are resolved, and McNemar's p against the first
    (396, 0.868, 18),
    (394, 0.888, 99),  # 0.901 in the table, for which more would have to flip than there are
    (388, 0.243, 19),
    (387, 0.253, 26),
    (384, 0.156, 29),
    (384, 0.134, 26),
    (382, 0.115, 32),
    (378, 0.026, 24),
]
"""The last column is how many only that one resolves: made by hand, so that the p-value follows."""


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Submissions with the numbers of that table."""
    first = [number < 396 for number in range(500)]
    folder = tmp_path / "verified"
    swe_bench_submission(folder / "s0", first)
    for place, (resolved, _, gained) in enumerate(PUBLISHED, 1):
        passes = [*first]
        for number in [number for number in range(500) if not first[number]][:gained]:
            passes[number] = True
        for number in range(396 - resolved + gained):
            passes[number] = False
        swe_bench_submission(folder / f"s{place}", passes)
    return folder


def test_published_table_of_ties_is_reproduced(published: Path, tmp_path: Path) -> None:
    document = make_board([str(published)], tmp_path).document()

    against = {pair.b: pair for pair in make_board([str(published)], tmp_path).board.pairwise if pair.a == "s0"}
    assert [row["successes"] for row in document["leaderboard"]] == [396, *(resolved for resolved, *_ in PUBLISHED)]
    assert [against[f"s{place}"].p_mid for place in range(1, 9)] == pytest.approx(
        [p for _, p, _ in PUBLISHED], abs=0.0025
    )
    assert all(row["level_with_best"] for row in document["leaderboard"])  # of 36 tests, 0.026 shows nothing


def test_submissions_of_the_results_folder_are_completed_as_named_ones_are(published: Path, tmp_path: Path) -> None:
    named, unnamed = make_board([str(published)], tmp_path), make_board([], published)
    assert unnamed.document()["pairwise"] == named.document()["pairwise"]
    (path, other, *_) = sorted(published.iterdir())
    assert compare_runs([], published).document()["pairs"] == 500
    assert compare(path, other).pairs == 500


def test_board_tells_what_would_part_the_first_two_and_which_tasks_tell_nothing(tmp_path: Path) -> None:
    for name, missed in (("a", (0, 1)), ("b", (0, 2, 3, 4))):
        inspect_eval(tmp_path / "logs" / name, [number not in missed for number in range(60)])

    document = make_board([str(tmp_path / "logs/a/log.eval"), str(tmp_path / "logs/b/log.eval")], tmp_path).document()

    # Connett's formula with 3 and 1 of 60 flips: (1.96 sqrt(4/60) + .8416 sqrt(4/60 - (2/60)^2))^2 / (2/60)^2
    assert document["tasks_to_part"] == 469
    assert document["solved_by_nobody"] == ["w0"]
    assert len(document["solved_by_everybody"]) == 55
    assert [(row["either"], row["only_a"], row["only_b"]) for row in document["complementary"]] == [(59, 3, 1)]


@pytest.mark.parametrize("suffix", [".html", ".json"])
def test_board_is_verified_from_its_inputs(
    published: Path, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / f"board{suffix}"
    assert CliRunner().invoke(app, ["leaderboard", "verified", "-o", page.name]).exit_code == 0

    done = CliRunner().invoke(app, ["verify", page.name])
    assert (done.exit_code, done.stdout) == (0, "VERIFIED: its inputs give this leaderboard\n")

    whole = page.read_text()
    page.write_text(whole.replace('"successes":388', '"successes":400').replace('"successes": 388', '"successes": 400'))
    assert verify_board(page, tmp_path) == ["leaderboard: recorded otherwise than derived"]
    page.write_text(whole)
    results = published / "s3/results/results.json"
    results.write_text(json.dumps({**json.loads(results.read_text()), "no_logs": ["sympy__sympy-0"]}))
    assert any("s3/results/results.json isn't the file" in line for line in verify_board(page, tmp_path))
    results.unlink()
    with pytest.raises(KoderzError, match=r"its input verified/s3/results/results\.json isn't there"):
        verify_board(page, tmp_path)


def test_page_holds_no_markup_of_a_log(tmp_path: Path) -> None:
    for name in ("<script>alert(1)</script>", "b"):
        swe_bench_submission(tmp_path / "verified" / name.replace("/", "_"), [True, False])

    page = make_board([str(tmp_path / "verified")], tmp_path).page()

    assert "<script>alert" not in page
    assert page.count("</script>") == 1


def test_board_of_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.html"
    path.write_text("<title>Leaderboard</title>")

    with pytest.raises(KoderzError, match="is no leaderboard that koderz wrote"):
        verify_board(path, tmp_path)
    done = CliRunner().invoke(app, ["leaderboard", "-o", "board.pdf"])
    assert str(done.exception) == "--output board.pdf: a leaderboard is written to .html, .md or .json"
