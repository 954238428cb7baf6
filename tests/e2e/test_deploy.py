"""The Dockerfile and the manifest of the WASM manager do what they say."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import PATIENCE, WASM_CACHE

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile.wasm-manager"
MANIFEST = ROOT / "deploy" / "k8s" / "rlm-sidecar-deployment.yaml"


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(MANIFEST.read_text()))


def container(name: str) -> dict[str, Any]:
    containers: list[dict[str, Any]] = manifests()[0]["spec"]["template"]["spec"]["containers"]
    return next(one for one in containers if one["name"] == name)


def test_manifest_is_valid_for_kubernetes() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for manifest in manifests():
        validate.validate(manifest, "1.37", strict=True)


def test_pod_has_only_the_rights_it_needs() -> None:
    pod = manifests()[0]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert [one["name"] for one in pod["containers"]] == ["rlm", "wasm-manager"]
    for one in pod["containers"]:
        own = one["securityContext"]
        assert own["readOnlyRootFilesystem"] is True
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert {"cpu", "memory"} <= one["resources"]["limits"].keys()


def test_manager_is_on_the_pods_loopback_and_probed_by_commands() -> None:
    manager = container("wasm-manager")
    assert manager["command"][manager["command"].index("--host") + 1] == "127.0.0.1"
    assert "ports" not in manager
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert manager[probe]["exec"]["command"] == ["python", "-m", "koderz", "wasm", "status"]
    variables = {one["name"]: one["value"] for one in container("rlm")["env"]}
    assert variables["WASM_MANAGER_SERVICE_URL"] == "http://localhost:8080"
    (policy,) = [one for one in manifests() if one["kind"] == "NetworkPolicy"]
    assert policy["spec"]["ingress"] == []
    assert policy["spec"]["podSelector"]["matchLabels"] == manifests()[0]["spec"]["template"]["metadata"]["labels"]


@pytest.mark.slow
def test_dockerfile_commands_serve_sessions_in_an_empty_environment(tmp_path: Path) -> None:
    said = DOCKERFILE.read_text().replace("\\\n", " ")
    app = tmp_path / "app"
    app.mkdir()
    for source, target in re.findall(r"^COPY (\S+) (\S+)$", said, re.MULTILINE):
        if (ROOT / source).is_dir():  # others may compile it meanwhile
            shutil.copytree(ROOT / source, app / target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, app / target)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    own = {"PYTHONPATH": str(app), "KODERZ_WASM_CACHE": str(WASM_CACHE), "KODERZ_WASM_TOKEN": "secret"}
    cache = str(tmp_path / "cache")
    state = {"XDG_CACHE_HOME": cache, "XDG_STATE_HOME": cache, "HOME": str(tmp_path / "absent")}
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "http", "HTTP"))}
    environ = {"PATH": os.environ["PATH"], **kept, **own, **state}
    installing, building = (line.partition(" && ")[0] for line in re.findall(r"^RUN (python .*)$", said, re.MULTILINE))
    for line in (installing, building):
        subprocess.run([python, *shlex.split(line)[1:]], cwd=app, env=environ, check=True, capture_output=True)
    served = json.loads(re.findall(r"^CMD (\[.*\])$", said, re.MULTILINE)[0])
    assert "--open" in served
    command = [python, *served[1:]]
    command[command.index("--port") + 1] = "0"
    manager = subprocess.Popen(command, cwd=app, env=environ, stdout=subprocess.PIPE, text=True)
    try:
        assert manager.stdout
        port = manager.stdout.readline().strip().rpartition(":")[2]
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/session", method="POST", headers={"Authorization": "Bearer secret"}
        )
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["session_id"]
    finally:
        manager.send_signal(signal.SIGTERM)
        manager.wait(PATIENCE)
        assert manager.stdout
        manager.stdout.close()


@pytest.mark.docker
def test_image_serves_sessions() -> None:
    name = "koderz-test-wasm"
    subprocess.run(["docker", "build", "-t", name, "-f", str(DOCKERFILE), str(ROOT)], check=True)
    limits = ["--read-only", "--tmpfs", "/var/cache/koderz:uid=65532", "--tmpfs", "/tmp", "--cap-drop", "ALL"]
    started = ["docker", "run", "-d", "--rm", *limits, "-p", "127.0.0.1::8080", name]
    container_id = subprocess.run(started, check=True, capture_output=True, text=True).stdout.strip()
    try:
        alive = ["docker", "exec", container_id, "python", "-m", "koderz", "wasm", "status"]
        assert any(not subprocess.run(alive, check=False).returncode for _ in range(60))
    finally:
        subprocess.run(["docker", "kill", container_id], check=True, capture_output=True)
