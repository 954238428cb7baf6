"""Sections of bench_rollouts on guards: both gradings, the channel of rewards, and exploits on hand-made tasks."""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from checkout import ROOT
from figures import Figure

sys.path.insert(0, str(ROOT))

from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import Command, Ended, Limits, Mount, RewardChannel
from koderz.systems.rollouts.checking.audit import audit_tasks
from koderz.systems.rollouts.grading import grade
from koderz.systems.rollouts.grading.terms import terms_of
from koderz.systems.rollouts.options import RolloutsOptions
from koderz.systems.rollouts.tasks.formats import load_task
from koderz.systems.rollouts.workspaces.afresh import Work
from koderz.systems.rollouts.workspaces.workspace import Stores, Workspace, at_once
from koderz.systems.workspaces.local import Local
from tests.koderz.systems.rollouts.hand_made import hand_made

_ROUNDS, _PAIRS = 9, 15
_TASKS = ("hard-answer", "weak-report", "weak-ledger", "weak-separate", "tally")
_TWO = "python3 -I -S -c pass\npython3 -I -S -c pass\necho 1 > /logs/verifier/reward.txt\n"


def both(_options: argparse.Namespace) -> Iterator[Figure]:
    """A right diff graded as published and afresh."""
    for name in ("hard-answer", "weak-report"):
        whole, verifiers = asyncio.run(_both(name))
        above = statistics.median(one - other for one, other in zip(whole, verifiers, strict=True))
        yield Figure(f"both gradings of {name}, CPU", statistics.median(whole), "s")
        yield Figure(f"both gradings of {name}, beyond its verifier, CPU", above, "s").at_most(0.9)


async def _both(name: str) -> tuple[list[float], list[float]]:
    """Seconds of CPU of each grading, and of the runs of the verifier in it."""
    runs: list[float] = []

    class Counting(Local):
        async def run(self, command: Command, place: Path) -> Ended:
            ended = await super().run(command, place)
            runs.append(ended.cpu)
            return ended

    whole, verifiers = [], []
    with tempfile.TemporaryDirectory() as folder:
        task = load_task(hand_made(Path(folder), name))
        async with Counting() as backend:
            stores = Stores({"": backend})
            terms = await terms_of(task, stores)
            for _ in range(_ROUNDS):
                with scratch() as place:
                    workspace = Workspace(task, stores, place, at_once, RolloutsOptions())
                    await workspace.solve()
                    diff = str((await workspace.diff())["diff"])
                    runs.clear()
                    began = _cpu()
                    graded = await grade(task, Work(diff, place, workspace.collected), stores, terms)
                    whole.append(_cpu() - began)
                    verifiers.append(sum(runs))
                    if not graded.scored.success:
                        raise SystemExit(f"the solution of {name} isn't passed: {graded.log}")
    return whole, verifiers


def channel(_options: argparse.Namespace) -> Iterator[Figure]:
    """A verifier of two interpreters with the channel of its rewards, and without."""
    with_it, without = asyncio.run(_verified())
    above = statistics.median(one - other for one, other in zip(with_it, without, strict=True))
    yield Figure("a verifier of two interpreters, no channel, CPU", 1000 * statistics.median(without), "ms")
    yield Figure("the channel, a verifier of two interpreters, CPU", 1000 * above, "ms").at_most(30.0)


async def _verified() -> tuple[list[float], list[float]]:
    with_it: list[float] = []
    without: list[float] = []
    async with Local() as local:
        for _ in range(_PAIRS):
            for spent, guarded in ((with_it, True), (without, False)):
                with scratch() as place, scratch() as logs, scratch() as tests:
                    (tests / "test.sh").write_text(_TWO)
                    mounts = [Mount(tests, "/tests")]
                    mounts += [] if guarded else [Mount(logs, "/logs/verifier", writable=True)]
                    found = RewardChannel(logs, hidden=["/tests"], homes=["/workspace", "/tmp"]) if guarded else None
                    limits = Limits(seconds=60)
                    wanted = Command(["bash", "/tests/test.sh"], mounts=mounts, channel=found, limits=limits)
                    began = _cpu()
                    ended = await local.run(wanted, place)
                    spent.append(_cpu() - began)
                    if not (logs / "reward.txt").is_file():
                        raise SystemExit(f"there is no reward: {ended.output}")
    return with_it, without


def exploits(_options: argparse.Namespace) -> Iterator[Figure]:
    """The exploits of the audit, tried on hand-made tasks of each format."""
    tried, forged = asyncio.run(_audited())
    yield Figure("exploits tried", tried).at_least(100)
    yield Figure("exploits that pass as published", forged["published"])
    yield Figure("exploits that pass under koderz' grading", forged["ours"]).at_most(0)


async def _audited() -> tuple[int, Mapping[str, int]]:
    with tempfile.TemporaryDirectory() as folder:
        tasks = [load_task(hand_made(Path(folder), name)) for name in _TASKS]
        async with Local() as local:
            found = await audit_tasks(tasks, Stores({"": local}))
    return sum(len(task.tried) for task in found.tasks), found.forged


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + usage.ru_utime + usage.ru_stime
