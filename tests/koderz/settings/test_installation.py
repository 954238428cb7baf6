"""What an installation holds: by default all that defaults need, and a command that adds the rest."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Literal

import pytest
from packaging.requirements import Requirement

from koderz.errors import Unreachable
from koderz.settings import installation
from koderz.settings.installation import dependency_command, extra_command, is_dependency
from koderz.settings.schema import Settings
from koderz.solvers import load_solver
from koderz.systems.long_context.wasm import opening
from koderz.systems.long_context.wasm.cells import SessionOptions
from koderz.systems.long_context.wasm.opening import open_sessions
from koderz.systems.optimizers.datasets import OPTIMIZERS

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DEPENDENCIES = {Requirement(line).name for line in PROJECT["project"]["dependencies"]}
KINDS = ("core", "all", "dev", "bench")
NOT_IN_SLIM = {"mlflow", "modal", "mcp", "pandas", "pyarrow"}


def locked(kind: str) -> str:
    return (ROOT / "requirements" / f"{kind}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("package", ["typer", "httpx", "mlflow", "modal", "orjson", "tenacity", "pytest", "respx"])
def test_chosen_package_is_a_dependency_and_is_imported(package: str) -> None:
    importing = re.compile(rf"^ *(import|from) {package}\b", re.MULTILINE)
    sources = (
        path.read_text(encoding="utf-8") for name in ("koderz", "tracker") for path in ROOT.glob(f"{name}/**/*.py")
    )

    assert package in DEPENDENCIES
    assert any(map(importing.search, sources))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_default_optimizers_import_nothing_but_dependencies(name: str) -> None:
    source = Path(inspect.getfile(load_solver(name, {}, {}).function)).read_text(encoding="utf-8")
    found = {
        root.partition(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for root in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    }

    assert not found - {"koderz"} - sys.stdlib_module_names - DEPENDENCIES


@pytest.mark.parametrize("kind", KINDS)
def test_locked_requirements_hold_all_dependencies_and_name_no_index(kind: str) -> None:
    lines = locked(kind).splitlines()

    assert not {name for name in DEPENDENCIES if not any(line.startswith(f"{name}==") for line in lines)}
    assert not [line for line in lines if "://" in line or line.startswith("-")]


def test_slim_requirements_hold_the_other_dependencies_at_the_versions_of_core() -> None:
    lines = {line for line in locked("slim").splitlines() if "==" in line}
    names = {line.partition("==")[0] for line in lines}

    assert DEPENDENCIES - names == NOT_IN_SLIM
    assert {line.split()[0] for line in lines} <= {line.split()[0] for line in locked("core").splitlines() if line}


def test_extra_named_all_locks_the_packages_of_the_extras() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = {
        Requirement(line).name
        for name in ("agents", "data", "ifeval", "optimizers", "recall", "share", "wasm")
        for line in extras[name]
    }

    assert extras["all"] == ["koderz[agents,data,ifeval,optimizers,recall,share,wasm]"]
    assert not {name for name in wanted if f"\n{name}==" not in f"\n{locked('all')}"}


def test_extra_command_is_that_of_the_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout, elsewhere = tmp_path / "my clone", tmp_path / "elsewhere"
    (checkout / "scripts").mkdir(parents=True)
    (checkout / "scripts" / "setup").touch()
    elsewhere.mkdir()
    monkeypatch.setattr(installation, "_CHECKOUT", checkout)
    by_pip = f"{sys.executable} -m pip install -e '{ROOT}[wasm]'"  # from which these tests run
    monkeypatch.chdir(elsewhere)

    monkeypatch.setattr(sys, "prefix", str(elsewhere))
    assert extra_command("wasm") == by_pip
    monkeypatch.setattr(sys, "prefix", str(checkout / ".venv"))
    assert extra_command("wasm") == f"'{checkout}/scripts/setup' all"
    monkeypatch.chdir(checkout)
    assert extra_command("wasm") == "scripts/setup all"
    (checkout / "scripts" / "setup").unlink()
    assert extra_command("wasm") == by_pip


def test_dependency_command_names_the_version_and_package_of_a_module() -> None:
    (wanted,) = (line for line in PROJECT["project"]["dependencies"] if line.startswith("pyyaml"))

    assert dependency_command("yaml.nodes").endswith(f" '{wanted}'")
    assert is_dependency("yaml.nodes")
    assert not is_dependency("mine")


def test_sessions_without_wasm_say_the_command_and_go_on_natively(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "missing_packages", lambda: "wasmtime")

    async def told(session: Literal["wasm", "native"] | None) -> tuple[str, list[str]]:
        async with open_sessions(Settings(own=(SessionOptions(session=session),)), {}) as sessions:
            return sessions.container, [*sessions.notices]

    note = f"code runs natively, contained; to have it run in WASM: {extra_command('wasm')}"
    assert asyncio.run(told(None)) == ("native", [note])
    assert asyncio.run(told("native")) == ("native", [])
    with pytest.raises(Unreachable, match=r"--session wasm needs wasmtime; run: .*; or take --session native"):
        asyncio.run(told("wasm"))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A checkout whose environment's programs only write down how they are called."""
    for name in ("scripts", "requirements", ".venv/bin"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "setup", tmp_path / "scripts")
    for name in ("pyproject.toml", *(f"requirements/{kind}.txt" for kind in KINDS)):
        (tmp_path / name).touch()
    for name in ("python", "uv"):
        program = tmp_path / ".venv" / "bin" / name
        program.write_text(f'#!/bin/sh\necho {name} "$@" >>{tmp_path}/calls\n')
        program.chmod(0o755)
    return tmp_path


def set_up(clone: Path, *words: str) -> tuple[int, str]:
    """The exit code, and the calls of programs or what is said on stderr."""
    calls = clone / "calls"
    calls.write_text("")
    environ = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run([clone / "scripts/setup", *words], env=environ, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr or calls.read_text()


def test_setup_takes_what_is_asked_for_and_else_what_is_there(clone: Path) -> None:
    assert "requirements/core.txt" in set_up(clone)[1]
    assert set_up(clone, "core") == (0, "")
    assert "requirements/all.txt" in set_up(clone, "all")[1]
    assert set_up(clone) == set_up(clone, "") == (0, "")
    (clone / "requirements" / "all.txt").write_text("changed")
    assert "requirements/all.txt" in set_up(clone)[1]
    assert set_up(clone, "al") == (2, "scripts/setup: slim, core, all, dev or bench, not al\n")


@pytest.mark.skipif(not (uv := shutil.which("uv", path=str(Path(sys.prefix, "bin")))), reason="uv is not installed")
def test_uv_run_takes_the_environment_as_it_is(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    venv.create(tmp_path / ".venv", symlinks=True)
    before = {*tmp_path.rglob("*")}
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "VIRTUAL_ENV"))}
    environ |= {"UV_OFFLINE": "1", "UV_NO_CACHE": "1", "PYTHONDONTWRITEBYTECODE": "1"}

    command = [str(uv), "run", "python", "-c", "import sys; print(sys.prefix)"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path / ".venv")), done.stderr
    assert {*tmp_path.rglob("*")} == before
