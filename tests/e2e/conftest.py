"""A loopback Modal with koderz deployed on it, and commands that run there, for all tests of a process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from tests.conftest import Server, Shell, servers
from tests.koderz.systems.workspaces.test_docker import stand_in
from tests.loopback_modal import ModalServer
from tests.loopback_modal.processes import rooted

MODEL = ("--model", "openai/gpt-4o-mini", "--engine", "modal")


@pytest.fixture(scope="session")
def modal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModalServer]:
    """A loopback Modal with this koderz deployed on it."""
    with ModalServer(secrets={"llm-api-keys": {}}, max_containers=2) as server:
        Shell(tmp_path_factory.mktemp("deploying"))("modal", "deploy", env=server.environment)
        yield server


@pytest.fixture(scope="session")
def model(modal: ModalServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The model server that containers ask; one for all tests, so that containers stay warm."""
    with servers(tmp_path_factory.mktemp("model")) as start:
        server = start("--model", "gpt-4o-mini", "--latency-ms", "200")
        modal.put_secret("llm-api-keys", server.env())
        yield server


@pytest.fixture
def on_modal(koderz: Shell, modal: ModalServer, model: Server) -> Remote:
    """`koderz` whose containers ask a loopback model server, see `asked`."""
    return Remote(koderz.folder, modal, model, len(model.answers()))


@pytest.fixture(scope="session")
def cloud() -> Iterator[ModalServer]:
    """A loopback Modal on which nothing is deployed."""
    with ModalServer() as server:
        yield server


@pytest.fixture(params=["local", *(pytest.param(name, marks=pytest.mark.slow) for name in ("docker", "modal"))])
def anywhere(
    koderz: Shell,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Shell:
    """`koderz` whose workspaces are on this machine, in containers of a stand-in of docker's, on a loopback Modal."""
    variables = {"KODERZ_SANDBOX": request.param}
    if request.param == "docker":
        stand_in(tmp_path_factory.mktemp("docker"), monkeypatch)
    if request.param == "modal":
        if not rooted():
            pytest.skip("needs user namespaces")
        variables |= request.getfixturevalue("cloud").environment
    return Elsewhere(koderz.folder, variables)


@dataclass(frozen=True)
class Elsewhere(Shell):
    """A machine with some variables set."""

    variables: Mapping[str, str]

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return super().environment({**self.variables, **(more or {})})


@dataclass(frozen=True)
class Remote(Shell):
    """A machine that knows the loopback Modal."""

    modal: ModalServer
    server: Server
    before: int  # answers that the server had given

    def asked(self) -> int:
        """How often the model was asked in this test."""
        return len(self.server.answers()) - self.before

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return super().environment({"KODERZ_JUDGES": "1", **self.modal.environment, **(more or {})})


def once_each(shell: Shell, n: int) -> None:
    """Every experiment ended once, and no call or verdict was recorded twice."""
    lines = shell.journal()
    ends = Counter(line["experiment_id"] for line in lines if line["kind"] == "experiment")
    assert len(ends) == n
    assert set(ends.values()) == {1}
    made = Counter((line["experiment_id"], line["kind"], line["key"]) for line in lines if "key" in line)
    assert set(made.values()) == {1}


def paid_once(shell: Remote) -> None:
    """The model server answered nothing that isn't in the journal, and nothing twice."""
    calls = [line for line in shell.journal() if line["kind"] == "call"]
    assert shell.asked() == len(calls)


def one_line(text: str) -> str:
    (line,) = (line for line in text.splitlines() if line.startswith("koderz: "))
    assert "Traceback" not in text
    return line
