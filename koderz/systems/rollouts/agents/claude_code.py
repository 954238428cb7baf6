"""Anthropic's agent claude-code, which uses /v1/messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from koderz.systems.rollouts.agents.adapters import ANY, Dirs, Event, Package, laid_out, npm_package, parsed

# The repository's own servers are part of the task in every arm. It reads them itself, since it refuses to start with
# a file that is named to it and broken, and takes no servers but those that it is given where the repository has none.
_STRICT = '[ -f .mcp.json ] || set -- "$@" --strict-mcp-config; exec "$@"'


class ClaudeCode:
    """The adapter for claude-code, see `Adapter`."""

    install = "npm install --global @anthropic-ai/claude-code"
    takes = ANY

    def find(self) -> Package | None:
        return npm_package("claude", "claude-code-linux-*/claude")

    def command(self, prompt: str, model: str, dirs: Dirs) -> tuple[Sequence[str], Mapping[str, str]]:
        freely = ("--permission-mode", "bypassPermissions")
        told = ("--output-format", "stream-json", "--verbose", "--max-turns", "200")
        argv = ["sh", "-c", _STRICT, "sh", dirs.program, "-p", prompt, *told, *freely, "--model", model]
        if prompt_of_arm := dirs.texts("system_prompt"):
            argv += ["--append-system-prompt", prompt_of_arm]
        argv += ["--mcp-config", json.dumps({"mcpServers": dirs.servers})]
        own = f"{dirs.home}/.claude"
        texts = {f"{own}/CLAUDE.md": dirs.texts("context", "memory")}
        return laid_out(argv, dirs, skills=f"{own}/skills", texts=texts), {
            "ANTHROPIC_BASE_URL": dirs.url,
            "ANTHROPIC_API_KEY": dirs.token,
            "CLAUDE_CONFIG_DIR": own,
            # All tools are offered at once in every arm: a model that knows no ToolSearch would never find a server's.
            "ENABLE_TOOL_SEARCH": "false",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",
        }

    def events(self, line: str) -> Iterator[Event]:
        said = parsed(line)
        if said.get("type") == "result":
            yield Event("error", str(said.get("result", ""))) if said.get("is_error") else Event("end")
        if said.get("type") != "assistant":
            return
        for block in (said.get("message") or {}).get("content") or ():
            if block.get("type") == "tool_use":
                yield Event("tool", f"{block.get('name')} {json.dumps(block.get('input'))}")
            elif block.get("type") in ("text", "thinking"):
                yield Event("message" if block["type"] == "text" else "reasoning", str(block[block["type"]]))


adapter = ClaudeCode()
