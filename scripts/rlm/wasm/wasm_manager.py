"""The WASM manager: `python -m rlm.wasm.wasm_manager`, with the options of `koderz wasm serve`."""

from __future__ import annotations

import sys


def main() -> int:
    """Serves until Ctrl-C; returns the exit code."""
    from koderz.cli import main as command_line

    sys.argv[1:1] = ["wasm", "serve"]
    return command_line()


if __name__ == "__main__":
    sys.exit(main())
