"""Anthropic's agent claude-code, which uses /v1/messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from koderz.systems.rollouts.agents.adapters import Dirs, Event, Package, npm_package, parsed


class ClaudeCode:
    """The adapter for claude-code, see `Adapter`."""

    install = "npm install --global @anthropic-ai/claude-code"

    def find(self) -> Package | None:
        return npm_package("claude", "claude-code-linux-*/claude")

    def command(self, prompt: str, model: str, dirs: Dirs) -> tuple[Sequence[str], Mapping[str, str]]:
        freely = ("--permission-mode", "bypassPermissions")
        told = ("--output-format", "stream-json", "--verbose", "--max-turns", "200")
        return [dirs.program, "-p", prompt, *told, *freely, "--model", model], {
            "ANTHROPIC_BASE_URL": dirs.url,
            "ANTHROPIC_API_KEY": dirs.token,
            "CLAUDE_CONFIG_DIR": f"{dirs.home}/.claude",
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
