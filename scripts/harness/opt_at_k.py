"""`python opt_at_k.py …` is `koderz perf opt-at-k …`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from run_benchmark import run

if __name__ == "__main__":
    run("perf", "opt-at-k")
