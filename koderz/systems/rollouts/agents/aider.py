"""The agent aider, which uses /v1/chat/completions and prints text for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from koderz.systems.rollouts.agents.adapters import Dirs, Event, Package, laid_out, python_package

# Its map of a repository lies in the repository, where it is to be no part of the diff; nor is a repository of its own.
_BEGUN = """
if git rev-parse --git-dir >/dev/null 2>&1
then for n in 3 4 5 6; do mkdir -p .aider.tags.cache.v$n; echo "*" > .aider.tags.cache.v$n/.gitignore; done
else set -- "$@" --no-git
fi
exec "$@"
"""


class Aider:
    """The adapter for aider, see `Adapter`."""

    install = "pip install aider-chat"
    takes = frozenset({"context", "memory"})

    def find(self) -> Package | None:
        return python_package("aider")

    def command(self, prompt: str, model: str, dirs: Dirs) -> tuple[Sequence[str], Mapping[str, str]]:
        quietly = (
            *("--no-auto-commits", "--no-stream", "--no-check-update", "--analytics-disable", "--no-pretty"),
            *("--no-gitignore", "--no-show-model-warnings", "--no-show-release-notes"),
        )
        own = (f"--chat-history-file={dirs.home}/chat.md", f"--input-history-file={dirs.home}/input")
        asked = (f"--model=openai/{model}", f"--message={prompt}")
        argv = ["bash", "-c", _BEGUN, "bash", dirs.program, "--yes-always", *quietly, *own, *asked]
        if text := dirs.texts("context", "memory"):
            conventions = f"{dirs.home}/CONVENTIONS.md"
            argv = laid_out([*argv, "--read", conventions], dirs, texts={conventions: text})
        address = f"{dirs.url}/v1"
        return argv, {"OPENAI_API_BASE": address, "OPENAI_API_KEY": dirs.token, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

    def events(self, line: str) -> Iterator[Event]:
        if line.startswith(("Applied edit to ", "Running ")):
            yield Event("tool", line.strip())
        elif line.startswith("litellm."):
            yield Event("error", line.strip())


adapter = Aider()
