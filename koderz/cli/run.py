"""`koderz run TASK`: one experiment, shown as it happens."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Annotated, Any

import typer

from koderz.audience import Stage
from koderz.cli.benchmark import EXIT_CODES, Json, Quiet, Trust
from koderz.cli.groups import PanelCommand
from koderz.cli.options import PANELS, with_settings
from koderz.session import Session
from koderz.settings import OF_SINKS
from tracker.records import Attempt, Call, Experiment, Fault, Record

app = typer.Typer(help="One experiment, shown as it happens.", rich_markup_mode=None)

EXIT_NOT_PASSED = 1
_NOT_FOR_ONE = (
    "problems",
    "limit",
    "shuffle",
    "samples",
    "baseline_model",
    "concurrency",
    "judges",
    "grace",
    *OF_SINKS,
)
SETTINGS = [name for texts in PANELS.values() for name in texts if name not in _NOT_FOR_ONE]


@app.command(cls=PanelCommand)
@with_settings(*SETTINGS)
def run(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Which one, e.g. HumanEval/3.")],
    given: dict[str, Any],
    json: Json = False,
    quiet: Quiet = False,
    trust_config: Trust = False,
) -> None:
    """Run one experiment: each reply, its program and its verdict are shown as they come.

    Its journal is kept under the results folder, by its own id. Exit code 0 if it passed, 1 if not.
    """
    from koderz.preparing import prepare
    from koderz.session import begin

    teller = Teller(quiet=quiet or json)
    given |= {"problems": (task,)}
    plan = asyncio.run(prepare(given, None, single=True, trust_config=trust_config, audience=teller))
    session = asyncio.run(begin(plan, teller))
    if json:
        from tracker.sinks.json import encode_summary

        sys.stdout.buffer.writelines(encode_summary(session.summary))
    raise typer.Exit(_exit_code(session))


def _exit_code(session: Session) -> int:
    code = EXIT_CODES.get(session.ended.status, 3)
    return code or (0 if session.summary.summary.successes else EXIT_NOT_PASSED)


class Teller:
    """An audience that tells the whole story."""

    def __init__(self, *, quiet: bool) -> None:
        from koderz.cli import console

        self._say = (lambda _text="": None) if quiet else console.say
        self._warn = console.warn

    def showing(self, stage: Stage) -> AbstractAsyncContextManager[None]:
        plan = stage.plan
        self._say(f"{plan.tasks[0].id} · {plan.record.mode} · {plan.settings.local_model}")
        self._say(f"Journal: {stage.tracker.folder / 'journal.jsonl'}")
        return nullcontext()

    def recorded(self, record: Record) -> None:
        """One step of the story."""
        if isinstance(record, Call):
            self._tell_call(record)
        elif isinstance(record, Attempt):
            self._tell_attempt(record)
        elif isinstance(record, Experiment):
            word = "PASSED" if record.success else record.verdict.upper()
            self._say(
                f"\n{word} after {record.iterations} attempts, ${record.cost:.4f}, {record.latency:.1f} s of calls"
            )
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
        self._say(f"\n── verdict: {attempt.verdict}{cause}")
        if attempt.detail:
            self._say(str(attempt.detail))
