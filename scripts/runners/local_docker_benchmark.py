"""`python local_docker_benchmark.py …` is `koderz perf run …` in docker; --sandbox and KODERZ_SANDBOX say otherwise."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from run_benchmark import run

if __name__ == "__main__":
    os.environ.setdefault("KODERZ_SANDBOX", "docker")
    run("perf", "run")
