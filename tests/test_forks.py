"""The processes that tests fork from a loaded one: they end with the process that asked for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import are_gone, wait_for

KILLED = """
import os, sys
from pathlib import Path
from tests.forks import forks

server = forks().start(["koderz.testing"], Path.cwd(), os.environ)
server.stdout.readline()
print(forks()._process.pid, server.pid, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_forks_end_with_a_process_that_is_killed() -> None:
    command = [sys.executable, "-c", KILLED]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, check=False)
    processes = {int(word) for word in done.stdout.split()}
    assert len(processes) == 2
    wait_for(lambda: are_gone(processes))
