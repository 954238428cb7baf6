"""Other tools' logs as runs: each format by the same contract, and what is peculiar to each."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import random
import zipfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from typer.testing import CliRunner

import koderz
from koderz.analysis.compare import compare_runs
from koderz.analysis.logs import read_log, reader_of
from koderz.analysis.runs import load_run, resolve
from koderz.cli import app
from koderz.errors import KoderzError
from koderz.runs.imports import import_log
from tests.koderz.systems.publishing.logs import writers
from tests.koderz.systems.publishing.logs.writers import WRITERS, inspect_archive, inspect_header, inspect_sample

A = [number not in (2, 4, 7, 13, 16, 17, 18, 20, 22) for number in range(24)]
B = [number not in (18, 22, 23) for number in range(24)]
"""B passes 7 tasks that A doesn't, and A one that B doesn't."""

PUBLISHED = next(
    (
        path
        for path in (
            Path(os.environ.get("KODERZ_TEST_DATA", "nowhere")) / "cases/referee",
            Path(__file__).parents[6] / "shared/data/cases/referee",
        )
        if path.is_dir()
    ),
    None,
)


@pytest.fixture(params=WRITERS)
def logs(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """Logs of A and of B in one format."""
    write = WRITERS[request.param]
    return write(tmp_path / "a", A), write(tmp_path / "b", B)


def test_logs_of_every_format_are_compared_as_pairs(logs: tuple[Path, Path], tmp_path: Path) -> None:
    compared = compare_runs([str(log) for log in logs], tmp_path).document()

    assert compared["pairs"] == 24
    assert (compared["a_only"], compared["b_only"]) == (1, 7)
    assert compared["p_value"] == pytest.approx(0.03684, abs=5e-5)  # computed apart from koderz
    assert compared["interval"] == pytest.approx([2.31, 46.49], abs=0.01)


def test_every_format_tells_what_it_doesnt_hold(logs: tuple[Path, Path]) -> None:
    run = koderz.load_summary(logs[0])

    assert run.summary.success_rate == 62.5
    assert run.summary.avg_latency is None
    assert run.summary.avg_iterations is None
    assert {"iterations", "latency"} <= {*run.results[0].untold}


def test_log_of_every_format_becomes_a_run_once(logs: tuple[Path, Path], tmp_path: Path) -> None:
    log, results = read_log(logs[1]), tmp_path / "results"
    assert log

    imported = [asyncio.run(import_log(log, logs[1], results, summary=True)) for _ in range(2)]

    assert [each.what for each in imported] == ["added", "there already"]
    run = load_run(results / imported[0].run_id)
    assert [(r.problem_id, r.success, r.cost, {*r.untold}) for r in run.results] == [
        (r.problem_id, r.success, r.cost, {*r.untold}) for r in log.results
    ]
    assert load_run(results / f"{imported[0].run_id}.json").summary == run.summary


def test_damaged_log_of_every_format_is_one_error(logs: tuple[Path, Path], tmp_path: Path) -> None:
    """What is cut off, overwritten or replaced by other JSON gives a run, or one line that says what is wrong."""
    drawn = random.Random(45)
    files = [logs[0]] if logs[0].is_file() else sorted(path for path in logs[0].rglob("*") if path.is_file())
    for _ in range(30):
        file = drawn.choice(files)
        whole = file.read_bytes()
        place = drawn.randrange(len(whole))
        odd = drawn.choice(
            [
                whole[:place],
                whole[:place] + bytes([drawn.randrange(256)]) + whole[place + 1 :],
                b"",
                b"[" * 200_000,
                b"null",
                b'{"eval": 1, "status": [], "version": {}}',
                whole.replace(b"1", b"9" * 5000, 1),
                whole.replace(b"true", b"NaN").replace(b"1.0", b"Infinity"),
                whole.replace(b'"', b'"\\ud800', 1),
            ]
        )
        file.write_bytes(odd)
        said = ""
        try:
            resolve([str(logs[0])], tmp_path)
        except KoderzError as error:
            said = str(error)
        assert "\n" not in said
        assert len(said) < 700
        file.write_bytes(whole)


@pytest.mark.skipif(PUBLISHED is None, reason="KODERZ_TEST_DATA has no cases/referee")
def test_logs_that_the_packages_wrote_are_compared_as_expected(tmp_path: Path) -> None:
    assert PUBLISHED
    for line in (PUBLISHED / "expected.jsonl").read_text().splitlines():
        expected = json.loads(line)
        if "b" not in expected or expected["pairs"] is None:
            continue
        found = compare_runs([str(PUBLISHED / expected[name]) for name in "ab"], tmp_path).document()
        assert [found[name] for name in ("pairs", "a_only", "b_only")] == [
            expected[name] for name in ("pairs", "a_only", "b_only")
        ]
        assert found["p_value"] == pytest.approx(expected["p_score"], abs=5e-5)
        assert found["interval"] == pytest.approx(expected["tango_95_points"], abs=0.01)


def test_error_of_a_sample_is_a_fault_and_a_limit_is_not(tmp_path: Path) -> None:
    samples = [
        inspect_sample("a", "C"),
        inspect_sample("b", "C", error={"message": "ConnectionError: no\nline", "traceback": ""}),
        inspect_sample("c", "I", limit={"type": "token", "limit": 5}),
    ]
    run = koderz.load_summary(
        inspect_archive(tmp_path / "l.eval", {"header.json": inspect_header(3), "summaries.json": samples})
    )

    assert run.summary.success_rate == 50.0
    assert [(fault["problem_id"], fault["reason"]) for fault in run.faults] == [("b", "ConnectionError: no")]
    assert [result.note for result in run.results] == ["", "limit: token"]
    assert run.summary.success_rate_bounds == pytest.approx((100 / 3, 200 / 3))


@pytest.mark.parametrize("zstd", [True, False])
def test_log_that_was_killed_is_read_from_its_journal(tmp_path: Path, zstd: bool) -> None:
    parts = {f"_journal/summaries/{n}.json": [inspect_sample(f"t{n}", "C")] for n in range(1, 12)}
    header = {name: inspect_header(20)[name] for name in ("version", "eval")}
    run = koderz.load_summary(inspect_archive(tmp_path / "l.eval", {"_journal/start.json": header, **parts}, zstd=zstd))

    assert [result.problem_id for result in run.results] == [f"t{n}" for n in range(1, 12)]
    assert (run.status, run.planned) == ("unfinished", 20)


def test_epochs_are_samples_of_a_task(tmp_path: Path) -> None:
    samples = [inspect_sample("a", value) for value in "CIC"]
    run = koderz.load_summary(
        inspect_archive(tmp_path / "l.eval", {"header.json": inspect_header(3), "summaries.json": samples})
    )

    assert [result.sample for result in run.results] == [0, 1, 2]
    assert {"pass@2", "pass@1"} <= run.summary.pass_at_k.keys()


def test_partial_scores_are_no_passes_and_are_averaged(tmp_path: Path) -> None:
    samples = [inspect_sample(n, value) for n, value in enumerate("CPIN")]
    run = koderz.load_summary(
        inspect_archive(tmp_path / "l.eval", {"header.json": inspect_header(4), "summaries.json": samples})
    )

    assert run.headline.measure == "score"
    assert run.summary.measures["score"].mean == 0.375
    assert "1 of 4 scores lie between 0 and 1; they don't count as passed." in run.cautions


def test_amounts_keep_their_kind(tmp_path: Path) -> None:
    samples = [inspect_sample(n, value) for n, value in enumerate([3.5, -1, 10])]
    run = koderz.load_summary(
        inspect_archive(tmp_path / "l.eval", {"header.json": inspect_header(3), "summaries.json": samples})
    )

    assert run.headline.measure == "match"
    assert run.summary.measures["match"].mean == pytest.approx(12.5 / 3)


def test_tasks_of_one_number_and_another_text_are_no_pairs(tmp_path: Path) -> None:
    for name, text in (("a", "one"), ("b", "two")):
        samples = [inspect_sample(n, "C", input=text if n == 3 else f"same {n}") for n in range(1, 12)]
        inspect_archive(tmp_path / f"{name}.eval", {"header.json": inspect_header(11), "summaries.json": samples})

    found = compare_runs([str(tmp_path / "a.eval"), str(tmp_path / "b.eval")], tmp_path).document()

    assert found["pairs"] == 10


def test_submissions_are_completed_by_what_others_name(tmp_path: Path) -> None:
    for name, resolved in (("one", ["x-1", "x-2"]), ("two", ["x-2", "x-3"])):
        place = tmp_path / "evaluation/lite" / name / "results"
        place.mkdir(parents=True)
        (place / "results.json").write_text(json.dumps({"no_generation": [], "no_logs": [], "resolved": resolved}))

    found = compare_runs([str(tmp_path / "evaluation/lite" / name) for name in ("one", "two")], tmp_path).document()

    assert (found["pairs"], found["gained"], found["lost"]) == (300, ["x-3"], ["x-1"])
    with pytest.raises(KoderzError, match="compare submissions to one split"):
        compare_runs(
            [
                str(writers.swe_bench_submission(tmp_path / name, passes))
                for name, passes in (("few", [True, False]), ("many", [True] * 9))
            ],
            tmp_path,
        )


def test_submission_of_unknown_size_is_refused(tmp_path: Path) -> None:
    log = writers.swe_bench_submission(tmp_path / "s", A)
    (log / "results/resolved_by_repo.json").unlink()

    with pytest.raises(KoderzError, match=r"nothing says of how many instances; put its resolved_by_repo\.json"):
        koderz.load_summary(log)


def test_lists_without_verdicts_are_refused_by_what_is_missing(tmp_path: Path) -> None:
    numbers = tmp_path / "m.run.json"
    numbers.write_text(json.dumps({"resolved_instances": 3, "submitted_instances": 5}))
    trajectory = tmp_path / "trajectory.json"
    trajectory.write_text(json.dumps({"schema_version": "ATIF-v1.7", "agent": {}, "steps": []}))
    averages = writers.lm_eval(tmp_path / "l", A)
    next(averages.glob("samples_*")).unlink()

    for path, why in ((numbers, "numbers alone"), (trajectory, "no verdict"), (averages, "--log_samples")):
        with pytest.raises(KoderzError, match=why):
            koderz.load_summary(path)


def test_trial_with_a_reward_and_an_exception_counts_by_its_reward(tmp_path: Path) -> None:
    job = writers.harbor(tmp_path / "job", [True, True])
    path = job / "task-1__x/result.json"
    trial = json.loads(path.read_text())
    trial["exception_info"] = {"exception_type": "AgentTimeoutError", "exception_message": "late"}
    path.write_text(json.dumps(trial))

    run = koderz.load_summary(job)

    assert [result.note for result in run.results] == ["", "AgentTimeoutError: late"]
    assert "1 trials ended in an exception and have a reward all the same, by which they count." in run.cautions


def test_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", b" " * (65 << 20))
    with pytest.raises(KoderzError, match="has more than 64 MB"):
        koderz.load_summary(path)


def test_link_is_not_followed(tmp_path: Path) -> None:
    log = writers.human_eval(tmp_path / "a", A)
    link = tmp_path / "x.jsonl"
    link.symlink_to(log)

    with pytest.raises(KoderzError, match="is a link, and koderz follows none"):
        reader_of(link)


def test_folder_of_logs_is_many_runs_of_which_bad_ones_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    writers.inspect_eval(folder, A)
    writers.evalplus(folder, B)
    writers.swe_bench_details(folder / "bash_only", A)
    (folder / "cut.eval").write_bytes(b"PK\x03\x04")
    (folder / "notes.json").write_text("{}")
    left_out: list[str] = []

    runs = resolve([str(folder)], tmp_path, left_out=left_out)

    assert [run.name for run in runs] == ["bash_only", "log.eval", "m_eval_results"]
    assert len(left_out) == 1
    assert "cut.eval is damaged, or can't be read" in left_out[0]


def test_shown_json_of_a_log_is_a_summary(logs: tuple[Path, Path]) -> None:
    shown = json.loads(CliRunner().invoke(app, ["benchmark", "show", str(logs[0]), "--json"]).stdout)

    assert shown["summary"]["success_rate"] == 62.5
    assert shown["results"][0]["untold"]


def test_folder_of_logs_is_listed_and_named_as_runs_are(tmp_path: Path) -> None:
    writers.inspect_eval(tmp_path, A)
    writers.lm_eval(tmp_path / "lm", B)
    (tmp_path / "cut.eval").write_bytes(b"PK\x03\x04")
    (tmp_path / "notes").mkdir()

    for _ in range(2):  # from the logs, and from the index
        done = CliRunner().invoke(app, ["benchmark", "list", "--results", str(tmp_path), "--json"])
        rows = json.loads(done.stdout)
        assert {row["run_id"]: row["arms"][0]["rate"] for row in rows} == {"log.eval": 62.5, "lm": 87.5}
        assert done.stderr.count("\n") == 1
        assert "cut.eval is damaged" in done.stderr

    shown = CliRunner().invoke(app, ["benchmark", "show", "log.eval", "--results", str(tmp_path)]).stdout
    assert "match: 62.5% passed (15 of 24)" in shown
    assert "attempts" not in shown
    assert "cost" not in shown.partition("\n\n")[2]


def test_newest_logs_are_listed_without_reading_the_older_ones(tmp_path: Path) -> None:
    day = datetime(2026, 2, 1, 12, tzinfo=timezone(timedelta(hours=9)))
    for number in range(12):
        begun = day + timedelta(days=number)
        header = inspect_header(1, stats={"started_at": begun.isoformat()})
        entries = {"header.json": header, "summaries.json": [inspect_sample("w", "C")]}
        path = inspect_archive(tmp_path / f"log{number}.eval", entries)
        os.utime(path, 2 * ((begun + timedelta(days=40 * (number == 5), hours=1)).timestamp(),))  # one is a copy
    damaged = tmp_path / "log0.eval"
    damaged.write_bytes(b"PK\x03\x04")
    os.utime(damaged, 2 * (day.timestamp(),))

    for limit in (3, 3, 2, 12):  # from the logs, and from the index, which has only some
        done = CliRunner().invoke(app, ["list", "--results", str(tmp_path), "--limit", str(limit), "--json"])
        rows = json.loads(done.stdout)
        assert [row["run_id"] for row in rows] == [f"log{number}.eval" for number in range(11, 0, -1)][:limit]
        assert ("log0.eval is damaged" in done.stderr) == (limit == 12)
    begun = (day + timedelta(days=11)).astimezone().replace(tzinfo=None)
    assert rows[0]["started"] == begun.isoformat()


def test_experiments_of_an_imported_log_are_found_in_memory(tmp_path: Path) -> None:
    results = tmp_path / "results"
    for name, passes in (("a", [True, False, True]), ("b", [False, False, True])):
        path = writers.inspect_eval(tmp_path / name, passes)
        log = read_log(path)
        assert log
        asyncio.run(import_log(log, path, results, summary=True))

    def found(*chosen: str) -> list[tuple[str, str]]:
        done = CliRunner().invoke(app, ["memory", "find", "--results", str(results), "--json", *chosen])
        return sorted((row["task"], row["outcome"]) for row in json.loads(done.stdout)["rows"])

    assert CliRunner().invoke(app, ["sync", "--sink", "memory", "--results", str(results)]).exit_code == 0
    assert found("--outcome", "failed", "--suite", "echo") == [("w0", "failed"), ("w1", "failed"), ("w1", "failed")]
    assert found("--task", "w2", "--model", "mockllm/model") == [("w2", "passed"), ("w2", "passed")]


def test_logs_are_compared_in_python(logs: tuple[Path, Path]) -> None:
    found = koderz.compare(str(logs[0]), logs[1])

    assert (found.pairs, found.a_only, found.b_only) == (24, 1, 7)
    assert found.significant
    assert len(koderz.load_summary(str(logs[1])).results) == 24


def test_log_is_one_run_in_a_data_frame(logs: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    one, both = koderz.to_dataframe(logs[0]), koderz.to_dataframe([str(log) for log in logs])

    assert [*one["success"]] == [result.success for result in koderz.load_summary(logs[0]).results]
    assert (both["success"].sum(), len(both)) == (sum(A) + sum(B), 48)
    writers.inspect_eval(tmp_path / "several", A)
    writers.human_eval(tmp_path / "several", B)
    assert len(koderz.to_dataframe(tmp_path / "several")) == 48


def test_rows_of_a_log_are_exported_once_it_is_imported(logs: tuple[Path, Path], tmp_path: Path) -> None:
    log = read_log(logs[0])
    assert log
    refused = CliRunner().invoke(app, ["benchmark", "export", str(logs[0]), "--format", "csv"])
    assert str(refused.exception).endswith(
        f"is another tool's log; make a run of it first: koderz benchmark import {logs[0]}"
    )

    imported = asyncio.run(import_log(log, logs[0], tmp_path / "results", summary=True))
    chosen = [imported.run_id, "--format", "csv", "--results", str(tmp_path / "results")]
    done = CliRunner().invoke(app, ["benchmark", "export", *chosen])
    rows = [*csv.DictReader(io.StringIO(done.stdout))]
    assert {row["problem_id"]: row["success"] for row in rows} == {
        result.problem_id: str(result.success).lower() for result in log.results
    }
