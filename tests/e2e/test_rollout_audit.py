"""`koderz rollouts audit` by the command line."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from koderz.systems.rollouts.checking.audit import corpus
from tests.conftest import Shell
from tests.koderz.systems.rollouts.hand_made import hand_made

pytestmark = pytest.mark.slow


def test_audit_tells_a_line_for_each_task_and_writes_json(koderz: Shell) -> None:
    folders = [hand_made(koderz.folder, name) for name in ("hard-answer", "odd-task")]
    done = koderz("rollouts", "audit", *folders, "--sandbox", "local", "--json", "audit.json")
    told = json.loads((koderz.folder / "audit.json").read_text())
    hard, odd = told["tasks"]
    tried = sum(each["applies"] for each in hard["exploits"])
    assert done.out.splitlines() == [
        f"hard/answer  as published:  0 of {tried} pass    koderz: 0 of {tried}",
        "odd/task     unsound: doing nothing passes",
        f"{tried} tried: 0 pass as published, 0 under koderz' grading",
    ]
    assert (told["tried"], told["forged"]) == (tried, {"published": 0, "ours": 0})
    assert tried >= 14
    assert [each["name"] for each in hard["exploits"]] == [each.name for each in corpus()]
    assert {*hard["exploits"][0]} == {"name", "class", "applies", "published", "ours"}
    assert (odd["sound"], odd["why"], odd["exploits"]) == (False, "doing nothing passes", [])


def test_audit_fails_where_an_exploit_passes(koderz: Shell) -> None:
    """Tests that accept whatever is there are beyond any grading: what is left there for the tests passes."""
    folder = hand_made(koderz.folder, "hard-answer")
    (folder / "tests/test.sh").write_text(
        "[ -e answer.txt -o -e passed ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    )
    done = koderz("rollouts", "audit", folder, "--sandbox", "local", code=1)
    assert "passes: state-in-tmp (trusted data)" in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none"], "there is no folder none"),
        (["hard-answer", "--json", "none/audit.json"], "there is no folder"),
        (["hard-answer", "--sandbox", "none"], "there is no sandbox 'none'"),
        (["hard-answer", "hard-answer"], "two tasks have the id hard/answer"),
    ],
)
def test_audit_of_bad_input_is_one_line(koderz: Shell, words: list[str], said: str) -> None:
    hand_made(koderz.folder, "hard-answer")
    done = koderz("rollouts", "audit", *words, code=2)
    assert said in done.err
    assert len(done.err.splitlines()) <= 2


def test_audit_that_is_interrupted_leaves_no_file(koderz: Shell, tmp_path: Path) -> None:
    folder = hand_made(koderz.folder, "tally")
    running = koderz.start("rollouts", "audit", folder, "--sandbox", "local", "--json", tmp_path / "audit.json")
    assert running.stderr
    assert any(re.match(r" *1/\d+  ", line) for line in running.stderr)  # the first exploit was tried
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130
    assert not [*tmp_path.glob("audit.json*")]
