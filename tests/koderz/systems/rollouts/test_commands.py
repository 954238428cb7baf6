"""`koderz rollouts run` before its run begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.systems.rollouts import suite
from koderz.systems.rollouts.commands import app
from koderz.systems.rollouts.task import Rollout
from koderz.systems.rollouts.tasks import config, datasets
from koderz.systems.rollouts.tasks.formats import load_task
from koderz.systems.rollouts.tasks.runnable import Omission
from tests.conftest import Shell

RUN = ("run", "--dry-run", "--sandbox", "local", "--agent", "oracle")


@pytest.fixture
def tried(koderz: Shell, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The tasks whose own solution is tried, instead of trying it: of none is it in doubt."""
    found = Counter[str]()

    def fresh_only(tasks: Sequence[Rollout], *_: Any) -> tuple[Sequence[Rollout], Sequence[Any]]:
        found.update(task.id for task in tasks)
        return tasks, ()

    monkeypatch.setattr(suite, "fresh_only", fresh_only)
    monkeypatch.chdir(koderz.folder)
    for name, value in koderz.environment().items():
        monkeypatch.setenv(name, value)
    return found


def test_rollouts_run_tries_each_tasks_own_solution_once(tried: Counter[str]) -> None:
    app([*RUN, "--require-fresh"], standalone_mode=False)

    assert tried == {"sample/greeting": 1, "sample/median": 1, "sample/slugs": 1}


@pytest.mark.usefixtures("tried")
@pytest.mark.parametrize("of", [(), ("--dataset", str(suite.SAMPLE))], ids=["configuration", "dataset"])
def test_rollouts_run_reads_each_task_once(monkeypatch: pytest.MonkeyPatch, of: tuple[str, ...]) -> None:
    read = Counter[str]()

    def noted(folder: Path, *given: Any, **more: Any) -> Rollout:
        read[folder.name] += 1
        return load_task(folder, *given, **more)

    for place in (config, datasets):
        monkeypatch.setattr(place, "load_task", noted)
    config._config.cache_clear()
    app([*RUN, *of], standalone_mode=False)

    assert read == {"greeting": 1, "median": 1, "slugs": 1}


@pytest.mark.usefixtures("tried")
def test_rollouts_run_makes_its_canaries_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def canaries_of(tasks: Sequence[Rollout], *_: Any) -> Sequence[Rollout]:
        made.append(len(tasks))
        return ()

    monkeypatch.setattr(suite, "canaries_of", canaries_of)
    app([*RUN, "--canaries", "1"], standalone_mode=False)

    assert made == [3]


@pytest.mark.usefixtures("tried")
def test_rollouts_run_refuses_a_folder_of_images_that_is_not_there() -> None:
    with pytest.raises(KoderzError, match="--images: there is no folder nowhere"):
        app([*RUN, "--images", "nowhere"], standalone_mode=False)


@pytest.mark.usefixtures("tried")
def test_rollouts_run_takes_one_of_a_configuration_and_a_dataset() -> None:
    with pytest.raises(KoderzError, match=r"a\.toml and --dataset b: give one of them"):
        app([*RUN, "a.toml", "--dataset", "b"], standalone_mode=False)


@pytest.mark.usefixtures("tried")
def test_rollouts_run_says_why_no_task_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "fresh_only", lambda tasks, *_: ([], [Omission(tasks[0].id, "it is stale")]))
    with pytest.raises(KoderzError, match="no task can run here; the first: it is stale"):
        app([*RUN, "--require-fresh"], standalone_mode=False)
