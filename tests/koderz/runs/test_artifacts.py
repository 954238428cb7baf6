"""Named artifacts of an attempt: recorded, bytes in blobs, handed to a replay as they were, printed by show."""

from __future__ import annotations

import asyncio
import base64
import io
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from koderz.analysis.export import export
from koderz.engines.portable import pack_work, unpack_work
from koderz.experiments.experiment import PendingExperiment
from koderz.suites.suite import JudgeContext
from koderz.testing import a_model
from koderz.types import Reply, Task, Verdict
from koderz_tracker.blobs import read_data
from koderz_tracker.journal import NAME
from koderz_tracker.records import Attempt, Blob, decode, encode
from koderz_tracker.tracker import Tracker
from tests.conftest import Shell
from tests.koderz.world import Run, Words, begun, planned, resumed

IMAGE = bytes(range(256)) * 8
LONG = "line\n" * 300_000
ARTIFACTS: dict[str, Any] = {"diff": "+ é\n", "log": LONG, "image": IMAGE}


@dataclass
class Leaving(Words):
    """Fails once, and leaves artifacts each time."""

    left: dict[str, Any] = field(default_factory=lambda: ARTIFACTS)

    async def judge(self, task: Task, answer: Reply | str, context: JudgeContext) -> Verdict:
        return replace(await super().judge(task, answer, context), artifacts=self.left)


SOURCE = """
async def solve(task, ask, judge):
    verdict = await judge(task, "BAD")
    told = sorted((name, type(value).__name__, len(value)) for name, value in verdict.artifacts.items())
    await ask([{"role": "user", "content": repr(told)}])
    return await judge(task, "GOOD")
"""


def left(folder: Path, artifacts: dict[str, Any] = ARTIFACTS) -> tuple[Run, Any]:
    (folder / "own.py").write_text(SOURCE)

    async def go() -> tuple[Run, Any]:
        plan = await planned(folder, 1, solver=f"{folder}/own.py:solve")
        plan = replace(plan, suite=Leaving(plan.tasks, left=artifacts))
        return await begun(plan, a_model("GOOD")), plan

    return asyncio.run(go())


def test_artifacts_are_recorded_and_bytes_lie_in_a_blob(tmp_path: Path) -> None:
    run, _ = left(tmp_path)

    attempt: Attempt = run.of("attempt")[0]
    image, log = attempt.artifacts["image"], attempt.artifacts["log"]
    assert attempt.artifacts["diff"] == "+ é\n"
    assert isinstance(image, Blob)
    assert isinstance(log, Blob)
    assert (image.binary, image.data, read_data(image, run.folder)) == (True, "", IMAGE)
    assert (log.binary, read_data(log, run.folder).decode()) == (False, LONG)
    assert len((run.folder / NAME).read_bytes()) < 20_000


def test_artifacts_are_handed_to_a_replay_as_they_were(tmp_path: Path) -> None:
    run, plan = left(tmp_path)
    journal = run.folder / NAME
    lines = journal.read_bytes().splitlines(keepends=True)
    for kept in (2, 3):  # the first attempt, and the call that follows from its artifacts
        journal.write_bytes(b"".join(lines[:kept]))
        model = a_model("GOOD")
        again = asyncio.run(resumed(run.folder, plan, model))
        assert [call.key for call in again.of("call")] == [call.key for call in run.of("call")]
        assert len(model.asked) == 3 - kept


def test_artifacts_reach_a_worker_elsewhere_and_come_back(tmp_path: Path) -> None:
    run, plan = left(tmp_path)
    journal = run.folder / NAME
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:2]))
    (identity,) = plan.experiments()

    async def go() -> list[Any]:
        with Tracker.reopen(run.folder) as tracker:
            tracker.select()
            recorded = tracker.recorded(identity.experiment_id)
            packed = pack_work(PendingExperiment(identity, recorded), lambda text: str(text))
            (sent,) = unpack_work(packed, plan).recorded
            await tracker.record(sent)  # as a worker's lines are
        return [sent, decode(journal.read_bytes().splitlines(keepends=True)[-1])]

    sent, stored = asyncio.run(go())
    assert sent.artifacts["log"] == LONG
    assert sent.artifacts["image"].data
    assert encode(stored) == encode(run.of("attempt")[0])


def test_artifact_that_is_neither_text_nor_bytes_is_a_fault(tmp_path: Path) -> None:
    run, _ = left(tmp_path, {"log": 3})

    assert [fault.reason for fault in run.of("fault")] == ["judge: the artifact 'log' has to be text or bytes, not int"]


def test_show_names_artifacts_and_prints_one(tmp_path: Path, koderz: Shell) -> None:
    run, _ = left(tmp_path)
    shown = ("benchmark", "show", "latest", "--problem", "T/0", "--results", run.folder.parent)

    assert "artifact image: 2,048 bytes; print it with --artifact image" in koderz(*shown).out
    assert koderz(*shown, "--artifact", "log").out == LONG
    assert (
        "there is no artifact 'patch'; there is diff, image, log" in koderz(*shown, "--artifact", "patch", code=2).err
    )


@pytest.mark.parametrize(
    ("name", "found"), [("diff", "+ é\n"), ("log", LONG), ("image", base64.b64encode(IMAGE).decode())]
)
@pytest.mark.parametrize("attempts", [False, True])
def test_artifact_stands_in_each_row_of_an_export(tmp_path: Path, name: str, found: str, *, attempts: bool) -> None:
    run, _ = left(tmp_path)
    file = io.BytesIO()

    assert export([run.folder], "jsonl", file, attempts=attempts, artifact=name) == 1 + attempts

    assert [orjson.loads(line)[name] for line in file.getvalue().splitlines()] == [found] * (1 + attempts)
