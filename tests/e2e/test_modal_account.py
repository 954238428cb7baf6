"""A run on a real Modal account, a few cents of it: only where `pytest -m modal` asks for it.

Rehearsed on the loopback Modal, by the variables that `python -m tests.loopback_modal` prints.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from koderz.systems.modal.names import is_configured
from tests.conftest import Shell

pytestmark = [
    pytest.mark.modal,
    pytest.mark.skipif(not is_configured(os.environ), reason="no token of Modal's is configured; run: modal setup"),
]

_COPIED = ("MODAL_SERVER_URL", "MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET", "MODAL_ENVIRONMENT", "MODAL_PROFILE")


@dataclass(frozen=True)
class Customer(Shell):
    """A machine whose token is the user's, with an app and a volume of its own that go away afterwards."""

    name: str

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        token = {name: os.environ[name] for name in _COPIED if name in os.environ}
        config = os.environ.get("MODAL_CONFIG_PATH") or str(Path.home() / ".modal.toml")
        own = {
            "MODAL_CONFIG_PATH": config,
            "KODERZ_MODAL_APP": self.name,
            "KODERZ_MODAL_VOLUME": f"{self.name}-results",
        }
        return super().environment({**own, **token, "KODERZ_MODAL_SECRET": self.name, **(more or {})})


@pytest.fixture
def customer(tmp_path: Path) -> Iterator[Customer]:
    import modal

    one = Customer(tmp_path, f"koderz-test-{uuid.uuid4().hex[:8]}")
    modal.Secret.objects.create(one.name, {"NOTHING": "of worth"})
    try:
        one("modal", "deploy")
        yield one
        one("modal", "stop")
    finally:
        modal.Secret.objects.delete(one.name, allow_missing=True)
        modal.Volume.objects.delete(f"{one.name}-results", allow_missing=True)


def test_real_account_runs_the_simulated_model_and_is_picked_up(customer: Customer) -> None:
    customer("benchmark", 0, 4, "--model", "simulated", "--engine", "modal", "--max-containers", 1, "--detach")
    assert not [line for line in customer.journal() if line["kind"] == "experiment"]

    customer("benchmark", "resume", "latest")

    summary = customer.summary()
    assert (summary["status"], summary["summary"]["total_problems"]) == ("complete", 4)
    assert summary["summary"]["cost_by_tier"]["compute"] > 0


def test_agents_work_in_sandboxes_of_a_real_account(customer: Customer) -> None:
    own = ("--suite", "rollouts", "--solver", "agent:koderz", "--model", "simulated", "--sandbox", "modal")
    customer("benchmark", 0, 3, *own)
    assert [result["success"] for result in customer.summary()["results"]] == [True, True, False]


@pytest.mark.parametrize("where", ["--engine", "--sandbox"])
def test_patches_are_timed_on_a_real_account(customer: Customer, where: str) -> None:
    customer("perf", "run", "koderz-mini__revenue", "--mode", "human", where, "modal", "--quiet")
    (human,) = customer.summary()["arms"]["human"]["results"]
    assert (human["status"], human["opt"]) == ("passed", "opt")
    assert customer.summary()["arms"]["human"]["summary"]["total_cost"] > 0
