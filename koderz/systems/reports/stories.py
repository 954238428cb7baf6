"""Stories packed into the page: compressed in chunks that the page opens on demand."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Iterator

import orjson

from koderz.analysis.story import (
    Experiments,
    Story,
    StoryStep,
    shortened,
    thought_of,
    told_asked,
    told_frames,
    told_grades,
    told_reply,
    told_servers,
    told_tool,
)
from koderz.errors import JournalError
from koderz.systems.reports.view import Row, View
from koderz_tracker.records import Fault

_SMALL, _LARGE = 1_000_000, 10_000_000  # bytes of a page on 328 experiments, and on 10,000
_CHUNK = 24  # stories that are compressed together: the prompts of one task are much alike
_ASKERS = {"user": "Asked", "system": "System prompt"}
_MARKUP = 80  # bytes of the element around a chunk, and of two more numbers in each of its rows
_TEXT_CHARS = 6000  # of one text; what is beyond is cut out of its middle

Block = tuple[str, str, str]
"""The kind of a block (said, code, diff, verdict-…), its heading and its text."""


def budget_of(experiments: int) -> int:
    """The number of bytes that the page may have."""
    share = min(max((experiments - 328) / (10_000 - 328), 0.0), 1.0)
    return int(_SMALL + share * (_LARGE - _SMALL))


def pack_stories(view: View, budget: int, flipped: Collection[tuple[int, str]] = ()) -> list[str]:
    """Packs stories into chunks in base64, at most `budget` characters, and notes the place of each in its row.

    `flipped`, numbers of entries with tasks, go first, then what was not passed, and tasks stay together. A run
    without a journal has no stories.
    """
    # One reader for each run, by the numbers of its entries.
    by_run: dict[str, _StoryReader] = {}
    readers = {}
    for number, entry in enumerate(view.entries):
        folder = entry.run.folder
        if folder is None:
            continue
        if entry.run.name not in by_run:
            try:
                by_run[entry.run.name] = _StoryReader(Experiments(folder))
            except JournalError:  # the summary is whole all the same
                continue
        readers[number] = by_run[entry.run.name]
    wanted = [row for row in view.rows if row.entry in readers]
    wanted.sort(key=lambda row: _urgency(row, flipped))
    chunks: list[str] = []
    for first in range(0, len(wanted), _CHUNK):
        rows = wanted[first : first + _CHUNK]
        chunk = packed_json([readers[row.entry].blocks(row) for row in rows])
        budget -= len(chunk) + _MARKUP
        if budget < 0:
            break
        for place, row in enumerate(rows):
            row.chunk, row.place = len(chunks), place
        chunks.append(chunk)
    return chunks


def _urgency(row: Row, flipped: Collection[tuple[int, str]]) -> tuple[bool, bool, str, int, int]:
    task = row.result.problem_id
    return (
        (row.entry, task) not in flipped,
        row.result.verdict == "passed",
        task,
        row.entry,
        row.result.sample,
    )


def packed_json(value: object) -> str:
    """A value for the page's script: deflated JSON in base64, in which no character has a meaning in HTML."""
    return base64.b64encode(zlib.compress(orjson.dumps(value), 9)).decode()


class _StoryReader:
    """The stories of one run, by experiment."""

    def __init__(self, experiments: Experiments) -> None:
        self._experiments = experiments
        self._outcomes = {outcome.experiment_id: outcome for outcome in experiments.outcomes}

    def blocks(self, row: Row) -> list[Block]:
        outcome = self._outcomes.get(row.result.experiment_id)
        if outcome is None:
            return [("said", "", "The journal has nothing on this experiment any more.")]
        return [
            (kind, heading, shortened(text, _TEXT_CHARS))
            for kind, heading, text in _blocks(self._experiments.story(outcome))
        ]


def _blocks(story: Story) -> Iterator[Block]:
    for step in story.steps:
        yield from _step(step)
    if servers := "\n".join(told_servers(story)):
        yield "said", "MCP servers", servers
    if story.grades:
        heading, *grades = told_grades(story.grades)
        yield "said", heading, "\n".join(grades)
    if isinstance(story.outcome, Fault):
        yield (
            "verdict-fault",
            "Fault",
            "\n".join((story.outcome.reason, told_frames(story.outcome.frames))).rstrip(),
        )
    elif story.outcome.note:
        yield "said", "Note", story.outcome.note


def _step(step: StoryStep) -> Iterator[Block]:
    if call := step.call:
        for who, text in told_asked(call, step.asked):
            yield "said", _ASKERS.get(who, who.capitalize()), text
        if call.reasoning:
            yield "said", "Reasoning", str(call.reasoning)
        tokens = f"{call.tokens_in} + {call.tokens_out} tokens{thought_of(call.tokens_reasoning)}"
        figures = f"{tokens}, {call.latency:.1f} s, ${call.cost:.4f}"
        heading = (
            f"Reply {call.call} of {call.answered_by or call.model} ({call.purpose}; {figures})"
        )
        yield "reply", heading, told_reply(call)
    yield from (("said", *told_tool(tool)) for tool in step.tools)
    if attempt := step.attempt:
        if step.diff:
            yield (
                "diff",
                f"Program of attempt {attempt.number}, against the one before",
                "\n".join(step.diff),
            )
        elif isinstance(attempt.program, str):
            yield "code", f"Program of attempt {attempt.number}", attempt.program
        cause = f" ({attempt.cause})" if attempt.cause else ""
        at = f" at {attempt.task_id}" if attempt.task_id else ""
        kind = "verdict-passed" if attempt.passed else "verdict-failed"
        yield kind, f"Attempt {attempt.number}{at}: {attempt.verdict}{cause}", str(attempt.detail)
