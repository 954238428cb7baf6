"""Services beside commands: what compose is asked for, by a stand-in of docker, and the real one where wanted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from koderz.errors import Fault
from koderz.sandbox.docker import DOCKER, ContainerClient
from koderz.sandbox.workspace import Command, Limits, Services
from koderz.systems.workspaces.docker import Docker
from koderz.systems.workspaces.services import ending_with
from tests.conftest import PATIENCE, wait_for
from tests.koderz.systems.workspaces.test_docker import asked, stand_in

pytestmark = pytest.mark.slow


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    state = stand_in(tmp_path, monkeypatch)
    (state / "registry").write_text("db:1")
    return state


def services(folder: Path, image: str = "db:1") -> Services:
    return Services({"db": {"image": image, "command": "echo $HOME"}}, {"kept": {}}, folder, "main", ("tests",))


def wanted(beside: Services, line: str = "true", *, network: bool = False) -> Command:
    limits = Limits(seconds=PATIENCE)
    return Command(["bash", "-c", line], services=beside, network=network, limits=limits)


def steps(state: Path) -> list[str]:
    return [words[9] for words in asked(state, "compose")]


@pytest.mark.parametrize("online", [False, True])
async def test_services_are_begun_once_for_a_place_and_joined_by_name(
    state: Path, place: Path, tmp_path: Path, online: bool
) -> None:
    async with Docker("python:3.12-slim") as docker:
        for _ in range(2):
            assert (await docker.run(wanted(services(tmp_path), network=online), place)).status == 0
        assert steps(state) == ["config", "build", "up"]
        place.rename(tmp_path / "gone")  # noqa: ASYNC240
        async with asyncio.timeout(PATIENCE):
            while "down" not in steps(state):  # noqa: ASYNC110 nothing tells of it
                await asyncio.sleep(0.02)
        place.mkdir()  # noqa: ASYNC240
        await docker.run(wanted(services(tmp_path), network=online), place)
    assert steps(state) == ["config", "build", "up", "down"] * 2
    first, *_, last = asked(state, "compose")
    name = first[2]
    assert name != last[2]
    assert "--volumes" in last
    assert not Path(first[4]).exists()  # noqa: ASYNC240 # the copy without what is hidden
    assert asked(state, "pull") == [["pull", "--quiet", "db:1"]]
    run, again, _ = asked(state, "run")
    for words in (run, again):
        at = words.index("--network")
        assert words[at : at + 4] == ["--network", name, "--network-alias", "main"]
        assert words.count("--network") == 1
    project = json.loads((state / "project").read_text())
    assert project["services"]["db"]["command"] == "echo $$HOME"
    assert project["services"]["db"]["labels"] == ["koderz=workspace"]
    assert project["networks"]["default"]["internal"] is not online


@pytest.mark.parametrize(("word", "cause"), [("config", "task"), ("build", "image"), ("up", "setup")])
async def test_services_that_cannot_be_started_are_a_fault_and_taken_down(
    state: Path, place: Path, tmp_path: Path, word: str, cause: str
) -> None:
    (state / "fails").write_text(word)
    async with Docker("python:3.12-slim") as docker:
        with pytest.raises(Fault, match=f"the task's services: docker compose: {word} fails") as found:
            await docker.run(wanted(services(tmp_path)), place)
    assert found.value.cause == cause
    assert steps(state)[-1] == "down"
    assert not asked(state, "run")


_KILLED = """
import asyncio, sys
from pathlib import Path
from koderz.sandbox.workspace import Command, Services
from koderz.systems.workspaces.docker import Docker
services = Services({"db": {"image": "db:1"}}, {}, Path(sys.argv[2]), "main")
asyncio.run(Docker("x").run(Command(["bash", "-c", "touch begun; sleep 1000"], services=services), Path(sys.argv[1])))
"""


def test_services_are_taken_down_when_koderz_is_killed(state: Path, place: Path, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _KILLED, str(place), str(tmp_path)]) as koderz:
        wait_for((place / "checkout/begun").exists)
        koderz.send_signal(signal.SIGKILL)
    wait_for(lambda: "down" in steps(state))


def test_words_are_run_though_koderz_is_interrupted_before_it_runs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = tmp_path / "docker"
    client.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    client.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    ending = asyncio.Event()

    async def hangs(*_: object, **__: object) -> str:
        ending.set()
        return await asyncio.Future()

    async def left() -> None:
        async with ending_with(DOCKER, "rm", "one"):
            pass

    async def interrupted() -> None:
        task = asyncio.create_task(left())
        await ending.wait()
        task.cancel()
        await asyncio.wait([task])

    monkeypatch.setattr(ContainerClient, "output", hangs)
    asyncio.run(interrupted())
    assert (tmp_path / "asked").read_text().splitlines()[0] == "rm one"


@pytest.mark.docker
def test_services_of_a_real_compose_answer_by_name(place: Path, tmp_path: Path) -> None:
    server = ["python3", "-m", "http.server", "8000"]
    ready = ["CMD", "python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000')"]
    web = {"image": "python:3.12-slim", "command": server, "healthcheck": {"test": ready, "interval": "1s"}}
    line = "python3 -c \"import urllib.request as u; print(u.urlopen('http://web:8000').status)\""

    async def in_loop() -> str:
        async with Docker("python:3.12-slim") as docker:
            return (await docker.run(wanted(Services({"web": web}, {}, tmp_path, "main"), line), place)).output

    assert asyncio.run(in_loop()) == "200\n"
    left = ["docker", "ps", "--all", "--quiet", "--filter", "label=koderz=workspace"]
    assert not subprocess.run(left, capture_output=True, check=True).stdout
