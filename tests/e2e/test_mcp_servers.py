"""MCP servers of arms in whole runs: by an agent that is a script, and by the real Codex."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Shell
from tests.scripted_model import COMMAND, scripted_model

pytestmark = pytest.mark.slow
PARCELS = Path(__file__).parents[1] / "parcels.py"
# It asks each server that it is given for a parcel, and does the task whatever it hears.
SCRIPT = """
python3 - <<'END'
import json, os, subprocess
for each in json.loads(os.environ.get("KODERZ_ADDITIONS", "[]")):
    words = [each["server"]["command"], *each["server"]["args"]]
    server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
    call = {"name": "parcel_code", "arguments": {"key": "abc"}}
    for number, (method, params) in enumerate([("initialize", about), ("tools/list", {}), ("tools/call", call)]):
        server.stdin.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\\n")
        server.stdin.flush()
        print(server.stdout.readline())
END
sed 's/.*/Hello, &!/' names.txt > greeting.txt
"""


def arms(koderz: Shell, agent: str, **servers: str) -> None:
    """A configuration with the plain arm, and one for each server; its text is what the server does."""
    shutil.copy(PARCELS, koderz.folder / "parcels.py")
    koderz("rollouts", "sample", "tasks")
    text = f'{agent}\n[[tasks]]\nprepared_dir = "tasks/greeting"\n[[arms]]\nname = "plain"\n'
    for name, how in servers.items():
        server = {"command": "python3", "args": ["parcels.py", *how.split()]}
        (koderz.folder / f"{name}.json").write_text(json.dumps({"mcpServers": {"parcels": server}}))
        text += f'[[arms]]\nname = "{name}"\nmcp = ["{name}.json"]\n'
    (koderz.folder / "arms.toml").write_text(text)


def by_arm(koderz: Shell) -> Mapping[str, Any]:
    return {name.rpartition(" · ")[2]: own for name, own in koderz.summary()["rollouts"].items()}


def agents_of(koderz: Shell) -> list[Any]:
    return [line["value"] for line in koderz.journal() if line.get("name") == "agent"]


def test_servers_of_arms_are_used_recorded_shown_and_kept(koderz: Shell) -> None:
    (koderz.folder / "solve.sh").write_text(SCRIPT)
    arms(koderz, 'agent = "scripted"\nscript = "solve.sh"', sound="", dies="dies", dead="dead")
    own = ("--sandbox", "local", "--quiet", "--trust-config")
    planned = koderz("rollouts", "run", "arms.toml", *own[:2], "--trust-config", "--dry-run").out
    assert "in the agent's sandbox" in planned
    koderz("rollouts", "run", "arms.toml", *own, code=3)
    found = by_arm(koderz)
    assert found["sound"]["mcp"]["parcels"]["calls"] == found["sound"]["mcp"]["parcels"]["rollouts"] == 1
    assert found["dies"]["mcp"]["parcels"]["findings"] == {"it ended with exit code 1: parcels: no key 31": 1}
    assert found["dead"]["faults"] == {"mcp": 1}
    assert "mcp" not in found["plain"]
    (fault,) = koderz.summary()["faults"]
    assert fault["reason"] == "the MCP server parcels ended with exit code 4: parcels: no key 31"
    assert all(found[arm]["tasks"]["sample/greeting"]["successes"] == 1 for arm in ("plain", "sound", "dies"))
    shown = koderz("benchmark", "show", "latest", "--problem", "sample/greeting").out
    assert "parcels.parcel_code" in shown
    assert "P-2058" in shown
    assert "parcels: it ended with exit code 1: parcels: no key 31" in shown
    before = agents_of(koderz)
    # It was killed as soon as the work of its agents was on disk, which isn't done again.
    (journal,) = koderz.results.glob("[!.]*/journal.jsonl")
    lines = [line for line in koderz.journal() if line["kind"] in ("plan", "once") and line.get("name") != "diff"]
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    journal.with_name("index.json").unlink(missing_ok=True)
    koderz("benchmark", "resume", "latest", "--quiet", "--trust-config", code=3)
    assert agents_of(koderz)[: len(before)] == before
    assert len(agents_of(koderz)) == len(before)
    assert by_arm(koderz)["sound"]["mcp"] == found["sound"]["mcp"]


def test_server_works_beside_its_agent_in_each_kind_of_sandbox(anywhere: Shell) -> None:
    (anywhere.folder / "solve.sh").write_text(SCRIPT)
    arms(anywhere, 'agent = "scripted"\nscript = "solve.sh"', sound="", dead="dead")
    anywhere("rollouts", "run", "arms.toml", "--quiet", "--trust-config", code=3)
    found = by_arm(anywhere)
    assert found["sound"]["mcp"]["parcels"]["calls"] == 1
    assert found["sound"]["mcp"]["parcels"]["findings"] == {}
    assert found["dead"]["faults"] == {"mcp": 1}
    if anywhere.environment()["KODERZ_SANDBOX"] != "docker":
        refused = anywhere("rollouts", "run", "arms.toml", "--mcp-network", "example.org", code=2)
        assert "--mcp-network needs --sandbox docker or podman" in refused.err
        return
    apart = ("--mcp-network", "example.org", "--trust-config")
    planned = anywhere("rollouts", "run", "arms.toml", *apart, "--dry-run").out
    assert "in a sandbox of its own that reaches example.org" in planned
    anywhere("rollouts", "run", "arms.toml", "--quiet", *apart, code=3, env={"KODERZ_RESULTS": "apart"})
    (path,) = (anywhere.folder / "apart").glob("*.json")
    found = {name.rpartition(" · ")[2]: own for name, own in json.loads(path.read_text())["rollouts"].items()}
    assert found["sound"]["mcp"]["parcels"]["calls"] == 1
    assert found["dead"]["faults"] == {"mcp": 1}


def test_servers_of_arms_are_called_by_koderz_own_agent(koderz: Shell) -> None:
    arms(koderz, 'agent = "koderz"\nmodel = "openai/m"', sound="shows", dies="dies", dead="dead")
    (koderz.folder / "koderz.toml").write_text('[prices."openai/m"]\ninput = 1.0\noutput = 2.0\n')
    with scripted_model() as model:
        inner = model.answer

        def answer(path: str, body: dict[str, Any]) -> dict[str, Any]:
            told = [message for message in body["messages"] if message["role"] == "tool"]
            has_tool = "parcel_code" in json.dumps(body["tools"])
            model.tools = [("parcel_code", {"key": "abc"})] if has_tool and not told else []
            model.commands = [*(["true"] if has_tool else []), COMMAND]
            return inner(path, body)

        model.answer = answer  # type: ignore[method-assign]
        given = ("--sandbox", "local", "--quiet", "--trust-config")
        koderz("rollouts", "run", "arms.toml", *given, code=3, env=model.env())
        found, before = by_arm(koderz), koderz.journal()
        # It was killed before its work was on disk as a whole: what it called is called again, and nothing is paid.
        (journal,) = koderz.results.glob("[!.]*/journal.jsonl")
        kept = [
            line for line in before
            if line["kind"] in ("plan", "call") or line.get("name") in ("tools", "call", "shell")
        ]  # fmt: skip
        journal.write_text("".join(json.dumps(line) + "\n" for line in kept))
        journal.with_name("index.json").unlink(missing_ok=True)
        paid = len(model.asked)
        koderz("benchmark", "resume", "latest", *given[2:], code=3, env=model.env())
        assert len(model.asked) == paid
    assert by_arm(koderz)["sound"]["mcp"]["parcels"]["calls"] == 1
    assert found["sound"]["mcp"]["parcels"]["findings"] == {}
    assert found["dies"]["mcp"]["parcels"]["findings"] == {"it ended with exit code 1: parcels: no key 31": 1}
    assert found["dead"]["faults"] == {"mcp": 1}
    assert all(found[arm]["tasks"]["sample/greeting"]["successes"] == 1 for arm in ("plain", "sound", "dies"))
    called = [line["value"] for line in before if line.get("name") == "call"]
    assert [each["output"] for each in called if each["status"]] == [
        "its server ended with exit code 1: parcels: no key 31"
    ]
    (shown,) = [json.loads(each["output"]) for each in called if not each["status"]]
    assert "names.txt" in shown["files"]
    assert not any("KEY" in name for name in shown["env"])
    facts = [line["facts"] for line in before if line["kind"] == "experiment" and "mcp" in (line.get("facts") or {})]
    assert [each["used"] for each in facts] == [{"parcels": True}] * 2
    assert "parcels.parcel_code" in koderz("benchmark", "show", "latest", "--problem", "sample/greeting").out


@pytest.mark.others("agents give up by clocks of their own where the machine is slow to start them")
def test_real_codex_uses_the_server_of_its_arm(koderz: Shell) -> None:
    path = f"{os.environ.get('KODERZ_AGENTS', '')}:{os.environ['PATH']}"
    if shutil.which("codex", path=path) is None:
        pytest.skip("codex isn't installed")
    (koderz.folder / "koderz.toml").write_text('[prices."openai/m"]\ninput = 1.0\noutput = 2.0\n')
    arms(koderz, 'agent = "codex"\nmodel = "openai/m"', sound="", dead="dead")
    with scripted_model() as model:
        model.commands, inner = ["true", COMMAND], model.answer

        def answer(path: str, body: dict[str, Any]) -> dict[str, Any]:
            is_first = "function_call_output" not in json.dumps(body["input"])
            has_tool = "parcel_code" in json.dumps(body["tools"])
            model.tools = [("parcel_code", {"key": "abc"})] if has_tool and is_first else []
            return inner(path, body)

        model.answer = answer  # type: ignore[method-assign]
        env = {**model.env(), "PATH": path}
        koderz("rollouts", "run", "arms.toml", "--sandbox", "local", "--quiet", "--trust-config", code=3, env=env)
    found = by_arm(koderz)
    assert found["sound"]["mcp"]["parcels"]["calls"] == 1
    assert found["sound"]["tasks"]["sample/greeting"]["successes"] == 1
    assert found["dead"]["faults"] == {"mcp": 1}
    assert not any("dead" in fault["solver"] or fault["cost"] for fault in koderz.summary()["faults"])
    (call,) = [call for each in agents_of(koderz) for call in each.get("mcp", {"calls": []})["calls"]]
    assert (call["tool"], call["result"]) == ("parcel_code", "P-2058")
    ended = [line.get("facts") or {} for line in koderz.journal() if line["kind"] == "experiment"]
    assert [facts["used"] for facts in ended if "mcp" in facts] == [{"parcels": True}]
