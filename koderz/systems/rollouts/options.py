"""The options of the suite `rollouts`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from koderz.errors import KoderzError, Unreachable
from koderz.settings.options import option
from koderz.settings.trust import RUNS_CODE, SENDS
from koderz.suites.options import cluster_column

if TYPE_CHECKING:
    from koderz.systems.rollouts.environments import Making
    from koderz.systems.rollouts.task import Rollout
    from koderz.systems.workspaces.images import ImageStore

AMOUNT = re.compile(r"(\d{1,5})(%?)")
"""An amount of canaries: a number of them, or a share of the tasks in per cent."""

_VARIABLE = "SANDBOX_BACKEND"  # names the sandbox of agents


def wrong_amount(text: str) -> str:
    """Error in an amount of canaries, or an empty text."""
    found = AMOUNT.fullmatch(text)
    holds = found and 0 < int(found[1]) <= (100 if found[2] else 10_000)
    return (
        ""
        if holds
        else f"{text!r} is neither a number of canaries nor a share of the tasks such as 10%"
    )


def wrong_names(names: Iterable[str]) -> str:
    """Error in a list of names of variables, or an empty text."""
    wrong = [name for name in names if not re.fullmatch(r"[A-Za-z_]\w*", name)]
    return f"{wrong[0]!r} can't be the name of a variable" if wrong else ""


def wrong_hosts(text: str) -> str:
    """Error in a list of hosts, or an empty text."""
    from koderz.systems.rollouts.tasks.task_toml import is_host

    wrong = [host for host in text.split(",") if not is_host(host)]
    return f"{wrong[0]!r} is no host, *.HOST, address or CIDR range" if wrong else ""


def variables_of(names: Iterable[str]) -> Mapping[str, str]:
    """The variables of this machine with these names, as far as they are set."""
    return {name: os.environ[name] for name in names if name in os.environ}


@dataclass(frozen=True, slots=True)
class RolloutsOptions:
    """The resources of an agent in its workspace."""

    agent_timeout: float | None = option(
        None,
        "Time that an agent has. Default: the task's own, else 1800.",
        "SECONDS",
        bounds=(1, 86_400),
    )
    agent_memory: int = option(
        4096, "Memory that an agent's commands share.", "MB", bounds=(64, 1 << 20)
    )
    entry_sandbox: bool = option(
        True, "Have entries that name a sandbox use the run's all the same, as with --sandbox."
    )
    judge_model: str | None = option(
        None,
        "A model whose opinion of diffs stands beside the tests' verdict.",
        "MODEL",
        role="judge",
    )
    images: Path | None = option(
        None,
        "A folder of images for --sandbox local: archives of docker save, OCI layouts, and images.json.",
        "DIR",
        names_files=True,
        changeable=True,
    )
    cpus: float | None = option(
        None,
        "Cores that a task's commands share. Default: the task's own, else all.",
        "N",
        bounds=(0.01, 4096),
    )
    memory_mb: int | None = option(
        None,
        "Memory of every task, agent and tests. Default: the task's own.",
        "MB",
        bounds=(64, 1 << 24),
    )
    timeout_multiplier: float = option(
        1.0, "Factor of the time of agents and of tests.", "X", bounds=(0.01, 1000)
    )
    network: Literal["none", "task"] = option(
        "none",
        "none, or task: the network that each task asks for, where the sandbox has it.",
        "WHICH",
        risk=SENDS,
    )
    mcp_network: str | None = option(
        None,
        "Run MCP servers of stdio in sandboxes of their own, which may reach these, parted by commas.",
        "HOSTS",
        check=wrong_hosts,
        risk=SENDS,
    )
    canaries: str | None = option(
        None,
        "Impossible variants of the tasks, mixed in: a number, or a share of the tasks.",
        "N|SHARE%",
        check=wrong_amount,
    )
    canaries_shown: bool = option(False, "Lay the tests of canaries into their checkouts.")
    environments: Path | None = option(
        None,
        "Environments of this machine that stand in for images of SWE-bench, as [[environments]] of koderz perf.",
        "FILE",
        names_files=True,
        risk=RUNS_CODE,
    )
    packages: Path | None = option(
        None,
        "A folder of wheels, debs and npm's archives, which Dockerfiles install from.",
        "DIR",
        names_files=True,
        risk=RUNS_CODE,
        changeable=True,
    )
    host_base: bool = option(
        True,
        "Follow a Dockerfile on this machine's programs where its base image isn't in --images.",
    )
    allow_network: Literal["none", "build"] = option(
        "none",
        "none, or build: lines of Dockerfiles reach the network while they are followed.",
        "WHICH",
        risk=SENDS,
    )
    layer_mb: int = option(
        8192, "The most disk that a Dockerfile's lines may take.", "MB", bounds=(16, 1 << 20)
    )
    max_diff_mb: int = option(10, "The largest diff that is graded.", "MB", bounds=(1, 1024))
    registry: str | None = option(
        None,
        "A registry.json that names datasets: --dataset NAME[@VERSION].",
        "FILE|URL",
        risk=RUNS_CODE,
    )
    wheels: Path | None = option(
        None,
        "A folder of wheels that verifiers install plugins of pytest from.",
        "DIR",
        names_files=True,
        risk=RUNS_CODE,
    )
    env: tuple[str, ...] = option(
        (),
        "A variable of this machine that tasks may take their own from. Repeatable.",
        "NAME",
        check=wrong_names,
        risk=SENDS,
    )
    skip_unrunnable: bool = option(
        False, "Leave out the tasks that can't be loaded or run here, counted by reason."
    )
    require_fresh: bool = option(
        False, "Leave out the tasks whose own solution passes only as published, named and counted."
    )

    cluster_column: str | None = cluster_column()

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables of this machine that tasks may take their own from, as far as they are set."""
        return variables_of(self.env)

    def making(self, images: ImageStore) -> Making:
        """The terms on which environments are made of Dockerfiles."""
        from koderz.systems.rollouts.environments import Making

        online = self.allow_network == "build"
        return Making(images, self.packages, self.host_base, online, self.layer_mb)

    def placed(self, tasks: Iterable[Rollout], sandbox: str) -> list[Rollout]:
        """The tasks with what images and Dockerfiles say of them, as the sandbox has them."""
        from koderz.systems.rollouts.tasks.runnable import ROOTED, placed
        from koderz.systems.workspaces.images import ImageStore

        images = ImageStore(self.images)
        making = self.making(images) if sandbox in ROOTED else None
        return [placed(task, images, making) for task in tasks]

    def sandbox_of(self, named: str, usual: str) -> str:
        """The sandbox of an entry that names one, or none, in a run whose own is `usual`."""
        return (named if self.entry_sandbox else "") or usual


async def usual_sandbox(environ: Mapping[str, str]) -> str:
    """The sandbox that SANDBOX_BACKEND names; unset: docker if a daemon answers, else local.

    Raises KoderzError for one that isn't known.
    """
    from koderz.sandbox import SANDBOXES
    from koderz.sandbox.docker import DOCKER
    from koderz.systems.workspaces.opening import has_workspaces

    if named := environ.get(_VARIABLE, ""):
        if not has_workspaces(named):
            raise KoderzError(f"{_VARIABLE}={named}: there are {', '.join(SANDBOXES)}")
        return named
    try:
        await DOCKER.version()
    except Unreachable:
        return "local"
    return "docker"
