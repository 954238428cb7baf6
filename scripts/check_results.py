"""`python check_results.py …` and `modal run check_results.py …` are `koderz optimize results …`."""

from __future__ import annotations

import sys
from pathlib import Path

import modal

sys.path.insert(0, str(Path(__file__).resolve().parent))

from run_benchmark import run

app = modal.App("koderz-check-results")


@app.local_entrypoint()
def check(*options: str) -> None:
    """Shows runs, here and on Modal. Nothing runs there for it."""
    sys.argv[1:] = options
    run("optimize", "results")


if __name__ == "__main__":
    run("optimize", "results")
