"""Agents that speak the Agent Client Protocol: how they are started, driven, and what is made of their ends."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import Fault, KoderzError
from koderz.sandbox.workspace import Ended
from koderz.settings.trust import READS
from koderz.systems.rollouts.additions import Addition
from koderz.systems.rollouts.agents import acp
from koderz.systems.rollouts.agents.adapters import Dirs, Event, adapter_of
from koderz.systems.rollouts.tasks.config import read_config, risks_of
from koderz.types import Reply
from tests.koderz.systems.rollouts.agents.test_bridge import Asked

pytest.importorskip("acp")

AGENT = Path(__file__).parents[4] / "fake_acp_agent"
SERVERS = (
    Addition("mcp", "parcels", "", "0", {"command": "python3", "args": ["p.py"], "env": {"A": "1"}}),
    Addition("mcp", "far", "", "0", {"type": "http", "url": "http://127.0.0.1:1", "headers": {"B": "2"}}, inside=True),
)
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "bash", "arguments": '{"command": "echo hi > made.txt"}'},
}


class Scripted:
    """A model that has one command run, and then says that it is done."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, *_: Any, **__: Any) -> Reply:
        self.calls += 1
        return Reply(1, "", tool_calls=[CALL]) if self.calls == 1 else Reply(2, "All is done.", finish_reason="stop")


def session(place: Path, how: str = "", ask: Any = None, servers: tuple[Addition, ...] = ()) -> tuple[Ended, Any]:
    """How the stand-in ended, and the record of its bridge; its stdin and stdout go through the real connection."""
    adapter: Any = adapter_of(f"acp:{shlex.quote(sys.executable)} {shlex.quote(str(AGENT))} {how}")

    async def run() -> tuple[Ended, Any]:
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        bridge = acp.AcpBridge("Do it.", str(place), ask or Asked(Reply(1, "hi")), "m", servers)
        dirs = Dirs(sys.executable, str(place), str(place), f"http://127.0.0.1:{port}", bridge.token)
        argv, environment = adapter.command("Do it.", "m", dirs)
        argv = [word.replace("/16161", f"/{port}") for word in argv]
        own = {"PATH": os.environ["PATH"], **environment, "KODERZ_BRIDGE_TOKEN": bridge.token}

        async def working() -> Ended:
            process = await asyncio.create_subprocess_exec(
                *argv,
                cwd=place,
                env=own,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                output, _ = await process.communicate()
                return Ended(process.returncode or 0, output.decode())
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, 9)
                    await process.wait()

        async with bridge:
            await bridge.serve(listening)
            return await bridge.beside(working()), bridge.record()

    return asyncio.run(run())


def test_session_works_on_the_prompt_with_its_own_tools(tmp_path: Path) -> None:
    model = Scripted()
    ended, record = session(tmp_path, ask=model, servers=SERVERS)
    assert (tmp_path / "made.txt").read_text() == "hi\n"
    assert (ended.status, model.calls) == (0, 2)
    wanted = {"calls": 2, "finish": "stop", "version": "1.2.3", "stop_reason": "end_turn", "permissions": 1}
    assert wanted.items() <= record.items()
    assert "offered False" in ended.output
    (line,) = (line for line in ended.output.splitlines() if line.startswith("servers "))
    relay, far = json.loads(line.removeprefix("servers "))
    assert (relay["name"], relay["command"], relay["env"]) == ("parcels", "python3", [])
    assert relay["args"][2].endswith("relay.py")  # which stands for it, see `servers`
    assert far == {"type": "http", "name": "far", "url": "http://127.0.0.1:1", "headers": [{"name": "B", "value": "2"}]}
    events = [event for line in ended.output.splitlines() for event in adapter_of("acp:x").events(line)]
    assert events == [
        Event("tool", 'echo hi > made.txt {"command":"echo hi > made.txt"}'),
        Event("message", "All is done."),
        Event("end"),
    ]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("locked", "it asks for a login: Authentication required run stand-in login"),
        ("newer", "it speaks version 99, koderz 1"),
        ("crashes", "no such model"),
        ("mute", "it gave no answer in 0 s"),
    ],
)
def test_agent_that_opens_no_session_is_a_fault_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, why: str
) -> None:
    if how == "mute":
        monkeypatch.setattr(acp, "GRACE", 0.1)
        monkeypatch.setattr(acp, "_OPENING", 0.4)
    with pytest.raises(Fault) as fault:
        session(tmp_path, how)
    assert fault.value.cause == "launch_failed"
    assert f"launch_failed: it opens no session of the Agent Client Protocol: {why}" in str(fault.value)


def test_error_before_any_call_is_a_fault_and_no_failure(tmp_path: Path) -> None:
    with pytest.raises(Fault, match="before its model had answered: fetch failed") as fault:
        session(tmp_path, "fails")
    assert fault.value.cause == "provider"


def test_fault_of_the_model_is_the_rollouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koderz.systems.rollouts.agents.bridge.GRACE", 0.1)
    with pytest.raises(Fault, match="the cap is reached"):
        session(tmp_path, ask=Asked(Fault("the cap is reached")))


@pytest.mark.parametrize(
    ("how", "status", "stop", "finish"),
    [
        ("alone", 0, "end_turn", ""),
        ("odd", 0, "end_turn", ""),
        ("refuses", 0, "refusal", "refusal"),
        ("dies", 3, "", ""),
    ],
)
def test_end_of_the_agent_is_recorded(tmp_path: Path, how: str, status: int, stop: str, finish: str) -> None:
    ended, record = session(tmp_path, how)
    assert (ended.status, record["stop_reason"], record["finish"]) == (status, stop, finish)


def test_agent_that_goes_on_after_its_turn_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acp, "GRACE", 0.1)
    ended, record = session(tmp_path, "lingers")
    assert (ended.status, record["stop_reason"]) == (0, "end_turn")
    assert '"Alone."' in ended.output


def test_flood_of_updates_is_cut_at_its_beginning(tmp_path: Path) -> None:
    ended, _ = session(tmp_path, "floods")
    assert 900_000 < len(ended.output) < 1_200_000
    assert '"2999 xxx' in ended.output
    assert '"Alone."' in ended.output
    assert '"0 xxx' not in ended.output


def test_message_without_end_ends_the_session(tmp_path: Path) -> None:
    with pytest.raises(Fault, match="it sends a message of more than 4 MB"):
        session(tmp_path, "swells")


def test_program_is_found_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "lib/node_modules/@a/agent/dist/index.js"
    node = tmp_path / "bin/node"
    for path in (script, node, tmp_path / "venv/bin/other", tmp_path / "config.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/usr/bin/env node\n")
        path.chmod(0o755)
    (tmp_path / "bin/agent").symlink_to(script)
    (tmp_path / "venv/pyvenv.cfg").touch()
    (tmp_path / "venv/bin/python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    agent: Any = adapter_of("acp:agent --acp config.json")
    assert agent.find() == (str(script), (str(tmp_path / "lib/node_modules"), str(node), str(tmp_path / "config.json")))
    argv, _ = agent.command("p", "m", Dirs(str(script), "/h", "/w", "http://x", "t"))
    assert argv[4:] == [str(node), str(script), "--acp", str(tmp_path / "config.json")]
    found: Any = adapter_of(f"acp:{tmp_path}/venv/bin/other")
    assert found.find().program == str(tmp_path / "venv/bin/other")
    assert str(tmp_path / "venv") in found.find().folders
    missing: Any = adapter_of("acp:absent-agent")
    assert missing.find() is None


@pytest.mark.parametrize(("name", "why"), [("acp:", "name the command"), ("acp:'x", "no command line")])
def test_agent_without_a_command_is_refused(name: str, why: str) -> None:
    with pytest.raises(KoderzError, match=why):
        adapter_of(name)


def test_agent_without_the_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "acp", None)
    with pytest.raises(KoderzError, match=r"needs the package agent-client-protocol; run: "):
        adapter_of("acp:agent")


@pytest.mark.parametrize(("argument", "risks"), [("beside.json", []), ("/etc/hostname", [READS]), ("--deep", [])])
def test_files_of_a_command_in_a_configuration_have_to_be_trusted(
    tmp_path: Path, argument: str, risks: list[str]
) -> None:
    (tmp_path / "task").mkdir()
    (tmp_path / "task/tb_meta.json").write_text('{"lm": {"instructions": "Do it."}}')
    (tmp_path / "c.toml").write_text(f'[[tasks]]\nprepared_dir = "{tmp_path}/task"\nagent = "acp:agent {argument}"\n')
    assert [*risks_of(read_config(tmp_path / "c.toml")).values()] == risks
