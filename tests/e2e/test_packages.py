"""The package as others install it: what is in it, and the workflow of docs/ci in a repository that isn't ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Shell

ROOT = Path(__file__).parents[2]
SITE_PACKAGES = Path(pytest.__file__).parents[1]


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this checkout."""
    folder = tmp_path_factory.mktemp("packages")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.mark.slow
def test_packages_hold_and_name_the_licence(packages: Path) -> None:
    (wheel,), (sdist,) = packages.glob("*.whl"), packages.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        (licence,) = [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        assert opened.read(licence).decode().startswith("MIT License\n")
        assert "License-Expression: MIT\nLicense-File: LICENSE\n" in opened.read(metadata).decode()
    with tarfile.open(sdist) as opened_sdist:
        assert any(re.fullmatch(r"koderz-[^/]+/LICENSE", name) for name in opened_sdist.getnames())


@pytest.mark.slow
def test_packages_satisfy_the_tools_of_an_index(packages: Path) -> None:
    (wheel,) = packages.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        (metadata,) = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
        lines = opened.read(metadata).decode().splitlines()
    labels = [line.split()[1] for line in lines if line.startswith("Project-URL: ")]
    assert labels == ["Documentation,", "Source,", "Changelog,", "Issues,"]

    for words in (["twine", "check", "--strict"], ["check_wheel_contents"]):
        command = [sys.executable, "-m", *words, *map(str, packages.iterdir() if "twine" in words else [wheel])]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_packages_give_way_to_no_file_of_the_users(packages: Path, tmp_path: Path) -> None:
    (wheel,) = packages.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(site)
    script = (
        f"import sys; sys.path.insert(0, {str(site)!r}); import koderz, koderz_tracker, tracker, tracker.records\n"
        "from koderz_tracker import records\n"
        "from tracker import open_cortex; from koderz_tracker.memory import cortex\n"
        "assert tracker is koderz_tracker and tracker.records is records and open_cortex is cortex.open_cortex\n"
        "print(koderz.__file__, tracker.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.count(str(site)) == 2


def test_extras_that_texts_recommend_exist() -> None:
    import tomllib

    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    files = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("koderz/**/*.py"),
        *ROOT.glob("tracker/**/*.py"),
    ]
    named = {extra for file in files for extra in re.findall(r"koderz\[(\w+)\]", file.read_text(encoding="utf-8"))}

    assert named <= extras


@dataclass(frozen=True)
class Job:
    """A CI job in a repository of somebody else's: a Python without koderz, and the workflow's variables."""

    shell: Shell
    python: Path
    env: Mapping[str, str]

    def __call__(self, script: str) -> subprocess.CompletedProcess[str]:
        """Runs a step."""
        env = self.shell.environment(self.env)
        env["PATH"] = f"{self.python}/bin:{env['PATH']}"
        del env["PYTHONPATH"], env["PYTHONWARNINGS"]
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=self.shell.folder,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def workflow() -> dict[str, Any]:
    yaml: Any = pytest.importorskip("yaml")
    (job,) = yaml.safe_load((ROOT / "docs" / "ci" / "github-actions.yml").read_text(encoding="utf-8"))["jobs"].values()
    return dict(job)


@pytest.fixture
def job(koderz: Shell, packages: Path, workflow: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Job:
    (koderz.folder / "pyproject.toml").write_text('[build-system]\nrequires = []\nbuild-backend = "theirs"\n')
    subprocess.run(["git", "init", "-q"], cwd=koderz.folder, check=True)
    python = tmp_path_factory.mktemp("python")
    venv.create(python)
    library = python / "dependencies"
    library.mkdir()
    for each in SITE_PACKAGES.iterdir():
        if "koderz" not in each.name:
            (library / each.name).symlink_to(each)
    (own,) = python.glob("lib/python*/site-packages")
    (own / "dependencies.pth").write_text(f"{library}\n")
    (python / "bin" / "pip").write_text(f'#!/bin/sh\nexec {python}/bin/python -m pip "$@"\n')
    (python / "bin" / "pip").chmod(0o755)
    env = {name: value for name, value in workflow["env"].items() if "secrets." not in value}
    (wheel,) = packages.glob("*.whl")
    here = {
        "KODERZ_REQUIREMENT": str(wheel),
        "KODERZ_MODEL": "simulated",
        "GITHUB_STEP_SUMMARY": str(koderz.folder / "summary.md"),
        "PIP_NO_INDEX": "1",
        "PYTHONPATH": "",
    }
    return Job(koderz, python, env | here)


@pytest.mark.slow
def test_workflow_works_in_a_users_repository(job: Job, workflow: dict[str, Any]) -> None:
    steps = {step["name"]: step["run"] for step in workflow["steps"] if "run" in step}
    installed = job(steps.pop("Install"))
    assert installed.returncode == 0, installed.stderr
    where = job("python -c 'import koderz, tracker; print(koderz.__file__)'")
    assert where.stdout.startswith(f"{job.python}{os.sep}lib")
    text = (ROOT / "docs" / "ci" / "README.md").read_text(encoding="utf-8")
    (baseline,) = re.findall(r"```sh\n(.*?)```\n\nRenew it", text, re.DOTALL)
    made = job(baseline)
    assert made.returncode == 0, made.stderr

    for name, script in steps.items():
        done = job(script)
        assert done.returncode == 0, f"{name}: {done.stderr}"

    folder = job.shell.folder
    assert (folder / "summary.md").read_text().startswith("### koderz: No significant difference")
    paths = [step["with"]["path"].split() for step in workflow["steps"] if "upload-artifact" in step.get("uses", "")]
    assert paths
    assert all((folder / path).exists() for path in paths[0])

    worse = job("koderz benchmark 0 50 --mode zero-shot --simulated-skill 0 && " + steps["Gate"])
    assert worse.returncode == 1
    (line,) = worse.stderr.splitlines()[-1:]
    assert line.startswith("gate failed: ")
    assert "more than the 10 allowed" in line
