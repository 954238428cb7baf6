"""`python run_benchmark_local.py …` is `koderz optimize run …`."""

from __future__ import annotations

from run_benchmark import run

if __name__ == "__main__":
    run("optimize", "run")
