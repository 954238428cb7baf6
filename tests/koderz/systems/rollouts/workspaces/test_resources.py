"""Resources of rollouts: asked for, overridden, held and recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koderz.errors import KoderzError
from koderz.systems.rollouts.additions import Addition
from koderz.systems.rollouts.options import RolloutsOptions, wrong_hosts
from koderz.systems.rollouts.suite import SAMPLE
from koderz.systems.rollouts.task import Network, RequestedResources, Rollout
from koderz.systems.rollouts.tasks.formats import load_task
from koderz.systems.rollouts.workspaces.resources import require_network, resources_of, settled
from koderz.systems.workspaces.cores import Cores, available_cores
from koderz.systems.workspaces.docker import Docker
from koderz.systems.workspaces.local import Local
from koderz.systems.workspaces.uncontained import Uncontained

GREETING = replace(load_task(SAMPLE / "greeting"), asked=RequestedResources(1.5, 2048, 10240))


def _of(task: Rollout, **options: object) -> Rollout:
    return settled(task, RolloutsOptions(**options))  # type: ignore[arg-type]


def test_resources_of_a_task_hold_unless_the_run_has_its_own() -> None:
    own = _of(GREETING)
    limits = own.limits(5)
    assert (limits.seconds, limits.cpus, limits.memory_mb, limits.disk_mb) == (5, 1.5, 2048, 10240)
    limits = _of(GREETING, cpus=0.5, memory_mb=512).limits(5)
    assert (limits.cpus, limits.memory_mb, limits.disk_mb) == (0.5, 512, 10240)
    limits = _of(replace(GREETING, asked=RequestedResources())).limits(5, 100)
    assert (limits.cpus, limits.memory_mb, limits.disk_mb) == (0, 100, 4096)


def test_timeout_multiplier_scales_agents_and_tests() -> None:
    own = _of(GREETING, timeout_multiplier=3.0)
    assert (own.agent_seconds, own.test_seconds) == (3 * GREETING.agent_seconds, 3 * GREETING.test_seconds)
    assert _of(GREETING, timeout_multiplier=3.0, agent_timeout=10.0).agent_seconds == 30
    median = load_task(SAMPLE / "median")
    scripts = _of(median, timeout_multiplier=0.5).scripts
    assert [each.timeout_sec for each in scripts] == [each.timeout_sec / 2 for each in median.scripts]


def test_record_has_what_held_what_was_asked_and_how_it_was_enforced() -> None:
    task = _of(GREETING, memory_mb=512, timeout_multiplier=2.0)
    found = resources_of(task, Local(), 4096, 2.0)
    assert found == {
        "cpus": min(2, available_cores()),  # by affinity: whole cores
        "memory_mb": 512,
        "storage_mb": 10240,
        "network": "no-network",
        "agent_seconds": 1200,
        "verifier_seconds": 120,
        "multiplier": 2.0,
        "asked": {
            "cpus": 1.5,
            "memory_mb": 2048,
            "storage_mb": 10240,
            "network": "public",
            "agent_seconds": 600,
            "verifier_seconds": 60,
        },
        "enforced": {"cpus": "affinity", "memory_mb": "watched", "storage_mb": "watched", "network": "container"},
    }
    found = resources_of(task, Docker("image"), 4096, 2.0)
    assert (found["cpus"], found["enforced"]["cpus"]) == (min(1.5, available_cores()), "container")
    found = resources_of(task, Uncontained(), 4096, 2.0)
    assert (found["cpus"], found["memory_mb"], found["network"]) == (None, None, "public")
    assert {*found["enforced"].values()} == {"no", "watched"}
    median = resources_of(_of(load_task(SAMPLE / "median")), Local(), 4096, 1.0)
    assert (median["cpus"], median["memory_mb"], median["enforced"]["cpus"]) == (None, 4096, "no")
    assert median["asked"]["network"] is None
    assert median["verifier_seconds"] == 60


def test_network_of_a_task_is_given_only_where_it_is_asked_for_and_to_be_had() -> None:
    asking = RolloutsOptions(network="task")
    closed = replace(GREETING, network=Network("no-network"))
    listed = replace(GREETING, network=Network("allowlist", ("pypi.org",)))
    require_network([GREETING, listed], "local", RolloutsOptions())
    require_network([closed, load_task(SAMPLE / "median")], "local", asking)
    require_network([GREETING], "docker", asking)
    with pytest.raises(KoderzError, match=r"greeting: network_mode = public needs --sandbox docker or podman or modal"):
        require_network([GREETING], "local", asking)
    with pytest.raises(KoderzError, match=r"allowlist \(pypi.org\) needs --sandbox docker or podman; in"):
        require_network([listed], "local", asking)
    require_network([listed], "docker", asking)
    with pytest.raises(KoderzError, match="in --sandbox modal leave --network task out"):
        require_network([listed], "modal", asking)
    assert _of(listed, network="task").allowed_hosts == ("pypi.org",)
    assert _of(listed).allowed_hosts == listed.allowed_hosts == ()
    assert not GREETING.is_online
    assert not _of(GREETING).is_online
    assert _of(GREETING, network="task").is_online
    assert not _of(closed, network="task").is_online


def test_cores_are_shared_by_as_few_commands_as_possible() -> None:
    cores = Cores()
    with cores.taken(0.5) as first, cores.taken(1) as second, cores.taken(0) as every:
        assert len(first) == len(second) == 1
        assert every == []
        assert first != second or available_cores() == 1
    with cores.taken(4096) as found:
        assert len(found) == available_cores()


def test_servers_reach_hosts_from_sandboxes_of_their_own_where_these_have_such_networks() -> None:
    servers = (
        Addition("mcp", "parcels", "", "0", {"command": "parcels"}),
        Addition("mcp", "remote", "", "0", {"type": "http", "url": "https://example.org:8443/mcp?key=1"}),
        Addition("mcp", "store", "", "0", {"command": "koderz", "args": ["memory", "serve"]}),
    )
    task = replace(GREETING, additions=servers)
    places = [" in the agent's sandbox", " at example.org:8443", " in a sandbox of its own"]
    assert [each.place for each in _of(task).additions] == places
    reaching = _of(task, mcp_network="example.org,*.example.com").additions
    assert reaching[0].place == " in a sandbox of its own that reaches example.org, *.example.com"
    assert reaching[1].place == " at example.org:8443"
    options = RolloutsOptions(mcp_network="example.org")
    require_network([task], "docker", options)
    with pytest.raises(KoderzError, match="--mcp-network needs --sandbox docker or podman; local has no such network"):
        require_network([task], "local", options)
    assert wrong_hosts("example.org,10.0.0.0/8") == ""
    assert "'https://x' is no host" in wrong_hosts("example.org,https://x")
