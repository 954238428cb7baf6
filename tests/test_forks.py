"""The processes that tests fork from a loaded one: they end with the test, and with the process that asked for them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, Shell, are_gone, kill_after, wait_for, with_descendants
from tests.forks import forks

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


def test_processes_left_by_a_test_are_ended(koderz: Shell) -> None:
    left = koderz.start("benchmark", 0, 1, "--model", "simulated", "--simulated-latency", 3600)
    wait_for(lambda: list(koderz.results.glob("[!.]*/journal.jsonl")))
    processes = with_descendants({left.pid})

    left.close()

    assert left.returncode == -signal.SIGKILL
    assert left.stdout is not None
    assert left.stderr is not None
    assert (left.stdout.closed, left.stderr.closed) == (True, True)
    wait_for(lambda: are_gone(processes))


def test_process_that_ended_before_its_kill_is_no_error(koderz: Shell) -> None:
    quick = koderz.start("--version")
    quick.wait(PATIENCE)

    assert kill_after(1, lambda: "", quick)[0].startswith("koderz ")
    quick.send_signal(signal.SIGINT)
    quick.close()


def test_command_of_a_shell_is_forked_with_its_streams_folder_and_end(tmp_path: Path) -> None:
    forks().write_command(tmp_path / "koderz")
    (tmp_path / "folder").mkdir()
    script = """
    ../koderz --version
    ../koderz benchmark show latest 2> told || echo $?
    ../koderz memory serve --http 127.0.0.1:0 2> address &
    until [ -s address ]; do sleep 0.1; done
    kill $! && wait $! || echo $?
    """

    done = subprocess.run(["bash", "-c", script], cwd=tmp_path / "folder", capture_output=True, text=True, check=False)

    version, *codes = done.stdout.splitlines()
    assert version.startswith("koderz ")
    assert codes == ["2", str(128 + signal.SIGTERM)], done.stderr
    assert "no run yet" in (tmp_path / "folder" / "told").read_text()
