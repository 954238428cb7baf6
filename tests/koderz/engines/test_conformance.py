"""This machine and Modal do what every engine has to do."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from koderz.testing.engines import (
    CHECKS,
    Check,
    nothing_is_begun_once_the_run_is_to_stop,
    what_is_on_record_is_not_made_again,
)
from koderz.testing.modal import ModalServer


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_this_machine_is_an_engine(check: Check, tmp_path: Path) -> None:
    asyncio.run(check(tmp_path, "local", {}))


LONG = (what_is_on_record_is_not_made_again, nothing_is_begun_once_the_run_is_to_stop)
"""Those that take longest on Modal; what is on record is the matter of tests/e2e/test_modal.py, too."""


@pytest.mark.parametrize(
    "check",
    [pytest.param(check, marks=pytest.mark.slow if check in LONG else ()) for check in CHECKS],
    ids=lambda check: check.__name__,
)
def test_modal_is_an_engine(check: Check, tmp_path: Path, cloud: ModalServer) -> None:
    asyncio.run(check(tmp_path, "modal", os.environ))
