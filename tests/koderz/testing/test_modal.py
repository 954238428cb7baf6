from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import modal
import pytest

from tests.conftest import PATIENCE, are_gone, descendants, wait_for
from tests.koderz.testing.conftest import APP, Lookup
from tests.loopback_modal import ModalServer
from tests.loopback_modal.processes import rooted

pytestmark = pytest.mark.slow


def test_function_is_found_spawned_and_read_from_its_id(client: modal.Client, function: Lookup) -> None:
    call = function("wait").spawn(0.0)
    assert modal.FunctionCall.from_id(call.object_id, client=client).get(timeout=PATIENCE) == 0.0


def test_unfinished_call_is_a_builtin_timeout(client: modal.Client, function: Lookup) -> None:
    call = function("wait").spawn(30.0)
    with pytest.raises(TimeoutError):
        call.get(timeout=0)
    call.cancel()
    with pytest.raises(modal.exception.RemoteError):
        call.get(timeout=PATIENCE)


def test_dict_is_shared_by_client_and_functions(client: modal.Client) -> None:
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


def test_deployment_can_be_read_by_tests(deployed: ModalServer) -> None:
    asked = deployed.functions["look_around"]
    assert (asked.gpu, asked.timeout, asked.retries, asked.max_containers) == ("H100:2", 120, 0, 2)
    assert list(asked.volumes) == ["/results"]
    assert len(asked.secrets) == 1
    assert deployed.functions["wait"].concurrency == 20
    assert "serve" in deployed.functions["serve"].web_url
    assert any("orjson==3.11" in line for line in deployed.dockerfile("look_around"))
    mounted = deployed.mounted("look_around")
    assert {"/root/app.py", "/root/koderz_tracker/__init__.py"} <= set(mounted)
    assert not any("/koderz/" in path for path in mounted)
    assert not deployed.missing


@pytest.mark.skipif(not rooted(), reason="needs user namespaces")
def test_input_runs_where_only_mounted_files_are(deployed: ModalServer, client: modal.Client, function: Lookup) -> None:
    seen = function("look_around").remote("alpha")
    assert seen["environment"] == {"KEY": "of-the-secret", "FLAVOUR": "plain", "KODERZ_UNRELATED": None}
    assert seen["folder"] == "/root"
    assert seen["modules"] == {"koderz_tracker": "/root/koderz_tracker/__init__.py", "koderz": "missing"}
    assert (deployed.volume("results") / "alpha").read_text() == "written by alpha"
    volume = modal.Volume.from_name("results", client=client)
    assert b"".join(volume.read_file("alpha")) == b"written by alpha"
    assert modal.Dict.from_name("notes", client=client)["alpha"]["pid"] != os.getpid()


@pytest.mark.skipif(not rooted(), reason="needs user namespaces")
def test_containers_end_with_a_server_that_is_killed(tmp_path: Path) -> None:
    script = f"""
import subprocess, sys, time, modal
from tests.loopback_modal import ModalServer
with ModalServer(secrets={{"keys": {{"KEY": "x"}}}}) as server:
    command = [sys.executable, "-m", "modal", "deploy", {str(APP)!r}]
    subprocess.run(command, env={{**__import__("os").environ, **server.environment}}, stdout=2, check=True)
    with server.client() as client:
        modal.Function.from_name("probe", "wait", client=client).remote(0.0)
        modal.Function.from_name("probe", "wait", client=client).spawn(300.0)
        print("up", flush=True)
        time.sleep(60)
"""
    server = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    with server:
        assert server.stdout
        assert server.stdout.readline() == "up\n"
        containers = descendants(server.pid)
        server.send_signal(signal.SIGKILL)

    assert containers
    wait_for(lambda: are_gone(containers))
