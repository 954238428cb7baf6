"""The artifacts of a run in MLflow and of an arm's run: summary, plan, tables, figures, prompts, texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from tracker.messages import text_of
from tracker.records import Attempt, Call, encode
from tracker.sinks.json import encode_summary
from tracker.sinks.mlflow.run import FIGURES, TABLE, figures_file
from tracker.stories import Stories
from tracker.summary import Summary

_PROMPTS_FROM = 20  # experiments that are looked through for prompts
_ARTIFACTS_FROM = 20  # experiments that are looked through for artifacts before it is said that there are none


def write_files(folder: Path, summary: Summary, stories: Stories, into: Path) -> None:
    """Writes the artifacts of a run: summary, plan, prompts, table, and the report if there is one."""
    with (into / "summary.json").open("wb") as file:
        file.writelines(encode_summary(summary))
    plan = orjson.loads(encode(stories.plan))
    (into / "plan.json").write_bytes(orjson.dumps(plan, option=orjson.OPT_INDENT_2))
    (into / TABLE).write_bytes(orjson.dumps(_table(summary)))
    (into / FIGURES).write_bytes(figures_file(summary, list(summary.arms)))
    _write_prompts(summary, stories, into / "prompts")
    _write_artifacts(summary, stories, into / "experiments")
    for report in (folder.with_suffix(".html"), folder / "report.html"):
        if report.exists():
            (into / "report.html").write_bytes(report.read_bytes())
            break


def write_arm_files(summary: Summary, arm: str, into: Path) -> None:
    """Writes the artifacts of an arm's run: the table of its experiments and its figures."""
    (into / TABLE).write_bytes(orjson.dumps(_table(summary, arm)))
    (into / FIGURES).write_bytes(figures_file(summary, [arm]))


_COLUMNS = (
    "problem_id", "solver", "sample", "success", "verdict", "cause", "iterations", "cost", "tokens_in", "tokens_out",
    "latency", "experiment_id",
)  # fmt: skip


def _table(summary: Summary, arm: str = "") -> dict[str, Any]:
    """All experiments, or those of one arm, in MLflow's form of a table, which is grouped by its first column."""
    results = [result for result in summary.results if not arm or result.arm == arm]
    several = len({result.sample for result in results}) > 1
    rows = [_row({name: getattr(result, name) for name in _COLUMNS}, several=several) for result in results]
    mine = [fault for fault in summary.faults if not arm or fault["arm"] == arm]
    rows += [_row({**fault, "verdict": "fault"}, several=several) for fault in mine]
    return {"columns": ["experiment", "outcome", *_COLUMNS], "data": rows}


def _row(known: dict[str, Any], *, several: bool) -> list[Any]:
    sample = f" · sample {known['sample']}" if several else ""
    cause = f" ({known['cause']})" if known["cause"] else ""
    attempts = f" after {known['iterations']} attempts" if (known.get("iterations") or 0) > 1 else ""
    name = f"{known['problem_id']} · {known['solver']}{sample}"
    return [name, f"{known['verdict']}{cause}{attempts}", *(known.get(column) for column in _COLUMNS)]


def _write_prompts(summary: Summary, stories: Stories, into: Path) -> None:
    """Writes one conversation for each purpose and solver, as it was sent."""
    into.mkdir()
    named: dict[str, Sequence[dict[str, Any]]] = {}
    for result in summary.results[:_PROMPTS_FROM]:
        for call in stories.of(result.experiment_id):
            if isinstance(call, Call):
                named.setdefault(f"{result.solver}-{call.purpose}", call.messages)
    for name, messages in named.items():
        text = "\n\n".join(f"# {message['role']}\n\n{text_of(message)}" for message in messages)
        (into / f"{name.replace('/', '_')}.md").write_text(text, encoding="utf-8", errors="replace")


def _write_artifacts(summary: Summary, stories: Stories, into: Path) -> None:
    """Writes the texts of each experiment's last attempt, such as a diff or a log, in a folder named by its id."""
    for number, result in enumerate(summary.results):
        attempts = [record for record in stories.of(result.experiment_id) if isinstance(record, Attempt)]
        texts = {name: text for name, text in (attempts[-1].artifacts if attempts else {}).items() if type(text) is str}
        for name, text in texts.items():
            place = into / result.experiment_id / name.replace("/", "_")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8", errors="replace")
        if number == _ARTIFACTS_FROM and not into.exists():
            return  # its suite leaves none
