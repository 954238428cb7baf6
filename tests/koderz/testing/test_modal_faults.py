"""What a client is told when something is wrong with it, or with what it asks for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import modal
import pytest

from tests.conftest import PATIENCE
from tests.koderz.testing.conftest import deploy
from tests.loopback_modal import ModalServer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[ModalServer]:
    with ModalServer(foreign_volumes={"theirs"}, tokens={"ak-known"}) as one:
        yield one


@pytest.fixture
def client(server: ModalServer) -> Iterator[modal.Client]:
    with server.client() as one:
        yield one


def test_unknown_token_is_an_auth_error(server: ModalServer) -> None:
    from modal.client import Client
    from modal_proto import api_pb2

    stranger = Client(server.url, api_pb2.CLIENT_TYPE_CLIENT, ("ak-other", "as"))
    with stranger, pytest.raises(modal.exception.AuthError):
        modal.Dict.from_name("any", create_if_missing=True, client=stranger).hydrate()


def test_token_can_be_refused_for_a_while(server: ModalServer, client: modal.Client) -> None:
    server.weather.refuse_token = True
    with pytest.raises(modal.exception.AuthError):
        modal.App.lookup("any", create_if_missing=True, client=client)
    server.weather.refuse_token = False
    assert modal.App.lookup("any", create_if_missing=True, client=client).app_id


def test_foreign_volume_is_denied(client: modal.Client) -> None:
    with pytest.raises(modal.exception.PermissionDeniedError, match="theirs"):
        modal.Volume.from_name("theirs", create_if_missing=True, client=client).hydrate()


@pytest.mark.parametrize("kind", [modal.Volume, modal.Secret, modal.Dict])
def test_missing_name_is_not_found(client: modal.Client, kind: type[modal.Volume]) -> None:
    with pytest.raises(modal.exception.NotFoundError, match="missing"):
        kind.from_name("missing", client=client).hydrate()


def test_gpu_that_does_not_exist_is_refused_by_name(client: modal.Client) -> None:
    def compute() -> None: ...

    app = modal.App("graphics")
    app.function(gpu="H1000", serialized=True)(compute)
    with pytest.raises(modal.exception.InvalidError, match="H1000"):
        app.deploy(client=client)


def test_modal_deploy_names_the_secret_that_is_missing(tmp_path: Path) -> None:
    with ModalServer() as bare:
        done = deploy(bare, tmp_path / "app", check=False)
    assert done.returncode == 1
    assert "Secret 'keys' not found" in done.stdout + done.stderr


@pytest.mark.parametrize("version", [1, 2])
def test_files_are_put_into_a_volume_listed_read_and_removed(
    server: ModalServer, client: modal.Client, tmp_path: Path, version: int
) -> None:
    large = tmp_path / "large"
    large.write_bytes(
        os.urandom((8 << 20) - 3) + bytes(9) + os.urandom(1 << 20) + bytes(5)
    )  # blocks that end with zeros
    volume = modal.Volume.from_name(f"files-{version}", create_if_missing=True, version=version, client=client)
    with volume.batch_upload() as batch:
        batch.put_file(large, "/runs/one/large")
    with volume.batch_upload(force=True) as batch:
        batch.put_file(large, "/runs/two")
    assert {entry.path for entry in volume.listdir("/", recursive=True)} == {
        "runs",
        "runs/one",
        "runs/one/large",
        "runs/two",
    }
    assert b"".join(volume.read_file("runs/one/large")) == large.read_bytes()
    volume.remove_file("runs/two")
    assert not (server.volume(f"files-{version}") / "runs" / "two").exists()
    with pytest.raises(FileNotFoundError):
        list(volume.read_file("runs/two"))
    with pytest.raises(FileExistsError), volume.batch_upload() as batch:
        batch.put_file(large, "/runs/one/large")


def test_volume_path_cannot_lead_out(client: modal.Client) -> None:
    volume = modal.Volume.from_name("files", create_if_missing=True, client=client)
    with pytest.raises(modal.exception.InvalidError):
        list(volume.read_file("../../state.db"))


def test_stopped_app_is_no_longer_found(client: modal.Client) -> None:
    def idle() -> None: ...

    app = modal.App("short-lived")
    app.function(serialized=True, name="idle")(idle)
    app.deploy(client=client)
    modal.Function.from_name("short-lived", "idle", client=client).hydrate()
    modal.App.lookup("short-lived", client=client).stop()
    with pytest.raises(modal.exception.NotFoundError):
        modal.Function.from_name("short-lived", "idle", client=client).hydrate()


def test_command_prints_the_variables_to_set(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.loopback_modal",
        "--folder",
        str(tmp_path / "state"),
        "--secret",
        "k:A=1,B=2",
    ]
    reach = "import modal; print(modal.Secret.from_name('k').info().name)"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(5)]
        variables = dict(line.removeprefix("export ").split("=", 1) for line in lines)
        done = subprocess.run(
            [sys.executable, "-c", reach], env={**os.environ, **variables}, capture_output=True, text=True, check=False
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE) == 0
    assert (done.stdout, done.stderr) == ("k\n", "")


def test_command_refuses_an_invalid_option_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.loopback_modal", "--secret", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "not a secret: 'nonsense'; write llm-api-keys:OPENAI_API_KEY=x,OTHER=y\n"
