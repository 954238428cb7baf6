"""Compose files: the agent's service is read, those beside it go to compose, and what nobody can give is named."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from koderz.cli import app
from koderz.errors import KoderzError
from koderz.systems.rollouts.environments.trees import prepared
from koderz.systems.rollouts.options import RolloutsOptions
from koderz.systems.rollouts.task import Network, RequestedResources, Rollout, Verifier
from koderz.systems.rollouts.tasks.compose import HARBOR_SERVICES, ComposeService, filled, read_compose
from koderz.systems.rollouts.tasks.formats import load_task
from koderz.systems.rollouts.tasks.runnable import unmet
from koderz.systems.rollouts.workspaces.resources import require_network
from koderz.systems.workspaces.uncontained import Uncontained
from tests.koderz.systems.workspaces.test_docker import asked, stand_in


def service(folder: Path, settings: dict[str, Any], known: dict[str, str] | None = None) -> ComposeService:
    path = folder / "docker-compose.yaml"
    path.write_text(yaml.safe_dump({"services": {"any-name": settings}}))
    return read_compose(path, known or {})


def task(
    folder: Path, settings: dict[str, Any], dockerfile: str = "FROM x\nWORKDIR /work\nCOPY notes.txt .\n"
) -> Rollout:
    folder.mkdir()
    texts = {
        "task.yaml": "instruction: Do it.\n",
        "run-tests.sh": "",
        "solution.sh": "secret",
        "Dockerfile": dockerfile,
    }
    for name, text in {**texts, "notes.txt": "one\n"}.items():
        (folder / name).write_text(text)
    service(folder, settings)
    return load_task(folder)


@pytest.mark.parametrize(
    "settings",
    [
        {"build": {"context": ".", "dockerfile": "./Dockerfile"}, "image": "built:1"},
        {"image": "${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}", "volumes": ["${T_BENCH_TASK_LOGS_PATH}:/logs"]},
        {"command": ["sh", "-c", "sleep infinity"], "ports": ["8080:8080"], "expose": [80], "tty": True},
        {"command": "tail -f /dev/null", "entrypoint": ["/bin/bash"], "tmpfs": ["/tmp:size=1g", "/run"]},
        {"command": "sleep 86400", "healthcheck": {"test": "true"}, "depends_on": ["any-name"], "restart": "always"},
        {"network_mode": "none", "networks": ["default"], "platform": "linux/amd64", "user": "root", "cap_add": []},
        {"deploy": {"replicas": 1, "resources": {"reservations": {"memory": "1G"}}}, "shm_size": "2gb"},
    ],
)
def test_compose_settings_of_an_idle_container_make_no_difference(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert service(tmp_path, settings) == ComposeService()


@pytest.mark.parametrize(
    ("settings", "key", "told"),
    [
        ({"command": "python app.py"}, "command", "python app.py"),
        ({"command": ["sh", "-c", "nginx && sleep infinity"]}, "command", "sh -c 'nginx && sleep infinity'"),
        ({"build": {"context": ".", "args": {"A": "1"}}}, "build.args", ""),
        ({"build": "./docker"}, "build", "./docker"),
        ({"build": {"dockerfile": "Other"}}, "build", "Other"),
        (
            {"volumes": ["/var/run/docker.sock:/var/run/docker.sock"]},
            "volumes",
            "/var/run/docker.sock:/var/run/docker.sock",
        ),
        ({"volumes": ["./:/app:ro"]}, "volumes", "./:/app"),
        ({"volumes": ["../up:/app"]}, "volumes", "../up:/app"),
        ({"volumes": 3}, "volumes", "3"),
        ({"volumes": [{"source": "./x"}]}, "volumes", "./x"),
        ({"privileged": True}, "privileged", "True"),
        ({"cap_add": ["SYS_ADMIN"]}, "cap_add", "['SYS_ADMIN']"),
        ({"network_mode": "host"}, "network_mode", "host"),
        ({"deploy": {"replicas": 2}}, "deploy.replicas", ""),
        ({"deploy": {"resources": {"limits": {"memory": "much"}}}}, "deploy.resources.limits", "much"),
        (
            {"deploy": {"resources": {"limits": {"cpus": "many"}}}},
            "deploy",
            "{'resources': {'limits': {'cpus': 'many'}}}",
        ),
        ({"deploy": {"resources": {"reservations": {"devices": [{}]}}}}, "deploy.resources.reservations.devices", ""),
        ({"environment": {"KEY": "${KEY:?is needed}"}}, "environment", "KEY isn't given: is needed"),
        ({"user": "1000"}, "user", "1000"),
    ],
)
def test_compose_settings_that_only_compose_can_give_are_named(
    tmp_path: Path, settings: dict[str, Any], key: str, told: str
) -> None:
    machine = "what no container of koderz has"
    assert service(tmp_path, settings).lacks == [(f"services.any-name.{key}", f"{machine}{told and f' ({told})'}")]


def test_compose_limits_are_those_of_commands(tmp_path: Path) -> None:
    limits = {"deploy": {"resources": {"limits": {"cpus": "1.5", "memory": "2G"}}}}
    found = task(tmp_path / "t", limits)
    assert (found.asked, unmet(found, "local")) == (RequestedResources(1.5, 2048), "")
    assert service(tmp_path, {"cpus": 2, "mem_limit": "512m"}) == ComposeService(cpus=2.0, memory_mb=512)


def test_compose_variables_are_filled_in(tmp_path: Path) -> None:
    rows = ["A=1", "BARE", "ABSENT", "D=${NOT:-${BARE}-x}", "E=$$5 ${NOT}$BARE", "T_BENCH=${T_BENCH_TASK_LOGS_PATH}"]
    found = service(tmp_path, {"environment": rows}, {"BARE": "b"})
    assert found.environment == {"A": "1", "BARE": "b", "D": "b-x", "E": "$5 b"}
    assert service(tmp_path, {"environment": {"A": True, "B": None, "C": 2}}).environment == {"A": "true", "C": "2"}
    assert filled("${X:+has}|${X+has}|${X:-no}|${X-no}", {"X": ""}) == "|has|no|"


def test_compose_image_takes_the_place_of_a_dockerfile_unless_it_is_built(tmp_path: Path) -> None:
    assert task(tmp_path / "built", {"build": ".", "image": "mine:1"}).image_name == ""
    assert task(tmp_path / "published", {"image": "${IMAGE:-theirs:1}"}).image_name == "theirs:1"


def test_compose_folder_that_is_mounted_is_the_content_of_the_working_folder(tmp_path: Path) -> None:
    settings = {"build": ".", "volumes": [".:/work"], "working_dir": "/work"}
    found = task(tmp_path / "t", settings, "FROM x\nRUN echo 1 > /work/of-the-image\nWORKDIR /work\n")
    assert unmet(found, "local") == ""

    async def files() -> list[str]:
        async with Uncontained() as backend:
            store = await prepared(found, tmp_path / "store", backend)
            await store.checkout(tmp_path / "checkout")
            return sorted(path.name for path in (tmp_path / "checkout").iterdir() if path.name != ".git")

    found = task(tmp_path / "u", settings, "FROM x\nWORKDIR /work\nCOPY notes.txt of-the-image\n")
    assert asyncio.run(files()) == ["Dockerfile", "docker-compose.yaml", "notes.txt", "task.yaml"]

    outside = task(tmp_path / "v", {"volumes": ["./data:/data"]})
    assert "(data:/data, outside of the working folder /work)" in unmet(outside, "local")


def test_compose_file_without_services_is_none(tmp_path: Path) -> None:
    path = tmp_path / "docker-compose.yaml"
    for text in ("services: {}", "services: 3", "services: {a: 1}", "[", "- x"):
        path.write_text(text)
        with pytest.raises(KoderzError, match="no compose file"):
            read_compose(path, {})
    path.write_text(yaml.safe_dump({"services": {"web": {}, "db": {"image": "postgres"}}}))
    assert read_compose(path, {}).lacks == [("services db, web", "one named main or client")]


def several(folder: Path, settings: dict[str, Any], more: dict[str, Any] | None = None) -> ComposeService:
    path = folder / "docker-compose.yaml"
    (folder / "db").mkdir()
    (folder / "db/Dockerfile").write_text("FROM x\n")
    (folder / "etc").symlink_to("/etc")
    path.write_text(yaml.safe_dump({"services": {"main": {}, "db": settings}, **(more or {})}))
    return read_compose(path, {"GIVEN": "1"}, HARBOR_SERVICES)


def test_compose_services_beside_the_agents_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret")
    environment = ["KEY=${OPENAI_API_KEY}", "OPENAI_API_KEY", "GIVEN", "COST=$$5"]
    settings = {
        "build": {"context": "./db", "args": ["OPENAI_API_KEY", "GIVEN"]},
        "image": "mine:1",
        "ports": ["80:80"],
        "container_name": "store",
        "privileged": False,
        "environment": environment,
        "volumes": ["kept:/kept", "./db:/seed", "/own"],
        "command": "run ${GIVEN}",
        "healthcheck": {"test": ["CMD", "ready"], "interval": "1s"},
    }
    found = several(tmp_path, settings, {"volumes": {"kept": None}})
    assert (found.lacks, found.beside and found.beside.main) == ([], "main")
    assert found.beside
    db = found.beside.services["db"]
    assert db["build"] == {"context": "./db", "dockerfile": "Dockerfile", "args": {"GIVEN": "1"}}
    assert (db["environment"], db["command"]) == ({"KEY": "", "GIVEN": "1", "COST": "$5"}, "run 1")
    assert [(each["type"], each.get("source"), each["read_only"]) for each in db["volumes"]] == [
        ("volume", "kept", False),
        ("bind", "./db", True),
        ("volume", None, False),
    ]
    assert db["networks"] == {"default": {"aliases": ["store"]}}
    assert db["healthcheck"] == settings["healthcheck"]
    assert (db["mem_limit"], db["pids_limit"]) == ("4096m", 512)
    assert not {"ports", "container_name", "image", "privileged"} & db.keys()
    assert "a-secret" not in str(found)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"volumes": ["/etc:/x"]}, "services.db.volumes"),
        ({"volumes": ["/var/run/docker.sock:/var/run/docker.sock:ro"]}, "services.db.volumes"),
        ({"volumes": ["./db/../..:/x"]}, "services.db.volumes"),
        ({"volumes": ["~/.ssh:/x"]}, "services.db.volumes"),
        ({"volumes": ["./etc:/x"]}, "services.db.volumes"),  # a link
        ({"volumes": [{"type": "bind", "source": "/etc", "target": "/x"}]}, "services.db.volumes"),
        ({"volumes": [{"type": "volume", "source": "of-the-host", "target": "/x"}]}, "services.db.volumes"),
        ({"volumes": ["of-the-host:/x"]}, "services.db.volumes"),
        ({"build": "etc"}, "services.db.build"),
        ({"build": "https://example.org/x.git"}, "services.db.build"),
        ({"build": {"context": "db", "dockerfile": "../../Dockerfile"}}, "services.db.build"),
        ({"build": {"context": "db", "ssh": ["default"]}}, "services.db.build.ssh"),
        ({"privileged": True}, "services.db.privileged"),
        ({"pid": "host"}, "services.db.pid"),
        ({"network_mode": "host"}, "services.db.network_mode"),
        ({"devices": ["/dev/kvm"]}, "services.db.devices"),
        ({"cap_add": ["SYS_ADMIN"]}, "services.db.cap_add"),
        ({"security_opt": ["seccomp:unconfined"]}, "services.db.security_opt"),
        ({"env_file": "/root/.env"}, "services.db.env_file"),
        ({"secrets": ["key"]}, "services.db.secrets"),
        ({"extends": {"file": "/etc/x.yaml", "service": "y"}}, "services.db.extends"),
        ({"depends_on": ["main"]}, "services.db.depends_on"),
        ({"networks": ["back"]}, "networks"),
        ({"build": "db", "deploy": {"replicas": 2}}, "services.db.deploy.replicas"),
        ({}, "services.db.image"),
        ({"image": "--privileged"}, "services.db.image"),
        ({"image": "${NOT_GIVEN}"}, "services.db.image"),
        ({"volumes": [{"type": "volume"}]}, "services.db.volumes"),
    ],
)
def test_compose_settings_that_reach_out_of_a_service_are_refused(
    tmp_path: Path, settings: dict[str, Any], key: str
) -> None:
    found = several(tmp_path, {**({"image": "x"} if settings and "build" not in settings else {}), **settings})
    assert [what for what, _ in found.lacks] == [key]
    assert found.beside is None


@pytest.mark.parametrize(
    "more",
    [
        {"secrets": {"key": {"environment": "OPENAI_API_KEY"}}},
        {"volumes": {"etc": {"driver_opts": {"type": "none", "o": "bind", "device": "/etc"}}}},
        {"volumes": {"kept": {"external": True}}},
        {"networks": {"default": {"driver": "host"}}},
        {"include": ["/etc/x.yaml"]},
    ],
)
def test_compose_tables_that_reach_out_of_a_file_are_refused(tmp_path: Path, more: dict[str, Any]) -> None:
    found = several(tmp_path, {"image": "x"}, more)
    assert found.beside is None
    assert found.lacks[0][0].startswith(next(iter(more)))


def test_compose_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = task(tmp_path / "t", {}, "FROM x\nWORKDIR /work\n")
    (found.folder / "docker-compose.yaml").write_text("services: {client: {}, db: {image: x}}")
    found = load_task(found.folder)
    assert found.services
    assert set(found.services.hidden) == {"tests", "run-tests.sh", "solution.sh", "solution.yaml"}
    assert unmet(found, "local").endswith("services.db needs --sandbox docker or podman with compose")
    for version, is_here in (("docker-compose version 1.29.2", False), ("Docker Compose version v2.27.0", True)):
        program = tmp_path / version / "docker"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho {version}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent))
        told = unmet(found, "docker")
        assert told == (
            "" if is_here else f"{tmp_path}/t: its services need docker compose 2, which isn't here; install it"
        )


@pytest.mark.slow
def test_compose_services_are_there_for_solution_and_verifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = stand_in(tmp_path, monkeypatch)
    (state / "registry").write_text("db:1")
    folder = task(tmp_path / "t", {}, "FROM x\nWORKDIR /app\n").folder
    (folder / "docker-compose.yaml").write_text("services: {client: {build: .}, db: {image: 'db:1'}}")
    (folder / "solution.sh").write_text("echo 1 > /app/done")
    (folder / "run-tests.sh").write_text("test -e /app/done")
    done = CliRunner().invoke(app, ["rollouts", "check", str(folder), "--sandbox", "docker", "--json"])
    assert done.exit_code == 0, done.output
    projects = [words[2] for words in asked(state, "compose") if words[-1] == "--wait"]
    joined = [words[words.index("--network") + 1] for words in asked(state, "run")]
    assert projects
    assert {*joined} == {*projects}
    assert len(joined) > len(projects)  # a verifier where the solution worked has its services
    assert sorted(projects) == sorted(words[2] for words in asked(state, "compose") if "down" in words)


def test_compose_services_have_one_network(tmp_path: Path) -> None:
    found = several(tmp_path, {"image": "x"}).beside
    task = Rollout(tmp_path, "harbor", "t", "t", "Do it.", services=found, states_network=True)
    asking = RolloutsOptions(network="task")
    require_network([task], "docker", asking)
    for network in (Network("allowlist", ("example.org",)), Network("no-network")):
        own = replace(task, verifier=Verifier(network=network))
        with pytest.raises(KoderzError, match="its services need one network for agent and verifier"):
            require_network([own], "docker", asking)
        require_network([own], "docker", RolloutsOptions())


def test_compose_services_of_a_separate_verifier_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    texts = {
        "task.toml": 'version = "1.0"\n[verifier]\nenvironment_mode = "separate"\n',
        "instruction.md": "Do it.\n",
        "environment/Dockerfile": "FROM x\nWORKDIR /app\n",
        "tests/Dockerfile": "FROM x\n",
        "tests/test.sh": "",
        "tests/docker-compose.yaml": "services: {main: {}, db: {image: x}}",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    assert "services.db needs an agent's environment" in unmet(load_task(folder), "docker")
