from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import modal
import pytest

from tests.conftest import PATIENCE
from tests.loopback_modal import ModalServer
from tests.loopback_modal.processes import rooted

pytestmark = pytest.mark.slow


@pytest.fixture
def sandbox(client: modal.Client) -> Iterator[modal.Sandbox]:
    app = modal.App.lookup("sandboxed", create_if_missing=True, client=client)
    one = modal.Sandbox.create(app=app, timeout=600, block_network=True, cpu=1.0, memory=256, client=client)
    yield one
    one.terminate()


def test_sandbox_command_is_fed_read_and_waited_for(sandbox: modal.Sandbox) -> None:
    shout = "import sys; print(sys.stdin.read().upper()); print('oh', file=sys.stderr); sys.exit(3)"
    process = sandbox.exec("python", "-c", shout)
    process.stdin.write("judge me")
    process.stdin.write_eof()
    process.stdin.drain()
    assert process.stdout.read() == "JUDGE ME\n"
    assert process.stderr.read() == "oh\n"
    assert process.wait() == 3


def test_sandbox_has_its_own_folder_and_none_of_our_variables(
    sandbox: modal.Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "ours")
    sandbox.exec("sh", "-c", "echo hello > note").wait()
    assert sandbox.exec("cat", "note").stdout.read() == "hello\n"
    assert "OPENAI" not in sandbox.exec("env").stdout.read()
    assert "MODAL_SERVER_URL" not in sandbox.exec("env").stdout.read()


@pytest.mark.skipif(not rooted(), reason="needs user namespaces")
def test_sandbox_without_network_reaches_nothing(deployed: ModalServer, sandbox: modal.Sandbox) -> None:
    reach = f"import socket; socket.create_connection(('127.0.0.1', {deployed.url.rpartition(':')[2]}), 5)"
    process = sandbox.exec("python", "-c", reach)
    assert process.wait() == 1
    assert "refused" in process.stderr.read().lower()  # by its own loopback
    with socket.create_connection(("127.0.0.1", int(deployed.url.rpartition(":")[2]))):
        pass


def test_sandbox_creation_can_be_read_by_tests(deployed: ModalServer, client: modal.Client) -> None:
    app = modal.App.lookup("recorded", create_if_missing=True, client=client)
    secret = modal.Secret.from_name("keys", client=client)
    one = modal.Sandbox.create("sleep", "600", app=app, secrets=[secret], timeout=300, client=client)
    asked = deployed.sandboxes[-1]
    assert (asked.id, asked.app_id, asked.lives) == (one.object_id, app.app_id, True)
    assert (asked.blocks_network, len(asked.secrets), asked.asked.timeout_secs) == (False, 1, 300)
    assert one.exec("printenv", "KEY").stdout.read() == "of-the-secret\n"
    assert one.poll() is None
    one.terminate()
    assert not deployed.sandboxes[-1].lives
    assert one.poll() == 137


def test_sandbox_ends_with_its_own_command(client: modal.Client) -> None:
    app = modal.App.lookup("own", create_if_missing=True, client=client)
    one = modal.Sandbox.create("sh", "-c", "echo out; exit 4", app=app, client=client)
    one.wait(raise_on_termination=False)
    assert one.returncode == 4
    assert one.stdout.read() == "out\n"


def test_sandbox_that_runs_too_long_is_ended(client: modal.Client) -> None:
    app = modal.App.lookup("own", create_if_missing=True, client=client)
    one = modal.Sandbox.create("sleep", "60", app=app, timeout=1, client=client)
    with pytest.raises(modal.exception.SandboxTimeoutError):
        one.wait()


def test_sandbox_command_that_runs_too_long_is_killed(sandbox: modal.Sandbox) -> None:
    began = time.monotonic()
    assert sandbox.exec("sleep", str(2 * PATIENCE), timeout=1).wait() != 0
    assert time.monotonic() - began < PATIENCE
