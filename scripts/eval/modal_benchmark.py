"""`modal run modal_benchmark.py::run_benchmark …` is `koderz perf run --sandbox modal …`.

A flag or variable says where else. To deploy it is `koderz modal deploy`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import modal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if "deploy" in sys.argv:
    from benchmark_worker import app
else:
    app = modal.App("koderz-perf")
from run_benchmark import run, usually


@app.local_entrypoint()
def run_benchmark(*options: str) -> None:
    """Measures patches, each leg in a sandbox of Modal's."""
    sys.argv[1:] = options
    usually("modal")
    run("perf", "run")


if __name__ == "__main__":
    run_benchmark(*sys.argv[1:])
