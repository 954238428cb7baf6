from __future__ import annotations

import json
import subprocess
import sys

import pytest

from koderz.sandbox.linux import kernel


@pytest.mark.skipif(not kernel.LINUX, reason="only Linux hides it")
def test_memory_is_hidden_only_as_long_as_it_is_asked_for() -> None:
    look = (
        "import ctypes, json\nfrom koderz.sandbox.linux import kernel\n"
        "look = lambda: ctypes.CDLL(None).prctl(kernel.PR_GET_DUMPABLE)\nfound = [look()]\n"
        "with kernel.HiddenMemory():\n    found.append(look())\nprint(json.dumps([*found, look()]))"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [1, 0, 1]
