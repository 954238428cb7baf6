"""`modal run modal_benchmark.py::run_benchmark …` is `koderz perf run …` on Modal.

--engine and KODERZ_ENGINE say where else. To deploy it is `koderz modal deploy`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import modal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if "deploy" in sys.argv:
    from benchmark_worker import app
else:
    app = modal.App("koderz-perf")
from run_benchmark import run


@app.local_entrypoint()
def run_benchmark(*options: str) -> None:
    """Measures patches. What runs on Modal is what was deployed."""
    os.environ.setdefault("KODERZ_ENGINE", "modal")
    sys.argv[1:] = options
    run("perf", "run")


if __name__ == "__main__":
    run_benchmark(*sys.argv[1:])
