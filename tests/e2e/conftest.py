"""What the tests of real runs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import Server, servers


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One model server for all that ask it from Modal's containers, which so can stay warm."""
    with servers(tmp_path_factory.mktemp("model")) as start:
        yield start("--model", "gpt-4o-mini", "--latency-ms", "200")
