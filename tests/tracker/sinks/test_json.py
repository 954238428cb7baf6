"""The summary file: its contract, its form, and that it is whole or not there."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Struct, structs

from koderz.testing import a_journal, a_plan
from koderz_tracker.errors import StorageError
from koderz_tracker.records import Finished, Measure, Plan, Record
from koderz_tracker.results import Result
from koderz_tracker.sinks.json import encode_summary, write_summary
from koderz_tracker.summary import ArmResults, Summary, figures, summarize
from tests.tracker import builders
from tests.tracker.builders import call, fault, judged

BOTH = ("zero-shot", "iterative")
ALWAYS = {
    "run_id",
    "mode",
    "start_time",
    "end_time",
    "duration_seconds",
    "config",
    "status",
    "planned",
    "faults",
    "paid",
    "simulated",
    "environment",
    "schema_version",
}


def written(tmp_path: Path, *records: Record, of: Plan | None = None) -> dict[str, Any]:
    folder = a_journal(tmp_path, *records, plan=of)
    path, _ = write_summary(folder)
    assert path == folder.with_suffix(".json")
    return dict(json.loads(path.read_text()))


def test_json_of_a_single_mode_has_results_and_summary_on_top(tmp_path: Path) -> None:
    found = written(tmp_path, judged(0, True), judged(1, False), fault(2), Finished(status="incomplete"))

    assert found.keys() >= ALWAYS | {"results", "summary"}
    assert not found.keys() & {"zero_shot", "iterative", "comparison"}
    assert found["arms"] == {"zero-shot": {"results": found["results"], "summary": found["summary"]}}
    assert found["results"][1].keys() >= {
        "experiment_id",
        "problem_id",
        "success",
        "iterations",
        "cost",
        "solver",
        "sample",
    }
    assert found["results"][1].keys() >= {"verdict", "cause", "tokens"}
    assert found["summary"].keys() >= {
        "total_problems",
        "successes",
        "success_rate",
        "total_cost",
        "avg_cost",
        "avg_iterations",
    }
    assert len(found["results"]) == found["summary"]["total_problems"] == 2
    assert (found["run_id"], found["mode"], found["planned"]) == (builders.RUN, "zero-shot", 3)


def test_json_has_measures_with_every_result_and_mean(tmp_path: Path) -> None:
    of = a_plan(1, measures=[Measure(name="seconds", direction="lower", unit="s")])
    found = written(tmp_path, judged(0, score=0.5, metrics={"seconds": 2.0}), of=of)

    assert found["measures"] == [
        {"name": "seconds", "direction": "lower", "unit": "s", "two_valued": False, "average": "", "bounds": None}
    ]
    assert (found["results"][0]["score"], found["results"][0]["metrics"]) == (0.5, {"seconds": 2.0})
    mean = {"mean": 2.0, "interval": None, "interval_method": None, "results": 1}
    score = found["summary"]["measures"].pop("score")
    assert (score["mean"], score["results"]) == (0.5, 1)
    assert 0 < score["interval"][0] < 0.1 < 0.9 < score["interval"][1] < 1
    assert found["summary"]["measures"] == {"seconds": mean}
    del found["arms"]["zero-shot"]["summary"]["measures"]["score"]
    assert found["arms"]["zero-shot"]["summary"] == found["summary"]


def test_json_of_a_comparative_run_has_both_arms(tmp_path: Path) -> None:
    records = [judged(0, False), judged(0, True, solver="iterative", cost=0.75, iterations=3)]
    found = written(tmp_path, *records, of=a_plan(1, arms=BOTH))

    assert found.keys() >= ALWAYS | {"zero_shot", "iterative", "comparison"}
    assert not found.keys() & {"results", "summary"}
    assert found["arms"] == {"zero-shot": found["zero_shot"], "iterative": found["iterative"]}
    for arm in ("zero_shot", "iterative"):
        assert found[arm].keys() == {"results", "summary"}
        assert len(found[arm]["results"]) == found[arm]["summary"]["total_problems"] == 1
    expected = {"success_rate_improvement": 100.0, "cost_difference": 0.5, "iteration_difference": 2.0}
    assert found["comparison"].items() >= expected.items()


def test_json_of_a_users_solver_has_its_name_as_mode(tmp_path: Path) -> None:
    found = written(tmp_path, judged(0, solver="my-solver"), of=a_plan(1, arms=["my-solver"]))

    assert found["mode"] == "my-solver"
    assert found["results"][0]["solver"] == "my-solver"


def test_costs_are_numbers_also_where_there_are_none(tmp_path: Path) -> None:
    found = written(tmp_path)

    assert (found["results"], found["faults"]) == ([], [])
    assert (found["summary"]["total_cost"], found["summary"]["avg_cost"]) == (0.0, 0.0)
    assert all(isinstance(value, int | float) for value in found["paid"].values())


def test_json_without_judged_experiments_has_no_success_rate(tmp_path: Path) -> None:
    summary = written(tmp_path)["summary"]

    assert (summary["total_problems"], summary["successes"]) == (0, 0)
    averages = (
        "success_rate",
        "success_rate_interval",
        "success_rate_interval_method",
        "avg_iterations",
        "avg_latency",
    )
    assert {summary[name] for name in averages} == {None}


def test_arms_that_are_no_mode_stand_in_arms_by_name(tmp_path: Path) -> None:
    names = ["my solver", "iterative", "zero-shot"]
    records = [judged(0, solver=name) for name in names[:2]]
    found = written(tmp_path, *records, of=a_plan(1, arms=names, mode="three"))

    assert not found.keys() & {"results", "summary", "zero_shot", "iterative", "my solver"}
    assert list(found["arms"]) == names
    assert [len(arm["results"]) for arm in found["arms"].values()] == [1, 1, 0]
    assert found["arms"]["zero-shot"]["summary"]["success_rate"] is None
    assert found["comparison"]["success_rate_improvement"] is None


def test_json_is_indented_by_2_spaces_and_ends_with_a_newline(tmp_path: Path) -> None:
    folder = a_journal(tmp_path, judged(0))
    text = write_summary(folder)[0].read_text()

    assert text.startswith('{\n  "run_id": "bench_')
    assert text.endswith("\n}\n")
    assert not any(len(line) - len(line.lstrip()) & 1 for line in text.splitlines())


def test_json_summary_is_alone_in_the_results_folder(tmp_path: Path) -> None:
    written(tmp_path, call(0), judged(0))

    assert sorted(path.name for path in tmp_path.iterdir()) == [builders.RUN, f"{builders.RUN}.json"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EACCES])
def test_json_keeps_the_old_summary_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    folder = a_journal(tmp_path, judged(0))
    path, _ = write_summary(folder)
    before = path.read_bytes()

    def full(file: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=f"koderz benchmark resume {builders.RUN}") as raised:
        write_summary(folder)

    assert ("make room" in str(raised.value)) == (code != errno.EACCES)

    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == [builders.RUN, path.name]


# The form: written in pieces, it equals the same document written at once


def at_once(summary: Summary) -> bytes:
    return orjson.dumps(whole(summary), default=_flat, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _flat(struct: Struct) -> dict[str, Any]:
    """What a suite tells of a result stands beside what every result has."""
    fields = structs.asdict(struct)
    for name in ("cluster", "roles", "resources", "truncated", "reused_calls", "saved_cost", "reused", "untold"):
        if not fields.get(name, True):
            del fields[name]
    if fields.get("answer") is UNSET:
        del fields["answer"]
    return fields | dict(fields.pop("facts", {}))


def whole(summary: Summary) -> dict[str, Any]:
    """The document that the contract describes, as one value."""
    document: dict[str, Any] = {}
    for item in fields(summary):
        value = getattr(summary, item.name)
        if item.name == "arms":
            arms = {name: asdict(arm) for name, arm in value.items()}
            for arm in arms.values():
                assert not arm.pop("baseline")
                assert arm.pop("simulated") is None
                for seldom in ("unread", "success_rate_bounds"):
                    if arm["summary"][seldom] is None:
                        del arm["summary"][seldom]
                arm["summary"] |= arm.pop("more")
            if len(arms) == 1:
                document |= next(iter(arms.values()))
            elif arms.keys() == set(BOTH):
                document |= {name.replace("-", "_"): arms[name] for name in BOTH}
            document["arms"] = arms
        elif item.name == "parts":
            document |= value
        elif value or item.name not in (
            "comparison",
            "breakdown",
            "generated",
            "until_decided",
            "decision",
            "rewarded_in",
            "notes",
            "asked",
            "batches",
        ):
            document[item.name] = value
    return document


WORDS = st.text(max_size=12)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
FRACTIONS = st.floats(0, 10)
RESULTS = st.builds(
    Result,
    experiment_id=WORDS,
    problem_id=WORDS,
    success=st.booleans(),
    iterations=st.integers(0, 10),
    cost=FRACTIONS,
    solver=WORDS,
    sample=st.integers(0, 3),
    verdict=WORDS,
    cause=WORDS,
    tokens=st.integers(0, 10),
    tokens_in=st.integers(0, 10),
    tokens_out=st.integers(0, 10),
    calls=st.integers(0, 10),
    latency=FRACTIONS,
    duration_seconds=FRACTIONS,
    cost_known=st.booleans(),
    cost_by_tier=st.none() | st.dictionaries(WORDS, FRACTIONS, max_size=3),
    score=st.none() | FRACTIONS,
    metrics=st.none() | st.dictionaries(WORDS, FRACTIONS, max_size=3),
    note=WORDS,
    answer=st.just(UNSET) | st.none() | WORDS,
)
ARMS = st.lists(RESULTS, max_size=4).map(lambda results: ArmResults(results, figures(results)))


@settings(max_examples=30)
@given(
    arms=st.dictionaries(st.sampled_from([*BOTH, "my-solver"]), ARMS, min_size=1, max_size=3),
    config=st.dictionaries(WORDS, VALUES, max_size=4),
    faults=st.lists(st.dictionaries(WORDS, VALUES, max_size=3), max_size=3),
    words=st.tuples(WORDS, WORDS),
)
def test_json_in_pieces_equals_orjson(
    arms: dict[str, ArmResults], config: dict[str, Any], faults: list[dict[str, Any]], words: tuple[str, str]
) -> None:
    summary = Summary(
        run_id=None,
        mode=words[0],
        start_time="",
        end_time="",
        duration_seconds=0.5,
        status="complete",
        reason=words[1],
        planned=3,
        config=config,
        arms=arms,
        comparison=None,
        faults=faults,
        paid={"total": 0.0},
        simulated=True,
        environment=config,
    )

    assert b"".join(encode_summary(summary)) == at_once(summary)


def test_json_includes_a_comparison(tmp_path: Path) -> None:
    records = [judged(0, False), judged(0, True, solver="iterative")]
    folder = a_journal(tmp_path, *records, plan=a_plan(1, arms=BOTH))
    summary = summarize(folder)

    assert b"".join(encode_summary(summary)) == at_once(summary)
    without = b"".join(encode_summary(replace(summary, comparison=None)))
    assert b'"comparison"' not in without
