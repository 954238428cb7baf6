"""Runs whose every text is hostile, and reports on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from koderz.analysis.runs import load_run
from koderz.systems.reports.page import WrittenReport, write_report
from koderz.testing import a_journal, a_plan
from koderz_tracker.journal import NAME
from koderz_tracker.records import Finished, Plan, Record, encode
from koderz_tracker.sinks.json import write_summary
from tests.tracker.builders import attempt, call, fault, judged

EVIL = '</script><script>window.pwned = 1</script><img src=x onerror="window.pwned = 2">{{ 7 * 7 }}'


def run(results: Path, records: Sequence[Record], of: Plan, status: str = "complete") -> Path:
    folder = a_journal(results, plan=of)
    with (folder / NAME).open("ab") as file:
        file.writelines(map(encode, [*records, Finished(status=status)]))
    write_summary(folder)
    return folder


def small(results: Path, *, model: str = "m", **more: Any) -> Path:
    """Passed at the second attempt, not passed, and a fault; everything that a model may say is hostile."""
    told: dict[str, Any] = {"reply": EVIL, "messages": [{"role": "user", "content": EVIL}]}
    records: list[Record] = [
        call(0, **told),
        attempt(0, program=f"x = 1  # {EVIL}", detail=EVIL, cause="assertion"),
        call(0, 2, **told),
        attempt(0, 2, verdict="passed", program="x = 2"),
        judged(0, iterations=2, calls=2, model=model),
        call(1, **told),
        attempt(1, program=EVIL, detail=EVIL, cause="assertion"),
        judged(1, False, model=model),
        fault(2, reason=EVIL),
    ]
    return run(results, records, a_plan(config={"local_model": model, "suite": "humaneval"}, **more))


def several(results: Path, *, cost: float = 0.25) -> list[Path]:
    """Two complete comparative runs and a newer one cut short, of models with long names."""
    return [
        _comparative(results, 1, "openai/gpt-4o-mini", {0: (0, 2), 1: (1, 1), 2: (0, 0)}, cost),
        _comparative(results, 2, f"hf.co/a-team/{'a-rather-long-name-' * 3}q4_K_M", {0: (1, 1), 1: (0, 3)}, cost / 10),
        _comparative(results, 3, "openai/gpt-4o-mini", {1: (1, 1)}, cost, status="interrupted"),
    ]


def _comparative(
    results: Path, day: int, model: str, passing: Mapping[int, tuple[int, int]], cost: float, status: str = "complete"
) -> Path:
    """Of each task the attempt that passed, zero-shot and iterative; 0 where none of three did."""
    records: list[Record] = []
    for task, numbers in passing.items():
        for solver, passed in zip(("zero-shot", "iterative"), numbers, strict=True):
            most = 1 if solver == "zero-shot" else 3
            for number in range(1, (passed or most) + 1):
                verdict = "passed" if number == passed else "failed"
                text = f"as asked\nnot yet, attempt {number} of {model}"
                records += [
                    call(task, number, solver=solver, reply=text, cost=cost, text=f"do T/{task}, go {number}"),
                    attempt(task, number, solver=solver, verdict=verdict, program=f"x = {number}", detail=EVIL),
                ]
            records.append(judged(task, bool(passed), solver=solver, iterations=passed or most, cost=cost, model=model))
    begun = f"2026-02-{day:02d}T12:00:00.000000"
    more = {"run_id": f"bench_0000000{day}_202602{day:02d}_120000", "time": begun}
    config = {"local_model": model, "suite": "humaneval"}
    return run(results, records, a_plan(3, arms=("zero-shot", "iterative"), config=config, **more), status)


def written(folder: Path, *runs: Path) -> tuple[str, WrittenReport]:
    done = write_report([load_run(path) for path in runs], folder / "report.html")
    return done.path.read_text(encoding="utf-8"), done
