"""Each fault has a cause, a word of one list; faults on record from before there were causes are read with one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from koderz.errors import FatalFault, Fault, UserCodeFault
from koderz.experiments.budget import CapReached, ExperimentCapReached
from koderz.experiments.recording import Divergence
from koderz.experiments.replay import NeedsCallError
from koderz.suites.references import ReferenceFault
from koderz_tracker.errors import CAUSES, Cause, cause_of
from koderz_tracker.records import Fault as FaultRecord
from koderz_tracker.records import decode, encode
from tests.conftest import Shell
from tests.tracker import builders

_OLD = {
    "o/m at http://h/v1: 400: no": "rejected",
    "o/m at http://h/v1: 503: busy": "unreachable",
    "o/m at http://h/v1: 429: slow down": "unreachable",
    "o/m at http://h/v1: cannot connect: refused": "unreachable",
    "simulated fault: the simulated model was told to fail now and then; retry the call": "unreachable",
    "the cost cap of $1 an experiment is reached: $0.9 is spent": "cost_cap",
    "docker can't start a container: it ends at once": "sandbox",
    "Out of memory: no room": "sandbox",
    "a/b can't be prepared: no commit": "unprepared",
    "launch_failed: aider isn't installed here; install it by: pip": "launch_failed",
    "base_failed: base: test_0: no": "base_failed",
    "a/b can't be prepared: base_failed: the human's answer: no": "base_failed",
    "noise: base is 7 % off from itself; measure again on a machine with less to do": "noise",
    "reference fails here: failed (assertion)": "reference",
    "the verifier of a/b wrote no reward: x": "judge",
    "/a/rows.jsonl has changed since the run began; put it back": "data",
    "the solver raised KeyError: 'x'": "user_code",
    "rescore: needs a call of the judge": "needs_call",
    "the solver went another way than before, with 2 recorded results unused": "diverged",
    "its worker on Modal was lost 4 times, at last: gone": "worker_lost",
    "gone": "other",
    "": "other",
}


def test_causes_are_all_documented() -> None:
    assert tuple(CAUSES) == get_args(Cause)
    page = re.sub(r"\[(.+?)\]\(.+?\)", r"\1", Path("docs/how-to/resume-and-rescore.md").read_text())
    assert [word for word, meaning in CAUSES.items() if f"| `{word}` | {meaning} |" not in page] == []


@pytest.mark.parametrize(("reason", "cause"), _OLD.items())
def test_cause_of_an_old_fault_is_read_from_its_reason(reason: str, cause: str) -> None:
    found = decode(encode(builders.fault(0, reason=reason, cause="")))

    assert isinstance(found, FaultRecord)
    assert found.cause == cause


def test_causes_have_old_reasons_each() -> None:
    newer = {"image", "mcp", "setup", "healthcheck", "provider", "verifier", "task"}  # no reason was without its cause
    assert {cause_of(reason) for reason in _OLD} == set(CAUSES) - newer


def test_cause_on_record_is_kept_whatever_the_reason_says() -> None:
    found = decode(encode(builders.fault(0, reason="noise: of a server", cause="unreachable")))

    assert isinstance(found, FaultRecord)
    assert found.cause == "unreachable"


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (Fault, "other"),
        (FatalFault, "rejected"),
        (UserCodeFault, "user_code"),
        (CapReached, "cost_cap"),
        (ExperimentCapReached, "cost_cap"),
        (Divergence, "diverged"),
        (NeedsCallError, "needs_call"),
        (ReferenceFault, "reference"),
    ],
)
def test_cause_is_that_of_the_fault_or_of_its_class(kind: type[Fault], cause: str) -> None:
    assert kind("x").cause == cause
    assert kind("x", cause="noise").cause == "noise"


def test_cause_that_is_no_word_of_the_list_is_refused() -> None:
    with pytest.raises(ValueError, match="a fault has no cause 'sandbax'; it is one of unreachable, rejected"):
        Fault("x", cause="sandbax")  # type: ignore[arg-type]


def test_causes_are_asked_for_where_reasons_are_not_read() -> None:
    reads = re.compile(r"reason\.(startswith|endswith|partition|split|find)|\bin \w+(\.\w+)*\.reason\b")
    files = [path for folder in ("koderz", "tracker") for path in Path(folder).rglob("*.py")]
    assert [str(path) for path in files if reads.search(path.read_text())] == []


@pytest.fixture
def faulty(koderz: Shell) -> Shell:
    """Where a run of three tasks ended in two faults of one cause and one of another."""
    where = ("--model", "simulated", "--simulated-fault-rate", 1, "--sink", "json", "--concurrency", 1, "--quiet")
    koderz("benchmark", 0, 3, *where, code=3)
    (journal,) = koderz.results.glob("[!.]*/journal.jsonl")
    before, cause, after = journal.read_text().rpartition('"cause":"unreachable"')
    assert cause
    journal.write_text(f'{before}"cause":"sandbox"{after}')
    return koderz


def causes_on_record(koderz: Shell) -> list[str]:
    (journal,) = koderz.results.glob("[!.]*/journal.jsonl")
    lines = map(json.loads, journal.read_text().splitlines())
    return [line["cause"] for line in lines if line["kind"] == "fault"]


def test_resume_of_a_run_with_faults_ends_as_the_run_did(faulty: Shell) -> None:
    for _ in range(2):
        done = faulty("benchmark", "resume", "latest", "--trust-config", "--quiet", code=3)
        assert "nothing to do" in done.err
        assert "run them again with: koderz benchmark retry" in done.err


def test_retry_by_cause_runs_those_faults_alone(faulty: Shell) -> None:
    assert causes_on_record(faulty) == ["unreachable", "unreachable", "sandbox"]

    faulty("benchmark", "retry", "latest", "--cause", "sandbox", "--trust-config", "--quiet", code=3)
    assert causes_on_record(faulty)[3:] == ["unreachable"]

    done = faulty("benchmark", "retry", "latest", "--cause", "noise", "--trust-config", "--quiet")
    assert "nothing to do" in done.err
    faulty(
        "benchmark", "retry", "latest", "--cause", "noise", "--cause=unreachable", "--trust-config", "--quiet", code=3
    )
    assert len(causes_on_record(faulty)) == 7


def test_retry_by_a_cause_that_is_none_names_the_causes(faulty: Shell) -> None:
    done = faulty("benchmark", "retry", "latest", "--cause", "server", code=2)

    assert f"--cause server: faults have no such cause; it is one of {', '.join(CAUSES)}" in " ".join(done.err.split())


def test_causes_stand_in_list_and_show(faulty: Shell) -> None:
    (row,) = json.loads(faulty("benchmark", "list", "--json").out)
    assert row["fault_causes"] == {"unreachable": 2, "sandbox": 1}
    assert "incomplete 3 faults (unreachable, sandbox)" in faulty("benchmark", "list").out
    told = faulty("benchmark", "show", "latest").out
    assert "3 faults (unreachable 2, sandbox 1), not counted as failures" in told
    failures = faulty("benchmark", "show", "latest", "--failures").out.splitlines()
    assert [line for line in failures if line.startswith("fault")] == ["fault, unreachable: 2", "fault, sandbox: 1"]
    assert "FAULT (sandbox) after 0 calls" in faulty("benchmark", "show", "latest", "--problem", "HumanEval/2").out
