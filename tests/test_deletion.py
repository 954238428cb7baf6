"""koderz without one of its systems: the others work. So does each of them alone, and the core without any."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from koderz.settings.systems import OWN
from tests.conftest import MEASUREMENT, PATIENCE, Server, Shell
from tests.forks import Forks

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
Command = tuple[object, ...]

HELP: dict[str, list[Command]] = {
    "code": [("benchmark", "run", "--suite", "humaneval", "--help")],
    "long_context": [("rlm", "--help"), ("rlm", "run", "--help"), ("wasm", "--help")],
    "optimizers": [("optimize", "--help"), ("optimize", "run", "--help")],
    "rollouts": [("rollouts", "--help"), ("rollouts", "run", "--help")],
    "patches": [("perf", "--help"), ("perf", "run", "--help")],
    "serving": [("perf", "--help"), ("perf", "serve-bench", "--help")],
    "questions": [("benchmark", "run", "--suite", "qa", "--help")],
    "rewards": [("judge", "serve", "--help")],
    "modal": [("modal", "--help"), ("modal", "deploy", "--help")],
    "publishing": [
        ("verify", "--help"),
        ("publish", "--help"),
        ("pull", "--help"),
        ("benchmark", "calibrate", "--help"),
    ],
    "reports": [("benchmark", "report", "--help"), ("report", "--help")],
    "memory": [("memory", "--help"), ("memory", "find", "--help"), ("mcp", "serve", "--help")],
    "workspaces": [],
}
STANDING = {"workspaces": ["rollouts", "patches"]}
"""The systems that aren't there without another one."""

RUNS: dict[str, Command] = {  # of those that have tasks
    "code": ("benchmark", 0, 1, "--mode", "comparative", "--model", "simulated"),
    "long_context": ("rlm", "run", "--simulated", "--benchmark", "ruler", "--context-lengths", "1K", "--max-tasks", 1),
    "optimizers": (
        *("optimize", "run", "--models", "simulated", "--yes", "--test-mode", "--seeds", 1),
        *("--optimizers", "few_shot", "--demo-datasets", "arithmetic"),
    ),
    "rollouts": ("rollouts", "run", "--agent", "oracle"),
    "patches": MEASUREMENT,
    "serving": (
        *("perf", "serve-bench", "--num-prompts", 2, "--random-input-len", 8, "--random-output-len", 4),
        *("--model", "served"),
    ),
    "questions": (
        *("benchmark", "--suite", "qa", "--dataset", "questions.jsonl", "--scorer", "includes", "--limit", 1),
        *("--model", "simulated"),
    ),
}
SERVER = "koderz-mini__generation"
"""The embedded task whose repository is a server, which the system serving puts under load."""


CHECKS = """
import json, sys
from typer.testing import CliRunner
from koderz.cli import app
from koderz.settings.systems import own_systems
from koderz.testing.systems import CHECKS

for system in own_systems():
    for check in CHECKS:
        check(system)
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    print(done.output)
    assert done.exit_code == 0, words
"""
"""A program that checks all that systems name, and runs commands."""


@dataclass(frozen=True)
class Copy(Shell):
    """A folder in which a copy of koderz is run, by processes forked from one that has loaded the copy."""

    forked: Forks

    def forks(self) -> Forks:
        return self.forked

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return super().environment({"PYTHONPATH": str(self.folder / "site"), **(more or {})})

    def run(self, *arguments: object, code: int = 0) -> str:
        """What the command prints, to stdout and stderr."""
        done = self(*arguments, code=code)
        assert "Traceback" not in done.err
        return done.out + done.err

    def check(self, commands: Sequence[Command]) -> str:
        """What `CHECKS` prints."""
        (self.folder / "site/checks.py").write_text(CHECKS)
        words = json.dumps([[str(word) for word in command] for command in commands])
        with closing(self.forked.start(["checks", words], self.folder, self.environment())) as started:
            out, err = started.communicate(PATIENCE)
        assert started.returncode == 0, out + err
        return out


@pytest.fixture
def without(tmp_path: Path) -> Iterator[Callable[..., Copy]]:
    """Makes a copy of koderz without some systems, of links where that is possible."""
    (tmp_path / "questions.jsonl").write_text('{"input": "1 + 1?", "target": "2"}\n')

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:  # on another file system
            shutil.copy2(source, target)

    with ExitStack() as stack:

        def make(*names: str) -> Copy:
            compiled = shutil.ignore_patterns("*.pyc.*")  # what is just being compiled

            def left_out(folder: str, found: list[str]) -> set[str]:
                return compiled(folder, found) | ({*names} if folder == str(ROOT / "koderz/systems") else set())

            for package in ("koderz", "koderz_tracker"):
                shutil.copytree(ROOT / package, tmp_path / "site" / package, ignore=left_out, copy_function=link)
            assert not any((tmp_path / "site/koderz/systems" / name).exists() for name in names)
            return Copy(tmp_path, stack.enter_context(closing(Forks(tmp_path / "site"))))

        yield make


@pytest.mark.parametrize("deleted", OWN)
def test_deletion_of_a_system_leaves_the_others_whole(deleted: str, without: Callable[..., Copy]) -> None:
    gone = {deleted, *STANDING.get(deleted, ())}
    left = [name for name in OWN if name not in gone]
    helps = [command for name in left for command in HELP[name]]
    shown = without(deleted).check(
        [("--help",), *helps, *((*RUNS[name], "--dry-run") for name in left if name in RUNS)]
    )
    assert shown.count("PLAN") == len(RUNS.keys() - gone)


@pytest.mark.parametrize("alone", OWN)
def test_deletion_of_all_others_leaves_a_system_whole(
    alone: str, without: Callable[..., Copy], serve: Callable[..., Server]
) -> None:
    ground = [name for name, standing in STANDING.items() if alone in standing]
    koderz = without(*(name for name in OWN if name not in (alone, *ground)))
    for command in HELP[alone]:
        koderz.run(*command)
    if alone not in RUNS:
        return
    koderz.run(
        *RUNS[alone], *(("--base-url", serve("--stream", "--model", "served").url) if alone == "serving" else ())
    )
    koderz.run("benchmark", "list")
    koderz.run("benchmark", "show", "latest")


def test_deletion_of_all_systems_leaves_the_core(without: Callable[..., Copy]) -> None:
    koderz = without(*OWN)
    shown = koderz.run("--help")
    assert "benchmark" in shown
    assert "perf" not in shown
    koderz.run("benchmark", "run", "--help")
    assert "no run" in koderz.run("benchmark", "list")
    koderz.run("doctor", "--help")


def test_deletion_of_publishing_leaves_out_its_commands_and_formats(without: Callable[..., Copy]) -> None:
    koderz = without("publishing")
    koderz.run(*RUNS["code"])
    for command in ("verify", "publish", "pull"):
        assert f"No such command '{command}'" in koderz.run(command, "latest", code=2)
    assert "No such command 'calibrate'" in koderz.run("benchmark", "calibrate", "latest", code=2)
    for name in ("eee", "hf", "inspect"):
        refused = koderz.run("export", "latest", "--format", name, code=2)
        assert refused.startswith(f"koderz: --format: invalid value '{name}'; choose from csv, parquet, ")
    koderz.run("export", "latest", "--format", "csv")
    (koderz.folder / "log.eval").write_bytes(b"PK\x03\x04")
    refused = koderz.run("compare", "latest", "log.eval", code=2)
    assert refused.startswith("koderz: 'log.eval' is no run")
    assert len(refused.splitlines()) == 1
    (koderz.folder / "benchmark_results/log.eval").write_bytes(b"PK\x03\x04")
    koderz.run("show", "latest")


def test_deletion_of_reports_leaves_out_their_command(without: Callable[..., Copy]) -> None:
    koderz = without("reports")
    for command in (("report",), ("benchmark", "report")):
        refused = koderz.run(*command, "latest", code=2)
        assert "No such command 'report'" in refused
        assert len(refused.splitlines()) == 1
    assert "report, " not in koderz.run("--help")


def test_deletion_of_memory_leaves_out_its_commands_but_not_the_store(without: Callable[..., Copy]) -> None:
    koderz = without("memory")
    koderz.run(*RUNS["code"], "--sink", "memory", "--wait")
    assert (koderz.folder / "benchmark_results/memory.db").exists()
    for command in ("memory", "mcp"):
        refused = koderz.run(command, "serve", code=2)
        assert f"No such command '{command}'" in refused
        assert len(refused.splitlines()) == 1
    refused = koderz.run("helps", "--memory", "benchmark_results", "--dry-run", code=2)
    assert "it is served by the system memory, which this installation of koderz lacks" in refused
    assert len(refused.splitlines()) == 1


def test_deletion_of_workspaces_leaves_out_what_stands_on_them(without: Callable[..., Copy]) -> None:
    koderz = without("workspaces")
    assert "No such command 'rollouts'" in koderz.run("rollouts", "run", code=2)
    assert "No such command 'run'" in koderz.run("perf", "run", code=2)
    refused = koderz.run("benchmark", "run", "--suite", "rollouts", "--limit", 1, "--dry-run", code=2)
    assert refused.startswith("koderz: there is no suite 'rollouts'")
    refused = koderz.run("benchmark", "run", "--suite", "bigcodebench", "--limit", 1, "--dry-run", code=2)
    assert refused.startswith("koderz: --suite bigcodebench: its tasks are tested by the system workspaces, which this")
    assert len(refused.splitlines()) == 1


def test_deletion_of_serving_leaves_out_servers_and_says_so(without: Callable[..., Copy]) -> None:
    koderz = without("serving")
    assert SERVER not in koderz.run("perf", "tasks")
    assert f"{SERVER} is left out: a server is put under load by the system serving" in koderz.run(
        "perf", "run", "--dry-run"
    )
    (koderz.folder / "tasks.toml").write_text(
        '[[tasks]]\nrepo = "https://example.org/r"\nbase_commit = "abc1234"\nhuman_commit = "def5678"\n'
        'serve = ["python3", "server.py", "{port}"]\nbench = "--num-prompts 8"\n'
    )
    refused = koderz.run("perf", "run", "--dataset", "tasks.toml", "--baseline", code=2)
    assert refused.splitlines() == [
        "koderz: r-def5678: a server is put under load by the system serving, which this installation of koderz lacks"
    ]
    assert "No such command 'serve-bench'" in koderz.run("perf", "serve-bench", code=2)
