"""The agent mini-swe-agent, which uses /v1/chat/completions and prints text for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from koderz.systems.rollouts.additions import told_of
from koderz.systems.rollouts.agents.adapters import ANY, Dirs, Event, Package, python_package

_SYSTEM = "You are a helpful assistant that can interact with a computer."  # mini-swe-agent's own


class MiniSweAgent:
    """The adapter for mini-swe-agent, see `Adapter`."""

    install = "pip install mini-swe-agent mcp"
    takes = ANY - {"mcp"}
    version_arguments = ("--help",)  # it greets with its version, and has no other way to say it

    def find(self) -> Package | None:
        return python_package("mini")

    def command(self, prompt: str, model: str, dirs: Dirs) -> tuple[Sequence[str], Mapping[str, str]]:
        argv = [dirs.program, "-y", "--exit-immediately", "-m", f"openai/{model}", "-t", prompt, "-o", "/tmp/run.json"]  # noqa: S108
        if text := told_of(dirs.additions):
            system = f"{_SYSTEM}\n\n{text}".replace("{", "{{'{'}}")  # it is a template of Jinja
            argv += ["-c", "mini.yaml", "-c", f"agent.system_template={json.dumps(system)}"]
        return argv, {
            "OPENAI_BASE_URL": f"{dirs.url}/v1",
            "OPENAI_API_BASE": f"{dirs.url}/v1",
            "OPENAI_API_KEY": dirs.token,
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }

    def events(self, line: str) -> Iterator[Event]:
        if line.startswith("mini-swe-agent (step "):
            yield Event("tool", line.strip())


adapter = MiniSweAgent()
