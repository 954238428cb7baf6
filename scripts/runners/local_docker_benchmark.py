"""`python local_docker_benchmark.py …` is `koderz perf run …` in docker; --sandbox and KODERZ_SANDBOX say otherwise."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from run_benchmark import run, usually

if __name__ == "__main__":
    usually("docker")
    run("perf", "run")
