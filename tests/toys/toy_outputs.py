"""Outputs of runs of toys: a part of the summary and its section, a comparison, files, export formats, a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from koderz.analysis.blocks import Text
from koderz.analysis.compare import Compared
from koderz.analysis.export import Stories, folder_format
from koderz.analysis.reader import summary_of_document
from koderz.analysis.sections import Section
from koderz_tracker.parts import Part
from koderz_tracker.records import Experiment, Fault, Plan, Record
from koderz_tracker.results import Result
from koderz_tracker.sinks import Sink, Source
from koderz_tracker.summary import Summary


class Letters(Part):
    """A part of the summary: how many letters are wrong in each arm."""

    def summary(self, plan: Plan, results: Mapping[str, Sequence[Result]]) -> dict[str, Any]:
        return {arm: {"wrong": sum((each.metrics or {})["wrong"] for each in own)} for arm, own in results.items()}


LETTERS = Letters()


class LetterFile(Sink):
    """A projection: a file in the run's folder with a line for each experiment that was judged."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._path = source.folder / "letters.txt"

    def take(self, records: Sequence[Record]) -> None:
        lines = {*self._path.read_text().splitlines()} if self._path.exists() else set()
        lines |= {f"{each.problem_id} {each.verdict}" for each in records if isinstance(each, Experiment)}
        self._path.write_text("".join(f"{line}\n" for line in sorted(lines)))


def replies(stories: Stories, target: IO[bytes]) -> None:
    """A format: a line for each experiment, with what the model replied last."""
    for plan, story in stories:
        target.write(f"{plan.run_id} {story.problem_id} {story.calls[-1].reply}\n".encode())


@folder_format
def reply_files(stories: Stories, target: Path) -> None:
    """A format: a file for each experiment."""
    for _, story in stories:
        (target / f"{story.experiment_id}.txt").write_text(str(story.calls[-1].reply))


def section_of(plan: Plan, folder: Path) -> Section:
    """The section of the report on the letters of a run."""
    return Section("Letters", [Text(f"Letters of {len(plan.tasks)} words.")])


def compare_aloud(folders: Sequence[Path], *, arm: str | None = None, min_gain: float | None = None) -> Compared:
    """The comparison of runs that were said aloud: all are equally loud."""
    names = [folder.name for folder in folders]
    return Compared("equally loud", lambda: iter([Text(f"Equally loud: {', '.join(names)}")]), lambda: {"loud": names})


class Book:
    """A document: all words that a run has passed, in one file."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self._path = Path(about["output"], "book.txt")

    def take(self, outcome: Experiment | Fault) -> None:
        return

    def write(self, summary: Summary) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        results = [each for arm in summary.arms.values() for each in arm.results]
        self._path.write_text("".join(f"{each.problem_id}\n" for each in results if each.success))


class Tally:
    """A log of another tool: a file `*.tally` with a line for each word, and whether it was spelt right."""

    def __init__(self, path: Path) -> None:
        self._words = dict(line.split() for line in path.read_text().splitlines())

    def summary(self, path: Path) -> Summary:
        results = [
            {"problem_id": word, "success": said == "right", "solver": "tally"} for word, said in self._words.items()
        ]
        return summary_of_document({"mode": "imported", "arms": {"tally": {"results": results}}}, path)

    def values(self, field_name: str, path: Path) -> dict[str, str]:
        return {}


def tally_of(path: Path) -> type[Tally] | None:
    return Tally if path.suffix == ".tally" else None
