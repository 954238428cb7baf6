"""`python eval_rollouts.py run|summarize|eval …` is `koderz rollouts …`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from run_benchmark import run

if __name__ == "__main__":
    run("rollouts")
