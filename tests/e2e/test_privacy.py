"""Private texts in prompts, replies, code, output and errors: no file that a run leaves holds them, nor any screen."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from koderz.testing import ModelServer
from koderz.testing.wire import Request
from tests.conftest import Shell, kill_after
from tests.e2e.written import written
from tests.koderz.systems.long_context.encrypted import ANSWER, CANARY, SENTENCE, as_lines, rows

PRIVATE = (SENTENCE, SENTENCE[:32], SENTENCE[-32:], ANSWER, "Who found the copy of the ledger", CANARY)
RUN = ("benchmark", "--suite", "browsecomp-plus", "--dataset", "rows.jsonl", "--judge-model", "openai/recorded")
MODEL = ("--model", "openai/recorded")
SECRET = {"KODERZ_BROWSECOMP_CANARY": CANARY, "KODERZ_SINK_PATIENCE": "240"}

SOLVER = """
async def quoting(task, ask, judge, grade, once, long_context):
    text = await long_context.read()
    await once("notes", lambda: {text.context: 1, "said": [text.question]})
    reply = await ask([{"role": "user", "content": [{"type": "text", "text": text.context}], "name": "reader"}])
    if task.id.endswith("1"):
        raise ValueError(text.context)
    import dataclasses
    return dataclasses.replace(await judge(task, text.context * 3000), note=reply.text)
"""


def telling(request: Request) -> str:
    """Says what nobody may find, wherever it may say anything."""
    messages, asked = request.messages, str(request.messages[-1]["content"])
    if asked.startswith("Judge whether"):
        return f"extracted_final_answer: {ANSWER}\nreasoning: {SENTENCE}\ncorrect: yes\nconfidence: 60%"
    if messages[0]["role"] != "system":
        return f"<think>{SENTENCE}</think>They say: {SENTENCE} It was {ANSWER}."
    turn = sum(one["role"] == "assistant" for one in messages)
    code = "found = context\nprint(context * 200)\nnote = llm_query(context)\nraise ValueError(context)"
    if turn == 1:
        code = f"x = rlm_query({SENTENCE!r} + context)\nprint(x)"
    return f"{SENTENCE}\n```repl\n# {ANSWER}\n{code}\n```" if turn < 2 else f"FINAL(Exact Answer: {ANSWER}. {SENTENCE})"


@contextmanager
def refusing() -> Iterator[str]:
    """A server that refuses every prompt, and quotes it; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            said = json.dumps(
                {"error": {"message": f"I won't say: {asked['messages'][-1]['content']}"[-250:]}}
            ).encode()
            self.send_response(400)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            server.shutdown()
            thread.join()


SOLVERS = "direct,compaction,rlm,own.py:quoting"

Run = Callable[..., Awaitable[None]]


def played(koderz: Shell) -> list[str]:
    """Runs of every solver with their projections, and one that is refused; what was on the screen."""
    as_lines(koderz.folder / "rows.jsonl", rows(2))
    (koderz.folder / "browsecomp-plus").mkdir()
    as_lines(koderz.folder / "browsecomp-plus" / "rows.jsonl", rows(2))
    (koderz.folder / "own.py").write_text(SOLVER)
    return asyncio.run(_played(koderz))


async def _played(koderz: Shell) -> list[str]:
    said: list[str] = []
    env = SECRET | {"OPENAI_API_KEY": "sk-test", "LLM_API_KEY": "sk-test", "KODERZ_SINKS": "json,memory,mlflow"}

    async def run(*arguments: object, code: int = 0) -> None:
        done = await asyncio.to_thread(koderz, *arguments, code=code, env=env)
        said.extend((done.out, done.err))

    async with ModelServer(telling) as server:
        env["OPENAI_BASE_URL"] = f"{server.url}/v1"
        await run(*RUN, *MODEL, "--solvers", SOLVERS, "--limit", 2, code=3)
        found = koderz.summary()
        assert {fault["cause"] for fault in found["faults"]} == {"user_code"}  # which quoting has alone
        assert [len(arm["results"]) for arm in found["arms"].values()] == [2, 2, 2, 0]
        asked = len(server.requests)
        await run("benchmark", "rescore", "latest", code=3)
        assert len(server.requests) == asked  # what is on record was used again
        await _projected(run, "solvers", "--all-arms")
        await run("run", "browsecomp-plus/700", *RUN[1:], *MODEL, "--solver", "rlm")
        how = ("--max-tasks", 2, "--model", "recorded", "--base-url", f"{server.url}/v1", "--enable-logging")
        await run("rlm", "run", "--benchmark", "deep_research", *how, "--dataset-dir", ".", "--output-dir", "out")
    with refusing() as url:
        env["OPENAI_BASE_URL"] = url
        await run(*RUN, *MODEL, "--solver", "direct", "--limit", 2, code=3)
        await _projected(run, "refused")
    return said


async def _projected(run: Run, name: str, *of_samples: str) -> None:
    for more in (("show", "latest", "--json"), ("show", "latest", "--problem", "browsecomp-plus/700"), ("list",)):
        await run("benchmark", *more)
    await run("benchmark", "report", "latest", "-o", f"{name}.html")
    for ending, samples in (("jsonl", of_samples), ("md", ()), ("parquet", ())):
        await run("benchmark", "export", "latest", "--attempts", *samples, "-o", f"{name}.{ending}")
    await run("memory", "export")


def leaks(koderz: Shell, said: Sequence[str]) -> set[tuple[str, str]]:
    places = [("screen", text) for text in said]
    places += [(str(path.relative_to(koderz.folder)), text) for path, text in written(koderz.folder)]
    return {(text, place) for place, found in places for text in PRIVATE if text in found}


@pytest.mark.slow
def test_private_text_of_any_solver_is_in_no_file_or_sink_and_on_no_screen(koderz: Shell) -> None:
    assert leaks(koderz, played(koderz)) == set()


@pytest.mark.slow
def test_private_run_killed_at_any_moment_leaves_no_text_and_goes_on(koderz: Shell) -> None:
    as_lines(koderz.folder / "rows.jsonl", rows(2))
    (koderz.folder / "tmp").mkdir()

    async def killed() -> int:
        async with ModelServer(telling, latency=0.1) as server:
            env = SECRET | {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "sk-test"}
            env["TMPDIR"] = str(koderz.folder / "tmp")
            command: tuple[object, ...] = (*RUN, *MODEL, "--solver", "rlm", "--limit", 2)
            for more in (1, 4, 9, 6):
                running = await asyncio.to_thread(koderz.start, *command, env=env)
                told = await asyncio.to_thread(kill_after, more, lambda: server.requests, running)
                assert leaks(koderz, told) == set()
                command = ("benchmark", "resume", "latest")
            done = await asyncio.to_thread(koderz, *command, env=env)
            assert leaks(koderz, (done.out, done.err)) == set()
            return len(server.requests)

    requests = asyncio.run(killed())
    calls = [line for line in koderz.journal() if line["kind"] == "call"]
    assert (koderz.summary()["status"], len(koderz.summary()["results"])) == ("complete", 2)
    assert requests <= len(calls) + 4 * 2 * 4  # kills, experiments, calls in flight of each
    assert not any(result.get("diverged") for result in koderz.summary()["results"])


@pytest.mark.slow
def test_private_run_needs_its_canary_again_on_resume(koderz: Shell) -> None:
    as_lines(koderz.folder / "rows.jsonl", rows(2))
    run = (*RUN[:-1], "simulated", "--model", "simulated", "--solver", "rlm", "--limit", 1)
    for given in ((), ("--canary", "another")):
        assert "--canary" in koderz(*run, *given, code=2).err
    koderz(*run, "--canary", CANARY)
    before = koderz.journal()

    assert "KODERZ_BROWSECOMP_CANARY" in koderz("benchmark", "rescore", "latest", code=2).err
    koderz("benchmark", "rescore", "latest", env=SECRET)
    assert [line["kind"] for line in koderz.journal()[len(before) :]] == [
        "resumed",
        "attempt",
        "experiment",
        "finished",
    ]
    koderz("benchmark", "show", "latest")
    assert leaks(koderz, []) == set()


def test_private_texts_are_kept_where_that_is_asked_for(koderz: Shell) -> None:
    as_lines(koderz.folder / "rows.jsonl", rows(2))
    run = (*RUN[:-1], "simulated", "--model", "simulated", "--solver", "rlm", "--limit", 1, "--keep-private-text")
    koderz(*run, env=SECRET)

    cells = [line["value"] for line in koderz.journal() if line["kind"] == "once" and line["name"] == "cell 1"]
    assert "A document of" in cells[0]["output"] or "https://example.org" in cells[0]["output"]
    assert CANARY not in json.dumps(koderz.journal())
