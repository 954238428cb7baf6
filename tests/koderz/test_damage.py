"""Journals with random damage: what can be read is used, with the index and without it, and is never paid for again."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from koderz.analysis.story import Experiments
from koderz.experiments import recording
from koderz.experiments.replay import Replaying
from koderz.plans.plan import Plan
from koderz.testing import a_model
from koderz.types import Message, Sampling
from koderz_tracker.errors import JournalError
from koderz_tracker.index import DAMAGED, index_path, load_index, read, read_records
from koderz_tracker.journal import NAME, Follower
from koderz_tracker.merge import repair
from koderz_tracker.records import Call, Experiment, Record
from koderz_tracker.runs import read_plan
from koderz_tracker.stories import Stories
from koderz_tracker.summary import Summary, summarize
from tests.koderz.world import begun, planned, resumed

SEEDS = range(25)


def stubborn(messages: Sequence[Message], sampling: Sampling) -> str:
    """Good at the third try, and never the same twice, so that a reply that is lost can't be guessed."""
    tries = sum(message["role"] == "assistant" for message in messages)
    return f"{'GOOD' if tries == 2 else 'BAD'} {tries} {len(messages)}"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    """A run of six experiments with three attempts each, and its folder."""

    async def go() -> tuple[Plan, Path]:
        plan = await planned(tmp_path_factory.mktemp("run"), 6, mode="iterative", max_iterations=4, concurrency=2)
        return plan, (await begun(plan, a_model(stubborn))).folder

    return asyncio.run(go())


def harmed(data: bytes, dice: random.Random) -> bytes:
    """A journal with bytes overwritten, zeroed or cut out, or lines doubled or replaced; its plan is whole."""
    start = data.index(b"\n") + 1
    lines = data[start:].splitlines(keepends=True)
    harm = dice.choice(["flip", "bytes", "zeros", "foreign", "double", "cut"])
    if harm == "double":
        return data[:start] + b"".join([*lines, *dice.sample(lines, 3)])
    if harm == "foreign":
        lines[dice.randrange(len(lines))] = dice.choice([b"hello\n", b'{"a":1}\n', b"[1,2]\n", b'{"kind":"call"}\n'])
        return data[:start] + b"".join(lines)
    at = dice.randrange(start, len(data))
    size = {"flip": 1, "bytes": dice.randrange(1, 40), "zeros": dice.randrange(1, 3000), "cut": 0}[harm]
    if harm == "cut":
        return data[:at] + data[at + dice.randrange(1, 500) :]
    damage = b"\0" * size if harm == "zeros" else dice.randbytes(size)
    return (data[:at] + damage)[: len(data)] + data[at + size :]


def readable(data: bytes) -> list[Record]:
    """Each line that can be read by itself, once."""
    found = []
    for line in dict.fromkeys(data[: data.rfind(b"\n") + 1].splitlines(keepends=True)):
        try:
            record = read(line)
        except JournalError:
            continue
        if record is not None and not _is_nobodys(record):
            found.append(record)
    return found


def _is_nobodys(record: Record) -> bool:
    """Whether its experiment can't be told, because the damage lies in just that id."""
    try:
        return int(getattr(record, "experiment_id", "exp_0").removeprefix("exp_"), 16) >= 1 << 64
    except ValueError:
        return True


def told(summary: Summary) -> dict[str, Any]:
    return {
        "results": list(summary.results),
        "paid": summary.paid,
        "status": summary.status,
        "bad": summary.damaged_lines,
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_journal_reads_the_same_with_and_without_its_index(
    recorded: tuple[Plan, Path], tmp_path: Path, seed: int
) -> None:
    whole = recorded[1]
    indexed, bare = tmp_path / "indexed" / whole.name, tmp_path / "bare" / whole.name
    data = harmed((whole / NAME).read_bytes(), random.Random(seed))
    for folder in (indexed, bare):
        shutil.copytree(whole, folder)
        (folder / NAME).write_bytes(data)
    index_path(bare / NAME).unlink()

    for folder in (indexed, bare):
        index = load_index(folder / NAME)
        spans = [entry.span for entry in index if entry.kind]
        assert list(read_records(folder / NAME, spans)) == readable(data)
        unreadable = [entry.offset for entry in index if entry.code == DAMAGED]
        assert index.damaged[: len(unreadable)] == unreadable
        stories = Stories(folder)
        assert len(list(stories.records([entry.span for entry in stories.refresh()]))) == len(readable(data))
        experiments = Experiments(folder)
        told_of = [experiments.story(outcome).experiment_id for outcome in experiments.outcomes]
        assert sorted(told_of) == sorted({record.experiment_id for record in _ends(readable(data))})
        follower = Follower(folder)
        follower.catch_up()
        assert follower.damaged == index.damaged
        assert follower.done == len({record.experiment_id for record in _ends(readable(data))})
    assert told(summarize(indexed)) == told(summarize(bare))
    copy = repair(indexed).folder
    if copy is not None:
        assert told(summarize(copy)) == told(summarize(bare)) | {"bad": 0}
    assert (indexed / NAME).read_bytes() == data


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_run_is_resumed_and_pays_nothing_twice(
    recorded: tuple[Plan, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(recording, "GRACE", 0.05)
    dice = random.Random(seed)
    plan, whole = recorded
    folder = tmp_path / whole.name
    shutil.copytree(whole, folder)
    unfinished = b"".join(
        line
        for line in (whole / NAME).read_bytes().splitlines(keepends=True)
        if not line.startswith(b'{"kind":"experiment"') or dice.random() < 0.5
    )
    data = harmed(unfinished, dice)
    (folder / NAME).write_bytes(data)
    before = readable(data)

    run = asyncio.run(resumed(folder, plan, model := a_model(stubborn)))
    if run.summary.faults:  # the damage can't be told from what a solver asked
        assert {"--accept-divergence" in row["reason"] for row in run.summary.faults} == {True}
        how = Replaying(accept_divergence=True)
        run = asyncio.run(resumed(folder, plan, model, how, faults=True))

    assert run.ended.status == "complete"
    assert len(run.summary.results) == 6
    assert all(result.success for result in run.summary.results)
    asked = Counter((line.experiment_id, line.key) for line in _recorded(readable((folder / NAME).read_bytes()), Call))
    assert set(asked.values()) == {1}, "no call that could be read was made again"
    assert len(model.asked) == len(asked) - len({(c.experiment_id, c.key) for c in _recorded(before, Call)})
    assert read_plan(folder) == plan.record


def _recorded(records: Sequence[Record], kind: type[Call]) -> list[Call]:
    return [record for record in records if isinstance(record, kind)]


def _ends(records: Sequence[Record]) -> list[Experiment]:
    return [record for record in records if isinstance(record, Experiment)]


def test_damaged_field_that_is_unread_is_the_same_to_every_reader(recorded: tuple[Plan, Path], tmp_path: Path) -> None:
    """A decoder passes over a field that it doesn't know, whatever bytes its name is of."""
    folder = tmp_path / recorded[1].name
    shutil.copytree(recorded[1], folder)
    lines = (folder / NAME).read_bytes().splitlines(keepends=True)
    harmed_lines = [line.removesuffix(b"}\n") + b',"\xed":1}\n' for line in lines[1:]]
    (folder / NAME).write_bytes(b"".join([lines[0], *harmed_lines]))
    index_path(folder / NAME).unlink()

    follower = Follower(folder)
    follower.catch_up()

    assert follower.damaged == load_index(folder / NAME).damaged == []
    assert follower.done == len(summarize(folder).results) == 6
