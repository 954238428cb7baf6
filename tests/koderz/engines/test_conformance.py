"""This machine and Modal do what every engine has to do."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from koderz.testing.engines import CHECKS, Check
from tests.loopback_modal import ModalServer


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_local_engine_passes_conformance(check: Check, tmp_path: Path) -> None:
    asyncio.run(check(tmp_path, "local", {}))


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_modal_is_an_engine(check: Check, tmp_path: Path, cloud: ModalServer) -> None:
    asyncio.run(check(tmp_path, "modal", os.environ))
