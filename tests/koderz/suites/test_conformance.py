"""All suites pass the tests that every suite has to pass."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.settings.schema import Settings
from koderz.suites import SUITES, load_suite
from koderz.testing import StreamingServer, suites
from koderz.testing.suites import CHECKS, Check
from tests.koderz.suites.datasets import MADE_UP, ROWS, settings_of
from tests.toys import toy_suite

LEFT_OUT = {"completion": "it is made by rlm.completion alone, and can't be loaded"}
OF_ONES_OWN = {"qa", "rollouts", "serving"}  # the data of which is its user's
SLOW = {"ifeval", "rollouts"}

BROKEN = {
    "tasks_can_be_told_apart": "    tasks = (Task('a', 'A?', 'a', digest='a'),) * 2",
    "loading_again_gives_equal_tasks": (
        "    def __init__(self):\n        self.tasks = (Task('a', 'A?', 'a', digest=uuid.uuid4().hex),)"
    ),
    "tasks_are_the_same_elsewhere": (
        "    def __init__(self):\n        self.tasks = (Task('a', 'A?', 'a', digest=uuid.uuid4().hex),)"
    ),
    "messages_have_roles_and_contents": (
        "    def messages(self, task, prompts):\n        return [{'role': 'wizard', 'content': 'A?'}]"
    ),
    "verdicts_are_of_the_declared_kinds": (
        "    async def judge(self, task, answer, context):\n        return Verdict('splendid', passes=True)"
    ),
    "verdicts_are_the_same_again": (
        "    async def judge(self, task, answer, context):\n        return Verdict('passed', score=random.random())"
    ),
    "an_empty_answer_is_no_fault": (
        "    async def judge(self, task, answer, context):\n        return Verdict('passed')"
    ),
    "a_hostile_answer_is_no_fault": "    def score(self, task, reply):\n        return float(reply[0] == 'a')",
    "a_damaged_dataset_is_told_in_one_line": "",
}
SOUND = """
import random
import uuid

from koderz.extend import Suite, Task, Verdict


class Own(Suite):
    name, source, scorer = "own", "here", "equals"
    tasks = tuple(Task(name, f"Say {name}.", name, needs=frozenset(), digest=name) for name in "ab")

    def simulate(self, messages, sampling):
        return "a"

"""


def test_suite_of_the_registry_is_tried_or_left_out_for_a_reason() -> None:
    assert SUITES.keys() == {*ROWS, *MADE_UP, *LEFT_OUT}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in SUITES if name not in LEFT_OUT],
)
def test_suite_passes(name: str, tmp_path: Path) -> None:
    async def tried(**settings: Any) -> None:
        for check in CHECKS:
            await check(tmp_path, name, settings)

    async def tried_at_a_server() -> None:
        async with StreamingServer(models=("simulated",)) as server:
            await tried(**settings_of(name, tmp_path), base_url=server.url)

    asyncio.run(tried_at_a_server() if name == "serving" else tried(**settings_of(name, tmp_path)))


@pytest.mark.parametrize("name", [name for name in SUITES if name not in {*LEFT_OUT, *OF_ONES_OWN}])
def test_suite_without_its_file_says_how_it_is_fetched(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    published, told = SUITES.load(name).publication, ""
    try:
        assert load_suite(name, settings=Settings(suite=name)).tasks
    except KoderzError as error:
        told = str(error)

    assert not told or (published and told.startswith(f"{name} needs its file: get it with: {published.command}; "))


@pytest.mark.parametrize("name", sorted({*ROWS, "gso", "iso"} - {"koderz-perf-mini", "koderz-perf-pypi"}))
def test_suite_reads_the_folder_that_its_file_is_fetched_into(name: str, tmp_path: Path) -> None:
    published, file = SUITES.load(name).publication, settings_of(name, tmp_path).get("dataset")
    if file is None or published is None or not published.command.startswith("hf "):
        pytest.skip("nothing is fetched, or one file")
    of_file = load_suite(name, file, Settings(suite=name)).tasks
    (tmp_path / "fetched" / "data").mkdir(parents=True)
    (tmp_path / "fetched" / "README.md").write_text("# A card\n")
    file.rename(tmp_path / "fetched" / ("data" if name != "livecodebench" else "") / f"test{file.suffix}")

    of_folder = load_suite(name, tmp_path / "fetched", Settings(suite=name)).tasks

    assert [task.id for task in of_folder] == [task.id for task in of_file]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["humaneval", "mmlu", "ruler", "gso"])
def test_answer_of_ten_megabytes_is_no_fault(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites, "HOSTILE", {"ten megabytes": "So it goes. " * 870_000})

    asyncio.run(suites.a_hostile_answer_is_no_fault(tmp_path, name, settings_of(name, tmp_path)))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_suite_in_a_file_passes(check: Check, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SOUND)
    asyncio.run(check(tmp_path, f"{tmp_path}/own.py:Own", {}))
    asyncio.run(check(tmp_path, f"{toy_suite.__file__}:ToySession", {}))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_suite_that_breaks_a_rule_does_not_pass(check: Check, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(f"{SOUND}{BROKEN[check.__name__]}\n")

    with pytest.raises(AssertionError):
        asyncio.run(check(tmp_path, f"{tmp_path}/own.py:Own", {"dataset": tmp_path / "own.py"}))
