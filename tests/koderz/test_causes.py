"""Each fault has a cause, a word of one list; faults on record from before there were causes are read with one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from koderz.errors import FatalFault, Fault, UserCodeFault
from koderz.experiments.budget import CapReached, ExperimentCapReached
from koderz.experiments.recording import Divergence
from koderz.experiments.replay import NeedsCallError
from koderz.suites.references import ReferenceFault
from tests.tracker import builders
from tracker.causes import CAUSES, Cause, cause_of
from tracker.records import Fault as FaultRecord
from tracker.records import decode, encode

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
    page = Path("docs/how-to/resume-and-rescore.md").read_text()
    assert [word for word, meaning in CAUSES.items() if f"| `{word}` | {meaning} |" not in page] == []


@pytest.mark.parametrize(("reason", "cause"), _OLD.items())
def test_cause_of_an_old_fault_is_read_from_its_reason(reason: str, cause: str) -> None:
    found = decode(encode(builders.fault(0, reason=reason, cause="")))

    assert isinstance(found, FaultRecord)
    assert found.cause == cause


def test_causes_have_old_reasons_each() -> None:
    assert {cause_of(reason) for reason in _OLD} == set(CAUSES)


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
