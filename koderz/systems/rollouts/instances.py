"""Instances of SWE-bench as tasks of rollouts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from koderz.systems.rollouts.harbor_tasks import IMAGED
from koderz.systems.rollouts.swebench import DEPRECATED, Instance, read_instances, with_substitute
from koderz.systems.rollouts.swebench.places import SECONDS, variables_of
from koderz.systems.rollouts.task import Need, Network, Repo, Rollout, Rubric
from koderz.systems.workspaces.environments import EnvironmentRule, read_environments
from koderz.systems.workspaces.images import ImageStore

_ELSEWHERE = "--sandbox docker, --images DIR with that image, or --environments FILE"


def read_rollouts(path: Path) -> list[Rollout]:
    """The instances in a file of rows or a task repository, but for those that it no longer publishes, as tasks.

    Raises KoderzError as `read_instances`.
    """
    return [_rollout(path, instance) for instance in read_instances(path) if instance.split != DEPRECATED]


def _rollout(path: Path, instance: Instance) -> Rollout:
    image = f"{instance.where}: image = {instance.image}"
    assets = [Need(f"{instance.where}: image_assets", "SWE-bench Multimodal, which isn't run")]
    return Rollout(
        folder=(path / "tasks" if path.is_dir() else path) / instance.id,
        format="swebench",
        id=instance.id,
        title=instance.id,
        instructions=instance.problem_statement,
        rubrics=(Rubric("resolved", "the tests that the row names pass"),),
        workdir=instance.workdir,
        image_name=instance.image,
        network=Network("no-network"),
        test_seconds=SECONDS,
        needs=(*(assets if instance.has_assets else ()), Need(image, _ELSEWHERE, IMAGED, image=instance.image)),
        digest=instance.digest,
        instance=instance,
        has_tree_of_image=True,
        metadata=instance.metadata,
    )


def stood_in(tasks: Iterable[Rollout], environments: Path | None, images: Path | None) -> Sequence[Rollout]:
    """The tasks, where an environment of this machine stands in for each image that isn't in a folder of images.

    Raises KoderzError for a file of environments that can't be read.
    """
    if environments is None:
        return [*tasks]
    rules, store = read_environments(environments, "--environments"), ImageStore(images)
    return [_stood_in(task, rules, store) for task in tasks]


def _stood_in(task: Rollout, rules: Sequence[EnvironmentRule], images: ImageStore) -> Rollout:
    if task.instance is None:
        return task
    instance = with_substitute(task.instance, rules, images)
    if instance.substitute is None:
        return task
    rule = instance.substitute
    environment, mounts = variables_of(instance)
    return replace(
        task,
        image_name="",
        repo=Repo(rule.source, start_commit_sha=instance.base_commit),
        environment=environment,
        agent_mounts=mounts,
        needs=tuple(need for need in task.needs if not need.image),
        digest=hashlib.sha256(f"{task.digest} {rule}".encode()).hexdigest()[:16],
        instance=instance,
    )
