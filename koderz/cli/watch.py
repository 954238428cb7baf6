"""`koderz benchmark watch`: follows a run from another terminal, by its journal and on Modal."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from koderz.cli.console import LINE_EVERY, is_live, link, say, warn
from koderz.cli.flags import Results, Run
from koderz.cli.progress import Pulse, batch_lines, batches_waited_for, word_for_passed
from koderz.engines import ENGINES
from koderz.errors import KoderzError
from koderz.runs.observer import Steps
from koderz.runs.resume import find_anywhere
from koderz_tracker.journal import Follower
from koderz_tracker.runs import is_locked, read_plan

if TYPE_CHECKING:
    from koderz.engines import RemoteView
    from koderz_tracker.records import Plan

EXIT_ABANDONED = 3
_HERE, _AWAY = 1.0, 30.0  # seconds between two looks at a journal, and at Modal


def watch(
    run: Run,
    every: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Time between updates. Default: 1; without a terminal 5; on Modal 30.",
            min=0.1,
        ),
    ] = None,
    detailed: Annotated[
        bool,
        typer.Option(
            "--detailed",
            help="One line per attempt, outcome, turn and cell; on Modal with a link to its logs.",
        ),
    ] = False,
    *,
    results: Results,
) -> None:
    """Follow a run from another terminal (one on Modal: from any machine) until it ends.

    Exit code 3 if the run hasn't ended and no process works on it.

    Examples:
        koderz benchmark watch latest
    """
    if not asyncio.run(_watch(results, run, every, detailed=detailed)):
        raise typer.Exit(EXIT_ABANDONED)


async def _watch(results: Path, name: str, every: float | None, *, detailed: bool) -> bool:
    """Shows the run until nobody works on it any more, here or on Modal; returns whether it has ended."""
    folder = await find_anywhere(results, name, os.environ)
    plan = read_plan(folder)
    steps = Audience(plan)
    follower = Follower(folder, steps.hear if detailed else lambda _: None)
    remote = _remote(folder, plan)
    say(f"{folder.name}: {plan.mode}, {plan.config.get('local_model')}, {plan.planned} experiments")
    for line in batch_lines(folder) if plan.config.get("batch") else ():
        say(line)
    shown: tuple[object, ...] = ()
    damaged = 0
    while True:
        working = is_locked(folder)
        follower.catch_up()
        for byte in follower.damaged[damaged:]:
            warn(f"note: {follower.path}: byte {byte}: a line that can't be read is left out")
        damaged = len(follower.damaged)
        away = None if working or follower.recorded == plan.planned else remote
        busy = await _look(away, follower) if away else working
        await steps.tell(remote)
        if (pulse := _pulse(follower, plan, busy=busy)).change != shown:
            say(pulse.line())
            shown = pulse.change
        if not busy or follower.done == plan.planned > follower.recorded:
            break
        here = _HERE if is_live() else LINE_EVERY
        await asyncio.sleep(every or (_AWAY if away else here))
    resume = f"koderz benchmark resume {folder.name}"
    if unfetched := follower.done - follower.recorded:
        say(f"{unfetched} results are at Modal; write them down here with: {resume}")
    elif follower.ended and not follower.ended.startswith("detached"):
        say(f"ended: {follower.ended}")
        if follower.recorded < plan.planned:
            warn(f"continue with: {resume}")
    elif follower.recorded == plan.planned:
        say(f"all have ended; write the summary with: {resume}")
    else:
        warn(f"no process is running this run; continue with: {resume}")
        return False
    return True


async def _look(remote: RemoteView, follower: Follower) -> bool:
    """Passes new lines from Modal to the follower; returns whether more may come."""
    busy = await remote.is_busy()
    async for line in remote.new_lines():
        follower.add(line)
    return busy


class Audience:
    """Prints a line for each step within experiments that a follower reports."""

    def __init__(self, plan: Plan) -> None:
        self._heard: list[tuple[str, str]] = []  # experiment, and what is said of it
        self._steps = Steps(plan)
        self._pages: dict[str, str] = {}  # where experiments are to be seen

    def hear(self, line: Mapping[str, object]) -> None:
        experiment = str(line.get("experiment_id"))
        if line.get("kind") == "submitted":
            self._pages[experiment] = str(line.get("url", ""))
        if line_text := self._steps.tell(line):
            self._heard.append((experiment, line_text))

    async def tell(self, remote: RemoteView | None) -> None:
        """Prints the new steps. `remote` knows the pages of calls that the journal lacks."""
        for experiment, words in self._heard:
            if remote and not self._pages.get(experiment):
                self._pages[experiment] = await remote.page(experiment)
            say(words, after=link("logs", self._pages.get(experiment, "")))
        self._heard.clear()


def _remote(folder: Path, plan: Plan) -> RemoteView | None:
    """The run on its engine, if that is remote and known here."""
    with suppress(KoderzError):
        return ENGINES.load(str(plan.config.get("engine") or "local")).view(
            folder, plan.config, os.environ
        )
    return None


def _pulse(follower: Follower, plan: Plan, *, busy: bool) -> Pulse:
    experiments, tokens = follower.pace()
    return Pulse(
        planned=plan.planned,
        tally=follower.tally,
        tokens_per_second=tokens,
        seconds_left=(plan.planned - follower.done) / experiments if experiments else None,
        # a process that died left calls without an end
        in_flight=follower.in_flight if busy else 0,
        passed=word_for_passed(plan),
        doing=batches_waited_for(follower.path.parent) if plan.config.get("batch") else "",
    )
