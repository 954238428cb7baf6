"""`modal run sglang_modal_benchmark.py::run_benchmark …` is what modal_benchmark.py is: tasks name their engine."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from modal_benchmark import app, run_benchmark

__all__ = ["app", "run_benchmark"]

if __name__ == "__main__":
    run_benchmark(*sys.argv[1:])
