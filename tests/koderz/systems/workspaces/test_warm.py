"""Scripts that run in a fork of an interpreter that has loaded what they need."""

from __future__ import annotations

import asyncio
import json
import os
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import Unreachable
from koderz.sandbox.workspace import Command, Ended, Limits, Mount
from koderz.systems.workspaces.local import Local
from tests.conftest import PATIENCE

_LOOK = """
import json, os, resource, signal, sys

def load():
    {load}

def main(arguments):
    wanted = ("Uid", "Gid", "Groups", "NSpid", "Threads", "Cap", "NoNewPrivs", "Seccomp", "Sig", "Umask")
    status = [line for line in open("/proc/self/status") if line.startswith(wanted) and "SigQ" not in line]
    shown = {{
        "status": status,
        "descriptors": {{number: os.path.exists("/proc/self/fd/" + number) for number in "0123456789"}},
        "environment": dict(os.environ),
        "arguments": [sys.argv, arguments],
        "ids": [os.getpid(), os.getppid(), os.getsid(0), os.getcwd()],
        "path": sys.path,
        "flags": str(sys.flags),
        "limits": [resource.getrlimit(number) for number in range(10)],
        "mounts": [line.split()[4:6] for line in open("/proc/self/mountinfo")],
        "interrupt": str(signal.getsignal(signal.SIGINT)),
        "modules": sorted(name for name in sys.modules if name.startswith("koderz")),
        "loads": os.listdir("/"),
    }}
    print(json.dumps(shown), file=sys.stderr)
    print("warm" if "wave" in sys.modules else "cold")

if __name__ == "__main__":
    main(sys.argv[1:])
"""


def _ran(folder: Path, load: str, place: Path, environment: Mapping[str, str] | None = None) -> tuple[Ended, Ended]:
    """What came of a script in a fork, where that can be, and of the same as a program."""
    script = folder / "look.py"
    script.write_text(textwrap.dedent(_LOOK.format(load=load)))
    wanted = Command(
        ["python3", "-I", "-B", "/opt/koderz/script/look.py", "word"],
        environment or {"OWN": "1", "PYTHONPATH": "/nowhere", "PYTHONHASHSEED": "1"},
        [Mount(folder, "/opt/koderz/script")],
        limits=Limits(seconds=PATIENCE),
        script=script,
    )

    async def both() -> tuple[Ended, Ended]:
        async with Local(bubblewrap_allowed=False) as local:
            return await local.run(wanted, place), await local.run(replace(wanted, script=None), place)

    try:
        return asyncio.run(both())
    except Unreachable as error:
        pytest.skip(str(error))


def _told(ended: Ended) -> Any:
    return json.loads(next(line for line in ended.output.splitlines() if line.startswith("{")))


def test_fork_has_the_limits_and_view_of_a_program(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        warm, cold = _ran(tmp_path, "import wave", place)
    assert (warm.output.split()[-1], cold.output.split()[-1]) == ("warm", "cold")
    assert _told(warm) == _told(cold)
    assert (warm.status, warm.cause) == (0, "")
    assert "secret" not in warm.output


@pytest.mark.parametrize(
    ("load", "environment"),
    [
        ("import there_is_no_such_module", {}),
        ("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()", {}),
        ("import wave", {"PATH": "/usr/local/bin:/usr/bin:/bin"}),
    ],
)
def test_script_runs_as_a_program_where_forks_are_impossible(
    tmp_path: Path, place: Path, load: str, environment: dict[str, str]
) -> None:
    warm, cold = _ran(tmp_path, load, place, environment)
    assert (warm.status, warm.output.split()[-1]) == (cold.status, "cold")
