"""`koderz benchmark watch`: a run as its journal tells it, from another terminal."""

from __future__ import annotations

import time
from pathlib import Path

from koderz.cli.console import is_live, say, warn
from koderz.cli.progress import Pulse
from tracker.follow import Follower
from tracker.runs import find_run, is_locked, read_plan

_LINE_EVERY = 5.0  # seconds between two lines where there is no terminal


def watch_run(results: Path, name: str, every: float) -> None:
    """Shows the run until no process works on it any more."""
    folder = find_run(results, name)
    plan = read_plan(folder)
    follower = Follower(folder)
    say(f"{folder.name}: {plan.mode}, {plan.config.get('local_model')}, {plan.planned} experiments")
    pause = every if is_live() else max(every, _LINE_EVERY)
    shown = ""
    while True:
        working = is_locked(folder)
        follower.catch_up()
        line = _pulse(follower, plan.planned).line()
        if line != shown:
            say(line)
            shown = line
        if not working:
            break
        time.sleep(pause)
    if follower.ended:
        say(f"ended: {follower.ended}")
    else:
        warn(f"no process works on it; go on with: koderz benchmark resume {folder.name}")


def _pulse(follower: Follower, planned: int) -> Pulse:
    experiments, tokens = follower.pace()
    return Pulse(
        planned=planned,
        done=follower.done,
        passed=follower.passed,
        judged=follower.judged,
        faults=follower.faults,
        cost=follower.cost,
        tokens_per_second=tokens,
        seconds_left=(planned - follower.done) / experiments if experiments else None,
        in_flight=follower.in_flight,
    )
