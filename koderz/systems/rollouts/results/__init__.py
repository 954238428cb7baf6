"""Reading the files of rollouts back: found by name, summarized, compared by task."""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from koderz.errors import KoderzError
from koderz.streams import plain
from koderz_tracker.files import open_own

_STAMP = re.compile(r"\d{8}__\d\d-\d\d-\d\d")


class RolloutRow(NamedTuple):
    """A rollout in a table. Shares go from 0 to 1; None: unknown."""

    task: str
    run: str
    unit: float | None
    lm: float | None
    tokens: int
    tools: int
    arm: str = ""  # empty where the files don't say


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The rollouts of one run."""

    folder: Path
    manifest: Mapping[str, Any]
    # evaluation_results.json of each that was judged, canaries aside, with its `task_dir`
    results: Sequence[Mapping[str, Any]]

    @property
    def rows(self) -> list[RolloutRow]:
        """All rollouts but canaries, including those that ended in a fault."""
        judged = {each["run_id"]: each for each in self.results}
        entries = [entry for entry in self.manifest["results"] if not entry.get("canary")]
        return [row_of(entry, judged.get(entry["run_id"])) for entry in entries]


def load_benchmark(path: str | Path) -> Benchmark:
    """The rollouts in a folder `rollouts/NAME/STAMP`, or the newest whose path begins so.

    Raises KoderzError where there are none, or what is there can't be read.
    """
    path = Path(path)
    if (path / "manifest.json").is_file():
        return _read(path)
    found = sorted(folder for folder in path.parent.glob("*/") if _is_rollout(folder, path.name))
    if not found:
        raise KoderzError(f"there are no rollouts {path}")
    return _read(found[-1])


def get_task_score(benchmark: Benchmark, task: str) -> float | None:
    """The mean total score of a task's rollouts, by its id or folder; None if none was judged."""
    scores = [
        float(each["total_score"])
        for each in benchmark.results
        if task in (each["task_id"], each["task_dir"].rstrip("/"), Path(each["task_dir"]).name)
    ]
    return statistics.fmean(scores) if scores else None


def find_rollouts(data: Path, name: str, stamp: str | None = None) -> Benchmark:
    """The rollouts with a name, the latest or by prefix of a stamp; or of a folder. Raises KoderzError for none."""
    if (Path(name) / "manifest.json").is_file():
        return _read(Path(name))
    place = data / "rollouts" / name
    stamps = (
        sorted(folder.name for folder in place.glob("*/") if _is_rollout(folder))
        if {*name} - {*"./"}
        else []
    )
    if not stamps:
        names = sorted(
            folder.name
            for folder in (data / "rollouts").glob("*/")
            if any(map(_is_rollout, folder.glob("*/")))
        )
        raise KoderzError(
            f"there are no rollouts {name} in {data}"
            + (f"; there are {', '.join(names)}" if names else "")
        )
    chosen = [each for each in stamps if each.startswith(stamp or "")]
    if not chosen:
        raise KoderzError(
            f"{name} has no rollouts {stamp}; the newest are {', '.join(stamps[:-4:-1])}"
        )
    return _read(place / chosen[-1])


def row_of(entry: Mapping[str, Any], evaluation: Mapping[str, Any] | None) -> RolloutRow:
    """The row of a rollout in the manifest, with its evaluation if it has one."""
    arm = str(entry.get("arm") or "")
    if evaluation is None:
        return RolloutRow(
            entry.get("task_id") or Path(entry["task_dir"]).name,
            entry["run_id"],
            None,
            None,
            0,
            0,
            arm,
        )
    agent, lm = evaluation.get("agent_metrics") or {}, evaluation.get("lm_evaluation") or {}
    numbers = int(agent.get("tokens_total") or 0), int(agent.get("tool_calls_total") or 0)
    return RolloutRow(
        evaluation["task_id"],
        entry["run_id"],
        evaluation["total_score"],
        lm.get("weighted_score"),
        *numbers,
        arm,
    )


def summary_figures(found: Benchmark) -> dict[str, Any]:
    """The content of `table_lines` as values: rollouts, averages, tasks, and arms with their tasks."""
    rows = found.rows
    return {
        "benchmark_run_id": found.manifest.get("benchmark_run_id"),
        "results": [row._asdict() for row in rows],
        "aggregates": _aggregates(rows),
        "tasks": _task_records(_by_task(rows)),
        "arms": {
            arm: {"rollouts": len(own), **_aggregates(own), "tasks": _task_records(_by_task(own))}
            for arm, own in _by_arm(rows).items()
        },
    }


def _task_records(tasks: Mapping[str, Sequence[RolloutRow]]) -> dict[str, Any]:
    return {task: {"rollouts": len(own), **_aggregates(own)} for task, own in tasks.items()}


def _aggregates(rows: Sequence[RolloutRow]) -> dict[str, float | None]:
    found = {}
    for name in ("unit", "lm"):
        values = [value for row in rows if (value := getattr(row, name)) is not None]
        found[f"{name}_mean"] = statistics.fmean(values) if values else None
        found[f"{name}_max"] = max(values, default=None)
    return found


def _by_task(rows: Sequence[RolloutRow]) -> dict[str, list[RolloutRow]]:
    found: dict[str, list[RolloutRow]] = defaultdict(list)
    for row in rows:
        found[row.task].append(row)
    return dict(sorted(found.items()))


def _by_arm(rows: Sequence[RolloutRow]) -> dict[str, list[RolloutRow]]:
    """The rows by arm, in order of appearance, without rows of unknown arm."""
    found: dict[str, list[RolloutRow]] = defaultdict(list)
    for row in filter(lambda row: row.arm, rows):
        found[row.arm].append(row)
    return dict(found)


def table_lines(rows: Sequence[RolloutRow], folder: str) -> Iterator[str]:
    """The tables of `koderz rollouts summarize`."""
    yield f"[rollouts] Summary for {folder}"
    yield "| task | run | unit | lm | tokens | tools |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        yield f"| {cell(row.task)} | {row.run} | {_share(row.unit)} | {_share(row.lm)} | {row.tokens} | {row.tools} |"
    means = _aggregates(rows)
    yield "[rollouts] Aggregates:"
    yield f"- Unit tests average: {_share(means['unit_mean'])}"
    yield f"- LM rubric average: {_share(means['lm_mean'])}"
    yield "[rollouts] Per-task aggregates (mean/max across rollouts):"
    yield "| task | rollouts | unit_mean | unit_max | lm_mean | lm_max |"
    yield "|---|---|---|---|---|---|"
    for task, own in _by_task(rows).items():
        yield f"| {cell(task)} | {_averages(own)} |"
    if len(arms := _by_arm(rows)) > 1:
        yield "[rollouts] Per-arm aggregates (mean/max across rollouts):"
        yield "| arm | task | rollouts | unit_mean | unit_max | lm_mean | lm_max |"
        yield "|---|---|---|---|---|---|---|"
        for arm, mine in arms.items():
            for task, own in _by_task(mine).items():
                yield f"| {cell(arm)} | {cell(task)} | {_averages(own)} |"


def _averages(rows: Sequence[RolloutRow]) -> str:
    return " | ".join([str(len(rows)), *map(_share, _aggregates(rows).values())])


def cell(text: str) -> str:
    """The text in a form safe for a table and a terminal."""
    return plain(text).replace("|", "\\|").replace("\n", " ")


def _share(value: float | None) -> str:
    return "N/A" if value is None else f"{100 * value:.0f}%"


def _is_rollout(folder: Path, begins: str = "") -> bool:
    name = folder.name
    return (
        bool(_STAMP.fullmatch(name))
        and name.startswith(begins)
        and (folder / "manifest.json").is_file()
    )


def _read(folder: Path) -> Benchmark:
    try:
        with open_own(folder / "manifest.json", 2) as file:
            manifest = json.loads(file.read())
        found = (
            _evaluation(folder, entry) for entry in manifest["results"] if not entry.get("canary")
        )
        results = [each for each in found if each is not None]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise KoderzError(f"the files of the rollouts {folder} can't be read: {error}") from None
    return Benchmark(folder, manifest, results)


def _evaluation(folder: Path, entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """The evaluation of a rollout, from beside the manifest or, if OneShot wrote it, from its own folder."""
    if entry.get("fault") is not None:
        return None
    places = (
        folder / "task_results" / f"{entry['run_id']}.json",
        Path(entry["run_dir"], "evaluation_results.json"),
    )
    for path in filter(Path.is_file, places):
        try:
            found = json.loads(path.read_bytes())
            score = found.get("total_score", found.get("evaluation", {}).get("total_score"))
        except (ValueError, AttributeError, RecursionError) as error:
            raise KoderzError(f"{path} is no evaluation of a rollout: {error}") from None
        return {**found, "total_score": score, "task_dir": entry["task_dir"]}
    return None
