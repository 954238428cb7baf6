"""koderz without one of its systems: the others work, and so does the core without any."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from koderz.settings.systems import OWN
from tests.conftest import NOISY, Server, Shell
from tests.forks import Forks

ROOT = Path(__file__).parents[1]
Command = tuple[object, ...]
Without = Callable[..., Shell]

HELP: dict[str, list[Command]] = {
    "code": [("benchmark", "run", "--suite", "humaneval", "--help")],
    "long_context": [("rlm", "--help"), ("rlm", "run", "--help")],
    "optimizers": [("optimize", "--help"), ("optimize", "run", "--help")],
    "rollouts": [("rollouts", "--help"), ("rollouts", "run", "--help")],
    "patches": [("perf", "--help"), ("perf", "run", "--help")],
    "serving": [("perf", "--help"), ("perf", "serve-bench", "--help")],
    "questions": [("benchmark", "run", "--suite", "qa", "--help")],
}
RUNS: dict[str, Command] = {
    "code": ("benchmark", 0, 1, "--mode", "comparative", "--model", "simulated"),
    "long_context": ("rlm", "run", "--simulated", "--benchmark", "ruler", "--context-lengths", "1K", "--max-tasks", 1),
    "optimizers": (
        *("optimize", "run", "--models", "simulated", "--yes", "--test-mode", "--seeds", 1),
        *("--optimizers", "few_shot", "--demo-datasets", "arithmetic"),
    ),
    "rollouts": ("rollouts", "run", "--agent", "oracle"),
    "patches": ("perf", "run", "koderz-mini__revenue", "--baseline", "--max-blocks", 7),
    "serving": ("perf", "serve-bench", "--num-prompts", 2, "--random-input-len", 8, "--random-output-len", 4),
    "questions": (
        *("benchmark", "--suite", "qa", "--dataset", "questions.jsonl", "--scorer", "includes", "--limit", 1),
        *("--model", "simulated"),
    ),
}
SERVER = "koderz-mini__generation"
"""The embedded task whose repository is a server, which the system serving puts under load."""


@dataclass(frozen=True)
class Copy(Shell):
    """A folder in which a copy of koderz is run, by processes forked from one that has loaded the copy."""

    forked: Forks

    def forks(self) -> Forks:
        return self.forked

    def run(self, *arguments: object, code: int = 0) -> str:
        """What the command prints, to stdout and stderr."""
        done = self(*arguments, code=code, env={"PYTHONPATH": str(self.folder / "site")})
        assert "Traceback" not in done.err
        return done.out + done.err


@pytest.fixture
def without(tmp_path: Path) -> Iterator[Callable[..., Copy]]:
    """Makes a copy of koderz without some systems."""
    with ExitStack() as stack:

        def make(*names: str) -> Copy:
            left_out = shutil.ignore_patterns("*.pyc.*", *names)  # what is just being compiled, too
            for package in ("koderz", "koderz_tracker"):
                shutil.copytree(ROOT / package, tmp_path / "site" / package, ignore=left_out)
            assert not any((tmp_path / "site/koderz/systems" / name).exists() for name in names)
            return Copy(tmp_path, stack.enter_context(closing(Forks(tmp_path / "site"))))

        yield make


@pytest.mark.slow
@pytest.mark.parametrize(
    "deleted", [pytest.param(name, marks=pytest.mark.others(NOISY)) if name == "serving" else name for name in OWN]
)
def test_deletion_of_a_system_leaves_the_others_whole(
    deleted: str, without: Callable[..., Copy], serve: Callable[..., Server]
) -> None:
    koderz = without(deleted)
    (koderz.folder / "questions.jsonl").write_text('{"input": "1 + 1?", "target": "2"}\n')
    koderz.run("--help")
    server = serve("--stream", "--model", "served")
    for name in OWN:
        if name == deleted:
            continue
        for command in HELP[name]:
            koderz.run(*command)
        run = (*RUNS[name], *(("--base-url", server.url) if name == "serving" else ()))
        assert "PLAN" in koderz.run(*run, "--dry-run")
        if name != "patches" or deleted == "serving":  # measuring a patch takes 15 seconds
            koderz.run(*run)
    koderz.run("benchmark", "list")
    koderz.run("benchmark", "show", "latest")


@pytest.mark.slow
def test_deletion_of_all_systems_leaves_the_core(without: Callable[..., Copy]) -> None:
    koderz = without(*OWN)
    shown = koderz.run("--help")
    assert "benchmark" in shown
    assert "perf" not in shown
    koderz.run("benchmark", "run", "--help")
    assert "no run" in koderz.run("benchmark", "list")
    koderz.run("doctor", "--help")


@pytest.mark.slow
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
