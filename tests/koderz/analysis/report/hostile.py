"""Runs whose every text is hostile, and reports on them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from koderz.analysis.report import Written, write_report
from koderz.analysis.runs import load_run
from tests.tracker.builders import attempt, call, fault, judged, plan, recorded
from tracker.journal import NAME
from tracker.records import Finished, Plan, Record, encode
from tracker.sinks.json import write_summary

EVIL = '</script><script>window.pwned = 1</script><img src=x onerror="window.pwned = 2">{{ 7 * 7 }}'


def run(results: Path, records: Sequence[Record], of: Plan) -> Path:
    folder = asyncio.run(recorded(results, of=of))
    with (folder / NAME).open("ab") as file:
        file.writelines(map(encode, [*records, Finished(status="complete")]))
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
        judged(0, iterations=2, calls=2),
        call(1, **told),
        attempt(1, program=EVIL, detail=EVIL, cause="assertion"),
        judged(1, False),
        fault(2, reason=EVIL),
    ]
    return run(results, records, plan(config={"local_model": model, "suite": "humaneval"}, **more))


def written(folder: Path, *runs: Path) -> tuple[str, Written]:
    done = write_report([load_run(path) for path in runs], folder / "report.html")
    return done.path.read_text(encoding="utf-8"), done
