"""The commands that messages name, typed as they stand, in installations of every kind."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import served

ROOT = Path(__file__).parents[2]
SEED = ROOT / "tests" / "toys" / "seed"
PIP = Path(pytest.__file__).parents[1] / "pip"
UV = str(Path(sys.executable).with_name("uv"))
PIPX = str(Path(sys.executable).with_name("pipx"))
needs_uv = pytest.mark.skipif(not Path(UV).exists(), reason="uv is not installed")


@dataclass(frozen=True)
class Machine:
    """A folder with the project, wheels of what its extras need, and where tools put what they install."""

    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def project(self) -> Path:
        return self.folder / "my clone"

    def run(self, *words: object, shell: bool = False) -> str:
        """What a command, or a line of shell, prints."""
        command = ["sh", "-c", *map(str, words)] if shell else [*map(str, words)]
        done = subprocess.run(
            command, cwd=self.folder, env={**os.environ, **self.env}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    @property
    def wheel(self) -> Path:
        (path,) = self.folder.glob("koderz-*.whl")
        return path

    def repository(self) -> Iterator[str]:
        """The address of the project's repository on a server of this machine, for as long as it is asked."""
        identity = ("-c", "user.name=a", "-c", "user.email=a@a")
        for words in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "a"], ["update-server-info"]):
            self.run("git", "-C", self.project, *words)
        with served(self.project) as address:
            yield f"git+{address}/.git"

    def environment(self, *, pip: bool) -> Path:
        """The folder of programs of a new environment, with or without pip."""
        place = self.folder / "env"
        venv.create(place, symlinks=True)
        if pip:
            (library,) = place.glob("lib/python*/site-packages")
            (library / "pip").symlink_to(PIP)
        return place / "bin"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    dropped = ("UV_", "PIP_", "PIPX_", "VIRTUAL_ENV", "PYTHONPATH", "KODERZ_")
    env = {name: "" for name in os.environ if name.startswith(dropped)}
    env |= {
        "UV_TOOL_DIR": f"{tmp_path}/tools",
        "UV_TOOL_BIN_DIR": f"{tmp_path}/bin",
        "UV_CACHE_DIR": f"{tmp_path}/cache",
    }
    env |= {"UV_OFFLINE": "1", "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(wheels), "PIP_NO_INDEX": "1"}
    env |= {"PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull, "PIPX_HOME": f"{tmp_path}/pipx"}
    env |= {"PIPX_BIN_DIR": f"{tmp_path}/bin", "PATH": f"{tmp_path}/path:{Path(UV).parent}:{os.environ['PATH']}"}
    made = Machine(tmp_path, {name: value for name, value in env.items() if value})
    shutil.copytree(SEED, made.project)
    settings = made.project / "koderz" / "settings"
    settings.mkdir()
    settings.joinpath("__init__.py").touch()
    shutil.copy(ROOT / "koderz" / "settings" / "installation.py", settings)
    spec = importlib.util.spec_from_file_location("backend", SEED / "backend" / "backend.py")
    assert spec
    assert spec.loader
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    for name in ("sprout", "twig"):
        backend.write_wheel(str(wheels), name, "1.0", {f"{name}/__init__.py": ""}, [])
    backend.ROOT = made.project  # type: ignore[attr-defined]
    backend.build_wheel(str(tmp_path))
    return made


def sources(machine: Machine, editable: str) -> Mapping[str, list[str | Path]]:
    """The words that an installer is told, by what it installs."""
    return {"folder": [machine.project], "editable": [editable, machine.project], "name": ["koderz"]}


def type_each(machine: Machine, koderz: Sequence[object], *, begins: str | tuple[str, ...]) -> None:
    """Type the command for an extra, then the one for a package, and see that both, and all before, are there."""
    command = machine.run(*koderz, "extra_command", "leaf")
    assert command.startswith(begins)
    machine.run(command, shell=True)
    assert "sprout" in machine.run(*koderz, "installed")
    machine.run(machine.run(*koderz, "package_command", "twig>=1"), shell=True)
    assert machine.run(*koderz, "installed") == "sprout twig"


@pytest.mark.slow
@pytest.mark.parametrize("source", ["folder", "editable", "wheel", "gone", "name"])
def test_install_commands_work_where_pip_installed_koderz(machine: Machine, source: str) -> None:
    bin_folder = machine.environment(pip=True)
    python = bin_folder / "python"
    if source == "name":
        shutil.copy(machine.wheel, machine.folder / "wheels")
    machine.run(python, "-m", "pip", "install", *sources(machine, "-e").get(source, [machine.wheel]))
    if source == "gone":
        machine.wheel.unlink()

    type_each(machine, [bin_folder / "koderz"], begins=f"{python} -m pip install ")


@pytest.mark.slow
def test_install_commands_work_where_koderz_is_from_git(machine: Machine) -> None:
    bin_folder = machine.environment(pip=True)
    for address in machine.repository():
        machine.run(bin_folder / "python", "-m", "pip", "install", address)
        type_each(
            machine, [bin_folder / "koderz"], begins=f"{bin_folder}/python -m pip install 'koderz[leaf] @ git+http"
        )


@needs_uv
@pytest.mark.slow
def test_install_commands_work_without_pip(machine: Machine) -> None:
    bin_folder = machine.environment(pip=False)
    machine.run(UV, "pip", "install", "--python", bin_folder / "python", machine.project)
    type_each(machine, [bin_folder / "koderz"], begins=f"uv pip install --python {bin_folder}/python ")


@needs_uv
@pytest.mark.slow
@pytest.mark.parametrize("source", ["folder", "editable", "wheel"])
def test_install_commands_work_where_uv_tool_installed_koderz(machine: Machine, source: str) -> None:
    machine.run(UV, "tool", "install", *sources(machine, "--editable").get(source, [machine.wheel]))
    type_each(machine, [machine.folder / "bin" / "koderz"], begins="uv tool install ")


@needs_uv
@pytest.mark.slow
def test_install_commands_work_under_uvx(machine: Machine) -> None:
    koderz = [UV, "tool", "run", "--from", machine.project, "koderz"]
    for word, argument in (("extra_command", "leaf"), ("package_command", "twig")):
        command = machine.run(*koderz, word, argument)
        assert command.startswith("uvx ")
        assert machine.run(command.replace("…", "installed"), shell=True) == {"leaf": "sprout"}.get(argument, argument)


@pytest.mark.slow
@pytest.mark.skipif(not Path(PIPX).exists(), reason="pipx is not installed")
def test_install_commands_work_where_pipx_installed_koderz(machine: Machine) -> None:
    shared = {name: os.environ[name] for name in ("PIP_CONFIG_FILE", "PIP_INDEX_URL") if name in os.environ}
    first = {name: value for name, value in machine.env.items() if not name.startswith("PIP_")}  # it fetches a pip
    Machine(machine.folder, {**first, **shared}).run(PIPX, "install", machine.project)
    type_each(machine, [machine.folder / "bin" / "koderz"], begins=("pipx runpip koderz ", "uv pip "))
