"""The sandbox of rollouts where none is named."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from koderz.errors import KoderzError
from koderz.systems.rollouts.options import usual_sandbox
from tests.conftest import Shell
from tests.koderz.systems.workspaces.test_docker import stand_in


def test_backend_is_named_by_the_variable() -> None:
    assert asyncio.run(usual_sandbox({"SANDBOX_BACKEND": "uncontained"})) == "uncontained"
    with pytest.raises(KoderzError, match="SANDBOX_BACKEND=dokcer: there are contained"):
        asyncio.run(usual_sandbox({"SANDBOX_BACKEND": "dokcer"}))


def test_docker_is_taken_where_a_daemon_answers_and_else_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setenv("PATH", str(tmp_path))
        assert asyncio.run(usual_sandbox({})) == "local"
    stand_in(tmp_path, monkeypatch)
    assert asyncio.run(usual_sandbox({})) == "docker"


@pytest.mark.slow
def test_backend_that_cannot_run_exits_with_4(koderz: Shell) -> None:
    koderz("rollouts", "sample", "tasks")
    (koderz.folder / "one.toml").write_text('[[tasks]]\nprepared_dir = "tasks/median"\nagent = "nop"\n')
    words, environ = ("rollouts", "run", "one.toml"), {"DOCKER_HOST": "tcp://127.0.0.1:9"}
    assert "docker" in koderz(*words, env={**environ, "SANDBOX_BACKEND": "docker"}, code=4).err
    without = {"SANDBOX_BACKEND": "modal", "MODAL_SERVER_URL": "http://127.0.0.1:9"}
    assert "there is no token of Modal's here" in koderz(*words, env={**environ, **without}, code=4).err
    token = {"MODAL_TOKEN_ID": "ak-none", "MODAL_TOKEN_SECRET": "as-none"}
    assert "Modal can't be reached" in koderz(*words, env={**environ, **without, **token}, code=4).err
    done = koderz(*words, "--sandbox", "local", env={**environ, "SANDBOX_BACKEND": "docker"})
    assert done.out.startswith("[rollouts] sandbox=local\n")
