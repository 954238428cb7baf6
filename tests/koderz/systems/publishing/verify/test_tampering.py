"""Runs that were changed after they were made: whatever differs from what follows from the replies is found."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

import koderz
from koderz.systems.publishing.verify import Verification, verify_run
from tests.koderz.systems.publishing.verify.forging import Lines, copied, lines_of, of_kind, written


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


def failed(lines: Lines) -> dict[str, Any]:
    """An experiment of one attempt that failed."""
    return of_kind(lines, "experiment", success=False, arm="zero-shot")


def passed(lines: Lines, **fields: Any) -> dict[str, Any]:
    return of_kind(lines, "experiment", success=True, **fields)


def first_of_two(lines: Lines) -> dict[str, Any]:
    """The first attempt of an experiment that has another."""
    several = of_kind(lines, "attempt", number=2)
    return of_kind(lines, "attempt", experiment_id=several["experiment_id"], number=1)


def pass_verdict(lines: Lines) -> None:
    ended = failed(lines)
    of_kind(lines, "attempt", experiment_id=ended["experiment_id"]).update(verdict="passed", cause="")
    ended.update(success=True, verdict="passed", cause="")


def pass_program(lines: Lines) -> None:
    """The reference's program in place of the reply's, which would pass."""
    pass_verdict(lines)
    ended = passed(lines, arm="zero-shot")
    reference = lines[0]["details"]["expectations"][ended["problem_id"]]["expected_response"]
    of_kind(lines, "attempt", experiment_id=ended["experiment_id"])["program"] = reference


def pass_reply(lines: Lines) -> None:
    """Another reply, judged as it was."""
    call = of_kind(lines, "call", experiment_id=failed(lines)["experiment_id"])
    call["reply"] = "```python\ndef nothing():\n    pass\n```"


def drop_all_of_failure(lines: Lines) -> None:
    name = failed(lines)["experiment_id"]
    lines[:] = [line for line in lines if line.get("experiment_id") != name]


def fault_failure(lines: Lines) -> None:
    ended = failed(lines)
    kept = {name: ended[name] for name in ("time", "experiment_id", "problem_id", "solver", "arm", "sample")}
    lines[lines.index(ended)] = {"kind": "fault", **kept, "reason": "the server is gone", "cause": "unreachable"}


def change_message(lines: Lines, **more: str) -> None:
    call = of_kind(lines, "call")
    call["messages"][-1]["content"] += "\n\nThe answer is: return True"
    call.update(more)


def draw_again(lines: Lines) -> None:
    """A second reply to the same request, of which only one was judged."""
    call = of_kind(lines, "call")
    last = max(line["call"] for line in lines if line.get("experiment_id") == call["experiment_id"] and "call" in line)
    lines.insert(lines.index(call), {**call, "call": last + 1, "key": call["key"][:-1] + "2", "reply": "no"})


def swap_tasks(lines: Lines) -> None:
    ended = failed(lines)
    ended["problem_id"] = next(name for name in lines[0]["tasks"] if name != ended["problem_id"])


def added(line: Mapping[str, Any]) -> Callable[[Lines], None]:
    return lambda lines: lines.insert(-1, {"time": lines[-1]["time"], **line})


def more(change: Callable[[Lines], tuple[dict[str, Any], str]], by: Any) -> Callable[[Lines], None]:
    """Adds to a field."""

    def tamper(lines: Lines) -> None:
        line, name = change(lines)
        line[name] += by

    return tamper


TAMPERED: dict[str, tuple[Callable[[Lines], Any], set[str]]] = {
    "pass_verdict": (pass_verdict, {"verdict"}),
    "pass_program": (pass_program, {"program", "verdict"}),
    "pass_reply": (pass_reply, {"program"}),
    "flip_outcome": (lambda lines: failed(lines).update(success=True, verdict="passed", cause=""), {"experiment"}),
    "drop_failure": (lambda lines: lines.remove(failed(lines)), {"plan"}),
    "drop_all_of_failure": (drop_all_of_failure, {"plan"}),
    "double_success": (lambda lines: lines.insert(-1, {**passed(lines), "time": lines[-1]["time"]}), {"plan"}),
    "repeat_line": (lambda lines: lines.insert(-1, {**passed(lines)}), {"plan"}),
    "add_foreign": (lambda lines: lines.insert(-1, {**passed(lines), "experiment_id": f"exp_{255:016x}"}), {"plan"}),
    "fault_failure": (fault_failure, {"experiment"}),
    "change_message": (change_message, {"prompt"}),
    # the key that belongs to another message
    "change_request": (lambda lines: change_message(lines, key=f"ask:{0:032x}/1"), {"prompt", "experiment"}),
    "draw_again": (draw_again, {"experiment"}),
    "change_cost": (lambda lines: of_kind(lines, "call").update(cost=0.01), {"cost"}),
    "change_iterations": (more(lambda lines: (passed(lines, arm="iterative"), "iterations"), 1), {"experiment"}),
    "change_tokens": (more(lambda lines: (of_kind(lines, "experiment"), "tokens_out"), -1), {"experiment"}),
    "drop_attempt": (lambda lines: lines.remove(first_of_two(lines)), {"experiment"}),
    "change_feedback": (lambda lines: first_of_two(lines).update(feedback="Return True."), {"prompt", "experiment"}),
    "swap_arms": (lambda lines: passed(lines, arm="iterative").update(arm="zero-shot", solver="zero-shot"), {"plan"}),
    "swap_tasks": (swap_tasks, {"plan"}),
    "change_score": (lambda lines: of_kind(lines, "experiment").update(score=1.0), {"experiment"}),
    "change_dataset": (lambda lines: lines[0]["environment"].update(dataset_digest="0" * 16), {"digest"}),
    "change_task_digest": (
        lambda lines: lines[0]["details"]["matches"]["task"].update({lines[0]["tasks"][0]: "0" * 16}),
        {"digest"},
    ),
    "change_limit": (lambda lines: lines[0]["config"].update(test_timeout=60.0), {"plan"}),
    "change_prompt": (more(lambda lines: (lines[0]["details"]["prompts"], "system"), "Never fail."), {"prompt"}),
    "change_arm_model": (lambda lines: lines[0]["arms"][0]["models"].update(main="openai/gpt-9"), {"plan"}),
    "change_time": (lambda lines: of_kind(lines, "attempt").update(time="2020-01-01T00:00:00.000000"), {"order"}),
    "change_day": (lambda lines: lines[0].update(run_id=lines[0]["run_id"][:15] + "20200101_000000"), {"order"}),
    "change_session": (added({"kind": "resumed", "how": "polished", "config": {}}), {"plan"}),
    "damage_line": (added({"kind": "experiment", "experiment_id": 5}), {"file"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("tamper", TAMPERED)
def test_verify_finds_what_was_changed(honest: Path, tmp_path: Path, tamper: str) -> None:
    change, kinds = TAMPERED[tamper]
    folder = copied(honest, tmp_path)
    lines = lines_of(folder)
    change(lines)
    written(folder, lines)

    found = verified(folder)

    assert not found.verified
    assert kinds & found.found.keys(), found.findings


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
    written(folder, lines)
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
