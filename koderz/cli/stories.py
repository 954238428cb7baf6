"""The story of an experiment in a terminal: prompts, replies, programs, verdicts and changes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING

from koderz.analysis.conversation import told_asked, told_reply
from koderz.analysis.story import thought_of, told_frames, told_grade, told_grades
from koderz.cli.console import counted, say, warn
from koderz.runs.observer import SessionView
from koderz_tracker.records import Attempt, Call, Experiment, Fault, Grade, Record
from koderz_tracker.terminals import plain

if TYPE_CHECKING:
    from koderz.analysis.story import Story, StoryStep

_BOLD, _DIM, _GREEN, _RED, _CYAN = "1", "2", "32", "31", "36"
_DIFF_COLOURS = {"+": _GREEN, "-": _RED, "@": _CYAN}


def tell(story: Story, run: str) -> None:
    """Prints a story. Text of models is made safe first, then coloured on a terminal."""
    for line in _lines(story, run):
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class StoryPrinter:
    """An observer that prints the whole story as it happens."""

    def __init__(self, *, quiet: bool) -> None:
        self._say = (lambda _text="": None) if quiet else say

    def showing(self, view: SessionView) -> AbstractAsyncContextManager[None]:
        plan = view.plan
        self._say(f"{plan.tasks[0].id} · {plan.record.mode} · {plan.settings.local_model}")
        self._say(f"Journal: {view.tracker.folder / 'journal.jsonl'}")
        return nullcontext()

    def recorded(self, record: Record) -> None:
        """Prints one step of the story."""
        if isinstance(record, Call):
            self._tell_call(record)
        elif isinstance(record, Attempt):
            self._tell_attempt(record)
        elif isinstance(record, Grade):
            self._say(told_grade(record))
        elif isinstance(record, Experiment):
            word = "PASSED" if record.success else record.verdict.upper()
            attempts = counted(record.iterations, "attempt")
            self._say(f"\n{word} after {attempts}, ${record.cost:.4f}, {record.latency:.1f} s of calls")
            if record.note:
                self._say(record.note)
        elif isinstance(record, Fault):
            warn(f"fault: {record.reason}")
            if record.frames:
                warn(told_frames(record.frames))

    def notice(self, text: str) -> None:
        warn(f"note: {text}")

    def _tell_call(self, call: Call) -> None:
        self._say(f"\n── {call.purpose} {call.call} · {_figures(call)}")
        self._say(told_reply(call, raw=True))

    def _tell_attempt(self, attempt: Attempt) -> None:
        cause = f" ({attempt.cause})" if attempt.cause else ""
        task = f" of {attempt.task_id}" if attempt.task_id else ""
        self._say(f"\n── verdict{task}: {attempt.verdict}{cause}")
        if attempt.detail:
            self._say(str(attempt.detail))


def _lines(story: Story, run: str) -> Iterator[str]:
    sample = f" · sample {story.sample}" if story.sample else ""
    sample += f" · {story.sample_name}" if story.sample_name else ""
    yield _ink(f"{story.problem_id} · {story.arm}{sample} · {run}", _BOLD)
    if any(call.depth for call in story.calls):
        yield from _tree(story.calls)
    for step in story.steps:
        if step.call:
            yield from _call(step.call, step)
        if step.attempt:
            yield from _attempt(step.attempt, step)
    if story.grades:
        heading, *lines = told_grades(story.grades)
        yield _rule(heading)
        yield from map(plain, lines)
    yield ""
    yield _outcome(story)
    yield ""


def _tree(calls: Sequence[Call]) -> Iterator[str]:
    """The tree of calls: each call below the one whose code made it."""
    yield _rule("the recursion")
    below: dict[int | None, list[Call]] = {}
    for call in calls:
        below.setdefault(call.parent if call.depth else None, []).append(call)

    def branch(parent: int | None, margin: str) -> Iterator[str]:
        for call in below.get(parent, ()):
            figures = f"{call.tokens_in:,} tokens in, {call.tokens_out:,} out · {call.latency:.1f} s · ${call.cost:.4f}"
            yield f"{margin}{call.purpose} {call.call}  {figures}"
            yield from branch(call.call, f"{margin}  ")

    yield from branch(None, "")


def _call(call: Call, step: StoryStep) -> Iterator[str]:
    for who, text in told_asked(call, step.asked):
        yield _rule("user asked" if who == "user" else who)
        yield plain(text).rstrip()
    if call.reasoning:
        yield _rule("reasoning")
        yield _ink(str(call.reasoning).strip(), _DIM)
    place = f" (depth {call.depth})" if call.depth else ""
    place += f" for call {call.parent}" if call.parent is not None else ""
    yield _rule(f"{call.purpose} {call.call}{place}: reply of {call.answered_by or call.model} · {_figures(call)}")
    yield plain(told_reply(call))


def _attempt(attempt: Attempt, step: StoryStep) -> Iterator[str]:
    if isinstance(attempt.program, str):
        yield _rule(f"program of attempt {attempt.number}")
        yield _code(attempt.program)
    if step.diff:
        yield _rule("what changed since the attempt before")
        for line in step.diff:
            yield _ink(line, _DIFF_COLOURS.get(line[:1], ""))
    for name, artifact in attempt.artifacts.items():
        size = f"{len(artifact):,} characters" if isinstance(artifact, str) else f"{artifact.bytes:,} bytes"
        yield _rule(f"artifact {name}: {size}; print it with --artifact {name}")
    cause = f" ({attempt.cause})" if attempt.cause else ""
    yield _rule(f"verdict of attempt {attempt.number}" + (f" at {attempt.task_id}" if attempt.task_id else ""))
    yield _ink(f"{attempt.verdict}{cause}", _GREEN if attempt.passed else _RED)
    if attempt.detail:
        yield plain(str(attempt.detail)).rstrip()
    if attempt.feedback and attempt.feedback != attempt.detail:
        yield _rule("what the solver was told")
        yield plain(str(attempt.feedback)).rstrip()


def _outcome(story: Story) -> str:
    ended = story.outcome
    if isinstance(ended, Fault):
        text = _ink(f"FAULT ({ended.cause}) after {ended.calls} calls, ${ended.cost:.4f}: {ended.reason}", _RED)
        return text + (f"\n{plain(told_frames(ended.frames))}" if ended.frames else "")
    what = f"{ended.verdict.upper()} after {counted(ended.iterations, 'attempt')}"
    text = f"{what}, ${ended.cost:.4f}, {ended.latency:.1f} s of calls"
    return _ink(text, _GREEN if ended.success else _RED) + (f"\n{plain(ended.note)}" if ended.note else "")


def _figures(call: Call) -> str:
    out = f"{call.tokens_out} out{thought_of(call.tokens_reasoning)}"
    return f"{call.tokens_in} tokens in, {out} · {call.latency:.1f} s · ${call.cost:.4f}"


def _rule(text: str) -> str:
    return f"\n{_ink(f'── {text}', _DIM)}"


def _ink(text: str, colour: str) -> str:
    return f"\033[{colour}m{plain(text)}\033[0m" if colour and _is_coloured() else plain(text)


def _code(source: str) -> str:
    clean = plain(source).rstrip()
    if not _is_coloured():
        return clean
    from pygments import highlight
    from pygments.formatters.terminal import TerminalFormatter
    from pygments.lexers.python import PythonLexer

    return str(highlight(clean, PythonLexer(stripnl=False), TerminalFormatter())).rstrip()


def _is_coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
