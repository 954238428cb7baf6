"""`python hero_3way_benchmark.py …` is `koderz perf run --resume …` on Modal; --engine, KODERZ_ENGINE say otherwise."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from run_benchmark import run

if __name__ == "__main__":
    os.environ.setdefault("KODERZ_ENGINE", "modal")
    run("perf", "run", "--resume")
