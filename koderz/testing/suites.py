"""Conformance tests of suites: functions that raise AssertionError if a suite breaks the rules.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_backwards_is_a_suite(check, tmp_path):
        asyncio.run(check(tmp_path, "mine.py:Backwards", {"limit": 3}))

The second argument is the suite's name or FILE:NAME, the third holds settings of the run, such as the suite's own
options. Checks run on this machine and ask the simulated model only, so they need no key and cost nothing. Those that
are given the same folder, one after another, share a plan and a run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import msgspec

from koderz.engines.portable import changes_in, files_of, pack_plan, unpack_plan
from koderz.errors import KoderzError
from koderz.plans.plan import Plan
from koderz.runs.prepare import prepare
from koderz.suites import checked_measures
from koderz.testing.engines import Notes, performed, shared
from koderz.testing.factories import FakeModel
from koderz.types import JUDGE, Message, Reply, Sampling
from koderz_tracker.records import Attempt, Experiment

Check = Callable[[Path, str, Mapping[str, Any]], Coroutine[Any, Any, None]]

_WORDS = {"passed", "failed", "timeout", "error"}

HOSTILE: Mapping[str, str] = {
    "nothing": "",
    "blanks": " \n\t\u2028",
    "a long text": "So it goes. " * 20_000,
    "NUL characters": "\0```python\n\0def f(): return 0\0\n```\0",
    "halves of characters": "\ud800 ```python\ndef f(): return '\udfff'\n``` \\boxed{\udc80} Answer: \ud800",
    "a fence without an end": "`" * 1000 + "python\n```diff\n--- a\n+++ b\n@@",
    "fences": "```\n" * 4_000,
    "brackets without an end": "```python\n" + "(" * 5_000 + "[" * 5_000 + "{" * 5_000,
    "boxes without an end": "\\boxed{" * 20_000,
    "deep JSON": '{"a": [' * 2_000,
    "long numbers": "Answer: "
    + "9" * 5_000
    + "/0 #### 1e999 \\boxed{"
    + "9" * 5_000
    + "^{9999999}}",
    "thoughts without an end": "<think>" * 2_000,
    "many answers": "Answer: A\n" * 1_500,
    "escapes of terminals": "\x1b[2J\x1b]0;x\x07\u202e\u2066\ufeff",
}
"""What a model may reply, by what is odd about it."""


async def tasks_can_be_told_apart(folder: Path, suite: str, settings: Mapping[str, Any]) -> None:
    """Each task has an id of its own and a digest, and there is one at least."""
    found = (await _planned(folder, suite, settings)).suite
    assert found.tasks, "it has no tasks"
    twice = [name for name, count in Counter(task.id for task in found.tasks).items() if count > 1]
    assert not twice, f"several tasks are called {twice[0]}"
    bare = [task.id for task in found.tasks if not task.digest]
    assert not bare, f"{bare[0]} has no digest, so a change of it goes unseen"


async def loading_again_gives_equal_tasks(
    folder: Path, suite: str, settings: Mapping[str, Any]
) -> None:
    """Tasks, and their first messages, are the same whenever the suite is loaded with the same settings."""
    first, again = (
        await _planned(folder, suite, settings),
        await _planned_anew(folder, suite, settings),
    )
    assert [task.id for task in first.suite.tasks] == [task.id for task in again.suite.tasks], (
        "ids differ"
    )
    assert [task.digest for task in first.suite.tasks] == [
        task.digest for task in again.suite.tasks
    ], "digests differ"
    for one, other in zip(first.tasks, again.tasks, strict=True):
        assert one.messages == other.messages, f"the messages of {one.id} differ"


async def tasks_are_the_same_elsewhere(
    folder: Path, suite: str, settings: Mapping[str, Any]
) -> None:
    """Tasks, and their first messages, are the same where the suite is loaded of what its plan is packed with."""
    plan = await _planned(folder, suite, settings)
    with TemporaryDirectory() as elsewhere:
        try:
            packed = await asyncio.to_thread(lambda: pack_plan(plan, files_of(plan)))
            there = await asyncio.to_thread(unpack_plan, packed, Path(elsewhere), changes_in(plan))
        except KoderzError as error:  # also where digests differ
            raise AssertionError(str(error)) from error
    assert [task.digest for task in plan.suite.tasks] == [
        task.digest for task in there.suite.tasks
    ], "digests differ"
    assert [task.messages for task in plan.tasks] == [task.messages for task in there.tasks], (
        "messages differ"
    )


async def messages_have_roles_and_contents(
    folder: Path, suite: str, settings: Mapping[str, Any]
) -> None:
    """The first messages of each planned task are dicts with a role and a content, if there are any."""
    for task in (await _planned(folder, suite, settings)).tasks:
        for message in task.messages:
            assert message["role"] in ("system", "user", "assistant"), (
                f"{task.id}: the role {message['role']!r}"
            )
            assert message["content"], f"{task.id}: a message without content"


async def verdicts_are_of_the_declared_kinds(
    folder: Path, suite: str, settings: Mapping[str, Any]
) -> None:
    """The simulated model's answers come to verdicts in known words, whose metrics the suite declares or not."""
    plan = await _planned(folder, suite, settings)
    checked_measures(plan.suite)
    notes = await _performed(folder, suite, settings)
    for outcome in notes.outcomes:
        assert isinstance(outcome.record, Experiment), (
            f"an experiment ended as a fault: {outcome.fault}"
        )
        assert outcome.record.verdict in _WORDS.union(plan.suite.words), (
            f"an undeclared {outcome.record.verdict!r}"
        )
    for line in notes.lines:
        if isinstance(line, Attempt) and line.verdict != "passed":
            assert line.cause or line.verdict not in ("failed", "error"), (
                f"{line.problem_id} failed without a cause"
            )


async def verdicts_are_the_same_again(
    folder: Path, suite: str, settings: Mapping[str, Any]
) -> None:
    """Equal answers come to equal verdicts and scores, so that rescoring changes nothing."""
    first = await _performed(folder, suite, settings)
    again = await performed(await _planned_anew(folder, suite, settings), {})
    assert _verdicts(first) == _verdicts(again), (
        "the second run of the same plan came to other verdicts"
    )


async def an_empty_answer_is_no_fault(
    folder: Path, suite: str, settings: Mapping[str, Any]
) -> None:
    """A model that says nothing gets a verdict other than `passed`, where answers are judged by `judge`."""
    from koderz.engines.resources import sandbox_of
    from koderz.suites.suite import JudgeContext

    plan = await _planned(folder, suite, settings)
    task = plan.tasks[0]
    if task.needs - {"judge"} or plan.suite.required:
        return  # whose verdicts are made by what the suite opens
    async with sandbox_of(plan) as sandbox:
        verdict = await plan.suite.judge(
            task, Reply(0, ""), JudgeContext(sandbox, plan.suite.limits)
        )
    assert not verdict.passed, "it passes an empty answer"


async def a_hostile_answer_is_no_fault(
    folder: Path, suite: str, settings: Mapping[str, Any]
) -> None:
    """Whatever a model replies comes to a verdict that can be recorded; see `HOSTILE`."""
    await require_verdicts(
        await _planned_anew(folder, suite, {"samples": len(HOSTILE), **settings, "limit": 1})
    )


async def require_verdicts(plan: Plan) -> None:
    """Raises AssertionError if an experiment whose replies are hostile ends as a fault, or can't be recorded."""
    (task, *_), replies = plan.tasks, cycle(HOSTILE.values())
    is_judged = any(JUDGE in arm.models for arm in plan.arms)
    own = plan.suite.simulate

    def reply(messages: Sequence[Message], sampling: Sampling) -> str:
        is_for_judge = is_judged and messages[0] != task.messages[0]
        return own(messages, sampling) if is_for_judge else next(replies)

    with patch.object(plan.suite, "simulated_model", lambda *_: FakeModel(reply)):
        notes = await performed(plan, {})
    for outcome in notes.outcomes:
        assert isinstance(outcome.record, Experiment), (
            f"an experiment ended as a fault: {outcome.fault}"
        )
    for line in notes.lines:
        msgspec.json.encode(line)


async def a_damaged_dataset_is_told_in_one_line(
    folder: Path, suite: str, settings: Mapping[str, Any]
) -> None:
    """A dataset that is missing, an empty folder or a damaged file is told in one line that names it.

    Tried where the settings name a `dataset`. A damaged file may also be read, as far as it can be.
    """
    for number, odd in enumerate(_in_place_of(settings.get("dataset"), folder)):
        try:
            await _planned_anew(folder, suite, {**settings, "dataset": odd})
            assert number > 1, "its dataset may be missing, or an empty folder"
        except KoderzError as error:
            said = str(error)
            assert "\n" not in said, said
            assert odd.name in said, f"it doesn't name the dataset {odd.name}: {said}"


CHECKS: tuple[Check, ...] = (
    tasks_can_be_told_apart,
    loading_again_gives_equal_tasks,
    tasks_are_the_same_elsewhere,
    messages_have_roles_and_contents,
    verdicts_are_of_the_declared_kinds,
    verdicts_are_the_same_again,
    an_empty_answer_is_no_fault,
    a_hostile_answer_is_no_fault,
    a_damaged_dataset_is_told_in_one_line,
)
"""All of them. None depends on another."""


async def _planned(folder: Path, suite: str, settings: Mapping[str, Any]) -> Plan:
    """The plan that checks share."""
    return await shared(
        "plan", (folder, suite, settings), partial(_planned_anew, folder, suite, settings)
    )


async def _performed(folder: Path, suite: str, settings: Mapping[str, Any]) -> Notes:
    """The run that checks share."""
    plan = await _planned(folder, suite, settings)
    return await shared("run", (folder, suite, settings), partial(performed, plan, {}))


async def _planned_anew(folder: Path, suite: str, settings: Mapping[str, Any]) -> Plan:
    options = {
        "suite": suite,
        "local_model": "simulated",
        "results": folder / "results",
        "judges": 1,
        "limit": 2,
    }
    return await prepare({**options, **settings}, None, environ={"XDG_STATE_HOME": str(folder)})


def _verdicts(notes: Notes) -> Mapping[tuple[str, str, int], tuple[str, float | None]]:
    """The verdicts and scores of a run, by task, solver and sample."""
    return {
        (each.problem_id, each.solver, each.sample): (each.verdict, each.score)
        for each in (outcome.record for outcome in notes.outcomes)
        if isinstance(each, Experiment)
    }


def _in_place_of(dataset: Path | None, folder: Path) -> Iterator[Path]:
    """Paths of what may stand in place of a sound file: nothing, a folder, and damaged files."""
    if not dataset or not dataset.is_file():
        return
    sound, suffix = dataset.read_bytes(), dataset.suffix
    yield folder / f"missing{suffix}"
    (empty := folder / f"folder{suffix}").mkdir()
    yield empty
    middle = len(sound) // 2
    damaged = [b"", b"null\n", b"[[]]\n", b'{"a": 1}\n', b"\0" * 100, b"[" * 100_000, sound[:-2]]
    damaged += [b"\xff" * 8 + sound[8:], sound[:middle] + b"\xed\xa0\x80" + sound[middle:]]
    for number, content in enumerate(damaged):
        (path := folder / f"damaged{number}{suffix}").write_bytes(content)
        yield path
