"""Clusters of a plan's tasks, and warnings about what tasks and samples have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koderz.plans.arms import Arm
from koderz.settings.schema import Settings
from koderz.solvers.handles import OPENED
from koderz.suites import task_digest
from koderz.suites.clusters import linked
from koderz.types import Task


def clusters_of(tasks: Sequence[Task], alike: Mapping[str, str]) -> Sequence[str]:
    """The cluster of each task, of which equal prompts have one; empty if no two tasks share one.

    `alike` are the `equal_prompts` of the tasks.
    """
    found = [task.cluster for task in tasks]
    if alike:
        shares = {task.id: [*filter(None, [task.cluster]), *filter(None, [alike.get(task.id)])] for task in tasks}
        joined = linked(shares)
        found = [joined.get(task.id, task.cluster) for task in tasks]
    shared = [cluster for cluster in found if cluster]
    return found if len({*shared}) < len(shared) else ()


def equal_prompts(tasks: Sequence[Task]) -> dict[str, str]:
    """The name of the prompt of each task that is sent the same as another one, and nothing else.

    A prompt is not all that is asked where the suite opens a workspace, a session or a text beside it.
    """
    found: dict[str, list[str]] = {}
    for task in tasks:
        if not task.needs & OPENED and any(message.get("content") for message in task.messages):
            found.setdefault(task_digest(*map(repr, task.messages)), []).append(task.id)
    return {name: f"prompt of {same[0]}" for same in found.values() if len(same) > 1 for name in same}


def notes_on(settings: Settings, tasks: int, alike: Mapping[str, str], arms: Sequence[Arm], samples: int) -> list[str]:
    """Warnings about the tasks and samples of a run, for wherever its figures are shown.

    `tasks` is the number of tasks, and `alike` are the `equal_prompts` among them.
    """
    notes = []
    if alike:
        notes.append(
            f"{len(alike)} of {tasks} tasks have a prompt that others have, too: equal prompts are one cluster, "
            f"so these count as {len({*alike.values()})}"
        )
    if (
        samples > 1
        and settings.sampling_temperature == 0
        and not settings.seed
        and any(arm.solver.asks for arm in arms)
    ):
        notes.append(
            f"{samples} samples a task at temperature 0 without a --seed may be copies of each other, which tell no "
            "more than one: raise --temperature"
        )
    return notes
