from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import modal
import pytest

from tests.loopback_modal import ModalServer

APP = Path(__file__).with_name("deployed_app.py")
SECRETS = {"keys": {"KEY": "of-the-secret"}}
Lookup = Callable[[str], modal.Function[..., Any, Any]]


def deploy(server: ModalServer, folder: Path, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """`modal deploy`, in a process and a folder of its own."""
    folder.mkdir(exist_ok=True)
    shutil.copy(APP, folder / "app.py")
    command = [sys.executable, "-m", "modal", "deploy", "app.py"]
    environment = {**os.environ, **server.environment}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=check)


@pytest.fixture(scope="session")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModalServer]:
    """A loopback Modal on which the app of these tests is deployed; all tests share it."""
    with ModalServer(secrets=SECRETS) as server:
        deploy(server, tmp_path_factory.mktemp("app"))
        yield server


@pytest.fixture
def client(deployed: ModalServer) -> Iterator[modal.Client]:
    with deployed.client() as one:
        yield one


@pytest.fixture
def function(client: modal.Client) -> Lookup:
    """Finds a function of the deployed app by its name."""
    return lambda name: modal.Function.from_name("probe", name, client=client)
