"""What the toy suite makes of a run: a part of its summary, a file of its own, and two export formats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from koderz.analysis.story import Story
from tracker.parts import Part
from tracker.records import Experiment, Plan, Record
from tracker.results import Result
from tracker.sinks import Source


class Letters(Part):
    """A part of the summary: how many letters are wrong in each arm."""

    def summary(self, plan: Plan, results: Mapping[str, Sequence[Result]]) -> dict[str, Any]:
        return {arm: {"wrong": sum((each.metrics or {})["wrong"] for each in own)} for arm, own in results.items()}


LETTERS = Letters()


class LetterFile:
    """A projection: a file in the run's folder with a line for each experiment that was judged."""

    def __init__(self, source: Source) -> None:
        self._path = source.folder / "letters.txt"

    def take(self, records: Sequence[Record]) -> None:
        lines = {*self._path.read_text().splitlines()} if self._path.exists() else set()
        lines |= {f"{each.problem_id} {each.verdict}" for each in records if isinstance(each, Experiment)}
        self._path.write_text("".join(f"{line}\n" for line in sorted(lines)))

    def close(self) -> None:
        return


def replies(stories: Iterable[tuple[Plan, Story]], target: IO[bytes]) -> None:
    """A format: a line for each experiment, with what the model replied last."""
    for plan, story in stories:
        target.write(f"{plan.run_id} {story.problem_id} {story.calls[-1].reply}\n".encode())


def reply_files(stories: Iterable[tuple[Plan, Story]], target: Path) -> None:
    """A format: a file for each experiment."""
    for _, story in stories:
        (target / f"{story.experiment_id}.txt").write_text(str(story.calls[-1].reply))


reply_files.is_folder = True  # type: ignore[attr-defined]
