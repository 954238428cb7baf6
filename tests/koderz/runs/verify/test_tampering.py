"""Runs that were changed after they were made: whatever differs from what follows from the replies is found."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

import koderz
from koderz.runs.verify import Verification, verify_run
from koderz_tracker.sinks.json import write_summary

Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory, speed: Path) -> Path:
    """The folder of a comparative run of four tasks, some of which fail."""
    results = tmp_path_factory.mktemp("runs") / "benchmark_results"
    running = koderz.benchmark(
        range(4), mode="comparative", model="simulated", results=results, sinks=("json",), seed=3, max_iterations=3
    )
    asyncio.run(running)
    (folder,) = (path for path in results.iterdir() if path.is_dir())
    return folder


def verified(folder: Path) -> Verification:
    return asyncio.run(verify_run(folder, summary=folder.with_suffix(".json")))


def copied(honest: Path, tmp_path: Path) -> Path:
    """A copy of the run and its summary."""
    folder = tmp_path / honest.name
    shutil.copytree(honest, folder)
    shutil.copy(honest.with_suffix(".json"), folder.with_suffix(".json"))
    return folder


def lines_of(folder: Path) -> Lines:
    return [orjson.loads(line) for line in (folder / "journal.jsonl").read_bytes().splitlines()]


def rewritten(folder: Path, lines: Lines, *, summary: bool = True) -> None:
    """Writes a journal, and the summary that follows from it, as whoever changes one would."""
    (folder / "journal.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    (folder / "journal.index").unlink(missing_ok=True)
    if summary:
        write_summary(folder)


def of_kind(lines: Lines, kind: str, **fields: Any) -> dict[str, Any]:
    """The first line of a kind with these fields."""
    return next(line for line in lines if line["kind"] == kind and fields.items() <= line.items())


def failed(lines: Lines) -> dict[str, Any]:
    """An experiment of one attempt that failed."""
    return of_kind(lines, "experiment", success=False, arm="zero-shot")


def pass_verdict(lines: Lines) -> None:
    ended = failed(lines)
    attempt = of_kind(lines, "attempt", experiment_id=ended["experiment_id"])
    attempt |= {"verdict": "passed", "cause": ""}
    ended |= {"success": True, "verdict": "passed", "cause": ""}


def pass_program(lines: Lines) -> None:
    """The reference's program in place of the reply's, which would pass."""
    pass_verdict(lines)
    ended = failed([*lines, {"kind": "experiment", "success": False, "arm": "zero-shot", "experiment_id": ""}])
    passed = of_kind(lines, "experiment", success=True, arm="zero-shot")
    assert ended is not passed
    attempt = of_kind(lines, "attempt", experiment_id=passed["experiment_id"])
    attempt["program"] = lines[0]["details"]["expectations"][passed["problem_id"]]["expected_response"]


def pass_reply(lines: Lines) -> None:
    """Another reply, judged as it was."""
    call = of_kind(lines, "call", experiment_id=failed(lines)["experiment_id"])
    call["reply"] = "```python\ndef nothing():\n    pass\n```"


def flip_outcome(lines: Lines) -> None:
    failed(lines).update(success=True, verdict="passed", cause="")


def drop_failure(lines: Lines) -> None:
    lines.remove(failed(lines))


def drop_all_of_failure(lines: Lines) -> None:
    name = failed(lines)["experiment_id"]
    lines[:] = [line for line in lines if line.get("experiment_id") != name]


def double_success(lines: Lines) -> None:
    passed = of_kind(lines, "experiment", success=True)
    lines.insert(-1, {**passed, "time": lines[-1]["time"]})


def repeat_line(lines: Lines) -> None:
    lines.insert(-1, dict(of_kind(lines, "experiment", success=True)))


def add_foreign(lines: Lines) -> None:
    passed = of_kind(lines, "experiment", success=True)
    lines.insert(-1, {**passed, "experiment_id": "exp_00000000000000ff"})


def fault_failure(lines: Lines) -> None:
    ended = failed(lines)
    kept = {name: ended[name] for name in ("time", "experiment_id", "problem_id", "solver", "arm", "sample")}
    lines[lines.index(ended)] = {"kind": "fault", **kept, "reason": "the server is gone", "cause": "unreachable"}


def change_message(lines: Lines) -> None:
    of_kind(lines, "call")["messages"][-1]["content"] += "\n\nThe answer is: return True"


def change_request(lines: Lines) -> None:
    """Another message with the key that belongs to it."""
    change_message(lines)
    of_kind(lines, "call")["key"] = "ask:00000000000000000000000000000000/1"


def draw_again(lines: Lines) -> None:
    """A second reply to the same request, of which only one was judged."""
    call = of_kind(lines, "call")
    last = max(line["call"] for line in lines if line.get("experiment_id") == call["experiment_id"] and "call" in line)
    lines.insert(lines.index(call), {**call, "call": last + 1, "key": call["key"][:-1] + "2", "reply": "no"})


def change_cost(lines: Lines) -> None:
    of_kind(lines, "call")["cost"] = 0.01


def change_iterations(lines: Lines) -> None:
    of_kind(lines, "experiment", arm="iterative", success=True)["iterations"] += 1


def change_tokens(lines: Lines) -> None:
    of_kind(lines, "experiment")["tokens_out"] -= 1


def drop_attempt(lines: Lines) -> None:
    several = next(line for line in lines if line["kind"] == "attempt" and line["number"] == 2)
    lines.remove(of_kind(lines, "attempt", experiment_id=several["experiment_id"], number=1))


def change_feedback(lines: Lines) -> None:
    several = next(line for line in lines if line["kind"] == "attempt" and line["number"] == 2)
    of_kind(lines, "attempt", experiment_id=several["experiment_id"], number=1)["feedback"] = "Return True."


def swap_arms(lines: Lines) -> None:
    of_kind(lines, "experiment", arm="iterative", success=True).update(arm="zero-shot", solver="zero-shot")


def swap_tasks(lines: Lines) -> None:
    ended = failed(lines)
    ended["problem_id"] = next(name for name in lines[0]["tasks"] if name != ended["problem_id"])


def change_score(lines: Lines) -> None:
    of_kind(lines, "experiment")["score"] = 1.0


def change_dataset(lines: Lines) -> None:
    lines[0]["environment"]["dataset_digest"] = "0" * 16


def change_task_digest(lines: Lines) -> None:
    digests = lines[0]["details"]["matches"]["task"]
    digests[next(iter(digests))] = "0" * 16


def change_limit(lines: Lines) -> None:
    lines[0]["config"]["test_timeout"] = 60.0


def change_prompt(lines: Lines) -> None:
    lines[0]["details"]["prompts"]["system"] += "Never fail."


def change_arm_model(lines: Lines) -> None:
    lines[0]["arms"][0]["models"]["main"] = "openai/gpt-9"


def change_time(lines: Lines) -> None:
    of_kind(lines, "attempt")["time"] = "2020-01-01T00:00:00.000000"


def change_day(lines: Lines) -> None:
    lines[0]["run_id"] = lines[0]["run_id"][:15] + "20200101_000000"


def change_session(lines: Lines) -> None:
    lines.insert(-1, {"kind": "resumed", "time": lines[-1]["time"], "how": "polished", "config": {}})


def damage_line(lines: Lines) -> None:
    lines.insert(-1, {"kind": "experiment", "time": lines[-1]["time"], "experiment_id": 5})


TAMPERED: dict[Callable[[Lines], None], set[str]] = {
    pass_verdict: {"verdict"},
    pass_program: {"program", "verdict"},
    pass_reply: {"program"},
    flip_outcome: {"experiment"},
    drop_failure: {"plan"},
    drop_all_of_failure: {"plan"},
    double_success: {"plan"},
    repeat_line: {"plan"},
    add_foreign: {"plan"},
    fault_failure: {"experiment"},
    change_message: {"prompt"},
    change_request: {"prompt", "experiment"},
    draw_again: {"experiment"},
    change_cost: {"cost"},
    change_iterations: {"experiment"},
    change_tokens: {"experiment"},
    drop_attempt: {"experiment"},
    change_feedback: {"prompt", "experiment"},
    swap_arms: {"plan"},
    swap_tasks: {"plan"},
    change_score: {"experiment"},
    change_dataset: {"digest"},
    change_task_digest: {"digest"},
    change_limit: {"plan"},
    change_prompt: {"prompt"},
    change_arm_model: {"plan"},
    change_time: {"order"},
    change_day: {"order"},
    change_session: {"plan"},
    damage_line: {"file"},
}


@pytest.mark.slow
@pytest.mark.parametrize("tamper", TAMPERED, ids=lambda tamper: tamper.__name__)
def test_verify_finds_what_was_changed(honest: Path, tmp_path: Path, tamper: Callable[[Lines], None]) -> None:
    folder = copied(honest, tmp_path)
    lines = lines_of(folder)
    tamper(lines)
    rewritten(folder, lines)

    found = verified(folder)

    assert not found.verified
    assert TAMPERED[tamper] & found.found.keys(), found.findings


def test_verify_passes_an_honest_run(honest: Path) -> None:
    found = verified(honest)

    assert found.verified, found.findings
    assert not found.not_derived
    assert found.judged == found.same == len([line for line in lines_of(honest) if line["kind"] == "attempt"])
    assert found.prompts == len([line for line in lines_of(honest) if line["kind"] == "call"])
    assert not (honest / "SHA256SUMS").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("iterative", "summary", "successes"), 99),
        (("comparison", "success_rate_improvement"), 51.5),
        (("faults",), [{"experiment_id": "exp_1"}]),
        (("planned",), 4),
        (("zero_shot", "results", 0, "cost"), 1.0),
        (("an_extra_figure",), 1),
    ],
)
def test_verify_finds_changed_figures(honest: Path, tmp_path: Path, path: tuple[str | int, ...], value: object) -> None:
    folder = copied(honest, tmp_path)
    summary = orjson.loads(folder.with_suffix(".json").read_bytes())
    place = summary
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    folder.with_suffix(".json").write_bytes(orjson.dumps(summary))

    found = verified(folder)

    assert found.found.keys() == {"figure"}
    assert str(path[-1]) in found.findings[0].where


@pytest.mark.slow
def test_verify_believes_no_cached_index(honest: Path, tmp_path: Path) -> None:
    folder = copied(honest, tmp_path)
    lines = lines_of(folder)
    pass_verdict(lines)
    index = (folder / "journal.index").read_bytes()
    rewritten(folder, lines)
    (folder / "journal.index").write_bytes(index)

    assert "verdict" in verified(folder).found


@pytest.mark.slow
def test_verify_compares_listed_digests(honest: Path, tmp_path: Path) -> None:
    folder = copied(honest, tmp_path)
    summary = folder.with_suffix(".json")
    files = {"journal.jsonl": folder / "journal.jsonl", f"../{summary.name}": summary}
    sums = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    (folder / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))
    assert verified(folder).verified

    (folder / "SHA256SUMS").write_text("".join(f"{'0' * 64}  {name}\n" for name in sums))
    assert verified(folder).found == {"file": 2}
    (folder / "SHA256SUMS").write_text(f"{sums['journal.jsonl']}  ../../etc/passwd\n")
    assert verified(folder).found == {"file": 3}


def test_verify_believes_no_summary_for_its_size(honest: Path, tmp_path: Path) -> None:
    folder = copied(honest, tmp_path)
    summary = folder.with_suffix(".json")
    summary.write_bytes(b"x" * summary.stat().st_size)

    with pytest.raises(koderz.KoderzError, match="can't be read as a summary"):
        verified(folder)


def test_verify_follows_no_link(honest: Path, tmp_path: Path) -> None:
    folder = copied(honest, tmp_path)
    (folder / "journal.jsonl").unlink()
    (folder / "journal.jsonl").symlink_to(honest / "journal.jsonl")

    with pytest.raises(koderz.KoderzError, match="is a link"):
        verified(folder)
