"""The tests of a module judge in one sandbox."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.koderz.suites.rows import JUDGES


@pytest.fixture(scope="module", autouse=True)
def _judges() -> Iterator[None]:
    yield
    JUDGES.close()
