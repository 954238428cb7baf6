"""How command lines of others are found, started and read."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.solvers import load_solver
from koderz.systems.rollouts import SYSTEM
from koderz.systems.rollouts.additions import Addition
from koderz.systems.rollouts.agents.adapters import (
    ANY,
    Adapter,
    AddingAdapter,
    Dirs,
    Event,
    npm_package,
    python_package,
    require_taken,
)
from koderz_tracker.registry import find

DIRS = Dirs("/opt/agent", "/home/user", "/workspace", "http://127.0.0.1:1", "the-token")
LINES: Mapping[str, list[Any]] = {  # as the real ones printed them, shortened
    "codex": [
        {"type": "thread.started", "thread_id": "01a200e3"},
        {"type": "item.completed", "item": {"id": "item_0", "type": "error", "message": "Model metadata not found."}},
        {"type": "item.started", "item": {"id": "item_1", "type": "command_execution", "status": "in_progress"}},
        {"type": "item.completed", "item": {"id": "item_1", "type": "command_execution", "command": "ls"}},
        {"type": "item.completed", "item": {"id": "item_2", "type": "agent_message", "text": "Done."}},
        {"type": "turn.completed", "usage": {"input_tokens": 2000}},
        {"type": "turn.failed", "error": {"message": "the cost cap is reached"}},
    ],
    "claude-code": [
        {"type": "system", "subtype": "init"},
        {
            "type": "assistant",
            "message": {"content": [{"type": "tool_use", "name": "Bash", "input": {"command": "ls"}}]},
        },
        {"type": "user", "message": {"role": "user", "content": [{"type": "tool_result"}]}},
        {"type": "assistant", "message": {"content": [{"type": "text", "text": "Done."}]}},
        {"duration_api_ms": 2106, "type": "result", "is_error": False, "result": "Done."},
        {"type": "result", "is_error": True, "result": "API Error: 402"},
    ],
    "mini-swe-agent": ["mini-swe-agent (step 1, $0.00):", "Submitted"],
    "aider": ["Applied edit to pages.py", "Tokens: 1.2k sent, 345 received."],
}
TOLD = {
    "codex": [
        *(Event("tool", "ls"), Event("message", "Done."), Event("end")),
        Event("error", "the cost cap is reached"),
    ],
    "claude-code": [
        *(Event("tool", 'Bash {"command": "ls"}'), Event("message", "Done."), Event("end")),
        Event("error", "API Error: 402"),
    ],
    "mini-swe-agent": [Event("tool", "mini-swe-agent (step 1, $0.00):")],
    "aider": [Event("tool", "Applied edit to pages.py")],
}


def adapter_of(name: str) -> Adapter:
    adapter: Adapter = find("agent", name, SYSTEM.agents, "")
    return adapter


@pytest.mark.parametrize("name", SYSTEM.agents)
def test_agent_output_is_read(name: str) -> None:
    lines = [line if isinstance(line, str) else json.dumps(line) for line in LINES[name]]
    noise = ["", "{", "[1]", '{"type": 5}', "plain"]
    assert [event for line in (*lines, *noise) for event in adapter_of(name).events(line)] == TOLD[name]


@pytest.mark.parametrize("name", SYSTEM.agents)
def test_agent_is_told_its_task_and_the_bridge(name: str) -> None:
    argv, environment = adapter_of(name).command("do it; --now", "m", DIRS)
    assert "/opt/agent" in argv
    assert any("do it; --now" in word for word in argv)
    told = " ".join([*argv, *environment.values()])
    assert DIRS.url in told
    assert name == "codex" or DIRS.token in environment.values()


def _given(folder: Path, *kinds: str) -> tuple[Addition, ...]:
    """Additions of these kinds, as an adapter sees them."""
    (folder / "skill/scripts").mkdir(parents=True)
    (folder / "skill/SKILL.md").write_text("How it is done.")
    server = {"command": "python3", "args": ["-c", 'print("a")'], "env": {"A": "b"}}
    every = {
        "skill": Addition("skill", "sql-style@v1", str(folder / "skill"), "d", text="description: SQL"),
        "mcp": Addition("mcp", "parcels", "", "d", server),
        "context": Addition("context", "AGENTS.md", "", "d", text="the context"),
        "memory": Addition("memory", "notes.md", "", "d", text="the memory"),
        "system_prompt": Addition("system_prompt", "own.md", "", "d", text='the "prompt" of {{ one }}'),
    }
    return tuple(every[kind] for kind in kinds)


@pytest.mark.parametrize("name", SYSTEM.agents)
def test_agent_is_started_with_all_that_it_takes(tmp_path: Path, name: str) -> None:
    adapter = adapter_of(name)
    assert isinstance(adapter, AddingAdapter)
    shown = tmp_path / "agent"
    shown.write_text(
        f"#!/bin/sh\nprintf '%s\\n' \"$@\"; cd {tmp_path}/home && find . -type f -exec head -c 99 {{}} +\n"
    )
    shown.chmod(0o755)
    dirs = DIRS._replace(program=str(shown), home=str(tmp_path / "home"), additions=_given(tmp_path, *adapter.takes))
    (tmp_path / "home").mkdir()
    argv, environment = adapter.command("do it", "m", dirs)
    told = subprocess.run(
        argv, cwd=tmp_path, env={"PATH": "/usr/bin:/bin", **environment}, capture_output=True, text=True
    )
    words = {
        "skill": "description: SQL" if name == "mini-swe-agent" else "How it is done.",
        "mcp": "parcels",
        "context": "the context",
        "memory": "the memory",
        "system_prompt": "of {{'{'}}{{'{'}} one" if name == "mini-swe-agent" else "of {{ one }}",
    }
    assert not told.stderr
    assert {kind for kind, word in words.items() if word in told.stdout} == {*adapter.takes}


def test_agent_without_its_skill_is_not_started(tmp_path: Path) -> None:
    (skill,) = _given(tmp_path, "skill")
    dirs = DIRS._replace(home=str(tmp_path), additions=(replace(skill, path=str(tmp_path / "gone")),))
    argv, _ = adapter_of("codex").command("do it", "m", dirs)
    told = subprocess.run(argv, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert told.returncode == 127  # which is a fault, and none of the model's
    assert "gone" in told.stderr


@pytest.mark.parametrize(
    ("agent", "kind", "why"),
    [
        (
            "aider",
            "skill",
            "the agent aider can't be given sql-style@v1 (skill); it takes context, memory: name another",
        ),
        ("mini-swe-agent", "mcp", "it takes context, memory, skill, system prompt"),
        ("unknown", "context", "it takes nothing beyond its task"),
        ("codex", "memory", "the agent codex takes a memory that is a file of text"),
    ],
)
def test_addition_that_an_agent_cannot_be_given_is_named(tmp_path: Path, agent: str, kind: str, why: str) -> None:
    given = [replace(each, text="") if kind == "memory" else each for each in _given(tmp_path, kind)]
    with pytest.raises(KoderzError) as told:
        require_taken(agent, given, "own.toml: ")
    assert str(told.value).startswith("own.toml: ")
    assert why in str(told.value)


def test_server_of_http_in_its_sandbox_is_refused_by_koderz_own_agent() -> None:
    server = Addition("mcp", "docs", "", "0", {"type": "http", "url": "http://localhost:8000/mcp"})
    require_taken("koderz", [server])
    with pytest.raises(KoderzError, match="docs is reached by HTTP from within the sandbox: name another agent"):
        require_taken("koderz", [replace(server, inside=True)])


def test_agents_without_a_model_are_given_anything(tmp_path: Path) -> None:
    given = _given(tmp_path, *ANY)
    for agent in ("scripted", "oracle", "nop"):
        require_taken(agent, given)


@pytest.mark.parametrize("has_git", [False, True])
def test_aider_leaves_a_folder_without_git_as_it_is(tmp_path: Path, has_git: bool) -> None:
    if has_git:
        subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    argv, _ = adapter_of("aider").command("do it", "m", DIRS._replace(program="echo"))
    own = {"PATH": os.environ["PATH"], "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    said = subprocess.run(argv, cwd=tmp_path, env=own, capture_output=True, text=True, check=True).stdout
    assert said.endswith(" --message=do it\n" if has_git else " --message=do it --no-git\n")
    assert bool([*tmp_path.glob(".aider*")]) == has_git


def test_npm_package_is_run_by_its_native_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scope = tmp_path / "node_modules/@openai"
    wrapper, native = scope / "codex/bin/codex.js", scope / "codex-linux-x64/vendor/x86/bin/codex"
    for path in (wrapper, native):
        path.parent.mkdir(parents=True)
        path.write_text("#!/usr/bin/env node\n")
        path.chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/codex").symlink_to(wrapper)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert npm_package("codex", "codex-*/vendor/*/bin/codex", up=1) == (str(native), (str(native.parents[1]),))
    native.unlink()
    assert npm_package("codex", "codex-*/vendor/*/bin/codex", up=1) == (str(wrapper), (str(wrapper),))
    assert npm_package("other", "*") is None


def test_python_package_comes_with_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "base/bin").mkdir(parents=True)
    (tmp_path / "base/bin/python3").touch(0o755)
    (tmp_path / "venv/bin/python").symlink_to(tmp_path / "base/bin/python3")
    program = tmp_path / "venv/bin/mini"
    program.write_text(f"#!{tmp_path}/venv/bin/python\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    found = python_package("mini")
    assert found is not None
    assert found.program == str(program)
    assert set(found.folders) == {str(program), str(tmp_path / "venv"), str(tmp_path / "base")}


def test_agents_of_other_packages_are_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_agent.py").write_text("install = 'make it'\ndef find(): return None\n")
    info = tmp_path / "own_agent-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-agent\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[koderz.agents]\nown = own_agent\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    solver = load_solver("agent:own", {}, {})
    assert (solver.name, solver.is_foreign, solver.restarts) == ("agent:own", True, True)
    with pytest.raises(KoderzError, match="there is no agent 'none'"):
        load_solver("agent:none", {}, {})
