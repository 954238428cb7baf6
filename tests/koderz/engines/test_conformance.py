"""This machine and Modal do what every engine has to do."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from koderz.testing.engines import CHECKS, Check
from tests.loopback_modal import ModalServer


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_this_machine_is_an_engine(check: Check, tmp_path: Path) -> None:
    asyncio.run(check(tmp_path, "local", {}))


LONG = CHECKS[2:]
"""Slow on Modal; this machine does them in moments, and tests/e2e/test_modal.py is about what is on record, too."""


@pytest.mark.parametrize(
    "check",
    [pytest.param(check, marks=pytest.mark.slow if check in LONG else ()) for check in CHECKS],
    ids=lambda check: check.__name__,
)
def test_modal_is_an_engine(check: Check, tmp_path: Path, cloud: ModalServer) -> None:
    asyncio.run(check(tmp_path, "modal", os.environ))
