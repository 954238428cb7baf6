"""Replies that don't end in time: faults by default, failures of the model on request, and always said."""

from __future__ import annotations

import pytest

from tests.conftest import Shell, lines_of
from tests.e2e.test_models import Serve
from tests.koderz.cli.conftest import Command

MODEL = ("--model", "openai/recorded", "--request-timeout", 0.3, "--max-retries", 0)


def test_late_reply_is_a_fault_by_default_and_that_is_said(command: Command, koderz: Shell, serve: Serve) -> None:
    env = serve("--faults", "hang:1").env()

    done = command("benchmark", 0, 2, "--mode", "zero-shot", *MODEL, env=env, code=3)

    summary = koderz.summary()
    assert [fault["cause"] for fault in summary["faults"]] == ["unreachable"] * 2
    assert "2 faults by a reply that didn't end within --request-timeout; with --timeout-is failure" in done.err
    assert "0.3 s, which counts as a fault (--timeout-is fault)" in done.err


@pytest.mark.parametrize("mode", ["zero-shot", "iterative"])
def test_late_reply_is_a_failure_on_request(command: Command, koderz: Shell, serve: Serve, mode: str) -> None:
    server = serve("--faults", "hang:1")
    options = ("--mode", mode, "--max-iterations", 2, *MODEL) if mode == "iterative" else ("--mode", mode, *MODEL)

    done = command("benchmark", 0, 2, *options, "--timeout-is", "failure", env=server.env())

    summary = koderz.summary()
    attempts = 2 if mode == "iterative" else 1
    assert (summary["status"], summary["faults"], summary["config"]["timeout_is"]) == ("complete", [], "failure")
    assert [(r["verdict"], r["cause"], r["iterations"]) for r in summary["results"]] == [
        ("timeout", "time", attempts)
    ] * 2
    assert "2 experiments failed by a reply that didn't end within --request-timeout (--timeout-is failure)" in done.err
    assert "0.3 s, which counts as a failure (--timeout-is failure)" in done.err
    calls = lines_of(koderz.folder / "benchmark_results", "call")
    assert [(call["finish_reason"], call["reply"]) for call in calls] == [("time", "")] * 2 * attempts

    command("benchmark", "rescore", "latest", "--quiet")  # over the record, without a server
    for before, after in zip(summary["results"], koderz.summary()["results"], strict=True):
        assert {**before, "duration_seconds": 0} == {**after, "duration_seconds": 0}
    assert "VERIFIED" in command("verify", "latest").out
    assert len(lines_of(koderz.folder / "benchmark_results", "call")) == len(calls)
    refused = command("benchmark", "resume", "latest", "--timeout-is", "fault", code=2).err
    assert "--timeout-is" in refused
