"""OpenAI's agent codex, which uses /v1/responses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from koderz.systems.rollouts.agents.adapters import ANY, Dirs, Event, Package, laid_out, npm_package, parsed

_TOOLS = {"command_execution": "command", "mcp_tool_call": "tool", "file_change": "status", "web_search": "query"}

_KEYS = {"headers": "http_headers"}  # of a server, by what others call them


class Codex:
    """The adapter for codex, see `Adapter`."""

    install = "npm install --global @openai/codex"
    takes = ANY

    def find(self) -> Package | None:
        return npm_package("codex", "codex-*/vendor/*/bin/codex", up=1)

    def command(self, prompt: str, model: str, dirs: Dirs) -> tuple[Sequence[str], Mapping[str, str]]:
        own = f'{{name="koderz",base_url="{dirs.url}/v1",env_key="KODERZ_BRIDGE_TOKEN",wire_api="responses"}}'
        settings = ["-c", 'model_provider="koderz"', "-c", f"model_providers.koderz={own}"]
        freely = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
        for name, server in dirs.servers.items():
            table = {_KEYS.get(key, key): value for key, value in server.items() if key != "type"}
            settings += ["-c", f"mcp_servers.{name}={_toml(table)}"]
        if prompt_of_arm := dirs.texts("system_prompt"):
            settings += ["-c", f"developer_instructions={_toml(prompt_of_arm)}"]
        argv = [dirs.program, "exec", "--json", *freely, *settings, "-m", model, "--", prompt]
        texts = {f"{dirs.home}/AGENTS.md": dirs.texts("context", "memory")}
        return laid_out(argv, dirs, skills=f"{dirs.home}/skills", texts=texts), {"CODEX_HOME": dirs.home}

    def events(self, line: str) -> Iterator[Event]:
        said = parsed(line)
        item = said.get("item") or {}
        kind = item.get("type") if said.get("type") == "item.completed" else None
        if kind in _TOOLS:
            server = f"mcp__{item.get('server')}__" if kind == "mcp_tool_call" else ""
            yield Event("tool", f"{server}{item.get(_TOOLS[kind], '')}")
        elif kind in ("agent_message", "reasoning"):
            yield Event("message" if kind == "agent_message" else kind, str(item.get("text", "")))
        elif said.get("type") == "turn.failed":
            yield Event("error", str((said.get("error") or {}).get("message", "")))
        elif said.get("type") == "turn.completed":
            yield Event("end")


def _toml(value: Any) -> str:
    """A value as TOML has it, whose strings are written as those of JSON."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{json.dumps(key)}={_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return "[" + ",".join(map(_toml, value)) + "]"


adapter = Codex()
