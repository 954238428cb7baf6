"""Tells the story of one experiment as it happens."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext

from koderz.analysis.story import told_grade
from koderz.cli import console
from koderz.runs.observer import SessionView
from tracker.records import Attempt, Call, Experiment, Fault, Grade, Record


class StoryPrinter:
    """An observer that tells the whole story."""

    def __init__(self, *, quiet: bool) -> None:
        self._say = (lambda _text="": None) if quiet else console.say
        self._warn = console.warn

    def showing(self, view: SessionView) -> AbstractAsyncContextManager[None]:
        plan = view.plan
        self._say(f"{plan.tasks[0].id} · {plan.record.mode} · {plan.settings.local_model}")
        self._say(f"Journal: {view.tracker.folder / 'journal.jsonl'}")
        return nullcontext()

    def recorded(self, record: Record) -> None:
        """One step of the story."""
        if isinstance(record, Call):
            self._tell_call(record)
        elif isinstance(record, Attempt):
            self._tell_attempt(record)
        elif isinstance(record, Grade):
            self._say(told_grade(record))
        elif isinstance(record, Experiment):
            word = "PASSED" if record.success else record.verdict.upper()
            attempts = console.counted(record.iterations, "attempt")
            self._say(f"\n{word} after {attempts}, ${record.cost:.4f}, {record.latency:.1f} s of calls")
            if record.note:
                self._say(record.note)
        elif isinstance(record, Fault):
            self._warn(f"fault: {record.reason}")

    def notice(self, text: str) -> None:
        self._warn(f"note: {text}")

    def _tell_call(self, call: Call) -> None:
        tokens = f"{call.tokens_in} tokens in, {call.tokens_out} out"
        self._say(f"\n── {call.purpose} {call.call} · {tokens} · {call.latency:.1f} s · ${call.cost:.4f}")
        self._say(str(call.reply).strip() or "(an empty reply)")

    def _tell_attempt(self, attempt: Attempt) -> None:
        cause = f" ({attempt.cause})" if attempt.cause else ""
        task = f" of {attempt.task_id}" if attempt.task_id else ""
        self._say(f"\n── verdict{task}: {attempt.verdict}{cause}")
        if attempt.detail:
            self._say(str(attempt.detail))
