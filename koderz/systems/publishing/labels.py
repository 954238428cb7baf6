"""Labels of people for items that a model judged: a drawn file to fill in, and the figures that follow from it."""

from __future__ import annotations

import csv
import hashlib
import io
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import orjson

from koderz.analysis.export import spreadsheet_cell
from koderz.analysis.judged import Labelled, by_task, errors_of
from koderz.analysis.story import Experiments, Story
from koderz.errors import KoderzError
from koderz.streams import plain
from koderz.suites.tables import read_rows
from koderz.systems.publishing.agreement import (
    Correction,
    agreement_of,
    corrected,
    mean_and_variance,
)
from koderz.types import JUDGE, JUDGED
from koderz_tracker.files import MB, read_all, write_whole
from koderz_tracker.messages import text_of
from koderz_tracker.plain_text import REDACTED
from koderz_tracker.records import Experiment
from koderz_tracker.results import clusters_in, count_of
from koderz_tracker.sequential import STOPS, without_intervals

FOLDER = "calibrations"
"""The folder in a run's own that holds its draws and calibrations."""

COLUMNS = ("experiment_id", "task", "question", "answer", "reference", "label", "labeller")

_LARGEST = 256 * MB
_WORDS = {
    "pass": 1.0,
    "passed": 1.0,
    "true": 1.0,
    "1": 1.0,
    "fail": 0.0,
    "failed": 0.0,
    "false": 0.0,
    "0": 0.0,
}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Draw:
    """Experiments drawn at random from a run."""

    seed: int
    experiments: Sequence[str]

    @property
    def digest(self) -> str:
        return hashlib.sha256(orjson.dumps([self.seed, list(self.experiments)])).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class JudgeFigures:
    """The figures of a run's judge by arm, as they are recorded, and what to say about them."""

    arms: Mapping[str, dict[str, Any]]
    notes: Sequence[str] = field(default_factory=list)


class JudgedRun:
    """A run whose verdicts a model made."""

    def __init__(self, folder: Path) -> None:
        """Raises KoderzError for a run without such an arm, or of which nothing was judged."""
        self.folder = folder
        self._experiments = Experiments(folder)
        self.plan = self._experiments.plan
        self._clusters = clusters_in(self.plan)
        self.judges = {arm.name: arm.models[JUDGE] for arm in self.plan.arms if JUDGE in arm.models}
        if not self.judges:
            raise KoderzError(
                f"{folder.name}: no model judged there, so there is nothing to calibrate"
            )
        self.outcomes = {
            outcome.experiment_id: outcome
            for outcome in self._experiments.outcomes
            if isinstance(outcome, Experiment) and outcome.arm in self.judges
        }
        if not self.outcomes:
            raise KoderzError(f"{folder.name}: nothing was judged by a model there yet")

    def price_of_judging(self, experiments: Sequence[str]) -> float | None:
        """US dollars that the judge's recorded calls on these experiments cost; None if a price is unknown."""
        stories = (self._experiments.story(self.outcomes[name]) for name in experiments)
        calls = [call for story in stories for call in story.calls if call.role == JUDGE]
        return sum(call.cost for call in calls) if all(call.cost_known for call in calls) else None

    def draw(self, count: int, seed: int) -> Draw:
        """So many experiments at random, in random order; all if there are fewer."""
        names = sorted(self.outcomes)
        return Draw(seed, random.Random(seed).sample(names, min(count, len(names))))  # noqa: S311 repeatable

    def keep(self, draw: Draw) -> None:
        """Writes down what was drawn, so that labels of it are known for a random draw."""
        path = self.folder / FOLDER / f"draw-{draw.digest}.json"
        path.parent.mkdir(exist_ok=True)
        write_whole(path, [orjson.dumps(asdict(draw), option=orjson.OPT_INDENT_2)])

    def drawn(self) -> list[Draw]:
        """The draws that were written down."""
        found = []
        for path in sorted((self.folder / FOLDER).glob("draw-*.json")):
            with suppress(OSError, ValueError, KeyError, TypeError):  # a damaged one is none
                document = orjson.loads(path.read_bytes())
                draw = Draw(document["seed"], document["experiments"])
                if path.stem == f"draw-{draw.digest}":
                    found.append(draw)
        return found

    def rows(self, draw: Draw) -> Iterator[dict[str, str]]:
        """The drawn experiments as rows to be labelled; the judge's verdict isn't in them."""
        for name in draw.experiments:
            story = self._experiments.story(self.outcomes[name])
            expected = self.plan.basis.expectations.get(story.problem_id, {}).get(
                "expected_response", ""
            )
            texts = {
                "task": story.problem_id,
                "question": _question(story),
                "answer": _answer(story),
            }
            row = {
                "experiment_id": name,
                **texts,
                "reference": str(expected),
                "label": "",
                "labeller": "",
            }
            yield {key: _CONTROL.sub("�", value) for key, value in row.items()}

    def calibration(self, labels: Mapping[str, Mapping[str, float]], digest: str) -> JudgeFigures:
        """The judge's figures by these labels, which are by experiment and labeller."""
        is_score = any(
            value not in (0, 1) for of_item in labels.values() for value in of_item.values()
        )
        draws = [draw for draw in self.drawn() if labels.keys() <= {*draw.experiments}]
        notes = [] if draws else ["the labelled items are no draw of koderz from this run"]
        if draws and (skipped := _skipped(draws[-1], labels)):
            notes.append(
                f"{skipped} items drawn before the last labelled one have no label: were they harder?"
            )
        arms = {}
        for arm, model in self.judges.items():
            values = {
                each.experiment_id: _judged(each, is_score)
                for each in self.outcomes.values()
                if each.arm == arm
            }
            items = [
                Labelled(self._unit(name), values[name], of_item)
                for name, of_item in labels.items()
                if name in values
            ]
            if items:
                arms[arm] = self._figures(model, values, items, labels, drawn=bool(draws)) | {
                    "labels_digest": digest
                }
        return JudgeFigures(arms, notes)

    def _unit(self, name: str) -> str:
        """The cluster of an experiment's task, or else the task."""
        task = self.outcomes[name].problem_id
        return f"cluster {self._clusters[task]}" if task in self._clusters else task

    def _figures(
        self,
        model: str,
        values: Mapping[str, float],
        items: Sequence[Labelled],
        labels: Mapping[str, Mapping[str, float]],
        *,
        drawn: bool,
    ) -> dict[str, Any]:
        others: dict[str, list[float]] = defaultdict(list)
        for name, value in values.items():
            if name not in labels:
                others[self._unit(name)].append(value)
        found: Correction = corrected(others, items, drawn=drawn)
        mean, variance = mean_and_variance(errors_of(items))
        figures = {
            "judge": model,
            "items": len(items),
            "labellers": len({name for each in items for name in each.labels}),
            "drawn": drawn,
            **asdict(agreement_of(items)),
            "rate": sum(values.values()) / len(values),
            "corrected": asdict(found),
            "rectifier": {"mean": mean, "variance": variance if isfinite(variance) else None},
            # what a comparison needs for intervals of any confidence: verdict and label of each item, by task
            "labelled": by_task((each.task, [each.judged, each.label]) for each in items),
            "clusters": count_of(
                {self.outcomes[name].problem_id for name in values.keys() & labels}, self._clusters
            ),
        }
        if self.plan.until_decided is None:
            return figures
        figures["corrected"] = asdict(found) | {"standard_error": None}
        return {**without_intervals(figures), "interval_method": STOPS}


def write_rows(path: Path, rows: Iterator[dict[str, str]]) -> int:
    """Writes rows as JSONL, or as CSV that a spreadsheet runs no formula of. Returns how many there were."""
    found = [*rows]
    if path.suffix == ".jsonl":
        write_whole(
            path,
            (orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in found),
            durable=False,
        )
        return len(found)
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: spreadsheet_cell(value) for name, value in row.items()} for row in found
    )
    write_whole(path, [text.getvalue().encode()], durable=False)
    return len(found)


def read_labels(path: Path, known: Mapping[str, Any]) -> tuple[dict[str, dict[str, float]], str]:
    """The labels of a file by experiment and labeller, and the digest of the file; rows without a label are skipped.

    CSV as spreadsheets write it, or JSON lines. Raises KoderzError with the line for an
    experiment that isn't in `known`, a row that is there twice, or a label that is none.
    """
    try:
        data = read_all(path, _LARGEST)
    except OSError as error:
        raise KoderzError(f"{path} can't be read ({error})") from None
    labels: dict[str, dict[str, float]] = defaultdict(dict)
    for row in read_rows(path, data=data):
        if "label" not in row.fields or "experiment_id" not in row.fields:
            raise row.error(
                f"a file of labels has the columns {', '.join(COLUMNS)}; here are {', '.join(row.fields)}"
            )
        label, name, labeller = (
            "" if row.fields.get(column) is None else str(row.fields[column]).strip()
            for column in ("label", "experiment_id", "labeller")
        )
        if not label:
            continue
        if name not in known:
            raise row.error(f"this run has no experiment {name!r:.80} that a model judged")
        if labeller in labels.get(name, {}):
            raise row.error(f"{name} is labelled twice{f' by {labeller}' if labeller else ''}")
        labels[name][labeller] = _value(label, row.where)
    if not labels:
        raise KoderzError(f"{path}: no row has a label; write pass or fail into the column label")
    return dict(labels), hashlib.sha256(data).hexdigest()[:16]


def _value(label: str, where: str) -> float:
    word = label.lower()
    if word in _WORDS:
        return _WORDS[word]
    try:
        value = float(word.replace(",", "."))
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise KoderzError(
            f"{where}: {label!r:.40} is no label; write pass or fail, 1 or 0, or a score from 0 to 1"
        )
    return value


def _skipped(draw: Draw, labels: Mapping[str, object]) -> int:
    """The number of drawn experiments without a label that stand before the last one with a label."""
    last = max(number for number, name in enumerate(draw.experiments) if name in labels)
    return sum(name not in labels for name in draw.experiments[:last])


def _judged(outcome: Experiment, is_score: bool) -> float:
    if not is_score:
        return float(outcome.success)
    if outcome.score is None or not 0 <= outcome.score <= 1:
        raise KoderzError(
            f"{outcome.experiment_id}: the judge gave no score from 0 to 1, so labels are pass or fail"
        )
    return outcome.score


def _question(story: Story) -> str:
    asked = [
        text_of(message)
        for call in story.calls[:1]
        for message in call.messages
        if message.get("role") == "user"
    ]
    return plain(asked[-1]) if asked else ""


def _answer(story: Story) -> str:
    if story.attempts and isinstance(judged := story.attempts[-1].artifacts.get(JUDGED), str):
        return plain(judged)
    replies = [
        str(step.call.reply) for step in story.steps if step.call and step.call.role != JUDGE
    ]
    return plain(replies[-1]) if replies else REDACTED
