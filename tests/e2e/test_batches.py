"""`koderz benchmark --batch` as commands: leaving and coming back, cancelling, and kill -9 at random moments."""

from __future__ import annotations

import json
import os
import random
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from koderz.testing.batches import BatchServer
from tests.conftest import PATIENCE, Shell, wait_for
from tests.e2e.answering import answering
from tests.koderz.runs.batching import TWICE, paid_twice

KILLS = int(os.environ.get("BATCH_KILLS") or 6)
"""Moments at which koderz is killed, by each provider's API."""


@contextmanager
def served(**more: Any) -> Iterator[tuple[dict[str, str], BatchServer]]:
    """A provider of batches in a thread, and the variables by which it is found."""
    made: list[BatchServer] = []

    def make(reply: Any, latency: float) -> BatchServer:
        made.append(BatchServer(reply, latency=latency, **more))
        return made[0]

    with answering(lambda _: "4", 0.0, make) as (environ, _):
        more_variables = {"ANTHROPIC_BASE_URL": made[0].url, "ANTHROPIC_API_KEY": "sk-test", "KODERZ_POLL": "0.05"}
        yield {**environ, **more_variables}, made[0]


@pytest.fixture
def questions(koderz: Shell) -> tuple[object, ...]:
    """A benchmark of six questions, each asked twice."""
    rows = [{"id": f"q{n}", "input": f"What is 2 + 2, {n}?", "target": "4"} for n in range(6)]
    (koderz.folder / "faq.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (koderz.folder / "twice.py").write_text(TWICE)
    return ("benchmark", "--suite", "qa", "--dataset", "faq.jsonl", "--solver", "twice.py:twice", "--batch")


def batches_sent(koderz: Shell) -> int:
    """The batches that the journal knows by their id."""
    lines = [line for path in koderz.results.glob("[!.]*/journal.jsonl") for line in path.read_text().splitlines(True)]
    found = (json.loads(line) for line in lines if line.startswith('{"kind":"batch"') and line.endswith("\n"))
    return len({line["id"] for line in found if line.get("id")})


def test_batch_run_is_left_by_ctrl_c_and_taken_up(koderz: Shell, questions: tuple[object, ...]) -> None:
    with served(looks=None) as (environ, server):
        process = koderz.start(*questions, "--model", "openai/recorded", env=environ)
        wait_for(lambda: batches_sent(koderz) == 1)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        assert "continue with: koderz benchmark resume" in process.communicate()[1]
        assert server.batches[0].state in ("validating", "in_progress")
        for command in (("list",), ("show", "latest"), ("watch", "latest")):
            said = koderz("benchmark", *command, code={0, 3}, env=environ).out
            told = r"atch batch_0 at openai: (validating|in_progress), 0 of 6 calls answered, sent \S+ ago"
            assert re.search(told, " ".join(said.split())), said
        server.looks = 1
        koderz("benchmark", "resume", "latest", env=environ)
        assert paid_twice(server) == []
        assert len(server.paid) == 12
    assert koderz.summary()["batches"][0] | {"time": ""} == {
        "id": "batch_0",
        "state": "completed",
        "provider": "openai",
        "model": "openai/recorded",
        "count": 6,
        "done": 6,
        "failed": 0,
        "reason": "",
        "time": "",
    }


def test_cancel_ends_batches_at_their_provider(koderz: Shell, questions: tuple[object, ...]) -> None:
    with served(looks=None) as (environ, server):
        process = koderz.start(*questions, "--model", "anthropic/recorded", env=environ)
        wait_for(lambda: batches_sent(koderz) == 1)
        koderz("benchmark", "cancel", "latest", code=2, env=environ)  # while it is at work
        os.kill(process.pid, signal.SIGINT)
        process.wait(PATIENCE)
        koderz("benchmark", "cancel", "latest", env=environ)
        assert server.batches[0].state == "ended"
        server.looks = 1
        koderz("benchmark", "resume", "latest", env=environ)
        assert paid_twice(server) == []


def test_cancel_of_a_run_without_batches_says_so(koderz: Shell) -> None:
    koderz("benchmark", 0, 1, "--model", "simulated", code={0, 3})

    assert "has no batches to be cancelled" in koderz("benchmark", "cancel", "latest", code=2).err


def test_dry_run_shows_both_prices_and_the_rounds(koderz: Shell) -> None:
    planned = ("benchmark", 0, 164, "--model", "openai/gpt-4o-mini", "--batch", "--dry-run")
    key = {"OPENAI_API_KEY": "sk-test"}

    said = koderz(*planned, env=key).out
    document = json.loads(koderz(*planned, "--json", env=key).out)

    assert "In batches: at most $0.4429 instead of $0.8858, in 1 to 10 rounds of up to 24 h" in said
    assert document["batches"]["cost"] == [half / 2 for half in document["estimate"]["cost"]]
    assert document["batches"]["rounds"] == [1, 10]


@pytest.mark.parametrize("prices", ["batch-input = 0.5\nbatch-output = 0.5\n", ""])
def test_batch_prices_of_the_user_win(koderz: Shell, questions: tuple[object, ...], prices: str) -> None:
    (koderz.folder / "koderz.toml").write_text(f'[prices."openai/recorded"]\ninput = 2\noutput = 2\n{prices}')
    with served() as (environ, _):
        koderz(*questions, "--model", "openai/recorded", env=environ)
    (summary,) = koderz.summary()["arms"].values() if "arms" in koderz.summary() else [koderz.summary()]
    tokens = summary["summary"]["tokens_in"] + summary["summary"]["tokens_out"]
    assert summary["summary"]["total_cost"] == pytest.approx((0.5 if prices else 1.0) * tokens / 1e6)
    verified = koderz("verify", "latest", "--dataset", "faq.jsonl", code={0, 3}).out
    assert "NOT VERIFIED" not in verified
    assert "batches, as their provider told of them" in " ".join(verified.split())


@pytest.mark.slow
@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_batch_run_killed_at_random_moments_pays_nothing_twice(
    koderz: Shell, questions: tuple[object, ...], style: str
) -> None:
    moments, kills, run = random.Random(style), 0, 0
    while kills < KILLS:
        run += 1
        own = Shell(koderz.folder / f"run-{run}")
        own.folder.mkdir()
        for name in ("faq.jsonl", "twice.py"):
            (own.folder / name).write_bytes((koderz.folder / name).read_bytes())
        with served(looks=2) as (environ, server):
            kills += _killed_again_and_again(own, (*questions, "--model", f"{style}/recorded"), environ, moments)
            assert paid_twice(server) == []
            assert len(server.paid) == 12
        assert own.summary()["status"] == "complete"


def _killed_again_and_again(
    koderz: Shell, begin: tuple[object, ...], environ: dict[str, str], moments: random.Random
) -> int:
    """The kills that a run took until it was complete."""
    kills = 0
    while True:
        has_begun = any(koderz.results.glob("bench_*/journal.jsonl")) if koderz.results.is_dir() else False
        process = koderz.start(*(("benchmark", "resume", "latest") if has_begun else begin), env=environ)
        try:
            code = process.wait(moments.uniform(0.1, 3.0))
        except TimeoutError:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(PATIENCE)
            kills += 1
        else:
            assert code == 0, process.communicate()
            return kills
