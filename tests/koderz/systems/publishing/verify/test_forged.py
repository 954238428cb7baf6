"""Runs that were forged as a whole: nothing in them contradicts anything else, and yet no model wrote that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import koderz
from koderz.cli import app
from koderz.systems.publishing.verify import Verification, verify_run
from tests.koderz.systems.publishing.verify.forging import Lines, forged, lines_of, of_kind

CODE: dict[str, Any] = {"mode": "comparative", "model": "simulated", "sinks": ("json",)}


def run_of(results: Path, problems: range, **settings: Any) -> Path:
    """The folder of a new run."""
    asyncio.run(koderz.benchmark(problems, **CODE, results=results, **settings))
    (folder,) = (path for path in results.iterdir() if path.is_dir())
    return folder


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory, speed: Path) -> Path:
    """A comparative run of ten tasks: 6 and 9 of them pass."""
    return run_of(tmp_path_factory.mktemp("code"), range(10))


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory, speed: Path) -> Path:
    """A comparative run that stopped once it was decided."""
    return run_of(tmp_path_factory.mktemp("decided"), range(60), until_decided="first")


def verified(folder: Path) -> Verification:
    return asyncio.run(verify_run(folder, summary=folder.with_suffix(".json")))


def failed(lines: Lines) -> Lines:
    """The ends of the experiments that failed."""
    return [line for line in lines if line["kind"] == "experiment" and not line["success"]]


def failed_tasks(lines: Lines) -> list[str]:
    return [*dict.fromkeys(line["problem_id"] for line in failed(lines))]


def of_experiment(lines: Lines, name: str, kind: str) -> Lines:
    return [line for line in lines if line["kind"] == kind and line["experiment_id"] == name]


def line_behind_each_end(lines: Lines) -> None:
    for end in failed(lines):
        end |= {"success": True, "verdict": "passed", "cause": "", "note": ""}
        odd = {"kind": "once", "time": end["time"], "experiment_id": end["experiment_id"], "name": "odd", "value": 1}
        lines.insert(lines.index(end) + 1, odd)


def no_end(lines: Lines) -> None:
    for end in failed(lines):
        lines.remove(end)
    lines[-1] |= {"status": "interrupted", "reason": "interrupted"}


def nothing_of_failures(lines: Lines) -> None:
    names = {end["experiment_id"] for end in failed(lines)}
    lines[:] = [line for line in lines if line.get("experiment_id") not in names]
    lines[-1] |= {"status": "interrupted", "reason": "interrupted"}


def apart(lines: Lines) -> None:
    lines[0]["apart"] = failed_tasks(lines)


def no_longer_simulated(lines: Lines) -> None:
    lines[0]["simulated"] = False
    for arm in lines[0]["arms"]:
        arm.pop("simulated", None)


def clusters(lines: Lines) -> None:
    lines[0]["clusters"] = ["one"] * len(lines[0]["tasks"])


def groups(lines: Lines) -> None:
    lines[0]["groups"] = {"kind": ["easy"] * len(lines[0]["tasks"])}


def compared(lines: Lines) -> None:
    lines[0]["compared"] = ["iterative", "zero-shot"]


def mode(lines: Lines) -> None:
    lines[0]["mode"] = lines[0]["config"]["mode"] = "iterative"


def judged_text(lines: Lines) -> None:
    """The judged program stands in the text, and not in the reply."""
    for call in lines:
        if call["kind"] == "call":
            call |= {"text": call["reply"], "reply": "I don't know."}


def replies_of_the_other_arm(lines: Lines) -> None:
    """Wrong replies give way to right ones that the model wrote elsewhere, and all that follows from these."""
    for end in [end for end in failed(lines) if end["arm"] == "zero-shot"]:
        name = end["experiment_id"]
        better = of_kind(lines, "experiment", problem_id=end["problem_id"], arm="iterative")
        if not better["success"]:
            continue
        (call,), (attempt,) = of_experiment(lines, name, "call"), of_experiment(lines, name, "attempt")
        right = of_experiment(lines, better["experiment_id"], "call")[-1]
        passed = of_experiment(lines, better["experiment_id"], "attempt")[-1]
        call |= {field: right[field] for field in ("reply", "text", "tokens_out")}
        kept = ("program", "verdict", "cause", "feedback", "detail", "score", "metrics", "key")
        attempt |= {field: passed[field] for field in kept if field in passed}
        end |= {"success": True, "verdict": "passed", "cause": "", "tokens_out": call["tokens_out"]}


def faults(lines: Lines) -> None:
    """Failures become faults, without their calls and attempts."""
    for end in failed(lines):
        name = end["experiment_id"]
        kept = {field: end[field] for field in ("time", "experiment_id", "problem_id", "solver", "arm", "sample")}
        fault = {"kind": "fault", **kept, "reason": "the server is down", "cause": "unreachable"}
        lines[lines.index(end)] = fault
        lines[:] = [line for line in lines if line is fault or line.get("experiment_id") != name]
    lines[-1] |= {"status": "incomplete", "reason": ""}


def redacted(lines: Lines) -> None:
    lines[0]["environment"]["published"] = {"redacted": True, "replies": True}
    for end in failed(lines):
        end |= {"success": True, "verdict": "passed", "cause": "", "note": "[redacted]"}


def redacted_calls(lines: Lines) -> None:
    """Texts on which the verdicts rest are redacted, so that these can't be made anew."""
    redacted(lines)
    names = {end["experiment_id"] for end in lines if end.get("note") == "[redacted]"}
    for line in lines:
        if line.get("experiment_id") in names and line["kind"] == "call":
            line["reply"] += "[redacted]"
        elif line.get("experiment_id") in names and line["kind"] == "attempt":
            line |= {"verdict": "passed", "cause": "", "detail": "[redacted]"}


def ends_of_another_session(lines: Lines) -> None:
    """A second end for each failure, from a session that says it retried."""
    time = lines[-1]["time"]
    lines.append({"kind": "resumed", "time": time, "how": "retry", "config": {}})
    for end in failed(lines):
        lines.append({**end, "time": time, "success": True, "verdict": "passed", "cause": ""})
    lines.append({"kind": "finished", "time": time, "status": "complete", "reason": ""})


def verdicts_before_a_rescoring(lines: Lines) -> None:
    """Forged verdicts, and behind their ends the right ones, of a rescoring that came to no end."""
    right: Lines = []
    for end in failed(lines):
        attempts = of_experiment(lines, end["experiment_id"], "attempt")
        right += [dict(attempt) for attempt in attempts[-1:]]
        attempts[-1] |= {"verdict": "passed", "cause": "", "feedback": "", "detail": ""}
        end |= {"success": True, "verdict": "passed", "cause": ""}
    time = lines[-1]["time"]
    lines.append({"kind": "resumed", "time": time, "how": "rescore", "config": {}})
    lines += [{**attempt, "time": time} for attempt in right]


FORGERIES: dict[Callable[[Lines], None], str] = {
    line_behind_each_end: "behind its end",
    no_end: "no end",
    apart: "apart",
    no_longer_simulated: "simulated",
    clusters: "clusters",
    groups: "groups",
    compared: "compared",
    mode: "mode",
    judged_text: "text",
    replies_of_the_other_arm: "reply",
    redacted: "verdict",
    ends_of_another_session: "another end",
    verdicts_before_a_rescoring: "verdict",
}
"""Forgeries that are found, with a word of a finding."""

GAPS: dict[Callable[[Lines], None], str] = {
    nothing_of_failures: "5 of 20 planned experiments have not ended",
    faults: "5 of 20 experiments ended in a fault, 5 of them without a call",
    redacted_calls: "5 of 20 experiments hold texts that were redacted",
}
"""Forgeries that nothing on record shows, and what the verdict counts instead."""


@pytest.mark.slow
@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda forgery: forgery.__name__)
def test_verify_finds_forgeries(honest: Path, tmp_path: Path, forgery: Callable[[Lines], None]) -> None:
    found = verified(forged(honest, tmp_path, forgery))

    assert not found.verified
    assert any(FORGERIES[forgery] in f"{each.where} {each.recorded}" for each in found.findings), found.findings


@pytest.mark.slow
@pytest.mark.parametrize("forgery", GAPS, ids=lambda forgery: forgery.__name__)
def test_verify_counts_what_is_missing(honest: Path, tmp_path: Path, forgery: Callable[[Lines], None]) -> None:
    folder = forged(honest, tmp_path, forgery)

    done = CliRunner().invoke(app, ["verify", str(folder), "--quiet"])

    assert done.exit_code == 3, done.output
    assert GAPS[forgery] in done.output.splitlines()[-1]


@pytest.mark.slow
def test_verify_says_who_chose_the_tasks(honest: Path, tmp_path: Path) -> None:
    def tasks(lines: Lines) -> None:
        """Failed tasks are taken out of the plan."""
        plan, gone = lines[0], failed_tasks(lines)
        plan["asked"] = [each for task, each in zip(plan["tasks"], plan["asked"], strict=True) if task not in gone]
        plan["tasks"] = plan["config"]["problems"] = [task for task in plan["tasks"] if task not in gone]
        details = plan["details"]
        for of_tasks in (details["matches"]["task"], details["expectations"], details["questions"]):
            for task in gone:
                of_tasks.pop(task)
        lines[:] = [line for line in lines if line.get("problem_id") not in gone]
        left = {line["experiment_id"] for line in lines if line["kind"] == "experiment"}
        lines[:] = [line for line in lines if line.get("experiment_id", next(iter(left))) in left]

    count = len(lines_of(honest)[0]["tasks"]) - len(failed_tasks(lines_of(honest)))
    done = CliRunner().invoke(app, ["verify", str(forged(honest, tmp_path, tasks)), "--quiet"])

    assert done.exit_code == 0, done.output
    assert f"{count} of the suite's 164 tasks, chosen by their author" in done.output.splitlines()[-1]
    assert "chosen" not in CliRunner().invoke(app, ["verify", str(honest), "--quiet"]).output


@pytest.mark.slow
def test_verify_decides_anew(decided: Path, tmp_path: Path) -> None:
    def turned(lines: Lines) -> None:
        decision = of_kind(lines, "decision")
        decision |= {"a_mean": decision["b_mean"], "b_mean": decision["a_mean"], "difference": -decision["difference"]}
        decision["interval"] = [-bound for bound in reversed(decision["interval"])]

    def removed(lines: Lines) -> None:
        lines.remove(of_kind(lines, "decision"))

    assert verified(decided).verified
    for number, forgery in enumerate((turned, removed)):
        assert "decision" in verified(forged(decided, tmp_path / str(number), forgery)).found
