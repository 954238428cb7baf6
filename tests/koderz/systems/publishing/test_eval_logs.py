"""Runs as logs of inspect_ai: read by its own reader, and compared as the runs are."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from koderz.analysis.compare import compare_runs
from koderz.analysis.export import own_format, write_own
from koderz.analysis.runs import load_run
from koderz.systems.publishing.logs.log import unzipped
from koderz.testing import a_journal, a_plan
from koderz_tracker.basis import Headline, Measure
from tests.koderz.analysis.test_conversation import COMMAND, OUTPUT, RULES, calls, each_wire
from tests.tracker.builders import attempt, call, fault, judged

READER = os.environ.get("KODERZ_INSPECT")
"""A Python that has inspect_ai, whose requirements are its own."""

READ = """
import json, sys
from inspect_ai.log import read_eval_log, read_eval_log_sample_summaries, write_eval_log
for path in sys.argv[1:]:
    log = read_eval_log(path)
    samples = [
        {
            "id": each.id,
            "epoch": each.epoch,
            "values": {name: score.value for name, score in each.scores.items()},
            "messages": [[m.role, m.text] for m in each.messages],
            "calls": [c.arguments for m in each.messages for c in getattr(m, "tool_calls", None) or ()],
            "usage": {model: [u.input_tokens, u.output_tokens, u.total_cost] for model, u in each.model_usage.items()},
            "seconds": each.total_time,
            "error": each.error and each.error.message,
            "completion": each.output.completion,
            "events": [[e.event, [m.text for m in getattr(e, "input", ())]] for e in each.events],
        }
        for each in log.samples
    ]
    write_eval_log(log, path.replace(".eval", "-again.eval"))
    (headline,) = log.results.scores[0].metrics.values()
    listed = [[each.id, each.epoch] for each in read_eval_log_sample_summaries(path)]
    print(json.dumps({"status": log.status, "rate": headline.value, "samples": samples, "listed": listed}))
"""
"""Prints each log as inspect's own reader has it, a JSON line each, and writes it again beside it."""


def written(run: Path, to: Path) -> list[Path]:
    """The logs of a run."""
    found = own_format("inspect")
    assert found is not None
    assert found.is_folder
    write_own(found, [run], to)
    return sorted(to.iterdir())


def a_run(folder: Path, passed: list[bool], number: int = 0, **planned: Any) -> Path:
    """A run with one sample a task and a fault after them."""
    tasks = len(passed) + 1
    given = {"asked": [f"{task:012x}" for task in range(tasks)], **planned}
    of = a_plan(tasks, run_id=f"bench_{number:08x}_20260131_120000", **given)
    lines = [
        record
        for task, success in enumerate(passed)
        for record in (
            call(task),
            attempt(task, verdict="passed" if success else "failed", program="x = 1"),
            judged(task, success, duration_seconds=2.5, score=0.75, metrics={"wall": task / 2 + 3 * success}),
        )
    ]
    return a_journal(folder, *lines, fault(len(passed)), plan=of)


A = [number % 3 != 0 for number in range(24)]
B = [number % 7 != 0 for number in range(24)]
FIGURES = ("pairs", "lost", "gained", "difference", "p_value", "interval", "verdict", "completion", "significant")
SIDE = ("total_problems", "successes", "success_rate", "success_rate_bounds", "total_cost", "cost_known")


@pytest.mark.parametrize(
    "planned",
    [
        {},
        {
            "measures": [Measure("wall", "lower", unit="s")],
            "headline": Headline(measure="wall", passed=""),
        },
    ],
    ids=["rate", "amount"],
)
def test_logs_compare_as_their_runs_do(tmp_path: Path, planned: dict[str, Any]) -> None:
    a, b = a_run(tmp_path, A, 1, **planned), a_run(tmp_path, B, 2, **planned)
    logs = [*written(a, tmp_path / "a"), *written(b, tmp_path / "b")]
    assert [log.name for log in logs] == [f"{run.name}_zero-shot.eval" for run in (a, b)]

    ours = compare_runs([str(run) for run in (a, b)], tmp_path).document()
    theirs = compare_runs([str(log) for log in logs], tmp_path).document()
    mixed = compare_runs([str(a), str(logs[1])], tmp_path).document()

    assert ours["pairs"] == 24
    for name in FIGURES:
        assert theirs[name] == ours[name], name
        assert mixed[name] == ours[name], name
    for side in ("a", "b"):
        for name in SIDE if not planned else ("total_problems", "total_cost"):
            assert theirs[side][name] == ours[side][name], name
    assert theirs["measure"].direction == ours["measure"].direction
    assert theirs["measures"]["tokens"] == ours["measures"]["tokens"]


def test_log_that_only_has_the_texts_of_tasks_is_compared_by_their_ids(tmp_path: Path) -> None:
    run, other = a_run(tmp_path, A, 1), a_run(tmp_path, B, 2, asked=())
    (log,) = written(other, tmp_path / "logs")
    assert load_run(log).asked
    assert compare_runs([str(run), str(log)], tmp_path).document()["pairs"] == 24


def test_log_of_a_simulated_model_says_so(tmp_path: Path) -> None:
    run = a_run(tmp_path, A, config={"local_model": "simulated"}, simulated=True)
    (log,) = written(run, tmp_path / "logs")
    assert load_run(log).simulated


def test_log_of_a_run_that_goes_on_says_so(tmp_path: Path) -> None:
    run = a_journal(tmp_path, judged(0), plan=a_plan(3))
    (log,) = written(run, tmp_path / "logs")
    assert (load_run(log).status, load_run(log).planned) == ("unfinished", 3)


@each_wire
def test_messages_of_agents_are_in_inspects_form_on_every_wire(tmp_path: Path, wire: str) -> None:
    run = a_journal(tmp_path, *calls(wire), judged(0))
    (log,) = written(run, tmp_path / "logs")
    with unzipped(log) as archive:
        sample = archive.read("samples/T/0_epoch_1.json")
    called = {"id": "c1", "function": "exec_command", "arguments": {"cmd": COMMAND}, "type": "function"}
    messages = sample["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert messages[0]["content"] == RULES
    assert messages[2]["tool_calls"] == [called]
    result = {"role": "tool", "content": OUTPUT, "tool_call_id": "c1", "function": "exec_command"}
    assert messages[3].items() >= result.items()
    assert len({message["id"] for message in messages}) == 5
    assert list(sample["scores"]) == ["passed"]
    assert sample["target"] == ""  # which inspect needs


def test_arguments_that_are_no_json_are_kept_with_the_error(tmp_path: Path) -> None:
    cut = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": '{"cmd": "l'}}
    run = a_journal(tmp_path, structs.replace(call(0), tool_calls=[cut]), judged(0))
    (log,) = written(run, tmp_path / "logs")
    with unzipped(log) as archive:
        (*_, message) = archive.read("samples/T/0_epoch_1.json")["messages"]
    assert message["tool_calls"][0]["arguments"] == {"arguments": '{"cmd": "l'}
    assert message["tool_calls"][0]["parse_error"]


@pytest.mark.skipif(not READER and not os.environ.get("CI"), reason="KODERZ_INSPECT names no Python with inspect_ai")
def test_inspect_reads_the_logs(tmp_path: Path) -> None:
    a, b = a_run(tmp_path, A, 1), a_run(tmp_path, B, 2)
    agent = a_journal(tmp_path / "agent", *calls("messages"), judged(0), plan=a_plan(1))
    logs = [log for run in (a, b, agent) for log in written(run, tmp_path / f"logs of {run.parent.name} {run.name}")]

    done = subprocess.run([str(READER), "-c", READ, *map(str, logs)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    found, _, of_agent = map(json.loads, done.stdout.splitlines())
    assert (found["status"], found["rate"]) == ("success", sum(A) / len(A))
    assert found["listed"] == [[f"T/{task}", 1] for task in range(25)]
    samples = {each["id"]: each for each in found["samples"]}
    assert {task: each["values"].get("passed") for task, each in samples.items()} == {
        **{f"T/{task}": "C" if passed else "I" for task, passed in enumerate(A)},
        "T/24": None,
    }
    assert samples["T/24"]["error"] == "gone"
    first = samples["T/0"]
    assert first["messages"] == [["user", "hello"], ["assistant", "reply 1"]]
    assert first["completion"] == "reply 1"
    assert first["usage"] == {"m": [7, 3, 0.25]}
    assert first["seconds"] == 2.5
    names = [name for name, _ in first["events"]]
    assert names[:2] == ["model", "info"]
    assert set(names[2:]) == {"score"}
    assert first["events"][0][1] == ["hello"]
    asked = [texts for name, texts in of_agent["samples"][0]["events"] if name == "model"]
    assert asked[1][: len(asked[0])] == asked[0]
    assert len(asked[1]) == len(asked[0]) + 2
    assert of_agent["samples"][0]["calls"] == [{"cmd": COMMAND}]
    again = [str(log.with_name(f"{log.stem}-again.eval")) for log in logs[:2]]
    ours, theirs = (compare_runs(names, tmp_path).document() for names in ([str(a), str(b)], again))
    in_order = {"lost", "gained"}  # of the tasks, which inspect sorts as text
    for name in FIGURES:
        assert (sorted(theirs[name]) == sorted(ours[name])) if name in in_order else theirs[name] == ours[name], name
