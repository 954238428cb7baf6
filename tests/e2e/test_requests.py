"""Requests as a run makes them: items of turns, secret headers, cut thoughts and the options of roles."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from tests.conftest import Done, Shell
from tests.e2e.written import written
from tests.koderz.models.loopback import Answer, Asked, Server, chat, refusal, serving, until

SOLVER = """
from koderz.types import Verdict

async def solve(task, ask, judge):
    first = await ask([{"role": "user", "content": "One."}])
    second = await ask([
        {"role": "user", "content": "One."},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "Two."},
    ], temperature=1.0)
    third = await ask([{"role": "user", "content": "Check."}], model="critic", temperature=1.0)
    return Verdict("passed" if second.text and third.text else "failed")
"""
SUITE = """
from koderz.suites.suite import Suite
from koderz.types import Task

class Words(Suite):
    name, source, scorer = "words", "here", "equals"
    tasks = (Task(id="W/0", prompt="Say a word.", payload="word", needs=frozenset()),)

    @classmethod
    def load(cls, source):
        return cls()
"""
ITEMS = [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "E" * 40}]


def turn(text: str) -> Answer:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    items = [*ITEMS, {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}]
    usage = {"input_tokens": 3, "output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 7}}
    return Answer(json.dumps({"model": "m", "status": "completed", "output": items, "usage": usage}).encode())


@asynccontextmanager
async def served(koderz: Shell, decide: Callable[[Asked], Answer]) -> AsyncIterator[tuple[Server, Callable[..., Any]]]:
    """A server, and `koderz` asking it."""
    (koderz.folder / "own.py").write_text(SOLVER + SUITE)
    async with serving() as server:
        server.decide = decide
        yield server, partial(asyncio.to_thread, koderz)


def posts(server: Server) -> list[Asked]:
    return [asked for asked in server.asked if asked.method == "POST"]


def asking(server: Server, *more: object) -> tuple[object, ...]:
    return ("benchmark", 0, 1, "--model", "openai/m", "--base-url", f"{server.url}/v1", *more)


@pytest.mark.slow
def test_resume_after_a_kill_brings_the_items_of_turns_along(koderz: Shell) -> None:
    async def killed() -> None:
        def decide(asked: Asked) -> Answer:
            if asked.method == "GET":
                return refusal("none", 404)
            if asked.json["input"][-1]["content"] == "Two." and len(posts(server)) == 2:
                return Answer(hang=True)
            return turn("hello")

        async with served(koderz, decide) as (server, run):
            options = ("--solver", "own.py:solve", "--role", "critic=openai/m", "--wire", "responses", "--quiet")
            process = await asyncio.to_thread(koderz.start, *asking(server, *options))
            await until(lambda: len(posts(server)) == 2)
            process.kill()
            await asyncio.to_thread(process.communicate)
            await run("benchmark", "resume", "latest")

            first, cut, again, _ = [asked.json["input"] for asked in posts(server)]
            assert len(first) == 1
            assert cut == again
            assert [item.get("type") for item in again] == [None, "reasoning", "message", None]
            assert again[1] == ITEMS[0]

    asyncio.run(killed())
    calls = [line for line in koderz.journal() if line["kind"] == "call"]
    assert [len(call["messages"]) for call in calls] == [1, 3, 1]
    assert all("items" not in message for call in calls for message in call["messages"])
    assert calls[0]["items"][0] == ITEMS[0]
    assert koderz.summary()["results"][0]["tokens_reasoning"] == 21


@pytest.mark.slow
def test_header_value_stands_in_no_file_and_on_no_screen(koderz: Shell) -> None:
    values = {"X-Team": "team-of-seven", "X-Key": "drawn/8f3a"}
    env = {"GATEWAY_PART": values["X-Key"], "KODERZ_SINKS": "json,memory"}
    said: list[Done] = []

    async def ran() -> None:
        def decide(asked: Asked) -> Answer:
            echo = f"you sent {asked.headers.get('x-team')} and {asked.headers.get('x-key')}"
            return chat(echo, reasoning_content=echo) if is_up else refusal(echo, 418)

        is_up = False
        async with served(koderz, decide) as (server, run):
            headers = ("--extra-header", f"X-Team={values['X-Team']}", "--extra-header", "X-Key=$GATEWAY_PART")
            said.append(await run(*asking(server, *headers, "--mode", "zero-shot", "--wait"), env=env, code=(3, 4)))
            is_up = True
            lacking = await run("benchmark", "retry", "latest", env=env, code=(3, 4))
            assert "--extra-header X-Team=…" in lacking.err
            said.extend([lacking, await run("benchmark", "retry", "latest", *headers[:2], "--wait", env=env)])
            wrong = await run("benchmark", "retry", "latest", "--extra-header", "X-Other=team-of-seven", code=2)
            said.append(wrong)
            assert posts(server)[-1].headers["x-key"] == values["X-Key"]
            said.append(await run("benchmark", "show", "latest", "--problem", "0"))
            await run("benchmark", "export", "latest", "--format", "csv", "--output", "out.csv")
            await run("benchmark", "report", "latest")

    asyncio.run(ran())
    assert koderz.summary()["config"]["extra_headers"][0] == "X-Team"
    (call,) = [line for line in koderz.journal() if line["kind"] == "call"]
    assert call["reply"] == call["reasoning"] == "you sent *** and ***"
    texts = [(str(path), text) for path, text in written(koderz.folder)]
    texts += [("screen", text) for done in said for text in (done.out, done.err)]
    assert {name for name, text in texts for value in values.values() if value in text} == set()


@pytest.mark.slow
@pytest.mark.parametrize("suite", ["humaneval", "own.py:Words"])
def test_thought_that_was_cut_is_an_error_in_any_suite(koderz: Shell, suite: str) -> None:
    async def ran(message: dict[str, Any], tag: str) -> str:
        def decide(asked: Asked) -> Answer:
            told = json.loads(chat().body)
            told["choices"][0] = {"message": {"role": "assistant", **message}, "finish_reason": "length"}
            return Answer(json.dumps(told).encode())

        async with served(koderz, decide) as (server, run):
            found: Done = await run(
                *asking(server, "--suite", suite, "--mode", "zero-shot", "--tag", tag), "--trust-config"
            )
            return found.out

    def summary() -> dict[str, Any]:
        latest = max(koderz.results.glob("bench_*.json"), key=lambda path: path.stat().st_mtime_ns)
        return dict(json.loads(latest.read_text()))

    for message in ({"content": "", "reasoning_content": "Hm"}, {"content": "<think>So"}, {"content": None}):
        screen = asyncio.run(ran(message, "thought"))
        (result,) = summary()["results"]
        assert (result["verdict"], result["cause"]) == ("error", "length_reasoning")
        assert summary()["summary"]["truncated"] == {"text": 0, "reasoning": 1}
        assert "raise --max-tokens" in screen

    asyncio.run(ran({"content": "def f(:\n  ret"}, "text"))
    assert summary()["summary"]["truncated"] == {"text": 1, "reasoning": 0}
    assert summary()["results"][0]["cause"] != "length_reasoning"
    assert "--max-tokens" in koderz("benchmark", "compare", "latest~1", "latest").out


@pytest.mark.slow
def test_role_has_its_own_address_and_sampling(koderz: Shell) -> None:
    async def ran() -> None:
        async with serving() as other, served(koderz, lambda _: chat()) as (server, run):
            other.answers = [chat()]
            (koderz.folder / "koderz.toml").write_text(
                '[roles.critic]\nmodel = "openai/m"\nreasoning-effort = "high"\nmax-tokens = 7\nextra-body = {a = 1}\n'
            )
            (koderz.folder / "body.json").write_text('{"user": "me"}')
            flags = ("--role-option", f"critic.base-url={other.url}/v1", "--role-option", "critic.temperature=0.25")
            body = ("--extra-body", "@body.json", "--stop", "END, or so", "--reasoning-tokens", 9)
            headers = ("--extra-header", "X-Team=team-of-seven")
            await run(*asking(server, "--solver", "own.py:solve", *flags, *body, *headers, "--trust-config"))

            (mine,), theirs = posts(other), posts(server)
            fields = ("reasoning_effort", "reasoning", "max_tokens", "temperature", "stop", "user", "a")
            assert [mine.json.get(name) for name in fields] == ["high", None, 7, 0.25, None, None, 1]
            assert "x-team" not in mine.headers
            assert [theirs[1].json.get(name) for name in fields] == [
                None, {"max_tokens": 9}, 4096, 1.0, ["END, or so"], "me", None,
            ]  # fmt: skip
            assert theirs[0].headers["x-team"] == "team-of-seven"
            (koderz.folder / "body.json").unlink()
            await run("benchmark", "rescore", "latest", "--extra-header", "X-Team=team-of-seven")

    asyncio.run(ran())
    config = koderz.summary()["config"]
    assert config["extra_body"] == '{"user":"me"}'
    assert {"critic.reasoning-effort=high", 'critic.extra-body={"a":1}'} < {*config["role_options"]}


@pytest.mark.parametrize(
    "words",
    [
        ("--reasoning-effort", "low", "--reasoning-tokens", 9),
        *(("--extra-body", json.dumps({name: 1})) for name in ("model", "messages", "input", "stream", "n")),
        ("--extra-body", "[1]"),
        ("--extra-body", "@absent.json"),
        ("--extra-header", "X-Team"),
        ("--extra-header", "Content-Length=team-of-seven"),
        ("--extra-header", "X-Team=team-of-seven\n"),
        ("--role-option", "main.temperature=1"),
        ("--role-option", "critic.temperature=1"),
        ("--role-option", "judge.reasoning-tokens=few"),
        ("--stop", ""),
        ("--api-version", "2024-10-21", "--base-url", "http://127.0.0.1:9/v1"),
        ("--wire", "responses", "--model", "anthropic/m"),
    ],
)
def test_request_options_that_cannot_be_are_refused(koderz: Shell, words: tuple[object, ...]) -> None:
    model = () if "--model" in words else ("--model", "openai/m")
    done = koderz("benchmark", 0, 1, *model, *words, code=2, env={"OPENAI_API_KEY": "k" * 20})

    assert len(done.err.splitlines()) == 1
    assert "team-of-seven" not in done.err
    assert not koderz.results.exists()
