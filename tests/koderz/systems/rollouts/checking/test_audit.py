"""Audits of tasks on real namespaces: what agents do to pass without doing the work, and the work that is honest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from koderz.errors import Fault
from koderz.systems.rollouts.checking import audit as auditing
from koderz.systems.rollouts.checking.audit import Audit, Audited, Exploit, audit_tasks, corpus
from koderz.systems.rollouts.tasks.formats import load_task
from koderz.systems.rollouts.workspaces.workspace import Stores
from koderz.systems.workspaces.local import Local
from tests.koderz.systems.rollouts.hand_made import hand_made

_WORK = "import sys, collections\\nwords = collections.Counter(sys.stdin.read().split())"
_REPORT = f"printf '{_WORK}\\nfor word in sorted(words): print(word, words[word])\\n'"
Audited_ = Callable[..., Audit]


@pytest.fixture
def audited(runner: asyncio.Runner, local: Local, tmp_path: Path) -> Audited_:
    """The audit of hand-made tasks with some exploits of the corpus, by name, or others."""

    def run(*names: str, exploits: Collection[str | Exploit] = (), tell: Callable[[Audited], object] = print) -> Audit:
        tasks = [load_task(hand_made(tmp_path, name)) for name in names]
        chosen = [each for each in corpus() if each.name in exploits]
        chosen += [each for each in exploits if isinstance(each, Exploit)]
        return runner.run(audit_tasks(tasks, Stores({"": local}), exploits=chosen, tell=tell))

    return run


@pytest.mark.slow
def test_audit_counts_what_passes_as_published_and_by_koderz(audited: Audited_) -> None:
    found = audited("weak-report", exploits=["programs-in-home", "state-in-tmp", "answer-linked", "unknown"])
    (task,) = found.tasks
    assert {each.name: (each.applies, each.published, each.ours) for each in task.exploits} == {
        "answer-linked": (False, None, None),
        "programs-in-home": (True, True, False),
        "state-in-tmp": (True, False, False),
    }
    told = found.document()
    assert (told["tried"], told["forged"]) == (2, {"published": 1, "ours": 0})
    assert told["tasks"][0]["id"] == "weak/report"
    assert told["tasks"][0]["digest"] == task.digest
    assert told["tasks"][0]["sound"] is True


@pytest.mark.slow
def test_audit_tries_nothing_on_unsound_tasks_and_tells_tasks_in_order(audited: Audited_) -> None:
    told: list[str] = []
    found = audited("odd-task", "hard-answer", exploits=["state-in-tmp"], tell=lambda each: told.append(each.id))
    odd, hard = found.tasks
    assert (odd.why, odd.exploits, odd.document()["sound"]) == ("doing nothing passes", (), False)
    assert [each.ours for each in hard.tried] == [False]
    assert told == ["odd/task", "hard/answer"]


@pytest.mark.slow
def test_audit_counts_an_exploit_that_does_the_work(audited: Audited_) -> None:
    """Nothing can tell it from an honest agent: the count is of what is graded, not of what was meant."""
    honest = Exploit("honest", "does the work", "honest", run="echo 42 > answer.txt")
    assert audited("hard-answer", exploits=[honest]).forged == {"published": 1, "ours": 1}


def test_audit_ends_with_the_first_fault_of_the_sandbox(audited: Audited_, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise Fault("the disk is full")

    monkeypatch.setattr("koderz.systems.rollouts.checking.audit._Auditor._done_in", broken)
    with pytest.raises(Fault, match="disk is full"):
        audited("hard-answer", exploits=["state-in-tmp"])


def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has exploits be tried under a limit of half a second first."""
    hurried = auditing._hurried
    monkeypatch.setattr(auditing, "_hurried", lambda task, _: hurried(task, 0.5))


@pytest.mark.slow
def test_audit_does_not_wait_for_what_hangs(
    runner: asyncio.Runner, local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hasty(monkeypatch)
    folder = hand_made(tmp_path, "weak-report")
    settings = folder / "task.toml"
    settings.write_text(settings.read_text().replace("timeout_sec = 20", "timeout_sec = 36000"))
    hanging = [each for each in corpus() if each.hangs]
    trials: list[auditing.TriedExploit] = []

    async def run() -> Audit:
        async with asyncio.timeout(300):
            return await audit_tasks([load_task(folder)], Stores({"": local}), exploits=hanging, progress=trials.append)

    (task,) = runner.run(run()).tasks
    assert {each.name: (each.published, each.ours) for each in task.tried} == {
        "hang-forever": (False, False),
        "reward-by-fifo": (False, False),
        "stop-the-verifier": (False, False),
    }
    assert {each.tried for each in trials} == {*task.tried}
    assert {each.total for each in trials} == {3}
    assert sorted(each.done for each in trials) == [1, 2, 3]


@pytest.mark.slow
def test_audit_tries_an_exploit_again_that_passes_late(audited: Audited_, monkeypatch: pytest.MonkeyPatch) -> None:
    _hasty(monkeypatch)
    late = Exploit(
        "late", "does the work, late", "honest", run=f"(echo 'import time; time.sleep(2)'; {_REPORT}) > report.py"
    )
    (task,) = audited("weak-report", exploits=[late]).tasks
    assert [(each.published, each.ours) for each in task.tried] == [(True, True)]


@pytest.mark.parametrize("most", [20, 36000])
def test_audit_tries_what_is_cut_once_more(audited: Audited_, monkeypatch: pytest.MonkeyPatch, most: float) -> None:
    """Also under the limit that cut it: more exploits were tried at once then."""
    tries = iter([(False, False, True), (True, True, False)])

    async def tried(*_: object) -> tuple[bool, bool, bool]:
        return next(tries)

    hurried = auditing._hurried
    monkeypatch.setattr(auditing, "_hurried", lambda task, _: hurried(task, most))
    monkeypatch.setattr(auditing._Auditor, "_tried_in", tried)
    (task,) = audited("hard-answer", exploits=["state-in-tmp"]).tasks
    assert [(each.published, each.ours) for each in task.tried] == [(True, True)]


@pytest.mark.slow
def test_audit_waits_for_what_hangs_where_the_tests_have_a_clock(
    runner: asyncio.Runner, local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These tests take a program that they have ended for one that is right."""
    _hasty(monkeypatch)
    folder = hand_made(tmp_path, "weak-report")
    script = folder / "tests/test.sh"
    weak = script.read_text().replace("| python3 report.py >", "| timeout 2 python3 report.py >")
    weak = weak.replace("/tmp/output.txt\n", "/tmp/output.txt\nended=$?\n", 1).replace(
        "if diff", "if [ $ended = 124 ] || diff"
    )
    script.write_text(weak)
    (hanging,) = (each for each in corpus() if each.name == "hang-forever")
    found = runner.run(audit_tasks([load_task(folder)], Stores({"": local}), exploits=[hanging]))
    (task,) = found.tasks
    assert not task.why
    assert [each.published for each in task.tried] == [True]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["weak-report", "hard-answer"])
def test_audit_of_tests_that_start_programs_has_no_forgery(audited: Audited_, name: str) -> None:
    found = audited(name, exploits=[each.name for each in corpus()])
    (task,) = found.tasks
    assert not task.why
    assert [each.name for each in task.ours] == []
    assert len(task.tried) >= (80 if name == "weak-report" else 20)
    assert name == "hard-answer" or len(task.published) >= 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        f"{_REPORT} > report.py; printf 'import pytest\\n' > conftest.py; printf '[pytest]\\n' > pytest.ini",
        f"{_REPORT} > report.py; mkdir tests; echo 'def test_it(): pass' > tests/test_report.py",
        f"{_REPORT} > report.py; git add -A; git commit -qm 'Report words'",
        f"mkdir inner; {_REPORT} > inner/report.py; ln -s inner/report.py report.py",
    ],
    ids=["settings", "tests", "commits", "links"],
)
def test_audit_passes_honest_work(audited: Audited_, line: str) -> None:
    honest = Exploit("honest", "does the work", "honest", run=line)
    assert audited("weak-report", exploits=[honest]).forged == {"published": 1, "ours": 1}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["weak-separate", "weak-steps", "tally"])
def test_audit_of_each_format_has_no_forgery(audited: Audited_, name: str) -> None:
    """One exploit of each class, on a separate verifier, on steps and on terminal-bench's format."""
    by_class = {each.kind: each.name for each in corpus() if not each.hangs}
    found = audited(name, exploits=[*by_class.values()])
    (task,) = found.tasks
    assert not task.why
    assert [each.name for each in task.ours] == []
    assert len(task.tried) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("line", ["echo 'import sys; print(len(sys.stdin.read().split()))' > count.py"])
def test_audit_of_steps_counts_work_in_one_step_as_no_pass(audited: Audited_, line: str) -> None:
    (task,) = audited("weak-steps", exploits=[Exploit("half", "does one step", "honest", run=line)]).tasks
    assert [(each.applies, each.published, each.ours) for each in task.exploits] == [(True, False, False)]


_WHILE_TESTED = ("start-up-while-tested", "modules-while-tested", "programs-in-path-while-tested")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["weak-report", "tally"])
def test_audit_has_no_forgery_by_what_programs_leave_while_they_are_tested(audited: Audited_, name: str) -> None:
    (task,) = audited(name, exploits=[*_WHILE_TESTED, "answer-by-a-raced-rename"]).tasks
    assert [each.name for each in task.ours] == []
    assert len(task.tried) >= 3
