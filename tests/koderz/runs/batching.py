"""Runs of made-up questions in batches of a loopback server, which may die at any moment and be taken up again."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from koderz.runs.observer import NullObserver
from koderz.runs.prepare import prepare
from koderz.runs.resume import ResumeOptions, resume_run
from koderz.runs.session import SessionResult, begin
from koderz.testing.batches import BatchServer
from tests.conftest import PATIENCE, whole_lines

MODELS = {"openai": "openai/gpt-4o-mini", "anthropic": "anthropic/claude-haiku-4-5"}
KEY = "sk-of-the-loopback-server"
TWICE = """
async def twice(task, ask, judge):
    first = await ask(task.messages)
    turns = [{"role": "assistant", "content": first.text}, {"role": "user", "content": "Are you sure?"}]
    return await judge(task, await ask([*task.messages, *turns]))
"""


class Notices(NullObserver):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def notice(self, text: str) -> None:
        self.said.append(text)


@dataclass
class Place:
    """A folder with runs, and the provider that they ask."""

    folder: Path
    style: str = "openai"
    notices: Notices = field(default_factory=Notices)

    def server(self, **more: Any) -> BatchServer:
        """The provider, which answers 4 to each question."""
        return BatchServer("4", models=[name.partition("/")[2] for name in MODELS.values()], **more)

    def environ(self, server: BatchServer) -> Mapping[str, str]:
        return {
            "XDG_STATE_HOME": str(self.folder / "state"),
            "OPENAI_BASE_URL": f"{server.url}/v1",
            "OPENAI_API_KEY": KEY,
            "ANTHROPIC_BASE_URL": server.url,
            "ANTHROPIC_API_KEY": KEY,
        }

    def write(self, n: int = 4) -> None:
        """Writes the questions and a solver that asks twice."""
        rows = [{"id": f"q{i}", "input": f"What is 2 + 2, for the {i}th time?", "target": "4"} for i in range(n)]
        (self.folder / "faq.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (self.folder / "twice.py").write_text(TWICE)

    async def begun(self, server: BatchServer, n: int = 4, **settings: Any) -> SessionResult:
        """The first session of a run in batches."""
        self.write(n)
        given = {
            "local_model": MODELS[self.style],
            "suite": "qa",
            "dataset": self.folder / "faq.jsonl",
            "solver": f"{self.folder / 'twice.py'}:twice",
            "batch": True,
            "poll": 0.01,
            "results": self.folder / "results",
            "sinks": ("json",),
            **settings,
        }
        given = {name: value for name, value in given.items() if value is not None}
        environ = self.environ(server)
        plan = await prepare(given, None, environ=environ, observer=self.notices)
        return await asyncio.wait_for(begin(plan, self.notices, environ), PATIENCE)

    async def again(
        self, server: BatchServer, *, changes: Mapping[str, Any] | None = None, **way: Any
    ) -> SessionResult:
        """A later session of the run."""
        resuming = resume_run(
            "latest",
            ResumeOptions(**way),
            results=self.folder / "results",
            changes=changes,
            observer=self.notices,
            environ=self.environ(server),
        )
        return await asyncio.wait_for(resuming, PATIENCE)

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """The journal's lines of a kind."""
        (journal,) = (self.folder / "results").glob("[!.]*/journal.jsonl")
        return [line for line in whole_lines(journal) if line["kind"] == kind]


async def cut_off(session: asyncio.Task[Any], when: Callable[[], bool]) -> None:
    """Ends a session without any orderly end, once something has come about."""
    async with asyncio.timeout(PATIENCE):
        while not when():
            assert not session.done(), session.result()
            await asyncio.sleep(0.01)
    session.cancel()
    await asyncio.wait([session])


def paid_twice(server: BatchServer) -> list[str]:
    """The calls, whatever their tries, that were answered and billed more than once."""
    calls = Counter(name.rpartition("-")[0] for name in server.paid)
    return [name for name, times in calls.items() if times > 1]
