"""The report: what it holds, how large it is, and that nothing of a model's gets to act in it."""

from __future__ import annotations

import base64
import hashlib
import html
import random
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from koderz.analysis.runs import load_summary
from koderz.analysis.sections import Scale
from koderz.errors import KoderzError
from koderz.systems.reports.page import write_report
from koderz.systems.reports.view import budget_of
from koderz.testing import a_plan
from koderz_tracker.records import Arm, Measure, Record
from tests.koderz.analysis.builders import document, write
from tests.koderz.systems.reports.hostile import EVIL, run, several, small, written
from tests.tracker.builders import call, judged


class Tags(HTMLParser):
    """Every element that a browser would make of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def packed(page: str, name: str) -> Any:
    found = re.search(rf'id="{name}">([^<]*)<', page)
    assert found
    return orjson.loads(zlib.decompress(base64.b64decode(found[1])))


def test_report_is_self_contained_and_runs_its_own_script_alone(tmp_path: Path) -> None:
    page, _ = written(tmp_path, small(tmp_path, model=EVIL))

    tags = Tags(page).found
    assert all((attributes.get("href") or "#").startswith("#") and "src" not in attributes for _, attributes in tags)
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on")]
    assert not {"img", "iframe", "object", "link", "base"} & {tag for tag, _ in tags}
    (own,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "default-src 'none'" in page
    assert "window.pwned = 1</script>" not in page


def test_report_has_every_story_verbatim(tmp_path: Path) -> None:
    page, done = written(tmp_path, small(tmp_path))

    assert (done.experiments, done.stories) == (3, 3)
    rows = packed(page, "data")["rows"]
    assert [row[3] for row in rows] == ["failed", "fault", "passed"]
    stories = packed(page, "c0")
    assert any(block[2] == EVIL for story in stories for block in story)


def test_interval_comparison_and_causes_are_there(tmp_path: Path) -> None:
    later = {"run_id": "bench_0b1b2c3d_20260201_120000", "time": "2026-02-01T12:00:00.000000"}
    page, _ = written(tmp_path, small(tmp_path), small(tmp_path, **later))

    assert "50.0<span>%" in page
    assert "No significant difference" in page
    assert "Over time" in page
    assert "fixed later in 1 of 2" in page
    taken = re.search(r'id="taken".*?</section>', page, re.DOTALL)
    assert taken
    assert all(told in taken[0] for told in ("$0.5000<", ">10<", "local $0.5000<"))


def card(page: str, model: str, solver: str) -> str:
    return next(
        str(found)
        for found in re.findall(r'<article class="card".*?</article>', page, re.DOTALL)
        if f"<h3>{model}<" in found and f">{solver} · " in found
    )


def test_headline_shows_the_newest_complete_run_and_marks_others(tmp_path: Path) -> None:
    page, _ = written(tmp_path, *several(tmp_path))

    shown = card(page, "openai/gpt-4o-mini", "zero-shot")
    assert "2026-02-01 12:00" in shown
    assert "interrupted" not in shown
    assert '<span class="mark">interrupted, 2 of 6 judged</span>' in page
    assert "bench_00000003_20260203_120000</span> is interrupted: 2 of 6 experiments are judged." in page
    labels = [entry["label"] for entry in packed(page, "data")["entries"]]
    assert [label for label in labels if "(interrupted)" in label] == labels[-2:]
    assert page.count('class="c1 hollow"') == 1


def test_headline_marks_the_newest_where_no_run_is_complete(tmp_path: Path) -> None:
    page, _ = written(tmp_path, several(tmp_path)[2])

    assert '<p class="mark">interrupted, 2 of 6 judged</p>' in card(page, "openai/gpt-4o-mini", "zero-shot")


def test_comparative_run_keeps_its_comparison_beside_others(tmp_path: Path) -> None:
    page, _ = written(tmp_path, *several(tmp_path))

    data = packed(page, "data")
    runs = [[data["entries"][number]["run"][:14] for number in pair] for pair in data["versus"]]
    assert runs[:2] == [["bench_00000001"] * 2, ["bench_00000002"] * 2]
    assert runs[-1] == ["bench_00000003"] * 2
    assert len({tuple(pair) for pair in data["versus"]}) == len(runs)
    assert any(a != b for a, b in runs)


def test_costs_that_are_all_zero_take_no_column_and_others_do(tmp_path: Path) -> None:
    free, priced = tmp_path / "free", tmp_path / "priced"
    bare, _ = written(free, *several(free, cost=0.0))
    full, _ = written(priced, *several(priced))

    for told in (">Cost<", ">Cost a pass<", ">Cost a solved task<", ">Cost by tier<", ">Cost a task<", ">cost a pass<"):
        assert (told in bare, told in full) == (False, True), told
    assert "cost" not in packed(bare, "data")["columns"]
    assert "tokens a task (no model here costs money), logarithmic scale" in bare
    assert "US dollars a task, logarithmic scale" in full


def test_compared_stories_go_into_the_page_first(tmp_path: Path) -> None:
    rng = random.Random(1)
    tasks = range(200)
    runs: list[Path] = []
    for solver in ("zero-shot", "iterative"):
        records: list[Record] = []
        for task in tasks:
            passes = task % 50 != 7 or solver == "iterative"  # the others pass in both
            text = rng.randbytes(6000).hex()
            records += [call(task, reply=text, solver=solver), judged(task, passes, solver=solver)]
        run_id = f"bench_0000000{len(runs)}_20260131_120000"
        runs.append(run(tmp_path, records, a_plan(200, arms=[solver], run_id=run_id)))

    page, done = written(tmp_path, *runs)

    assert done.stories < 400
    rows = packed(page, "data")["rows"]
    assert all(row[9] is not None for row in rows if int(row[1][2:]) % 50 == 7)


@pytest.mark.parametrize(
    ("values", "linear", "ticks"),
    [
        ([0.0001, 0.01], False, [0.0001, 0.0003, 0.001, 0.003, 0.01]),
        ([200, 600], False, [200, 300, 400, 500, 600]),
        ([250, 250], False, [150, 200, 300, 400, 500]),
        ([0, 4], False, [0, 1, 2, 3, 4]),
        ([0, 0], False, [0, 0.5, 1]),
        ([1e-9, 1e9], False, [1e-10, 1e-05, 1, 1e5, 1e10]),
    ],
)
def test_ticks_are_few_round_and_within_reach(values: list[float], linear: bool, ticks: list[float]) -> None:
    scale = Scale(values, linear=linear)

    assert scale.ticks() == pytest.approx(ticks)
    assert scale.logarithmic == (min(values) > 0)
    assert all(0 <= scale.place(tick) <= 100 for tick in scale.ticks())


def test_bare_summary_is_shown_without_stories(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_bytes(orjson.dumps(document((True, False, True))))

    page, done = written(tmp_path, path)

    assert (done.experiments, done.stories) == (3, 0)
    assert "Without a journal there are no stories" in page
    assert "weren&#39;t at hand when it was made" in page or "weren't at hand when it was made" in page
    assert "the others name their command" not in page


def test_report_says_what_it_does_step_by_step(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_bytes(orjson.dumps(document((True, False, True))))
    heard: list[str] = []

    write_report([load_summary(path)], tmp_path / "r.html", progress=heard.append)

    assert heard == ["comparing 1 arm", "packing the stories of 3 experiments"]


def test_models_that_cost_the_same_are_drawn_without_a_warning(tmp_path: Path) -> None:
    files = []
    for model in ("a", "b"):
        files.append(tmp_path / f"{model}.json")
        files[-1].write_bytes(orjson.dumps(document((True, False), model=model, cost=0.01)))

    page, _ = written(tmp_path, *files)

    assert "$0.01<" in page


def arms(results: Path, *names: str) -> Path:
    """A run of one solver and several models, with a score and a metric of the suite's own."""
    measures = [Measure(name=EVIL, direction="lower", unit="s"), Measure(name="odd", direction="higher")]
    of = a_plan(6, measures=measures, config={"local_model": "a", "models": ["a", EVIL], "suite": "words"})
    made = [Arm(name=name, solver="iterative", models={"main": name.rpartition(" · ")[2]}) for name in names]
    records = [
        replace(judged(task, task > 2, score=0.1 * task + 0.05 * number, metrics={EVIL: 1.0 + task}),
                experiment_id=f"exp_{number}{task:015x}", arm=name, model=made[number].models["main"])
        for number, name in enumerate(names)
        for task in range(6)
    ]  # fmt: skip
    return run(results, records, replace(of, arms=made))


def test_arm_names_tell_models_apart_and_are_escaped(tmp_path: Path) -> None:
    page, _ = written(tmp_path, arms(tmp_path, "iterative · a", f"iterative · {EVIL}"))

    entries = packed(page, "data")["entries"]
    assert [entry["label"] for entry in entries] == ["iterative · a", f"iterative · {EVIL}"]
    assert [entry["model"] for entry in entries] == ["a", EVIL]
    assert not {"img", "iframe"} & {tag for tag, _ in Tags(page).found}
    assert page.count('<article class="card"') == 2
    assert "window.pwned = 1</script>" not in page


def test_measures_have_a_table_with_their_methods(tmp_path: Path) -> None:
    page, _ = written(tmp_path, arms(tmp_path, "iterative · a", "iterative · b"))

    assert "Averages over experiments, with 95% intervals (Gaffke&#39;s for bounded means, by beta quantiles" in page
    table = re.search(r'<table class="measures">.*?</table>', page, re.DOTALL)
    assert table
    assert re.findall(r'<th scope="col">(\w+)</th>', table[0]) == ["Arm", "score"], "nothing has the measure odd"
    assert '<td class="one">0.25 (0.107 to 0.554)</td>' in table[0]
    assert "Average score 0.25 and 0.3" not in page, "the score isn't declared"
    assert re.search(r"3.50 s and 3.50 s, p = 1 \(sign-flip permutation test, paired by task; Holm-corrected for", page)


def test_measures_have_a_chart_with_unit_and_direction(tmp_path: Path) -> None:
    page, _ = written(tmp_path, arms(tmp_path, "iterative · a", "iterative · b"))

    (score, other) = re.findall(r'<section id="measure-\d".*?</section>', page, re.DOTALL)
    assert "score, higher is better" in score
    assert "Up and to the left is better." in score
    assert '<td class="n">0.25 (0.107 to 0.554)</td>' in score
    assert f"{EVIL} (s), lower is better" in html.unescape(other)
    assert "Down and to the left is better." in other
    assert re.findall(r'text-anchor="end">([\d.]+)</text>', other) == ["2", "3", "4", "5", "6"]
    assert 'href="#measure-1"' in page
    assert not {"img", "iframe"} & {tag for tag, _ in Tags(page).found}


def test_measure_of_one_arm_alone_has_no_chart(tmp_path: Path) -> None:
    page, _ = written(tmp_path, small(tmp_path))

    assert 'id="measure-' not in page


def test_runs_without_results_are_an_error_in_one_line(tmp_path: Path) -> None:
    folder = run(tmp_path, [], a_plan())
    with pytest.raises(KoderzError, match="nothing to report"):
        written(tmp_path, folder)


def test_page_limit_follows_the_number_of_experiments() -> None:
    assert budget_of(1) == budget_of(328) == 1_000_000
    assert budget_of(10_000) == budget_of(99_999) == 10_000_000
    assert 1_000_000 < budget_of(5000) < 10_000_000


def test_page_limit_leaves_out_passes_first(tmp_path: Path) -> None:
    rng = random.Random(1)
    records: list[Record] = []
    for task in range(328):
        records += [call(task, reply=rng.randbytes(3500).hex()), judged(task, task % 4 != 0)]

    page, done = written(tmp_path, run(tmp_path, records, a_plan(328)))

    assert 800_000 < len(page.encode()) <= 1_000_000
    rows = packed(page, "data")["rows"]
    told = {row[3] for row in rows if row[9] is not None}
    assert "failed" in told
    assert all(row[9] is not None for row in rows if row[3] == "failed")
    assert done.stories < 328
    assert f"{done.stories} of 328 stories are in it" in page


def arms_page(folder: Path, arms: int, tasks: int = 12) -> str:
    """The page of a run whose arms each pass one task more than the arm before, in an order of their own."""
    names = [f"arm {number}" for number in range(arms)]
    records: list[Record] = []
    for number, name in enumerate(names):
        for task in range(tasks):
            own = f"exp_{number * 100 + task:016x}"
            records.append(replace(judged(task, task < number, solver=name), experiment_id=own))
    return written(folder, run(folder, records, a_plan(tasks, arms=names)))[0]


def matrix_of(page: str) -> list[list[str]]:
    """The cells of the table of all pairs, without its row of names."""
    found = re.search(r'<table class="matrix">.*?</table>', page, re.DOTALL)
    assert found
    rows = re.findall(r"<tr>(.*?)</tr>", found[0], re.DOTALL)[1:]
    return [
        [re.sub(r"<[^>]*>", " ", cell).strip() for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)] for row in rows
    ]


def test_report_compares_each_pair_of_arms_once(tmp_path: Path) -> None:
    page = arms_page(tmp_path, 4)

    shown = [tuple(pair) for pair in packed(page, "data")["versus"]]
    assert shown == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert "corrected for all 6 comparisons (Holm)" in page
    points = [[cell.split(" ")[0] for cell in row] for row in matrix_of(page)]
    assert points == [["+8.3", "+16.7", "+25.0"], ["", "+8.3", "+16.7"], ["", "", "+8.3"]]
    for number in range(6):
        assert f'id="versus-{number}"' in page
        assert f'href="#versus-{number}"' in page


def test_report_of_many_arms_has_each_pair_and_tells_the_clearest(tmp_path: Path) -> None:
    page = arms_page(tmp_path, 13)

    cells = [cell for row in matrix_of(page) for cell in row if cell]
    assert len(cells) == 13 * 12 // 2
    assert "corrected for all 78 comparisons (Holm)" in page
    shown = packed(page, "data")["versus"]
    assert len(shown) == 12
    assert [0, 12] in shown
    assert len(re.findall(r'href="#versus-\d+"', page)) == 12


def test_report_of_two_arms_needs_no_table_of_pairs(tmp_path: Path) -> None:
    page = arms_page(tmp_path, 2)

    assert packed(page, "data")["versus"] == [[0, 1]]
    assert 'class="matrix"' not in page


@pytest.mark.parametrize(
    ("config", "generated", "title"),
    [
        ({"suite": "humaneval", "dataset": "/there/mine.jsonl"}, "", "m on mine.jsonl"),
        ({"suite": "rollouts", "dataset": "configs/weekly.toml"}, "", "m on weekly.toml"),
        ({"suite": "humaneval", "dataset": None}, "", "m on humaneval"),
        ({"suite": "datasets", "dataset": ["a=b.csv"]}, "", "m on datasets"),
        ({"suite": "oolong", "dataset": "x"}, "oolong-generated", "m on oolong-generated"),
    ],
)
def test_report_title_names_the_source_of_its_tasks(
    tmp_path: Path, config: dict[str, Any], generated: str, title: str
) -> None:
    results = [{"problem_id": "T/0", "success": True}]
    found = {"config": {"local_model": "m", **config}, "generated": generated, "results": results}
    page, _ = written(tmp_path, write(tmp_path / "run.json", found))
    assert f"<h1>{title}</h1>" in page


def test_unknown_ends_of_all_runs_are_told_together(tmp_path: Path) -> None:
    results = [{"problem_id": "T/0", "success": True}]
    found = {"config": {"local_model": "m"}, "unknown_ends": {"<gone>": 2}, "results": results}
    paths = [write(tmp_path / f"{name}.json", {**found, "run_id": name}) for name in ("a", "b")]
    page, _ = written(tmp_path, *paths)
    assert "4 replies ended by &#39;&lt;gone&gt;&#39;, which koderz doesn&#39;t know." in page
