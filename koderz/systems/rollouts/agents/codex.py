"""OpenAI's agent codex, which uses /v1/responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from koderz.systems.rollouts.agents.adapters import Dirs, Event, Package, npm_package, parsed

_TOOLS = {"command_execution": "command", "mcp_tool_call": "tool", "file_change": "status", "web_search": "query"}


class Codex:
    """The adapter for codex, see `Adapter`."""

    install = "npm install --global @openai/codex"

    def find(self) -> Package | None:
        return npm_package("codex", "codex-*/vendor/*/bin/codex", up=1)

    def command(self, prompt: str, model: str, dirs: Dirs) -> tuple[Sequence[str], Mapping[str, str]]:
        own = f'{{name="koderz",base_url="{dirs.url}/v1",env_key="KODERZ_BRIDGE_TOKEN",wire_api="responses"}}'
        settings = ("-c", 'model_provider="koderz"', "-c", f"model_providers.koderz={own}")
        freely = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
        argv = [dirs.program, "exec", "--json", *freely, *settings, "-m", model, "--", prompt]
        return argv, {"CODEX_HOME": dirs.home}

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


adapter = Codex()
