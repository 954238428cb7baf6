"""The interpreter in which tasks are tested, the libraries that it has, and commands that run in it."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koderz.errors import KoderzError
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import CHECKOUT, Command, Ended, Limits, Mount
from koderz.settings.systems import own_names
from koderz.types import Judging

if TYPE_CHECKING:
    from koderz.systems.workspaces.userland import Python

_RUNNER = Path(__file__).with_name("runner.py")
_FILE, _SCRIPT = "task.json", "runner.py"
_SYSTEM = ("/usr", "/bin", "/lib", "/lib64")  # which every command sees
_SECONDS = 60.0  # to say which libraries there are
_LOOK = """
import importlib.util, json, sys
def has(name):
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False
print(json.dumps([name for name in json.load(sys.stdin) if not has(name)]))
"""


@dataclass(frozen=True)
class TestingInterpreter:
    """An interpreter by its path."""

    path: str
    sandbox: str  # that of the run: contained, local, or uncontained

    @property
    def is_own(self) -> bool:
        """Whether it is koderz' own."""
        return Path(self.path).absolute() == Path(sys.executable).absolute()

    @cached_property
    def found(self) -> Python:
        """Raises KoderzError where no interpreter runs at the path."""
        from koderz.systems.workspaces.userland import python_at

        found = python_at(self.path)
        if found is None:
            raise KoderzError(
                f"--python {self.path}: no Python runs there; name the interpreter of an environment"
            )
        return found

    def missing(self, libraries: Collection[str]) -> frozenset[str]:
        """The libraries that can't be imported. Raises KoderzError where no interpreter runs at the path."""
        command = [self.found.executable, "-I", "-c", _LOOK]
        told = json.dumps(sorted(libraries))
        try:
            done = subprocess.run(
                command,
                input=told,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=True,
                cwd="/",
            )
            return frozenset(json.loads(done.stdout))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise KoderzError(
                f"--python {self.path} doesn't say which libraries it has: {error}"
            ) from None

    async def tested(self, program: str, test: str, limits: Judging) -> tuple[Ended, Any, str]:
        """How the tests of a program ended, what they reported, if anything, and what contained them."""
        from koderz.systems.workspaces.folders import make_tree
        from koderz.systems.workspaces.local import Local
        from koderz.systems.workspaces.uncontained import Uncontained

        backend = Uncontained() if self.sandbox == "uncontained" else Local()
        token = secrets.token_hex(16)
        with scratch() as place:
            make_tree(place)
            folder = place / "checkout"
            (folder / _SCRIPT).write_bytes(_RUNNER.read_bytes())
            task = {"program": program, "test": test, "token": token}
            (folder / _FILE).write_text(json.dumps(task), encoding="utf-8")
            ended = await backend.run(self._command(limits), place)
        return (
            ended,
            _reported(ended.output, token),
            f"{backend.isolation or self.sandbox}, in-process",
        )

    def _command(self, limits: Judging) -> Command:
        prefixes = [
            prefix
            for prefix in self.found.prefixes
            if not f"{prefix}/".startswith(tuple(f"{s}/" for s in _SYSTEM))
        ]
        return Command(
            [self.found.executable, "-B", f"{CHECKOUT}/{_SCRIPT}", _FILE],
            {"MPLBACKEND": "Agg", "PYTHONHASHSEED": "0"},
            mounts=[Mount(Path(prefix), prefix) for prefix in prefixes],
            limits=Limits(seconds=limits.timeout, memory_mb=limits.memory_mb),
        )


def _reported(output: str, token: str) -> Any:
    """The runner's report; None where it was ended before."""
    for line in reversed(output.splitlines()):
        if line.startswith(token):
            try:
                return json.loads(line.removeprefix(token))
            except ValueError:
                return None
    return None


def require_sandbox(name: str) -> None:
    """Raises KoderzError for a sandbox that has no interpreter of this machine, and where there are no workspaces."""
    if name not in ("", "contained", "local", "uncontained"):
        raise KoderzError(
            f"--sandbox {name}: the libraries of bigcodebench are those of an interpreter on this machine; leave "
            "--sandbox out"
        )
    if "local" not in own_names("workspaces"):
        raise KoderzError(
            "--suite bigcodebench: its tasks are tested by the system workspaces, which this installation of "
            "koderz lacks"
        )


def own_or(path: str | None, sandbox: str) -> TestingInterpreter:
    """The interpreter at a path; None for koderz' own."""
    named = str(Path(path).expanduser()) if path else sys.executable
    return TestingInterpreter(shutil.which(named) or named, sandbox)
