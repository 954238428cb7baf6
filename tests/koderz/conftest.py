"""A loopback Modal with koderz deployed on it, and what this machine contains programs by; once a process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from koderz.sandbox.contained import ContainedSandbox
from tests.conftest import Shell
from tests.loopback_modal import ModalServer


@pytest.fixture(scope="session")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModalServer]:
    with ModalServer(secrets={"llm-api-keys": {"OPENAI_API_KEY": "sk-test-4f9a"}}, max_containers=2) as server:
        Shell(tmp_path_factory.mktemp("deploying"))("modal", "deploy", env=server.environment)
        yield server


@pytest.fixture
def cloud(deployed: ModalServer, monkeypatch: pytest.MonkeyPatch) -> ModalServer:
    """The server, with Modal's SDK in this process pointed at it."""
    for name, value in deployed.environment.items():
        monkeypatch.setenv(name, value)
    return deployed


@pytest.fixture(scope="session")
def holds() -> frozenset[str]:
    """The layers that this machine allows."""

    async def found() -> frozenset[str]:
        async with ContainedSandbox(judges=1, uncontained=True) as sandbox:
            return sandbox._pool.layers

    return asyncio.run(found())
