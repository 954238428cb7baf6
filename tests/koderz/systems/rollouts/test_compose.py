"""Compose files of one service are read; what only compose itself can give is named."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from koderz.errors import KoderzError
from koderz.sandbox.workspace.uncontained import Uncontained
from koderz.systems.rollouts.compose import HARBOR_SERVICES, Service, filled, read_compose
from koderz.systems.rollouts.formats import load_task
from koderz.systems.rollouts.runnable import unmet
from koderz.systems.rollouts.tasks import RequestedResources, Rollout
from koderz.systems.rollouts.trees import prepared


def service(folder: Path, settings: dict[str, Any], known: dict[str, str] | None = None) -> Service:
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
    assert service(tmp_path, settings) == Service()


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
    machine = "docker or podman with compose, which koderz doesn't start"
    assert service(tmp_path, settings).lacks == [(f"services.any-name.{key}", f"{machine}{told and f' ({told})'}")]


def test_compose_limits_are_those_of_commands(tmp_path: Path) -> None:
    limits = {"deploy": {"resources": {"limits": {"cpus": "1.5", "memory": "2G"}}}}
    found = task(tmp_path / "t", limits)
    assert (found.asked, unmet(found, "local")) == (RequestedResources(1.5, 2048), "")
    assert service(tmp_path, {"cpus": 2, "mem_limit": "512m"}) == Service(cpus=2.0, memory_mb=512)


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


def test_compose_of_several_services_names_them(tmp_path: Path) -> None:
    path = tmp_path / "docker-compose.yaml"
    path.write_text(yaml.safe_dump({"services": {"client": {}, "db": {"image": "postgres"}}}))
    assert [what for what, _ in read_compose(path, {}).lacks] == ["services client, db"]
    path.write_text(yaml.safe_dump({"services": {"db": {"image": "postgres"}}}))
    assert [what for what, _ in read_compose(path, {}, HARBOR_SERVICES).lacks] == ["services db"]
    for text in ("services: {}", "services: 3", "services: {a: 1}", "[", "- x"):
        path.write_text(text)
        with pytest.raises(KoderzError, match="no compose file"):
            read_compose(path, {})
