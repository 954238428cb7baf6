"""Resources of rollouts: what a task asks for, what the run gives it, and how that is enforced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from koderz.errors import KoderzError
from koderz.sandbox.workspace import Backend
from koderz.systems.rollouts.options import RolloutsOptions
from koderz.systems.rollouts.task import Network, RequestedResources, Rollout
from koderz.systems.workspaces.cores import available_cores

OFFLINE = Network("no-network")
_NETWORKS: Mapping[str, Sequence[str]] = {
    "no-network": (),
    "allowlist": ("docker", "podman"),
    "public": ("docker", "podman", "modal"),
}
"""The sandboxes that have each kind of network to give."""


def settled(task: Rollout, options: RolloutsOptions) -> Rollout:
    """The task with the resources of the run, which `published` of it lacks."""
    times, online = options.timeout_multiplier, options.network == "task"
    verifier = task.verifier and replace(
        task.verifier,
        asked=_overridden(task.verifier.asked, options),
        network=task.verifier.network if online else OFFLINE,
    )
    hosts = {"hosts": options.mcp_network.split(",")} if options.mcp_network else {}
    return replace(
        task,
        additions=tuple(
            replace(each, server={**each.server, **hosts} if each.server else {})
            for each in task.additions
        ),
        asked=_overridden(task.asked, options),
        network=task.network if online else OFFLINE,
        verifier=verifier,
        agent_seconds=(options.agent_timeout or task.agent_seconds) * times,
        test_seconds=task.test_seconds * times,
        scripts=tuple(
            replace(script, timeout_sec=script.timeout_sec * times) for script in task.scripts
        ),
        stages=tuple(replace(stage, task=settled(stage.task, options)) for stage in task.stages),
        published=task,
    )


def _overridden(asked: RequestedResources, options: RolloutsOptions) -> RequestedResources:
    return replace(
        asked, cpus=options.cpus or asked.cpus, memory_mb=options.memory_mb or asked.memory_mb
    )


def require_network(tasks: Iterable[Rollout], sandbox: str, options: RolloutsOptions) -> None:
    """Raises KoderzError for the first task whose network the sandbox can't give, where the run is to give it."""
    for task in tasks:
        place = options.sandbox_of(task.sandbox, sandbox)
        if options.mcp_network and place not in (able := _NETWORKS["allowlist"]):
            raise KoderzError(
                f"--mcp-network needs --sandbox {' or '.join(able)}; {place} has no such network"
            )
        if options.network == "none":
            continue
        for network in _networks(task):
            able = _NETWORKS[network.mode]
            if task.services and (network.mode == "allowlist" or network.mode != task.network.mode):
                raise KoderzError(
                    f"{task.folder}: its services need one network for agent and verifier, public or none; "
                    "leave --network task out"
                )
            if network.mode != "no-network" and place not in able:
                hosts = f" ({', '.join(network.allowed_hosts)})" if network.allowed_hosts else ""
                raise KoderzError(
                    f"{task.folder}: network_mode = {network.mode}{hosts} needs --sandbox {' or '.join(able)}; "
                    f"in --sandbox {place} leave --network task out"
                )


def _networks(task: Rollout) -> Iterator[Network]:
    """The networks that a task asks for; none where its files can't say so."""
    for part in (task, *(stage.task for stage in task.stages)) if task.states_network else ():
        yield part.network
        if part.verifier and part.verifier.network:
            yield part.verifier.network


def resources_of(
    task: Rollout, backend: Backend, memory_mb: int, multiplier: float
) -> Mapping[str, Any]:
    """The resources that held for a rollout, as its record has them. `memory_mb`: of agents whose task asks for none.

    `{cpus, memory_mb, storage_mb, network, agent_seconds, verifier_seconds, multiplier, asked, enforced}`; null: no
    limit held, or in `asked`, the task asks for none.
    """
    limits = task.limits(task.agent_seconds, memory_mb)
    enforced = dict(backend.enforces)
    if not limits.cpus:
        enforced["cpus"] = "no"
    network = task.network.mode if enforced["network"] != "no" else "public"
    held = {
        "cpus": _cores(limits.cpus, enforced["cpus"]),
        "memory_mb": limits.memory_mb if enforced["memory_mb"] != "no" else None,
        "storage_mb": limits.disk_mb,
        "network": network,
        "agent_seconds": task.agent_seconds,
        "verifier_seconds": verifier_seconds(task),
        "multiplier": multiplier,
    }
    as_asked = task.published or task
    asked = {
        **asdict(as_asked.asked),
        "network": as_asked.network.mode if as_asked.states_network else None,
        "agent_seconds": as_asked.agent_seconds,
        "verifier_seconds": verifier_seconds(as_asked),
    }
    del asked["gpus"]
    return {**held, "asked": asked, "enforced": enforced}


def verifier_seconds(task: Rollout) -> float:
    """The time of a task's tests, in seconds; of test scripts, that of the one which has the most."""
    return max((script.timeout_sec for script in task.scripts), default=task.test_seconds)


def _cores(cpus: float, enforcer: str) -> float | None:
    """The cores that a command is held to: by affinity whole ones, and never more than there are."""
    if enforcer == "no":
        return None
    if enforcer == "affinity":
        return float(min(-(-cpus // 1), available_cores()))
    return cpus
