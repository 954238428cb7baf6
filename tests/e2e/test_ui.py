"""`koderz ui`: MLflow's UI on this project's runs, seen in a real browser."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from koderz_tracker.records import Finished
from tests.conftest import PATIENCE, Shell, are_gone, descendants, wait_for
from tests.koderz.systems.reports.test_browser import CHROMIUM, FLAGS
from tests.tracker.builders import attempt, fault, judged
from tests.tracker.sinks.mlflow_world import SHARED, experiments, new_plan, project, record, seen

WAIT = 120_000  # milliseconds that a page may take on a busy machine
WIDTHS = "widths"  # an experiment of MLflow's in which names and figures are measured


def test_ui_without_a_store_says_how_to_get_one(koderz: Shell) -> None:
    done = koderz("ui", code=2)

    assert "has no MLflow store yet" in done.err
    assert done.err.count("\n") == 1


def test_ui_of_a_configured_server_prints_the_link_alone(koderz: Shell) -> None:
    done = koderz("ui", env={"MLFLOW_TRACKING_URI": "http://user:secret@tracking.test:5000/"})

    assert done.out == "MLflow UI: http://tracking.test:5000\n"


def test_ui_port_that_is_taken_is_an_error_if_asked_for(koderz: Shell) -> None:
    koderz.results.mkdir()
    (koderz.results / "mlflow.db").touch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"--port {port} is taken" in koderz("ui", "--port", port, code=2).err


Runs = tuple[Shell, list[Path]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A folder with runs that are in MLflow: of both arms twice, and in another experiment of both and of one."""
    shell = Shell(tmp_path_factory.mktemp("ui"))
    arms = ("zero-shot", "iterative")
    folders = []
    for verdict in (True, False):
        told = [*experiments(0), *experiments(0, solver="iterative"), attempt(1, detail="why"), judged(1, verdict)]
        plan = new_plan(2, arms=arms, **SHARED)
        folders.append(record(shell.results, plan, *told, fault(1, solver="iterative"), Finished(status="incomplete")))
        project(folders[-1])
    config = {"local_model": "openai/qwen2.5-coder:32b", "suite": "humaneval"}
    asked = {"config": config, "details": {"questions": {"T/0": "Is it so?"}}}
    for solvers in (arms, arms[:1]):
        told = [record for solver in solvers for record in experiments(0, solver=solver)]
        plan = new_plan(1, arms=solvers, **asked)
        folders.append(record(shell.results, plan, *told, Finished(status="complete")))
        project(folders[-1], experiment=WIDTHS)
    return shell, folders


@pytest.fixture(scope="module")
def links(runs: Runs) -> Iterator[tuple[str, str]]:
    """The addresses that a UI prints, which ends cleanly at SIGTERM."""
    with running(runs[0], signal.SIGTERM) as printed:
        yield printed


@pytest.mark.slow
def test_ui_stops_cleanly_at_an_interrupt(runs: Runs) -> None:
    shell, (_, other, *_) = runs
    with running(shell, signal.SIGINT) as (_, latest):
        info = seen(other).run.info
        assert latest.endswith(f"#/experiments/{info.experiment_id}/runs/{info.run_id}")


@pytest.mark.slow
@pytest.mark.others("Chromium may crash, or not come up, where memory is short")
@pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no browser at {CHROMIUM}")
def test_ui_shows_runs_scores_datasets_charts_and_traces_in_a_browser(runs: Runs, links: tuple[str, str]) -> None:
    (_, (one, other, *_)), (address, latest) = runs, links
    place = f"#/experiments/{seen(one).run.info.experiment_id}"
    arms = {run.data.tags["koderz.arm"]: run.info for run in seen(other).nested}
    with browser() as page:
        page.goto(f"{address}/{place}/evaluation-runs")
        expect(page, "passed/mean")
        expect(page, one.name)
        rows = page.get_by_role("row").filter(has_text=re.compile("bench_"))
        assert rows.count() == 6  # one a run, and below it one an arm
        assert page.get_by_role("columnheader").filter(has_text="/").count() == 1

        page.goto(latest)
        for arm in arms:
            expect(page, f"{arm} · {other.name}")

        page.goto(f"{address}/{place}/runs/{arms['zero-shot'].run_id}/traces")
        for column in ("passed", "Expected output"):
            expect(page, column, exact=True)
        expect(page, "50%")  # of those judged: the fault isn't counted
        page.get_by_text("baseline run", exact=True).click(timeout=WAIT)
        expect(page, arms["iterative"].run_name)
        page.get_by_text(arms["iterative"].run_name).locator("visible=true").first.click(timeout=WAIT)
        expect(page, "-50%")  # MLflow sets the arms against each other

        page.goto(f"{address}/{place}/datasets")
        expect(page, "humaneval-abababab")

        page.goto(f"{address}/{place}/runs/{arms['iterative'].run_id}/model-metrics")
        page.get_by_placeholder("Search metric charts").fill("passed/", timeout=WAIT)
        expect(page, "passed/mean")
        page.locator(".js-plotly-plot, svg.main-svg").first.wait_for(timeout=WAIT)

        trace = seen(other).trace("T/0", "iterative").info.trace_id
        page.goto(f"{address}/{place}/traces?selectedEvaluationId={trace}")
        expect(page, "attempt 2")
        expect(page, "judge")


@pytest.mark.slow
@pytest.mark.others("Chromium may crash, or not come up, where memory is short")
@pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no browser at {CHROMIUM}")
def test_ui_shows_models_figures_and_questions_at_1280_pixels(runs: Runs, links: tuple[str, str]) -> None:
    (_, (*_, both, alone)), (address, _) = runs, links
    info = seen(alone, experiment=WIDTHS).run.info
    with browser(1280) as page:
        page.goto(f"{address}/#/experiments/{info.experiment_id}/evaluation-runs")
        expect(page, "passed/mean")
        headers = [text for text in page.get_by_role("columnheader").all_inner_texts() if text.strip()]
        assert headers[-5:] == ["passed/mean", "cost", "tokens", "latency", "iterations"]

        names = page.locator("#run-name-cell")
        ways = [("comparative", both), ("zero-shot", both), ("iterative", both), ("zero-shot", alone)]
        assert {*names.all_text_contents()} == {f"qwen2.5-coder:32b · {way} · {run.name}" for way, run in ways}
        page.get_by_text("Columns", exact=True).first.click()
        for column in ("Status", "Type", "Created at", "Dataset"):
            page.get_by_role("option", name=column, exact=True).click()
            page.get_by_role("option", name=column, exact=True, selected=False).wait_for()
        wait_for(lambda: all(names.evaluate_all(SHOWS_BEGINNING)))  # also of arms, which are indented

        page.goto(f"{address}/#/experiments/{info.experiment_id}/runs/{info.run_id}/traces")
        expect(page, "T/0: Is it so?")
        expect(page, "passed", exact=True)


SHOWS_BEGINNING = """cells => cells.map(cell => {
  const beginning = document.createRange();
  beginning.setStart(cell.firstChild, 0);
  beginning.setEnd(cell.firstChild, "qwen2.5".length);
  return beginning.getBoundingClientRect().width < cell.clientWidth;
})"""
"""Whether cells are wide enough for the beginning of a model's name."""


STILL = """addEventListener("DOMContentLoaded", () => {
  document.head.insertAdjacentHTML("beforeend", "<style>* { animation: none !important }</style>");
});"""


def expect(page: Any, text: str, *, exact: bool = False) -> None:
    """The text is seen on the page."""
    page.get_by_text(text, exact=exact).locator("visible=true").first.wait_for(timeout=WAIT)


@contextmanager
def running(koderz: Shell, number: signal.Signals) -> Iterator[tuple[str, str]]:
    """A UI, which a signal ends with its server: the addresses that it prints, of all and of the latest run."""
    process = koderz.forks().start(["koderz", "ui", "--port", "0"], koderz.folder, koderz.environment())
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(2)]
        assert [line.partition(": ")[0] for line in lines] == ["MLflow UI", "latest run"], process.communicate()
        yield lines[0].partition(": ")[2], lines[1].partition(": ")[2]
        started = descendants(process.pid)
        assert len(started) == 1  # with its own command, MLflow is loaded twice
        process.send_signal(number)
        assert process.wait(PATIENCE) == 0
        wait_for(lambda: are_gone(started))
    finally:
        process.close()


@contextmanager
def browser(width: int = 1600) -> Iterator[Any]:
    """A page of a headless browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS.split(), timeout=WAIT)
        try:
            page = chromium.new_page(viewport={"width": width, "height": 1200})
            page.set_default_timeout(WAIT)
            # A first visit opens MLflow's assistant, which takes a third of the width.
            page.add_init_script("localStorage['mlflow.assistant.fab.autoOpenedOnFirstLoad_v1'] = 'true'")
            page.add_init_script(STILL)  # or what waits is drawn sixty times a second
            yield page
        finally:
            chromium.close()
