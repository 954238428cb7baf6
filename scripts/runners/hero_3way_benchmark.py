"""`python hero_3way_benchmark.py …` is `koderz perf run --resume …` on Modal, unless a flag or variable says where."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from run_benchmark import run, usually

if __name__ == "__main__":
    usually("modal")
    run("perf", "run", "--resume")
