"""`python run_benchmark_modal.py …` is `koderz optimize run --modal …`."""

from __future__ import annotations

from run_benchmark import run

if __name__ == "__main__":
    run("optimize", "run", "--modal")
