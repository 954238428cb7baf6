"""`python run_benchmark.py …` is `koderz optimize run …`: here, or with --modal on Modal."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from koderz.__main__ import main


def run(*command: str) -> None:
    """Runs a command of koderz with the options of this one, and ends with its exit code."""
    sys.argv[1:1] = command
    main()


def usually(sandbox: str) -> None:
    """Make a command run things in this sandbox, unless a flag or a variable names one."""
    flags = {word.partition("=")[0] for word in sys.argv}
    if not flags & {"--sandbox", "--engine"} and not {"KODERZ_SANDBOX", "KODERZ_ENGINE"} & os.environ.keys():
        os.environ["KODERZ_SANDBOX"] = sandbox


if __name__ == "__main__":
    run("optimize", "run")
