"""The recipes of images, and the manifest that names them, do what they say."""

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

from tests.conftest import PATIENCE, WASM_CACHE, Shell

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile.wasm-manager"
KODERZ = ROOT / "deploy" / "docker" / "Dockerfile"
HADOLINT = Path(sys.executable).with_name("hadolint")
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


@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint is not installed")
@pytest.mark.parametrize("recipe", [KODERZ, DOCKERFILE], ids=lambda path: path.name)
def test_recipes_of_images_are_clean_and_pinned(recipe: Path) -> None:
    linted = subprocess.run([HADOLINT, recipe], capture_output=True, text=True, check=False)
    assert (linted.returncode, linted.stdout) == (0, "")
    text = recipe.read_text()
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE))
    bases = {base for base in re.findall(r"^FROM (\S+)", text, re.MULTILINE) if base not in stages}
    assert bases
    assert all(re.fullmatch(r"[a-z]+:[\w.-]+@sha256:[0-9a-f]{64}", base) for base in bases)
    assert re.findall(r"^USER (\d+)", text, re.MULTILINE) == ["65532"]


def test_recipes_make_every_image_of_the_manifest() -> None:
    named = {one["image"] for one in manifests()[0]["spec"]["template"]["spec"]["containers"]}
    commands = [line for path in (KODERZ, DOCKERFILE) for line in re.findall(r"docker build (.*)", path.read_text())]
    made = {re.findall(r"-t (\S+)", line)[0]: line for line in commands}

    assert named <= made.keys()
    for line in made.values():
        (recipe,) = re.findall(r"-f (\S+)", line)
        assert (ROOT / recipe).is_file()
        assert all(f" AS {stage}\n" in (ROOT / recipe).read_text() for stage in re.findall(r"--target (\S+)", line))


def test_commands_in_recipes_and_manifest_exist(koderz: Shell) -> None:
    texts = [path.read_text().replace("\\\n#", " ") for path in (KODERZ, MANIFEST)]
    lines = {line for text in texts for line in re.findall(r"(?:-- koderz|koderz:latest) +([a-z].*)", text)}
    assert len(lines) >= 2
    for line in lines:
        koderz(*line.split(), "--dry-run", env={"LLM_API_KEY": "x"})


@pytest.mark.slow
def test_recipe_of_koderz_makes_an_installation_that_runs(tmp_path: Path) -> None:
    text = KODERZ.read_text().replace("\\\n", " ").partition("\nFROM")[2].partition("\nFROM")[0]
    source, target = tmp_path / "src", tmp_path / "opt"
    source.mkdir()
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("KODERZ_", "VIRTUAL_ENV"))}
    environ |= {"KIND": "slim", "PYTHONDONTWRITEBYTECODE": "1"}
    for word, rest in re.findall(r"^(COPY|RUN) (.*)$", text, re.MULTILINE):
        if word == "RUN":
            line = rest.replace("/opt/koderz", str(target)).replace("python -m venv", f"{sys.executable} -m venv", 1)
            subprocess.run(["sh", "-ec", line], cwd=source, env=environ, check=True, capture_output=True)
            continue
        *paths, place = rest.split()
        for path in paths:
            to = source / (path if place == "./" else place)
            to.parent.mkdir(exist_ok=True)
            if (ROOT / path).is_dir():
                shutil.copytree(ROOT / path, to, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / path, to)
    results = tmp_path / "results"
    environ |= {"KODERZ_RESULTS": str(results), "HOME": str(tmp_path / "absent"), "KODERZ_SINKS": "json"}
    command = [str(target / "bin" / "koderz"), "benchmark", "0", "2", "--model", "simulated"]
    subprocess.run(command, cwd=tmp_path, env=environ, check=True, capture_output=True)
    assert len([*results.glob("bench_*.json")]) == 1


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
