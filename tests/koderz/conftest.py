"""A loopback Modal with koderz deployed on it, for all tests of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.loopback_modal import ModalServer


@pytest.fixture(scope="session")
def deployed() -> Iterator[ModalServer]:
    with ModalServer(secrets={"llm-api-keys": {"OPENAI_API_KEY": "sk-test-4f9a"}}, max_containers=2) as server:
        command = [sys.executable, "-m", "koderz", "modal", "deploy"]
        subprocess.run(command, env=os.environ | server.environment, check=True, capture_output=True)
        yield server


@pytest.fixture
def cloud(deployed: ModalServer, monkeypatch: pytest.MonkeyPatch) -> ModalServer:
    """The server, with Modal's SDK in this process pointed at it."""
    for name, value in deployed.environment.items():
        monkeypatch.setenv(name, value)
    return deployed
