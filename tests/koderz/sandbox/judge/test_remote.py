"""The near end of a pipe to a zygote elsewhere, where its command comes to nothing."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

START = """
import json, socket, sys
from koderz.sandbox.judge.remote import main
main(socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2]))
"""
HELP = "Run 'docker run --help' for more information"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["sh", "-c", f'echo pulling >&2; echo " no such image " >&2; echo "{HELP}" >&2; echo >&2'], "no such image"),
        (["sh", "-c", "exit 3"], "it ended with 3 and said nothing"),
        (["sh", "-c", f'echo "{HELP}" >&2; exit 125'], "it ended with 125 and said nothing"),
        (["./no-such-program"], "FileNotFoundError: [Errno 2] No such file or directory: './no-such-program'"),
    ],
)
def test_command_that_starts_no_zygote_is_told_by_its_last_words(command: list[str], words: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(60)
        started = [sys.executable, "-c", START, str(theirs.fileno()), json.dumps(command)]
        with subprocess.Popen(started, pass_fds=[theirs.fileno()]) as process:
            theirs.close()
            ours.sendall(b"{}\n")
            with ours.makefile("rb") as answer:
                assert json.loads(answer.readline()) == words
            assert process.wait(60) == 0
