"""This checkout's koderz as a command to be measured: how it is run, what it took, and models for it to ask."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

_ASK_ONLY = """
from koderz import Verdict


async def ask_only(task, ask):
    await ask(task.messages)
    return Verdict("passed")
"""

_WRAPPER = """
import json, resource, subprocess, sys, time
started = time.perf_counter()
code = subprocess.run(sys.argv[2:], stdout=subprocess.DEVNULL).returncode
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
figures = {"wall": time.perf_counter() - started, "cpu": usage.ru_utime + usage.ru_stime,
           "peak": usage.ru_maxrss / 1024}
open(sys.argv[1], "w").write(json.dumps(figures))
sys.exit(code)
"""


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources that a command used."""

    wall: float  # seconds
    cpu: float  # seconds, its children's included
    peak: float  # MB


def koderz(*arguments: object) -> list[str]:
    """The command, to be run in an `environment`."""
    return [sys.executable, "-m", "koderz", *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    """This process's, without what it says to koderz, MLflow and Modal; koderz is the checkout's, wherever it runs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KODERZ_", "MLFLOW_", "MODAL_"))}
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path, **more}


def seconds(command: Sequence[str], env: Mapping[str, str]) -> float:
    """From the command's start to its end, which has to be a success."""
    begun = time.perf_counter()
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def processor_seconds() -> float:
    """Processor time of ended commands and their children so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def usage_of(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> Usage:
    """Resources that the command uses in a folder; exits if it fails."""
    report = folder / "usage.json"
    # The small process between is the peak's: what this one holds would count as the command's until it is loaded.
    done = subprocess.run([sys.executable, "-c", _WRAPPER, str(report), *command], cwd=folder, env=env, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}")
    return Usage(**json.loads(report.read_text()))


def without_judging(folder: Path) -> list[str]:
    """The arguments of a run in the folder that asks once a problem and leaves the judge alone."""
    (folder / "ask_only.py").write_text(_ASK_ONLY)
    return ["--solver", "ask_only.py:ask_only"]


def require_judged(results: Path, n: int) -> None:
    """Exits unless so many experiments of the latest run were judged."""
    path = max(results.glob("*.json"), key=lambda path: path.stat().st_mtime)
    judged = json.loads(path.read_bytes())["summary"]["total_problems"]
    if judged != n:
        sys.exit(f"only {judged} of {n} experiments were judged: the figures mean nothing")


class ModelServer(NamedTuple):
    """A loopback model server in a process of its own."""

    url: str
    process: int

    def processor_seconds(self) -> float:
        """Processor time that it used so far."""
        return time.clock_gettime((~self.process << 3) | 2)  # the kernel's name for a process's clock


@contextlib.contextmanager
def model_server(latency: float, *, log: Path | None = None, skill: float = 0.6) -> Iterator[ModelServer]:
    """A model server with a call's latency in seconds."""
    command = [sys.executable, "-m", "koderz.testing", "--latency-ms", str(1000 * latency), "--model", "simulated"]
    command += ["--skill", str(skill), *(["--log", str(log)] if log else [])]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield ModelServer(process.stdout.readline().split()[-1], process.pid)
    finally:
        process.terminate()
        process.wait()
