"""The screen of `koderz rollouts run`, equal to OneShot's line for line, with koderz' own figures below it."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from koderz.analysis.story import shortened, told_reply, told_results
from koderz.cli.console import OutputOptions, counted, is_live, say, say_all
from koderz.cli.session import SessionScreen
from koderz.runs.observer import beside
from koderz.systems.rollouts.results.figures import canaries_line, lines_of
from koderz.systems.rollouts.results.files import (
    DOCUMENT,
    LAUNCH_FAILED,
    LEFT_OUT,
    RolloutsDocument,
    launched,
)
from koderz_tracker.records import Attempt, Call, Experiment, Fault, OfExperiment, Once, Record

if TYPE_CHECKING:
    from koderz.plans.plan import Plan
    from koderz.runs.observer import SessionView
    from koderz.runs.session import SessionResult

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_FRAME = 0.1  # seconds
_TOLD = 4000  # characters of one text with -vv
_WHERE = "agent.jsonl or koderz benchmark show --json has them"


_NO_FILES = RolloutsDocument("", "", "", "", "", {}, {})


class RolloutsScreen(SessionScreen):
    """Shows rollouts as they end. `verbose`: 1 without icons, 2 with agents' actions and tests' output."""

    def __init__(self, shown: OutputOptions, verbose: int, parallel: int, entries: int) -> None:
        super().__init__(shown)
        self._says, self._verbose, self._parallel, self._entries = (
            not (shown.quiet or shown.json),
            verbose,
            parallel,
            entries,
        )
        self._about = _NO_FILES
        self._ended: dict[str, str] = {}  # status by run_id
        self._spinner = ""

    def header(self, plan: Plan) -> None:
        """Prints the run's configuration before it begins."""
        about = self._about = plan.record.document(DOCUMENT, RolloutsDocument)
        self._numbers = about.numbers
        if not self._says:
            return
        parallel = f"parallel={self._parallel}"
        say(f"[rollouts] config={about.config} name={about.name} tasks={self._entries} {parallel}")
        say(f"[rollouts] output={self._folder}")
        if left_out := (plan.record.details.get("suite") or {}).get("left_out"):
            say(
                f"[rollouts] left out: {counted(len(left_out), 'task')}, in the end listed in {LEFT_OUT} there"
            )
        if not self._verbose:
            say("[rollouts] Running in quiet mode - use -vv for full output")
        say(f"[rollouts] Starting {len(about.runs)} tasks with {parallel}")

    @property
    def _folder(self) -> str:
        about = self._about
        return str(Path(about.data, "rollouts", about.name, about.stamp))

    def recorded(self, record: Record) -> None:
        """Prints a line for an outcome; with -vv also for the steps before it."""
        if not isinstance(record, OfExperiment) or record.experiment_id not in self._numbers:
            return
        run_id = f"{self._about.stamp}-{self._numbers[record.experiment_id]}"
        if self._verbose > 1 and self._says:
            self._say_all(_record_lines(run_id, record))
        if not isinstance(record, Experiment | Fault):
            return
        status = launched(record)["status"]
        self._ended[run_id] = status
        if self._says and self._verbose:
            self._say_all([f"[rollouts] finished: run_id={run_id} status={status}"])
        elif self._says:
            self._say_all(
                [f"{'✓' if status == 'launched' else '✗'} Task {run_id} completed ({status})"]
            )

    def _say_all(self, lines: Sequence[str] | Iterator[str]) -> None:
        """Prints lines in place of the spinner, which returns below them."""
        if lines := [*lines]:
            self._wipe()
            say_all(lines)

    @asynccontextmanager
    async def showing(self, view: SessionView) -> AsyncIterator[None]:
        self.header(view.plan)
        spins = self._says and not self._verbose and sys.stdout.isatty() and is_live()
        if not spins:
            yield
            return
        try:
            async with beside(self._spin()):
                yield
        finally:
            self._wipe()

    async def _spin(self) -> None:
        for frame in itertools.cycle(_FRAMES):
            self._wipe()
            self._spinner = (
                f"{frame} Running tasks... {len(self._ended)}/{len(self._about.runs)} completed"
            )
            sys.stdout.write(self._spinner)
            sys.stdout.flush()
            await asyncio.sleep(_FRAME)

    def _wipe(self) -> None:
        if self._spinner:
            sys.stdout.write(f"\r{' ' * len(self._spinner)}\r")
            self._spinner = ""

    def _tell(self, session: SessionResult) -> None:
        """Prints the end of the run: the rollouts, then koderz' own figures."""
        about = self._about
        if self._says:
            is_whole, line = completed(self._ended, len(about.runs))
            mark = "✓" if is_whole else "✗"
            say(line if self._verbose else f"{mark} {line}")
            index = Path(about.data, "rollouts/temp", f"rollout_{about.name}__{about.stamp}.json")
            say(f"[rollouts] temp index: {index}")
            say()
        say_all(summary_lines(about, self._ended, self._numbers))
        say()
        super()._tell(session)
        if found := session.summary.parts.get("rollouts"):
            say()
            say_all(lines_of(found))
        if found := session.summary.parts.get("canaries"):
            say(canaries_line(found))


def completed(ended: Mapping[str, str], total: int) -> tuple[bool, str]:
    """Whether all rollouts' agents were started and have ended, and a line with their number."""
    failed = [*ended.values()].count(LAUNCH_FAILED)
    if failed == 0 and len(ended) == total:
        return True, f"All {total} tasks completed!"
    return (
        False,
        f"{len(ended) - failed} of {total} tasks completed{f', {failed} {LAUNCH_FAILED}' if failed else ''}",
    )


def summary_lines(
    about: RolloutsDocument, ended: Mapping[str, str], numbers: Mapping[str, int]
) -> Iterator[str]:
    """A line for each ended rollout, with the folder of its task."""
    yield "[rollouts] Summary:"
    yield "| task | run_id | status |"
    yield "|---|---|---|"
    for experiment, number in numbers.items():
        run_id = f"{about.stamp}-{number}"
        if run_id in ended:
            yield f"| {Path(about.runs[experiment].task_dir).name} | {run_id} | {ended[run_id]} |"


def _record_lines(run_id: str, record: OfExperiment) -> Iterator[str]:
    """The lines of a record about the agent's work or the tests."""
    texts: list[tuple[str, str]] = []
    match record:
        case Call():
            texts = [
                *(("result", text) for text in told_results(record)),
                ("reply", told_reply(record, raw=True)),
            ]
        case Once(value=dict(value)):
            text = str(value.get("output", value.get("diff", "")))
            text = f"$ {value['command']}\n{text}" if "command" in value else text
            texts = [(record.name, text)] if text else []
        case Attempt():
            texts = [("tests", str(record.feedback))]
        case Fault():
            texts = [("fault", record.reason)]
    for what, text in texts:
        yield f"[{run_id}] {what}:"
        yield from (f"    {line}" for line in shortened(text, _TOLD, _WHERE).splitlines())


class EvaluationScreen(SessionScreen):
    """The screen of `koderz rollouts eval`: a line a rollout, then the tables."""

    def __init__(self, shown: OutputOptions, folder: Path) -> None:
        super().__init__(shown)
        self._folder = folder

    def header(self, plan: Plan) -> None:
        """Prints nothing."""

    def _tell(self, session: SessionResult) -> None:  # noqa: ARG002
        import json

        from koderz.systems.rollouts.results import find_rollouts, table_lines

        evaluated = json.loads((self._folder / "eval_manifest.json").read_bytes())
        say_all(f"[eval] {each['run_dir']} -> {each['status']}" for each in evaluated["results"])
        say(f"[eval] eval_manifest.json written: {self._folder / 'eval_manifest.json'}")
        say_all(table_lines(find_rollouts(self._folder, str(self._folder)).rows, str(self._folder)))
