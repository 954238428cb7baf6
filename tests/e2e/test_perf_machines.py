"""Patches measured on a real Docker daemon, and on GPUs: only where `pytest -m docker` or `pytest -m gpu` asks for it.

On a real Modal account: see `test_modal_account`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Shell

ROWS = Path(os.environ.get("KODERZ_TEST_DATA", "nowhere")) / "perf" / "gpu.jsonl"
_KEPT = ("HOME", "HF_HOME", "HF_TOKEN", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_USERNAME", "DOCKER_PASSWORD")


def _user() -> Mapping[str, str]:
    """What reaches the user's own daemon, images and models."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ}


def _human(koderz: Shell) -> dict[str, Any]:
    (result,) = koderz.summary()["arms"]["human"]["results"]
    return dict(result)


@pytest.mark.docker
def test_human_patch_is_faster_in_real_containers(koderz: Shell) -> None:
    koderz("perf", "run", "koderz-mini__revenue", "--mode", "human", "--sandbox", "docker", "--quiet", env=_user())
    human = _human(koderz)
    assert (human["status"], human["opt"]) == ("passed", "opt")


@pytest.mark.docker
def test_server_is_put_under_load_in_a_real_container(koderz: Shell) -> None:
    own = ("--mode", "human", "--sandbox", "docker", "--rounds", "1", "--quiet")
    koderz("perf", "run", "koderz-mini__generation", *own, env=_user())
    assert _human(koderz)["metrics"]["completed_human"] > 0


@pytest.mark.gpu
@pytest.mark.skipif(not ROWS.is_file(), reason="KODERZ_TEST_DATA has no perf/gpu.jsonl, rows of ISO-Bench")
def test_model_serving_row_is_measured_on_a_gpu(koderz: Shell) -> None:
    own = ("--dataset", ROWS, "--suite", "iso", "--limit", "1", "--mode", "human", "--rounds", "1", "--quiet")
    koderz("perf", "run", *own, "--sandbox", os.environ.get("KODERZ_SANDBOX", "docker"), env=_user())
    human = _human(koderz)
    assert (human["status"], bool(human["metric"])) == ("passed", True)
