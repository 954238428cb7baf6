from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import modal
import pytest

from koderz.testing.modal import ModalServer
from koderz.testing.modal.processes import rooted

APP = Path(__file__).with_name("deployed_app.py")
SECRETS = {"keys": {"KEY": "of-the-secret"}}


def deploy(server: ModalServer, folder: Path, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """`modal deploy`, in a process and a folder of its own."""
    folder.mkdir(exist_ok=True)
    shutil.copy(APP, folder / "app.py")
    command = [sys.executable, "-m", "modal", "deploy", "app.py"]
    environment = {**os.environ, **server.environment}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=check)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModalServer]:
    with ModalServer(secrets=SECRETS) as one:
        deploy(one, tmp_path_factory.mktemp("app"))
        yield one


@pytest.fixture
def client(server: ModalServer) -> Iterator[modal.Client]:
    with server.client() as one:
        yield one


def function(client: modal.Client, name: str) -> modal.Function[..., Any, Any]:
    return modal.Function.from_name("probe", name, client=client)


def test_a_deployed_function_is_found_spawned_and_read_from_its_id(client: modal.Client) -> None:
    call = function(client, "wait").spawn(0.0)
    assert modal.FunctionCall.from_id(call.object_id, client=client).get(timeout=60) == 0.0


def test_what_isnt_done_yet_is_a_builtin_timeout(client: modal.Client) -> None:
    call = function(client, "wait").spawn(30.0)
    with pytest.raises(TimeoutError):
        call.get(timeout=0)
    call.cancel()
    with pytest.raises(modal.exception.RemoteError):
        call.get(timeout=10)


def test_a_dict_is_shared_by_client_and_functions(client: modal.Client) -> None:
    shared = modal.Dict.from_name("shared", create_if_missing=True, client=client)
    shared["one"] = {"a": 1}
    assert shared.put("one", 2, skip_if_exists=True) is False
    assert shared.put("two", 2, skip_if_exists=True) is True
    shared.update({"three": 3})
    assert shared["one"] == {"a": 1}
    assert "two" in shared
    assert shared.len() == 3
    assert dict(shared.items()) == {"one": {"a": 1}, "two": 2, "three": 3}
    assert shared.pop("two") == 2
    with pytest.raises(KeyError):
        shared["two"]


def test_a_test_can_read_what_a_function_was_deployed_with(server: ModalServer) -> None:
    asked = server.functions["look_around"]
    assert (asked.gpu, asked.timeout, asked.retries, asked.max_containers) == ("H100:2", 120, 0, 2)
    assert list(asked.volumes) == ["/results"]
    assert len(asked.secrets) == 1
    assert server.functions["wait"].concurrency == 20
    assert "serve" in server.functions["serve"].web_url
    assert any("orjson==3.11" in line for line in server.dockerfile("look_around"))
    mounted = server.mounted("look_around")
    assert {"/root/app.py", "/root/tracker/__init__.py"} <= set(mounted)
    assert not any("koderz" in path for path in mounted)
    assert not server.missing


@pytest.mark.skipif(not rooted(), reason="needs user namespaces")
def test_an_input_runs_where_only_the_mounted_files_are(server: ModalServer, client: modal.Client) -> None:
    seen = function(client, "look_around").remote("alpha")
    assert seen["environment"] == {"KEY": "of-the-secret", "FLAVOUR": "plain", "KODERZ_UNRELATED": None}
    assert seen["folder"] == "/root"
    assert seen["modules"] == {"tracker": "/root/tracker/__init__.py", "koderz": "missing"}
    assert (server.volume("results") / "alpha").read_text() == "written by alpha"
    volume = modal.Volume.from_name("results", client=client)
    assert b"".join(volume.read_file("alpha")) == b"written by alpha"
    assert modal.Dict.from_name("notes", client=client)["alpha"]["pid"] != os.getpid()
