"""The stand-in sinks for tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.tracker.sinks.standins import installed


@pytest.fixture
def standins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """The environment in which the sinks `ledger`, `other` and `absent` are there."""
    environ = installed(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return {**os.environ, **environ}
