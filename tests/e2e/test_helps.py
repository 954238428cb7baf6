"""`koderz helps` with the simulated model on tasks of the embedded kind: its verdict, its kills, and its revisions."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from koderz.systems.rollouts.helps.verdict import SKILL, write_tasks
from koderz.systems.rollouts.suite import SAMPLE
from tests.conftest import Shell, kill_after, lines_of
from tests.e2e.test_agents import FAKE, OWN, PRICES, PROGRAMS
from tests.scripted_model import COMMAND, scripted_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve tasks that pass with the skill alone."""
    folder = tmp_path_factory.mktemp("parcels")
    every = sorted(write_tasks(folder / "every").iterdir())
    for task in [task for task in every if task.name[-1] in "135"][:12]:
        shutil.copytree(task, folder / "tasks" / task.name)
    return folder / "tasks"


def asked(tasks: Path, *more: object) -> tuple[object, ...]:
    fast = ("--model", "simulated", "--sandbox", "local", "--quiet")
    return ("helps", "--skill", SKILL, "--dataset", tasks, *fast, *more)


def documents(text: str) -> list[dict[str, Any]]:
    decoder, found = json.JSONDecoder(), list[dict[str, Any]]()
    while text := text.strip():
        document, end = decoder.raw_decode(text)
        found.append(document)
        text = text[end:]
    return found


def test_helps_shows_what_a_skill_gains_and_looks_for_harm_elsewhere(koderz: Shell, tasks: Path) -> None:
    main, elsewhere = documents(koderz(*asked(tasks, "--json", "--also", SAMPLE)).out)

    (verdict,) = main["verdicts"]
    assert (main["question"], verdict["verdict"], verdict["tasks"]) == ("helps", "helps", 8)
    assert (verdict["a"]["label"], verdict["b"]["label"]) == ("plain", "with parcel-codes")
    assert (verdict["a"]["passed"], verdict["b"]["passed"], len(verdict["gained"])) == (0, 8, 8)
    assert (verdict["a"]["used"], verdict["b"]["used"]) == ({}, {"parcel-codes": 8})
    assert verdict["b"]["tokens"] > verdict["a"]["tokens"]
    assert main["simulated"]
    (harm,) = elsewhere["verdicts"]
    assert (elsewhere["question"], harm["verdict"], harm["difference"]) == ("elsewhere", "open", 0)
    assert harm["b"]["used"] == {"parcel-codes": 0}
    results = json.loads(Path(koderz.folder, main["summary"]).read_text())["arms"]
    used = [each["used"] for arm in results.values() for each in arm["results"] if "used" in each]
    assert used[:8] == [{"parcel-codes": True}] * 8

    again = koderz(*asked(tasks, "--also", SAMPLE, "--max-cost", 2, "--concurrency", 2))

    assert len([*koderz.results.glob("bench_*.json")]) == 2
    assert "It helps: B (with parcel-codes) passes 8 of 8, A (plain) passes 0 of 8: +100.0 points" in again.out
    assert "ELSEWHERE\nIt is not shown to help or to harm: B (with parcel-codes) passes 2 of 3" in again.out
    assert again.err.count("nothing to do") == 2


def test_helps_pays_for_no_rollout_twice_after_kills(koderz: Shell, tasks: Path) -> None:
    for more in (1, 4, 7):
        kill_after(more, lambda: lines_of(koderz.results, "call"), koderz.start(*asked(tasks)))
    plans = lines_of(koderz.results, "plan")

    (found,) = documents(koderz(*asked(tasks, "--json")).out)

    calls = Counter((line["experiment_id"], line["call"]) for line in lines_of(koderz.results, "call"))
    ends = Counter(line["experiment_id"] for line in lines_of(koderz.results, "experiment"))
    assert {*calls.values()} == {*ends.values()} == {1}
    assert max(Counter(experiment for experiment, _ in calls).values()) == 3
    assert lines_of(koderz.results, "plan") == plans
    assert (found["verdicts"][0]["verdict"], found["verdicts"][0]["tasks"]) == ("helps", 8)


def test_revisions_of_a_skill_are_compared_with_each_other(koderz: Shell, tasks: Path) -> None:
    folder = koderz.folder / "parcel-codes"
    shutil.copytree(SKILL, folder)
    git = ("git", "-C", str(koderz.folder), "-c", "user.name=n", "-c", "user.email=e")
    for words in (("init", "-q"), ("add", "parcel-codes"), ("commit", "-qm", "one"), ("tag", "v1")):
        subprocess.run([*git, *words], check=True)
    text = (folder / "SKILL.md").read_text()
    (folder / "SKILL.md").write_text(text.replace("toupper", "tolower"))
    versions = ("--skill", f"{folder}@v1", "--skill", folder, *asked(tasks)[3:])

    done = koderz("helps", *versions, "--fail-on-regression", code=1)

    assert "It harms: B (with parcel-codes) passes 0 of 8, A (with parcel-codes@v1) passes 8 of 8: -100.0" in done.out
    assert "B used parcel-codes in 8 of 8 rollouts." in done.out
    assert "A used parcel-codes@v1 in 8 of 8 rollouts." in done.out


@pytest.mark.parametrize("agent", [*PROGRAMS, "koderz"])
@pytest.mark.parametrize("is_used", [True, False])
def test_use_of_a_skill_is_told_of_each_agent(koderz: Shell, agent: str, is_used: bool) -> None:
    shutil.copytree(SAMPLE / "greeting", koderz.folder / "tasks/greeting")
    (koderz.folder / "koderz.toml").write_text(PRICES)
    (koderz.folder / "bin").mkdir()
    if agent in PROGRAMS:
        program = koderz.folder / "bin" / PROGRAMS[agent]
        program.write_text(FAKE.read_text())
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    skill = shutil.copytree(SKILL, koderz.folder / "parcel-codes")
    arms = f'[[arms]]\nname = "plain"\n[[arms]]\nname = "with"\nskills = ["{skill}"]\n'
    entry = f'[[tasks]]\nprepared_dir = "tasks/greeting"\nagent = "{agent}"\nmodel = "{OWN.get(agent, "openai/m")}"\n'
    (koderz.folder / "arms.toml").write_text(f"{arms}{entry}")
    read = "cat ~/.codex/skills/parcel-codes/SKILL.md ~/.claude/skills/parcel-codes/SKILL.md; true"
    with scripted_model() as model:
        model.commands = [read if is_used else "ls ~/.codex/skills ~/.claude/skills; true", COMMAND]
        env = {**model.env(), "PATH": f"{koderz.folder / 'bin'}:{os.environ['PATH']}"}
        koderz("rollouts", "run", "arms.toml", "--sandbox", "local", "--quiet", env=env)

    used = {name.rpartition(" ")[2]: arm["results"][0].get("used") for name, arm in koderz.summary()["arms"].items()}
    assert used == {"plain": None, "with": {"parcel-codes": is_used}}
