"""EvalPlus' released files, where they are at hand: in the folder KODERZ_TEST_DATA, or in ../shared/data.

`scripts/check_suites` judges all of their references, and compares with EvalPlus' own evaluator.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from koderz.runs.judge import Sample, open_judge
from koderz.settings.schema import Settings
from koderz.suites import load_suite
from koderz.suites.suite import Suite
from koderz.systems.code.tasks import reference_program
from koderz.types import Task

_FOLDERS = (os.environ.get("KODERZ_TEST_DATA"), str(Path(__file__).parents[4] / "shared" / "data"))
OWN_RULES = ("HumanEval/32", *(f"Mbpp/{number}" for number in (98, 104, 124, 140, 145, 252, 278, 596, 793)))
GREEDY = ("Mbpp/255",)  # 1,663,740 combinations in one result


def released(name: str) -> Suite:
    for folder in filter(None, _FOLDERS):
        if (path := Path(folder, f"{name}.jsonl.gz")).is_file():
            return load_suite("mbpp+" if name.startswith("Mbpp") else "humaneval+", path)
    pytest.skip(f"{name}.jsonl.gz is neither in KODERZ_TEST_DATA nor in ../shared/data")


@pytest.mark.parametrize(
    ("name", "count", "chosen"),
    [
        ("HumanEvalPlus", 164, OWN_RULES),
        ("MbppPlus", 378, OWN_RULES),
        pytest.param("MbppPlus", 378, GREEDY, marks=pytest.mark.slow),
    ],
)
def test_release_is_whole_and_references_pass(name: str, count: int, chosen: Sequence[str]) -> None:
    suite = released(name)
    verdicts: dict[str, str] = {}

    async def judged() -> None:
        async with open_judge(suite, Settings(judges=2)) as judge:

            async def work(task: Task) -> None:
                verdict = await judge.verdict(Sample(task, reference_program(task), "zero-shot", 0))
                verdicts[task.id] = f"{verdict.verdict} {verdict.detail}".strip()

            await judge.each([task for task in suite.tasks if task.id in chosen], work)

    asyncio.run(judged())

    assert len(suite.tasks) == count
    assert set(verdicts.values()) == {"passed"}
