"""Secrets in prompts, replies, feedback and the environment: the journal has them, and nothing that is made of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from koderz.testing import ModelServer
from koderz.testing.wire import Request
from tests.conftest import Shell
from tests.e2e.written import written
from tests.tracker.secrets import NAMED, SECRETS, drawn
from tests.tracker.sinks.standins import installed

ENVIRONMENT = {
    "OPENAI_API_KEY": "a-key-of-no-known-format",
    "DEPLOY_TOKEN": drawn("deploy", 12),
    "SESSION_SECRET": "correct horse/battery",
    "DB_PASSWORD": 'swordfish "and" chips',
    "GATEWAY": "another-key:named-by-an-option",
}
TEXTS = {
    **{name: f"see {secret} here" for name, secret in SECRETS.items()},
    **{name: text for name, (text, _) in NAMED.items()},
}
TEXTS |= {name: f"it says {value}." for name, value in ENVIRONMENT.items()}
NEEDLES = {**SECRETS, **{name: secret for name, (_, secret) in NAMED.items()}, **ENVIRONMENT}
OWN = ("tasks.jsonl", "journal.jsonl", "journal.index")  # which may hold secrets
EACH = 8  # texts a task
TASKS = -(-len(TEXTS) // EACH)

PROMPT = 'def add(x, y):\n    """Adds.\n\n    Notes: {}\n    """\n'
TEST = "def check(candidate):\n    assert candidate(1, 2) == 3\n"


@pytest.mark.slow
def test_secrets_of_the_journal_reach_no_sink_and_no_export(koderz: Shell) -> None:
    env = {**installed(koderz.folder), **ENVIRONMENT, "KODERZ_SINKS": "json,memory,ledger,mlflow"}
    _write_tasks(koderz.folder / "tasks.jsonl")
    asyncio.run(_run(koderz, env))
    _export(koderz, env)

    journal = b"".join(path.read_bytes() for path in koderz.results.glob("bench_*/journal.jsonl")).decode()
    assert [name for name, needle in NEEDLES.items() if json.dumps(needle)[1:-1] not in journal] == []
    found = {
        (name, str(path.relative_to(koderz.folder)))
        for path, text in written(koderz.folder)
        if path.name not in OWN and path.parent.name != "blobs"
        for name, needle in NEEDLES.items()
        if _stands_in(needle, text)
    }
    assert found == set()


async def _run(koderz: Shell, env: Mapping[str, str]) -> None:
    async with ModelServer(_reply, api_key=ENVIRONMENT["GATEWAY"]) as server:
        asked = ("--dataset", "tasks.jsonl", "--model", "openai/recorded", "--base-url", f"{server.url}/v1")
        how = ("--api-key-env", "GATEWAY", "--feedback", "tests", "--max-iterations", 2, "--tag", SECRETS["xAI"])
        await asyncio.to_thread(koderz, "benchmark", 0, TASKS, *asked, *how, "--sink-patience", 240, "--wait", env=env)


def _export(koderz: Shell, env: Mapping[str, str]) -> None:
    for kind in ("csv", "jsonl", "md", "parquet"):
        koderz("benchmark", "export", "latest", "-o", f"0.{kind}", env=env)
        koderz("benchmark", "export", "latest", "--attempts", "-o", f"1.{kind}", env=env)
    koderz("benchmark", "report", "latest", env=env)
    (koderz.folder / "memories.json").write_text(koderz("memory", "export", env=env).out)
    (koderz.folder / "shown.json").write_text(koderz("benchmark", "show", "latest", "--json", env=env).out)


def _write_tasks(path: Path) -> None:
    texts = [*TEXTS.values()]
    rows = []
    for number in range(0, len(texts), EACH):
        notes = "\n    ".join("\n".join(texts[number : number + EACH]).split("\n"))
        prompt = PROMPT.format(notes.replace("\\", "\\\\"))
        row = {"task_id": f"T/{number // EACH}", "prompt": prompt, "entry_point": "add", "test": TEST}
        rows.append(row | {"canonical_solution": "    return x + y\n"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _reply(request: Request) -> str:
    """The first answer gives the notes back as its result, so that they are in its feedback; the second is right."""
    asked = str(request.messages)
    texts = [text for text in TEXTS.values() if text.split("\n")[0] in asked or repr(text)[1:-1] in asked]
    if any(message["role"] == "assistant" for message in request.messages):
        return "```python\ndef add(x, y):\n    return x + y\n```"
    notes = repr("\n".join(texts))
    thought = "\n".join(texts)
    program = f"NOTES = {notes}\ndef add(x, y):\n    return NOTES\n"
    return f"<think>\n{thought}\n</think>\nAs you said: {thought}\n\n```python\n{program}```"


def _stands_in(needle: str, text: str) -> bool:
    """Whether a text has a secret as it is, in JSON, or a good part of it."""
    if needle in text or json.dumps(needle)[1:-1] in text or repr(needle)[1:-1] in text:
        return True
    return len(needle) > 40 and any(needle[at : at + 20] in text for at in range(12, len(needle) - 19, 8))
