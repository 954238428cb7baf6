"""The command `koderz`. If only its version is asked for, it answers before anything else is loaded."""

from __future__ import annotations

import gc
import sys

_OBJECTS = 50_000
"""The number of new objects before a garbage collection. The default of 700 takes a tenth of a run's own CPU."""


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    if sys.argv[1:] == ["--version"]:
        from koderz._version import __version__

        sys.stdout.write(f"koderz {__version__}\n")
        return
    from koderz.streams import exit_code, keep_going, leave_at_once, open_closed, raise_again

    open_closed()
    output = keep_going()
    gc.set_threshold(_OBJECTS)
    # loading what runs commands takes a while, and an import is a bad place for an exception
    leave_at_once()
    from koderz.cli import main as command_line

    raise_again()
    code = exit_code(command_line(), output)
    leave_at_once()
    sys.exit(code)


if __name__ == "__main__":
    main()
