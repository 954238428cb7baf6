"""What `show` and the report tell of one experiment."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from koderz.analysis.story import Experiments, Story, diff, journal_folder, problem_named
from koderz.cli.show import tell
from koderz.errors import KoderzError
from koderz.testing import a_journal, a_plan
from koderz_tracker.records import Cell, Experiment, Record
from tests.tracker.builders import attempt, call, fault, judged

ASKED = [{"role": "user", "content": "write it"}]
AGAIN = [*ASKED, {"role": "assistant", "content": "reply 1"}, {"role": "user", "content": "it failed"}]


def stories(results: Path, *records: Record) -> list[Story]:
    experiments = Experiments(a_journal(results, *records))
    return [experiments.story(outcome) for outcome in experiments.outcomes]


def test_story_tells_each_reply_with_its_request_and_outcome(tmp_path: Path) -> None:
    (story,) = stories(
        tmp_path,
        call(0, messages=ASKED),
        attempt(0, program="def f():\n    return 1\n"),
        call(0, 2, messages=AGAIN),
        attempt(0, 2, verdict="passed", program="def f():\n    return 2\n"),
        judged(0, iterations=2),
    )

    assert [message["content"] for step in story.steps for message in step.asked] == ["write it", "it failed"]
    assert [step.attempt.verdict for step in story.steps if step.attempt] == ["failed", "passed"]
    assert story.steps[1].diff == ("@@ -1,2 +1,2 @@", " def f():", "-    return 1", "+    return 2")
    assert (story.outcome.kind, story.program) == ("experiment", "def f():\n    return 2\n")


def test_story_tells_unjudged_calls_and_attempts_without_calls(tmp_path: Path) -> None:
    spec = replace(call(0), purpose="spec")
    (story,) = stories(
        tmp_path, spec, call(0, 2), attempt(0, call=2), attempt(0, 2, call=None), judged(0, iterations=2)
    )

    assert [(step.call is not None, step.attempt is not None) for step in story.steps] == [
        (True, False),
        (True, True),
        (False, True),
    ]


def test_story_of_a_rescored_attempt_has_its_last_verdict(tmp_path: Path) -> None:
    (story,) = stories(tmp_path, call(0), attempt(0), judged(0, False), attempt(0, verdict="passed"), judged(0))

    assert [found.verdict for found in story.attempts] == ["passed"]
    assert isinstance(story.outcome, Experiment)
    assert story.outcome.verdict == "passed"


def test_stories_come_in_the_order_of_the_plan_with_faults(tmp_path: Path) -> None:
    found = stories(tmp_path, judged(2), fault(1), judged(0))

    assert [(story.problem_id, story.outcome.kind) for story in found] == [
        ("T/0", "experiment"),
        ("T/1", "fault"),
        ("T/2", "experiment"),
    ]


def test_story_names_a_sample_as_its_user_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [Cell("T/0", "zero-shot", 2, ("fast\x1b[31m", "slow")), Cell("T/1", "zero-shot", 1)]
    ended = [judged(0, sample=0), judged(0, sample=1), judged(1)]
    folder = a_journal(tmp_path, *ended, plan=a_plan(cells=cells))
    experiments = Experiments(folder)
    found = {(each.problem_id, each.sample): experiments.story(each) for each in experiments.outcomes}
    assert [found[key].sample_name for key in sorted(found)] == ["fast\x1b[31m", "slow", ""]
    for key in sorted(found):
        tell(found[key], "bench_1")
    shown = [line for line in capsys.readouterr().out.splitlines() if "bench_1" in line]
    assert shown == [
        "T/0 · zero-shot · fast\\x1b[31m · bench_1",
        "T/0 · zero-shot · sample 1 · slow · bench_1",
        "T/1 · zero-shot · bench_1",
    ]
    assert b'"names"' not in (folder / "journal.jsonl").read_bytes().partition(b'"T/1","arm"')[2]  # where there is none


def test_story_is_found_by_problem_number() -> None:
    tasks = ["HumanEval/1", "HumanEval/11"]
    assert problem_named("11", tasks) == "HumanEval/11"
    assert problem_named("HumanEval/1", tasks) == "HumanEval/1"
    with pytest.raises(KoderzError, match="no task '7'; it has HumanEval/1"):
        problem_named("7", tasks)


def test_programs_that_are_the_same_have_no_diff() -> None:
    assert list(diff("a\n", "a\n")) == []


def test_stories_of_a_bare_summary_are_none(tmp_path: Path) -> None:
    (tmp_path / "baseline.json").write_text("{}")
    with pytest.raises(KoderzError, match=r"its journal .* isn't there"):
        journal_folder(tmp_path / "baseline.json")


def test_plans_with_unknown_solvers_are_told(tmp_path: Path) -> None:
    folder = a_journal(tmp_path, judged(0, solver="zero-shot"), plan=a_plan(arms=("mine",)))
    assert len(Experiments(folder).outcomes) == 1
