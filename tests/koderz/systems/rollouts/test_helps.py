"""`koderz helps`: its arms, what its tasks can show, its verdict, and what it refuses before anything is spent."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.systems.rollouts.additions import Addition, Kind, used_in
from koderz.systems.rollouts.helps.verdict import Verdict, arms_of, given_by, verdicts_of, write_config
from koderz.systems.rollouts.suite import SAMPLE
from koderz.systems.rollouts.tasks.config import read_config
from tests.conftest import Shell
from tests.koderz.runs.test_deciding import Knowing, decided, half, never


def verdict(folder: Path, a: Knowing, b: Knowing, n: int = 40, **settings: Any) -> Verdict:
    (found,) = verdicts_of(decided(folder, a, b, n, **settings).summary, ["plain", "with s"])
    return found


def text(found: Verdict) -> str:
    return "\n".join(found.lines())


@pytest.fixture
def skill(tmp_path: Path) -> Callable[[str], str]:
    def made(name: str) -> str:
        (tmp_path / name).mkdir()
        (tmp_path / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: d\n---\nText.\n")
        return str(tmp_path / name)

    return made


# The verdict


def test_verdict_says_what_helps_after_how_many_rollouts(tmp_path: Path) -> None:
    found = verdict(tmp_path, Knowing(passes=never), Knowing(), concurrency=1)

    assert found.outcome == "helps"
    assert text(found).startswith(
        "It helps: B (with s) passes 8 of 8, A (plain) passes 0 of 8: +100.0 points (95 %, valid at any stop, "
    )
    assert "Decided after 16 of 80 rollouts." in text(found)
    assert "Gained 8 tasks: T/" in text(found)
    assert "Lost none." in text(found)
    assert found.document["verdict"] == "helps"
    assert (found.document["rollouts"], found.document["planned_rollouts"]) == (16, 80)


def test_verdict_says_what_harms(tmp_path: Path) -> None:
    found = verdict(tmp_path, Knowing(), Knowing(passes=half), concurrency=1)

    assert found.outcome == "harms"
    assert text(found).startswith("It harms: B (with s) passes ")
    assert found.lost
    assert not found.gained
    assert all(int(task.removeprefix("T/")) % 2 for task in found.lost)


def test_verdict_claims_nothing_where_nothing_differs(tmp_path: Path) -> None:
    found = verdict(tmp_path, Knowing(passes=half), Knowing(passes=half), n=10)

    assert found.outcome == "open"
    assert text(found).startswith("It is not shown to help or to harm: B (with s) passes 5 of 10, A (plain) passes 5")
    assert "Stopped after 20 of 20 rollouts, since no task is left." in text(found)


def test_verdict_bounds_the_difference_where_rollouts_are_missing(tmp_path: Path) -> None:
    found = verdict(tmp_path, Knowing(faults={3: 2, 4: 2}), Knowing(passes=lambda n: n != 1, faults={4: 2}), n=7)

    assert (found.a.missing, found.b.missing) == (2, 1)
    # Without those missing B passes four of five, A five; one of A's two faults pairs with a pass of B.
    assert found.bounds == pytest.approx((-200 / 7, 100 / 7))
    assert "2 rollouts of A and 1 of B could not be judged" in text(found)
    assert found.rollouts == found.planned_rollouts == 14


def test_verdict_counts_no_rollout_beyond_the_decision(tmp_path: Path) -> None:
    found = verdict(tmp_path, Knowing(passes=never), Knowing(), concurrency=8)

    assert found.a.rollouts == found.b.rollouts == found.decision["tasks"] == 8


@pytest.mark.parametrize(
    ("kind", "name", "actions", "is_used"),
    [
        ("skill", "sql-style", ["cat /root/.codex/skills/sql-style/SKILL.md"], True),
        ("skill", "sql-style", ['Skill {"skill": "sql-style"}'], True),
        ("skill", "sql-style@v1", ["cat /opt/koderz/additions/0123abcd/sql-style/references/more.md"], True),
        ("skill", "sql-style", ['bash {"command": "cd r0 && cat sql-style/SKILL.md"}'], True),
        ("skill", "sql-style", ["ls /root/.codex/skills", "cat sql-style.md", 'Skill {"skill": "other"}'], False),
        ("mcp", "parcels", ["mcp__parcels__code {}"], True),
        ("mcp", "parcels", ['ToolSearch {"query": "select:mcp__parcels__code"}', "mcp__parcels2__code"], False),
    ],
)
def test_use_is_told_by_the_tools_that_an_agent_calls(
    kind: Kind, name: str, actions: Sequence[str], is_used: bool
) -> None:
    assert used_in([Addition(kind, name, "/x", "")], actions) == {"used": {name: is_used}}


def test_use_of_what_stands_in_every_prompt_is_not_told() -> None:
    assert used_in([Addition("context", "AGENTS.md", "/x", "")], ["cat AGENTS.md"]) == {}


# The arms


def test_arms_are_a_plain_one_and_one_for_each_thing(skill: Callable[[str], str]) -> None:
    given = given_by({"skills": [skill("one"), skill("two")]})

    assert [*arms_of(given)] == ["plain", "with one", "with two"]
    assert [*arms_of(given, together=True)] == ["plain", "with all"]
    found = arms_of(given, each_without=True)
    assert {name: [each.name for each in own] for name, own in found.items()} == {
        "with all": ["one", "two"],
        "without one": ["two"],
        "without two": ["one"],
    }


def test_arms_of_two_states_of_one_thing_are_compared_with_each_other(
    skill: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = skill("one")
    monkeypatch.setattr("koderz.systems.rollouts.helps.verdict.read_additions", _named)

    assert [*arms_of(given_by({"skills": [f"{folder}@v1", folder]}))] == ["with one@v1", "with one"]


def _named(kind: Kind, said: str, base: Path) -> tuple[Addition, ...]:
    return (Addition(kind, Path(said).name, said, said),)


@pytest.mark.parametrize(
    ("names", "how", "error"),
    [
        ([], {}, "say what may help: --skill DIR"),
        (["one"], {"each_without": True}, "--each-without takes two things or more"),
        (["one", "two"], {"each_without": True, "together": True}, "--each-without takes two things or more"),
    ],
)
def test_arms_without_anything_to_compare_are_refused(
    skill: Callable[[str], str], names: Sequence[str], how: dict[str, bool], error: str
) -> None:
    given = given_by({"skills": [skill(name) for name in names]})

    with pytest.raises(KoderzError, match=error):
        arms_of(given, **how)


def test_thing_that_is_given_twice_is_refused(skill: Callable[[str], str]) -> None:
    folder = skill("one")

    with pytest.raises(KoderzError, match="is given twice"):
        given_by({"skills": [folder, folder]})


def test_arms_are_written_as_a_configuration_of_rollouts(skill: Callable[[str], str], tmp_path: Path) -> None:
    arms = arms_of(given_by({"skills": [skill("one")], "mcp": ['python -m "quoted\\\x01"']}))
    written = [write_config(tmp_path, "helps", arms, str(SAMPLE), None, "nop") for _ in range(2)]
    config = read_config(written[0])

    assert written[0] == written[1]
    assert config.name == "helps"
    assert [entry.arm for entry in config.entries[:3]] == ["plain", "with one", [*arms][2]]
    assert {entry.agent for entry in config.entries} == {"nop"}
    assert config.entries[1].skills == (str(tmp_path / "one"),)
    assert config.entries[2].mcp == ("python -m 'quoted\\\x01'",)


# The command


def test_dry_run_says_which_difference_the_tasks_show(koderz: Shell) -> None:
    done = koderz("helps", "--dry-run")
    found = json.loads(koderz("helps", "--dry-run", "--json").out)

    assert done.out.splitlines()[-1].startswith(
        "Power: 144 tasks in up to 288 rollouts show a difference of 15 points or more in four of five cases ("
    )
    assert found["power"]["shows"] == 15
    assert found["planned"] == 288
    assert not koderz.results.exists()
    assert not (koderz.folder / "data").exists()


def test_tasks_that_can_show_nothing_are_refused_before_anything_is_asked(koderz: Shell) -> None:
    skill = koderz.folder / "s"
    skill.mkdir()
    (skill / "SKILL.md").write_text("---\nname: s\ndescription: d\n---\n")
    few = ("--skill", skill, "--model", "simulated", "--dataset", SAMPLE)

    done = koderz("helps", *few, code=2)

    assert "3 tasks in up to 6 rollouts show no difference, however large; 15 points take 135 tasks" in done.err
    assert not koderz.results.exists()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--dataset", SAMPLE), "say what may help"),
        (
            ("--dataset", SAMPLE / "sample.toml", "--context", SAMPLE / "sample.toml"),
            "koderz helps takes tasks; a conf",
        ),
        (("--skill", "nowhere"), "nowhere"),
        (("--skill", SAMPLE), "a skill is a folder with a SKILL.md"),
    ],
)
def test_helps_refuses_what_it_can_not_compare(koderz: Shell, arguments: tuple[object, ...], error: str) -> None:
    assert error in koderz("helps", *arguments, code=2).err
    assert not koderz.results.exists()
