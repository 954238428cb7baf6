"""aider, which asks on /v1/chat/completions and prints what it does for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from koderz.solvers.agents.adapters import Dirs, Event, Package, python_package


class Aider:
    """See `Adapter`."""

    install = "pip install aider-chat"

    def find(self) -> Package | None:
        return python_package("aider")

    def command(self, prompt: str, model: str, dirs: Dirs) -> tuple[Sequence[str], Mapping[str, str]]:
        quietly = ("--no-auto-commits", "--no-stream", "--no-check-update", "--analytics-disable", "--no-pretty")
        argv = [dirs.program, "--yes-always", *quietly, f"--model=openai/{model}", f"--message={prompt}"]
        address = f"{dirs.url}/v1"
        return argv, {"OPENAI_API_BASE": address, "OPENAI_API_KEY": dirs.token, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

    def events(self, line: str) -> Iterator[Event]:
        if line.startswith(("Applied edit to ", "Running ")):
            yield Event("tool", line.strip())
        elif line.startswith("litellm."):
            yield Event("error", line.strip())


adapter = Aider()
