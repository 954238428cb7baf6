"""The judge as a library: suites, rewards, faults, and tasks that are kept for measuring."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import koderz as api
from koderz.errors import KoderzError
from koderz.settings.schema import Settings
from koderz.suites import load_suite
from koderz.suites.options import CodeOptions
from koderz.systems.rewards import Item, Score
from koderz.systems.rewards.judging import QueueFullError, Turns
from koderz.systems.rewards.subjects import UnknownTaskError
from tests.conftest import Shell
from tests.koderz.sandbox.hostile import PROGRAMS
from tests.koderz.systems.rewards.conftest import ADD, RIGHT, WRONG, reply, write_tasks

OWN = """
from koderz.extend import Suite
from koderz.types import Task
class Odd(Suite):
    name, source = "odd", "here"
    tasks = (Task("O/1", "Say it.", needs=frozenset()), Task("O/2", "Or not.", needs=frozenset()))
    def score(self, task, reply):
        if task.id == "O/2":
            raise ValueError("always")
        return 1 / len(reply) if reply else 0.0
    async def judge(self, task, answer, context):
        if answer == "crash":
            raise ZeroDivisionError("over this reply")
        return await super().judge(task, answer, context)
"""


def scored(*suites: object, items: list[Item], **options: Any) -> list[Score]:
    async def judged() -> list[Score]:
        async with api.open_judge(*map(str, suites), workers=2, **options) as judge:
            return await judge.score_many(items)

    return asyncio.run(judged())


def test_open_judge_scores_replies_of_two_suites(tmp_path: Path) -> None:
    tasks = write_tasks(tmp_path)
    reference = load_suite("humaneval").tasks[2]
    right = reply(reference.prompt + reference.payload.reference)
    items = [Item("HumanEval/2", right, graded=True), Item("T/add", WRONG, graded=True), Item("T/add", WRONG)]

    scores = scored("humaneval", tasks, items=items)

    assert [score.reward for score in scores] == [1.0, 0.5, 0.0]
    assert [score.suite for score in scores] == ["humaneval", str(tasks), str(tasks)]
    assert scores[0].tests == scores[0].tests_passed == 3
    assert scores[2].tests is None


def test_task_of_two_suites_has_to_be_said_by_suite(tmp_path: Path) -> None:
    one, other = write_tasks(tmp_path, ADD), write_tasks(tmp_path, ADD, name="other.jsonl")

    (score,) = scored(one, other, items=[Item("T/add", RIGHT, suite=str(other))])
    assert score.suite == str(other)
    with pytest.raises(UnknownTaskError, match=r"say which by `suite`"):
        scored(one, other, items=[Item("T/add", RIGHT)])


def test_suites_that_judge_no_reply_alone_are_refused_by_name() -> None:
    for name, said in {"browsecomp-plus": "need a model", "nothing": "neither a suite"}.items():
        with pytest.raises(KoderzError, match=said):
            scored(name, items=[])


def test_suite_of_ones_own_gives_its_score_and_its_errors_are_the_replys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    items = [Item("O/1", "1234"), Item("O/1", "crash"), Item("O/2", "1234")]

    scores = scored("own.py:Odd", items=items)

    assert [score.reward for score in scores] == [0.25, 0.0, None]
    assert (scores[1].verdict, scores[1].cause) == ("error", "exception:ZeroDivisionError")
    assert scores[2].cause == "user_code"


def test_tampering_is_told_and_changes_no_reward(tmp_path: Path) -> None:
    replies = {
        "exit": "import os\ndef add(x, y):\n    os._exit(0)",
        "refused": "def add(x, y):\n    try: open('/tmp/x', 'w')\n    except OSError: pass\n    return x + y",
        "channel": "import os\ndef add(x, y):\n    for fd in range(3, 20):\n"
        "        try: os.write(fd, b'z' * 40)\n        except OSError: pass\n    return x + y",
        "": "import asyncio\nasync def f(x, y): return x + y\ndef add(x, y): return asyncio.run(f(x, y))",
    }

    scores = scored(write_tasks(tmp_path), items=[Item("T/add", reply(text)) for text in replies.values()])

    assert [",".join(score.tampering) for score in scores] == [*replies]
    assert [score.reward for score in scores] == [0.0, 1.0, 0.0, 1.0]


def test_held_out_tasks_are_refused_by_digest_and_by_prompt(tmp_path: Path) -> None:
    served = write_tasks(tmp_path, ADD)
    same = {**ADD, "task_id": "other", "prompt": ADD["prompt"].upper().replace("DEF ADD(X, Y)", "def add(x,  y)")}
    for held_out in (served, write_tasks(tmp_path, same, name="held.jsonl")):
        with pytest.raises(KoderzError, match=r"held out: T/add"):
            scored(served, items=[], held_out=[held_out])
    assert scored(served, items=[], held_out=["humaneval"]) == []


def test_held_out_of_koderz_toml_is_refused_at_start(koderz: Shell) -> None:
    write_tasks(koderz.folder)
    (koderz.folder / "koderz.toml").write_text('held-out = ["tasks.jsonl"]\n')

    done = koderz("judge", "serve", "tasks.jsonl", code=2)

    assert done.err.startswith("koderz: held out: T/add")
    koderz("benchmark", 0, 1, "--model", "simulated", "--dry-run")  # which the key doesn't concern


@pytest.mark.slow
def test_runs_and_rewards_on_the_same_tasks_say_so(koderz: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(koderz.folder)
    tasks = write_tasks(koderz.folder, ADD)
    run = ("benchmark", "--dataset", tasks, "--model", "simulated", "--mode", "zero-shot")
    koderz(*run, "--quiet")
    assert "rewarded_in" not in koderz.summary()

    async def rewarded() -> tuple[str, list[str]]:
        async with api.open_judge(tasks, workers=1, record=True, settings=Settings(results=koderz.results)) as judge:
            await judge.score("T/add", RIGHT)
            assert judge.folder
            return judge.folder.name, [*judge.notes]

    name, notes = asyncio.run(rewarded())
    assert "1 of the 1 tasks" in notes[0]
    out = koderz(*run, "--quiet", "--json").out
    assert json.loads(out)["rewarded_in"] == [name]
    assert "REWARDED TASKS" in koderz(*run, "--quiet").out
    assert "REWARDED tasks" in koderz("benchmark", "compare", "latest", "latest~1", "--allow-simulated").out
    (koderz.results / name / "tasks").unlink()  # it can be made anew
    assert json.loads(koderz(*run, "--quiet", "--json").out)["rewarded_in"] == [name]


@pytest.mark.slow
def test_references_of_humaneval_pass_all_their_tests_without_a_sign() -> None:
    tasks = load_suite("humaneval").tasks
    items = [Item(task.id, reply(task.prompt + task.payload.reference), graded=True) for task in tasks]

    scores = scored("humaneval", items=items)

    assert {score.reward for score in scores} == {1.0}
    assert [score.task for score in scores if score.tampering] == []
    assert [score.task for score in scores if score.tests is None] == ["HumanEval/32", "HumanEval/38", "HumanEval/50"]
    assert all(score.tests == score.tests_passed for score in scores)


@pytest.mark.slow
def test_hostile_replies_to_the_library_earn_nothing_and_make_no_fault(tmp_path: Path) -> None:
    settings = Settings(own=(CodeOptions(test_timeout=0.25, test_memory=256),))
    programs = PROGRAMS[::5]  # the service judges all of them by the same library
    items = [Item("T/add", reply(program["source"])) for program in programs]

    scores = scored(write_tasks(tmp_path, ADD), items=items, settings=settings)

    assert [
        p["name"] for p, s in zip(programs, scores, strict=True) if s.fault or s.reward or s.verdict == "passed"
    ] == []


def test_record_that_the_disk_refuses_is_a_fault_until_there_is_room(tmp_path: Path) -> None:
    async def judged() -> list[Score]:
        settings = Settings(results=tmp_path / "results")
        async with api.open_judge(write_tasks(tmp_path, ADD), workers=1, record=True, settings=settings) as judge:
            assert judge.folder
            gone = judge.folder.with_name("gone")
            scores = [await judge.score("T/add", RIGHT)]
            (judge.folder / "journal.jsonl").rename(gone)
            gone.unlink()
            scores += [await judge.score("T/add", RIGHT), await judge.score("T/add", RIGHT)]
        return scores

    before, *after = asyncio.run(judged())

    assert before.reward == 1.0
    assert [(score.reward, score.cause) for score in after] == [(None, "disk")] * 2


def test_turns_alternate_between_requests_and_refuse_when_full() -> None:
    async def worked() -> list[str]:
        turns: Turns[None] = Turns(lanes=1, spare=0, queue=6)
        order: list[str] = []

        async def work(name: str) -> None:
            order.append(name)
            await asyncio.sleep(0)

        def many(name: str, count: int) -> list[Any]:
            return [lambda n=n: work(f"{name}{n}") for n in range(count)]

        batch = turns.take(many("a", 7), [None] * 7)
        single = turns.take([lambda: work("b")], [None]) if turns.waiting < 6 else []
        with pytest.raises(QueueFullError):
            turns.take(many("c", 1), [None])
        await batch[1].result
        turns.take([lambda: work("d")], [None])
        await turns.drain()
        return [*order, *["" for _ in single]]

    order = asyncio.run(worked())
    assert order.index("d") <= 4
    assert [name for name in order if name != "d"] == [f"a{n}" for n in range(7)]
