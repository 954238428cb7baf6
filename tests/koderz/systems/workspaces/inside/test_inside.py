"""Process 1 of a workspace, which is started for every command."""

from __future__ import annotations

import marshal
import subprocess

from koderz.sandbox.frames import take
from koderz.sandbox.launch import command
from koderz.systems.workspaces.inside.process_1 import SETUP, Setup


def test_inside_loads_nothing_slow() -> None:
    """Each of these takes longer than all of its own code."""
    line = command("koderz.systems.workspaces.inside.process_1", [])
    line[-1] = line[-1].replace("main(sys.argv[1:])", "import sys; print(*sys.modules)")
    loaded = {*subprocess.run(line, capture_output=True, text=True, check=True, cwd="/").stdout.split()}
    assert "koderz.systems.workspaces.inside.process_1" in loaded
    assert not loaded & {"typing", "collections", "functools", "contextlib", "enum", "re", "json", "socket", "signal"}


def test_setup_goes_to_process_1_in_one_frame() -> None:
    values = {"argv": ["true"], "environment": {"A": "é\n"}}
    kind, _, payload = take(bytearray(Setup(**values).message())) or (b"", 0, b"")
    assert (kind, marshal.loads(payload)) == (SETUP, values)
