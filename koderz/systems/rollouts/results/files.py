"""The files of a run of rollouts in OneShot's layout: `rollouts/` and `runs/`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import to_builtins

from koderz.errors import KoderzError
from koderz.runs.sinks import documented
from koderz.streams import plain
from koderz.systems.rollouts.evaluation import Evaluation, evaluation_in
from koderz.systems.rollouts.results import RolloutRow, cell, row_of, table_lines
from koderz.systems.rollouts.workspaces.artifacts import Collected, keep
from koderz_tracker.files import write_whole
from koderz_tracker.records import Attempt, Call, Experiment, Fault, Once, Record
from koderz_tracker.runs import plan_and_line
from koderz_tracker.stories import Stories
from koderz_tracker.summary import Summary

if TYPE_CHECKING:
    from koderz.plans.plan import Plan
    from koderz.suites.matrix import Matrix
    from koderz.systems.rollouts.task import Rollout
    from koderz.systems.rollouts.tasks.config import Config

DOCUMENT = "rollouts"  # the name under which a plan has its entry
MANIFEST = "manifest.json"
LEFT_OUT = "left-out.json"
LAUNCH_FAILED = "launch_failed"
# what a shell ends with, by the cause of the fault
_NOT_LAUNCHED = {LAUNCH_FAILED: 127, "unprepared": 1, "task": 1}
_HEAD = 20  # lines of a test's output in scoring_results.md
_PAUSES = 20  # between two times that the lists are written, in times of what that takes

Outcome = Experiment | Fault


class RunEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The entry of the configuration that a rollout belongs to."""

    task_id: str
    task_dir: str
    canary: bool = False  # whether it is an impossible variant of the entry's task


class TaskText(msgspec.Struct, frozen=True):
    """Facts about a task that the files hold besides its results."""

    title: str = ""
    notes: str = ""
    repo_info: Mapping[str, Any] = {}


class RolloutsDocument(msgspec.Struct, frozen=True):
    """A plan's record of a run's files."""

    output: str  # the folder of all files, absolute
    data: str  # the same folder as it was given
    config: str  # the configuration's name for users
    name: str
    stamp: str
    runs: Mapping[str, RunEntry]  # by experiment, in their order
    tasks: Mapping[str, TaskText]
    files: Sequence[str] = ()  # without which the run lacks its files
    is_own: bool = True  # no other run writes into them

    @property
    def numbers(self) -> dict[str, int]:
        """The rollouts' numbers, from 0, by experiment."""
        return {experiment: number for number, experiment in enumerate(self.runs)}


class EndedRollout(NamedTuple):
    """A rollout that has ended."""

    entry: Mapping[str, Any]  # of the manifest
    row: RolloutRow
    graded: str  # when


class RolloutFiles:
    """The files of one run; `about` is a `RolloutsDocument` as the plan has it."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self._folder, self._stories = folder, Stories(folder, with_messages=False)
        self._run, self._about = folder.name, msgspec.convert(about, RolloutsDocument)
        self._place, self._numbers = Path(self._about.output), self._about.numbers
        self._ended: dict[int, EndedRollout] = {}
        self._has_begun = False
        self._next = 0.0  # when the lists may be written again

    @property
    def _rollout(self) -> str:
        return f"rollouts/{self._about.name}/{self._about.stamp}"

    def take(self, outcome: Outcome) -> None:
        """Writes the files of an ended rollout, and the lists of all unless that was done just now.

        Raises OSError.
        """
        self._write([outcome.experiment_id] if self._has_begun else self._numbers)
        if monotonic() >= self._next:
            self._write_lists()

    def write(self, summary: Summary) -> None:  # noqa: ARG002
        """Writes all files, each as a whole. Raises OSError."""
        self._write(self._numbers)
        self._write_lists()
        plan, _ = plan_and_line(self._folder)
        if left_out := (plan.details.get("suite") or {}).get("left_out"):
            self._put(f"{self._rollout}/{LEFT_OUT}", _json(left_out))

    def _write(self, experiments: Iterable[str]) -> None:
        self._stories.refresh()
        for experiment in experiments:
            story = self._stories.of(experiment)
            outcomes = [record for record in story if isinstance(record, Outcome)]
            if experiment in self._numbers and outcomes:
                self._write_run(self._numbers[experiment], story, outcomes[-1])
        self._has_begun = True

    def _write_run(self, number: int, story: Sequence[Record], outcome: Outcome) -> None:
        run_id = f"{self._about.stamp}-{number}"
        run = self._about.runs[outcome.experiment_id]
        task = self._about.tasks[run.task_id]
        attempt = next((record for record in reversed(story) if isinstance(record, Attempt)), None)
        artifacts = attempt.artifacts if attempt else {}
        evaluation = (
            _evaluation(run_id, run, story, outcome) if isinstance(outcome, Experiment) else None
        )
        evaluated = _json(evaluation) if evaluation else None
        scoring = plain("\n".join([*_scoring(evaluation, task.title), ""])) if evaluation else None
        files = {
            "artifacts/diff.patch": _diff(story),
            "artifacts/notes.md": plain(task.notes),
            "artifacts/repo_info.json": _json(task.repo_info),
            "artifacts/agent.jsonl": str(artifacts.get("agent.jsonl") or "".join(_events(story))),
            "logs/eval.log": plain("\n".join(_logs(story))),
            "results.json": _json(_results(run_id, run, story, outcome)),
            "evaluation_results.json": evaluated,
            "scoring_results.md": scoring,
        }
        self._put(f"{self._rollout}/task_results/{run_id}.json", evaluated)
        self._keep_artifacts(f"runs/{run_id}/artifacts", story)
        for path, text in files.items():
            self._put(f"runs/{run_id}/{path}", text)
        entry = {
            "task_dir": run.task_dir,
            "run_dir": str(Path(self._about.data, "runs", run_id)),
            "run_id": run_id,
            **launched(outcome),
            "experiment_id": outcome.experiment_id,
            "task_id": run.task_id,
            "arm": outcome.arm,
            "verdict": outcome.verdict if isinstance(outcome, Experiment) else None,
            "score": outcome.score if isinstance(outcome, Experiment) else None,
            "fault": outcome.reason if isinstance(outcome, Fault) else None,
            **({"canary": True} if run.canary else {}),
        }
        self._ended[number] = EndedRollout(entry, row_of(entry, evaluation), outcome.time)

    def _keep_artifacts(self, place: str, story: Sequence[Record]) -> None:
        """Writes the artifacts of the agent, each at its destination, and those of a step below its name."""
        for record in story:
            if (
                isinstance(record, Once)
                and record.name == "artifacts"
                and isinstance(record.value, dict)
            ):
                value = record.value
                folder = self._place / place / value.get("step", "")
                keep(Collected.of_record(value), value["destinations"], folder)

    def _write_lists(self) -> None:
        """Writes the lists of ended rollouts; unfinished ones are left out."""
        began, about, place = monotonic(), self._about, self._rollout
        ended = [self._ended[number] for number in sorted(self._ended)]
        entries, rows = (
            [each.entry for each in ended],
            [each.row for each in ended if not each.entry.get("canary")],
        )
        folder = str(Path(about.data, place))
        manifest = {
            "config": about.config,
            "name": about.name,
            "created_at": about.stamp,
            "benchmark_run_id": self._run,
            "results": entries,
        }
        evaluated = [
            {
                "run_dir": entry["run_dir"],
                "task_dir": entry["task_dir"],
                "eval_rc": int(entry["fault"] is not None),
                "status": "ok" if entry["fault"] is None else "eval_failed",
            }
            for entry in entries
        ]
        index = {
            "created_at": about.stamp,
            "rollout_dir": folder,
            "runs": [entry["run_dir"] for entry in entries],
            "tasks": [entry["task_dir"] for entry in entries],
        }
        last = max((each.graded for each in ended), default="")
        self._put(f"{place}/{MANIFEST}", _json(manifest))
        self._put(f"{place}/runs.txt", "".join(f"{entry['run_dir']}\n" for entry in entries))
        self._put(f"{place}/summary.md", "\n".join([*table_lines(rows, folder), ""]))
        self._put(
            f"{place}/eval_manifest.json",
            _json({"evaluated_at": last and _utc(last), "results": evaluated}),
        )
        self._put(f"rollouts/temp/rollout_{about.name}__{about.stamp}.json", _json(index))
        now = monotonic()
        # all of them take so long, so not after each of thousands
        self._next = now + _PAUSES * (now - began)

    def _put(self, path: str, text: str | None) -> None:
        """Writes a file; with None removes it, since an earlier verdict may have written one."""
        place = self._place / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            place.unlink(missing_ok=True)
        else:
            write_whole(place, [text.encode("utf-8", "backslashreplace")], durable=False)


def launched(outcome: Outcome) -> dict[str, Any]:
    """The `launch_rc` and `status` of a rollout: whether its agent was started, however it ended."""
    code = _NOT_LAUNCHED.get(outcome.cause, 0) if isinstance(outcome, Fault) else 0
    return {"launch_rc": code, "status": LAUNCH_FAILED if code else "launched"}


def _logs(story: Sequence[Record]) -> Iterator[str]:
    """The output of the tests: the last verdict's, or those of all steps."""
    attempts = {record.task_id: record for record in story if isinstance(record, Attempt)}
    for step, attempt in attempts.items():
        text = str(attempt.artifacts.get("eval.log", ""))
        yield f"=== {step}\n{text}" if step else text


def _evaluation(
    run_id: str, run: RunEntry, story: Sequence[Record], outcome: Experiment
) -> Mapping[str, Any]:
    attempt = next((record for record in reversed(story) if isinstance(record, Attempt)), None)
    artifacts = attempt.artifacts if attempt else {}
    of_steps = [
        record.value for record in story if isinstance(record, Once) and record.name == "steps"
    ]
    told: Evaluation = of_steps[-1] if of_steps else evaluation_in(artifacts)
    every, score, metrics = dict(told), outcome.score or 0.0, _agent_metrics(story, outcome)
    return {
        "task_id": told.get("task_id", run.task_id),
        "run_id": run_id,
        "total_score": score,
        "score_of_graded": told.get("score_of_graded"),
        "evaluation": told.get(
            "evaluation", {"rubrics": {}, "total_score": score, "max_score": 1.0}
        ),
        "test_results": told.get("test_results", {}),
        "diff_lines": len(_diff(story).splitlines()),
        "agent_metrics": metrics,
        "lm_evaluation": told.get("lm_evaluation"),
        "standard_metrics": told.get("standard_metrics"),
        "custom_metrics": told.get("custom_metrics"),
        "tampering": told.get("tampering", []),
        **({"resources": outcome.facts["resources"]} if "resources" in outcome.facts else {}),
        **{name: every[name] for name in _OF_VERIFIER if name in every},
        "quantitative_metrics": {
            "time_taken_seconds": metrics["time_taken_seconds"],
            "tokens_spent": metrics["tokens_total"],
            "money_spent_usd": metrics["money_spent_usd"],
            "tool_calls": metrics["tool_calls_total"],
        },
    }


_OF_VERIFIER = (
    *("graded", "rewards", "steps", "published", "isolation", "carried", "lifted"),
    *("verifier_tools", "verifier_environment_mode", "environment"),
)
"""How a task's own verifier graded; see `docs/reference`."""


def _agent_metrics(story: Sequence[Record], outcome: Experiment) -> dict[str, Any]:
    """Tokens, US dollars and seconds of the agent. Tool calls are counted in the model's replies."""
    done = [record for record in story if isinstance(record, Once)]
    elapsed = [
        float(each.value["elapsed"])
        for each in done
        if isinstance(each.value, dict) and "elapsed" in each.value
    ]
    tools = sum(len(record.tool_calls) for record in story if isinstance(record, Call))
    # where they stood in the text of replies
    written = sum(each.name in _OWN_TOOLS for each in done)
    last = {each.name: each.value for each in done if isinstance(each.value, dict)}
    return {
        "tokens_total": outcome.tokens_in + outcome.tokens_out,
        "tokens_events": outcome.calls,
        "tool_calls_codex_log": last.get("agent-metrics", {}).get("tools", 0)
        if outcome.solver == "agent:codex"
        else 0,
        "tool_calls_sessions": 0,
        "tool_calls_total": tools or written,
        "time_taken_seconds": round(max(elapsed, default=outcome.duration_seconds), 3),
        "money_spent_usd": outcome.cost,
        "reused": last.get("agent", {}).get("reused", 0),
    }


_OWN_TOOLS = ("shell", "edit", "call")
_NO_EVENTS = ("diff", "agent-metrics", "artifacts", "steps", "tools", "servers")


def _results(
    run_id: str, run: RunEntry, story: Sequence[Record], outcome: Outcome
) -> dict[str, Any]:
    """The content of `results.json`. `exit_code` is the agent's, None if it wasn't started."""
    worked = [
        record.value
        for record in story
        if isinstance(record, Once)
        and record.name in _WHOLE_AGENTS
        and isinstance(record.value, dict)
    ]
    started = launched(outcome)["launch_rc"] == 0
    statuses = [0 if started else None, *(each["status"] for each in worked)]
    first = story[0]
    waited = first.latency if isinstance(first, Call) else 0.0
    begun = datetime.fromisoformat(first.time).timestamp() - waited
    return {
        "run_id": run_id,
        "task_dir": run.task_dir,
        "exit_code": statuses[-1],
        "start_time": _utc(datetime.fromtimestamp(begun).isoformat()),
        "end_time": _utc(outcome.time),
        "agent": outcome.solver.removeprefix("agent:"),
        "agent_version": next(
            (each["version"] for each in worked[::-1] if each.get("version")), None
        ),
    }


_WHOLE_AGENTS = ("agent", "solve")  # what a workspace does that is an agent's whole work


def _diff(story: Sequence[Record]) -> str:
    found = [record.value for record in story if isinstance(record, Once) and record.name == "diff"]
    return str(found[-1]["diff"]) if found and isinstance(found[-1], dict) else ""


def _events(story: Sequence[Record]) -> Iterator[str]:
    """The agent's actions, a line each: its calls, its commands, and its own output."""
    for record in story:
        told: dict[str, Any] = {}
        if isinstance(record, Once) and record.name == "agent" and isinstance(record.value, dict):
            for line in str(record.value.get("output", "")).splitlines():
                yield json.dumps(_printed(line)) + "\n"
        elif isinstance(record, Call):
            told = {
                "type": "call",
                "model": record.model,
                "text": str(record.reply),
                "cost": record.cost,
            }
            told |= {"tool_calls": record.tool_calls} if record.tool_calls else {}
        elif isinstance(record, Once) and record.name not in _NO_EVENTS:
            told = {"type": record.name, "result": _whole(record.value)}
        if told:
            yield json.dumps({"time": _utc(record.time), **told}) + "\n"


def _whole(value: Any) -> Any:
    """The result of a command, with its whole output as `output`."""
    if not isinstance(value, dict) or "whole" not in value:
        return value
    return {
        name: value["whole"] if name == "output" else each
        for name, each in value.items()
        if name != "whole"
    }


def _printed(line: str) -> dict[str, Any]:
    """A line that an agent printed: an event, else text."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        event = None
    return event if isinstance(event, dict) else {"type": "output", "text": line}


def _scoring(evaluation: Mapping[str, Any], title: str) -> Iterator[str]:
    yield "# Scoring results"
    yield ""
    yield f"- Run: {evaluation['run_id']}"
    yield f"- Task: {evaluation['task_id']}"
    yield f"- Title: {title}"
    yield f"- Score: {100 * evaluation['total_score']:.0f}%"
    yield ""
    yield "| rubric | weight | score | tests |"
    yield "|---|---|---|---|"
    for name, rubric in evaluation["evaluation"]["rubrics"].items():
        score = "N/A" if rubric["score"] is None else f"{100 * rubric['score']:.0f}%"
        yield f"| {cell(name)} | {rubric['weight']:g} | {score} | {rubric['tests_passed']}/{rubric['test_count']} |"
    for path, result in evaluation["test_results"].items():
        yield ""
        yield f"## {cell(path)}: {'passed' if result['success'] else 'failed'}"
        yield ""
        yield from (f"    {line}" for line in result["output"].splitlines()[:_HEAD])


def _utc(time: str) -> str:
    """A recorded time, which is local, as UTC."""
    return datetime.fromisoformat(time).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


@dataclass(slots=True)
class Place:
    """The place of a new run's files. The folder of its first rollout reserves the stamp."""

    data: Path  # as it was given
    config: Config
    shown: str  # the configuration as it was given
    matrix: Matrix
    _first: Path | None = field(default=None)

    def documented(self, plan: Plan) -> Plan:
        """The plan with the data that its files need. Raises KoderzError if the disk refuses."""
        try:
            stamp = self._taken()
        except OSError as error:
            raise KoderzError(f"--data {self.data} can't be written ({error.strerror})") from None
        about = RolloutsDocument(
            output=str(self.data.absolute()),
            files=[f"rollouts/{self.config.name}/{stamp}/manifest.json"],
            data=str(self.data),
            config=self.shown,
            name=self.config.name,
            stamp=stamp,
            runs=self._runs(plan),
            tasks={task.id: _text_of(task.payload) for task in plan.tasks},
        )
        return documented(plan, DOCUMENT, to_builtins(about))

    def release(self) -> None:
        """Gives up a stamp under which nothing was written."""
        if self._first:
            with suppress(OSError):
                self._first.rmdir()

    def _taken(self) -> str:
        moment = datetime.now(UTC)
        while True:
            stamp = f"{moment:%Y%m%d__%H-%M-%S}"
            self._first = self.data / "runs" / f"{stamp}-0"
            with suppress(FileExistsError):
                self._first.mkdir(parents=True)
                return stamp
            moment += timedelta(seconds=1)

    def _runs(self, plan: Plan) -> dict[str, RunEntry]:
        """The rollouts by experiment, in the order of entries; equal entries share one cell of the plan."""
        known = {
            (each.task.id, each.arm.name, each.sample): each.experiment_id
            for each in plan.experiments()
        }
        canaries = {task.id for task in plan.tasks if task.apart}
        begun: Counter[tuple[str, str]] = Counter()
        found = {}
        for entry, cells in zip(self.config.entries, self.matrix.cells, strict=True):
            ((arm,), (task,)) = cells.arms or (), cells.problems or ()
            for _ in range(cells.samples or 1):
                sample = begun[task, arm]
                begun[task, arm] += 1
                # a sample of a plan has some of them
                if experiment := known.get((task, arm, sample)):
                    found[experiment] = RunEntry(task, entry.prepared_dir, task in canaries)
        return found


def _text_of(task: Rollout) -> TaskText:
    notes = task.folder / "overlay_files" / "notes.md"
    text = notes.read_text(encoding="utf-8", errors="replace") if notes.is_file() else ""
    return TaskText(task.title, text, dict(task.details))
