"""A verifier with a channel for its rewards, run on files of an agent's."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from koderz.errors import Unreachable
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import Command, Ended, Limits, Mount, RewardChannel
from koderz.systems.workspaces.docker import Docker
from koderz.systems.workspaces.local import Local
from tests.koderz.systems.workspaces.test_docker import STAND_IN

CHECK = """
import subprocess, sys
out = subprocess.run(["python3", "/workspace/solve.py"], capture_output=True, text=True)
print(out.stdout, out.stderr)
sys.exit(out.stdout.split()[-1:] != ["4"])
"""
REWARD = "if [ $? -eq 0 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi\n"
TEST = f"python3 /tests/check.py\n{REWARD}"

Verified = Callable[..., tuple[Ended, Mapping[str, str]]]


def _container(folder: Path) -> Iterator[Docker]:
    (folder / "bin").mkdir()
    path = folder / "bin/docker"
    python = Path(sys.executable).resolve()
    path.write_text(STAND_IN.format(python=python, state=str(folder), inspected="false "))
    path.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
        yield Docker("debian")


@pytest.fixture(
    scope="module", params=["bubblewrap", "own namespaces", pytest.param("a container", marks=pytest.mark.slow)]
)
def local(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local | Docker]:
    if request.param == "a container":
        yield from _container(tmp_path_factory.mktemp("containers"))
        return
    found = Local(bubblewrap_allowed=request.param == "bubblewrap")
    try:
        asyncio.run(found.__aenter__())
    except Unreachable as error:
        pytest.skip(str(error))
    yield found
    asyncio.run(found.__aexit__(None, None, None))


@pytest.fixture
def verified(local: Local | Docker) -> Verified:
    def run(files: Mapping[str, str], test: str = TEST, **more: str) -> tuple[Ended, Mapping[str, str]]:
        with scratch() as place, scratch() as logs, scratch() as tests:
            for path, text in files.items():
                (place / "checkout" / path).parent.mkdir(parents=True, exist_ok=True)
                (place / "checkout" / path).write_text(text)
                (place / "checkout" / path).chmod(0o755)
            for path, text in {"check.py": CHECK, "answer": "4", "test.sh": test, **more}.items():
                (tests / path).write_text(text)
            agents = [f"/workspace/{path}" for path in files]
            channel = RewardChannel(logs, hidden=["/tests"], agents=agents, homes=["/workspace", "/tmp"])
            wanted = Command(
                ["bash", "/tests/test.sh"],
                mounts=[Mount(tests, "/tests")],
                channel=channel,
                limits=Limits(seconds=30, grace=1),
            )
            ended = asyncio.run(local.run(wanted, place))
            found = {path.relative_to(logs).as_posix(): path for path in logs.rglob("*") if path.is_file()}
            return ended, {name: path.read_text().strip() for name, path in found.items()}

    return run
