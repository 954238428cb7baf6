"""`koderz memory` as its users meet it: on the command line, and as an MCP server in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from koderz.systems.memory.tools import TOOLS
from koderz_tracker.memory import Draft
from koderz_tracker.memory.store import Store
from tests.conftest import PATIENCE, Shell
from tests.forks import forks

LESSON = "HumanEval/7: failed (assertion). What fixed it: one line written anew."


def filled(koderz: Shell) -> Shell:
    """A folder whose store holds a run, an experiment and two notes."""
    run = "bench_0a1b2c3d_20260131_120000"
    fields = {"benchmark_run_id": run, "problem_id": "HumanEval/7", "success": True}
    with Store(koderz.results / "memory.db") as store:
        store.remember(
            [
                Draft(
                    title="Experiment exp_0123456789abcdef",
                    content=f"passed after 2 attempts\n\n{LESSON}",
                    key="exp_0123456789abcdef",
                    category="learning",
                    tags=["result", "exp_0123456789abcdef", "HumanEval/7", "completed", run],
                    metadata={**fields, "lesson": LESSON, "lesson_cause": "assertion", "simulated": True},
                ),
                Draft(title="Benchmark Run", content="{}", importance="critical", tags=["benchmark_run"]),
                Draft(title="the first note", content="sorting was off by one\x1b[31m", tags=["mine"], project="p"),
                Draft(title="the second note", content="mind the empty list", tags=["mine"]),
            ]
        )
    return koderz


@pytest.fixture
def shell(koderz: Shell) -> Shell:
    return filled(koderz)


def json_of(shell: Shell, *arguments: object) -> Any:
    return json.loads(shell("memory", *arguments, "--json").out)


def test_recall_lists_what_answers_best(shell: Shell) -> None:
    done = shell("memory", "recall", "sorting", "off")

    assert "the first note" in done.out
    assert "\x1b" not in done.out  # what was remembered can't steer the terminal
    assert [memory["title"] for memory in json_of(shell, "recall", "assertion", "-t", "result")] == [
        "Experiment exp_0123456789abcdef"
    ]
    assert shell("memory", "recall", "zebra").err == "no matching memories\n"
    assert "nothing holds sortinng: sorting was looked for instead" in shell("memory", "recall", "sortinng").err


def test_recall_without_its_server_of_embeddings_says_so(shell: Shell) -> None:
    gone = {"KODERZ_EMBEDDINGS": "http://127.0.0.1:9/v1#m"}
    said = "only words were compared: http://127.0.0.1:9/v1 gives no vectors of m (cannot connect"

    done = shell("memory", "recall", "sorting", "off", env=gone)
    assert "the first note" in done.out
    assert said in done.err
    assert said in shell("memory", "recall", "zebra", env=gone).err
    assert shell("memory", "recall", "zebra", "--embeddings", "none", env=gone).err == "no matching memories\n"
    for command in (("memory", "recall", "x"), ("memory", "serve"), ("mcp", "serve")):
        told = shell(*command, "--embeddings", "http://127.0.0.1:9/v1", code=2).err
        assert (
            told == "koderz: embeddings: write the address as http://HOST:PORT/v1#MODEL, without a name and password\n"
        )


def test_recall_shows_as_much_as_is_asked_for(shell: Shell) -> None:
    table = shell("memory", "recall", "attempts", "--outcome", "passed", "--explain").out
    assert [
        word for word in ("HumanEval/7", "1, 1 passed", "What fixed it", "attempts in content") if word in table
    ] == [
        "HumanEval/7",
        "1, 1 passed",
        "What fixed it",
        "attempts in content",
    ]
    assert shell("memory", "recall", "attempts", "--detail", "line").out.count("\n") == 1
    assert shell("memory", "recall", "attempts", "--detail", "full").out == f"passed after 2 attempts\n\n{LESSON}\n"
    assert shell("memory", "recall", "attempts", "--model", "other").err == "no matching memories\n"
    (hit,) = json_of(shell, "recall", "attempts", "--detail", "lesson")
    assert LESSON in hit["text"]
    assert "content" not in hit
    told = shell("memory", "recall", "x", "--detail", "much", code=2).err
    assert told == "koderz: detail: invalid value 'much'; choose from line, lesson, full\n"


def test_show_takes_a_number_or_a_key(shell: Shell) -> None:
    assert "What fixed it" in shell("memory", "show", "exp_0123456789abcdef").out
    assert json_of(shell, "show", 4)["title"] == "the second note"
    assert shell("memory", "show", 99, code=2).err.startswith("koderz: there is no memory 99;")


def test_import_of_an_export_is_idempotent(shell: Shell) -> None:
    shell("memory", "export", "--tag", "mine", "-o", "notes.json")
    there = {"KODERZ_MEMORY": str(shell.folder / "other" / "memory.db")}

    assert shell("memory", "import", "notes.json", env=there).out == "2 new memories\n"
    assert shell("memory", "import", "notes.json", env=there).out == "0 new memories\n"
    exported = json.loads(shell("memory", "export", env=there).out)
    assert [memory["title"] for memory in exported] == ["the first note", "the second note"]


def test_forgetting_needs_a_yes_and_spares_runs_and_experiments(shell: Shell) -> None:
    shown = shell("memory", "forget", "--tag", "mine")
    assert "the first note" in shown.out
    assert "say --yes" in shown.err
    assert json_of(shell, "stats")["total"] == 4

    assert "2 forgotten" in shell("memory", "forget", "--tag", "mine", "--yes").out
    spared = shell("memory", "forget", "--below-salience", "1", "--yes")
    assert "1 that fit are kept" in spared.err
    assert json_of(shell, "stats")["total"] == 2


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["forget"], 2, "say what to forget"),
        (["recall", "x", "--category", "fun"], 2, "choose from architecture"),
        (["import", "missing.json"], 2, "missing.json can't be read"),
        pytest.param(["export", "--since", "soon"], 2, "give a time in ISO 8601", marks=pytest.mark.slow),
        pytest.param(["serve", "--http", "here"], 2, "write HOST:PORT", marks=pytest.mark.slow),
        pytest.param(["serve", "--http", "0.0.0.0:0"], 2, "name the one address", marks=pytest.mark.slow),
        pytest.param(
            ["serve", "--http", "127.0.0.1:0", "--token-env", "NO_SUCH"],
            2,
            "at least 16 characters",
            marks=pytest.mark.slow,
        ),
        pytest.param(["stats", "--results", "nowhere"], 4, "there is no memory store", marks=pytest.mark.slow),
    ],
)
def test_mistakes_are_one_line(shell: Shell, arguments: list[str], code: int, says: str) -> None:
    done = shell("memory", *arguments, code=code)

    assert done.out == ""
    assert done.err.startswith("koderz: ")
    assert done.err.count("\n") == 1
    assert says in done.err


def test_damaged_store_is_one_line(shell: Shell) -> None:
    (shell.results / "memory.db").write_bytes(b"nonsense" * 100)
    done = shell("memory", "recall", "x", code=4)

    assert "is damaged" in done.err
    assert "koderz sync --rebuild" in done.err
    assert done.err.count("\n") == 1


def test_iterative_run_is_shown_lessons_and_resumes_to_the_same(shell: Shell) -> None:
    common = ("--model", "simulated", "--quiet", "--seed", 3)
    shell("benchmark", "--use-memory", 0, 7, *common)

    recalled = [line for line in shell.journal() if line["kind"] == "once"]
    assert any(line["value"] == [LESSON] for line in recalled)
    assert all(line["value"] in ([LESSON], []) for line in recalled)
    assert shell.summary()["config"]["use_memory"] == "other-tasks"
    prompts = [line["messages"][-1]["content"] for line in shell.journal() if line["kind"] == "call"]
    assert any(LESSON in prompt for prompt in prompts)
    shell("benchmark", "rescore", "latest", "--quiet")


# The server, met by the official client


@asynccontextmanager
async def stdio(shell: Shell) -> AsyncIterator[Any]:
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters

    arguments = ["-m", "koderz", "memory", "serve"]
    server = StdioServerParameters(command=sys.executable, args=arguments, cwd=shell.folder, env=shell.environment())
    async with Client(server) as client:
        yield client


async def called(client: Any, tool: str, **arguments: Any) -> Any:
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer
    return json.loads(answer.content[0].text)


async def refused(client: Any, tool: str, **arguments: Any) -> str:
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    return str(answer.content[0].text)


@pytest.mark.slow
def test_server_offers_cortex_tools_over_stdio(shell: Shell) -> None:
    async def session() -> None:
        async with stdio(shell) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(tools) == set(TOOLS)
            assert all(tool.input_schema["additionalProperties"] is False for tool in tools.values())
            assert {"metadata", "key"} <= set(tools["remember"].input_schema["properties"])
            assert {"tags", "since", "limit"} <= set(tools["export_memories"].input_schema["properties"])

            (found,) = (await called(client, "export_memories", tags=["result", "completed"]))["memories"]
            assert found["metadata"]["success"] is True
            recalled = await called(client, "recall", query="assertion", limit=1)
            assert (recalled["memories"][0]["id"], recalled["found"]) == (found["id"], 1)
            stored = await called(client, "remember", title="t", content="x" * 50_000, metadata={"a": 1}, key="mine")
            rest = await called(client, "get_memory", id="mine", offset=stored["next_offset"], maxCharacters=60_000)
            assert (stored["metadata"]["a"], len(stored["content"] + rest["content"])) == (1, 50_000)
            again = await called(client, "remember", title="t", content="changed", key="mine")
            assert again["id"] == stored["id"]
            assert (await called(client, "get_memory", id="mine"))["content"] == "changed"
            dry = await called(client, "forget", tags=["mine"])
            assert (dry["dry_run"], dry["would_forget"]) == (True, 2)
            assert (await called(client, "forget", tags=["mine"], dryRun=False))["dry_run"] is True  # not confirmed
            assert (await called(client, "forget", tags=["mine"], dryRun=False, confirm=True))["forgotten"] == 2
            exported = json.dumps(await called(client, "export_memories"))
            assert (await called(client, "import_memories", data=exported)) == {"imported": 0}
            begun = await called(client, "start_session", project="p")
            assert (await called(client, "end_session", sessionId=begun["session_id"], summary="done"))["memory_id"]
            assert (await called(client, "memory_stats"))["total"] == 4
            assert (await called(client, "consolidate"))["merged"] == 0

            assert "unknown field `metdata`" in await refused(client, "remember", title="t", content="c", metdata={})
            assert "Invalid enum value" in await refused(client, "remember", title="t", content="c", category="fun")
            assert "missing required field `title`" in await refused(client, "remember", content="c")
            assert "there is no tool graph_query" in await refused(client, "graph_query", entity="x")
            assert "there is no memory 99" in await refused(client, "get_memory", id=99)
            for tool in ("get_memory", "forget"):
                assert "Expected `int` <=" in await refused(client, tool, id=2**70)
            assert "Expected `int` <=" in await refused(client, "end_session", sessionId=2**70)

    asyncio.run(session())


@pytest.mark.slow
def test_server_prints_the_protocol_alone_on_standard_output(shell: Shell) -> None:
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
    process = subprocess.Popen(
        [sys.executable, "-m", "koderz", "memory", "serve"],
        cwd=shell.folder,
        env=shell.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def asked(number: int, method: str, params: dict[str, Any]) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    assert asked(1, "initialize", hello)["id"] == 1
    process.stdin.write('{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
    assert asked(2, "tools/call", {"name": "memory_stats", "arguments": {}})["id"] == 2
    assert process.communicate(timeout=PATIENCE) == ("", "")
    assert process.returncode == 0


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A server over HTTP on a free port, which tests share: its address and its token."""
    shell = filled(Shell(tmp_path_factory.mktemp("http")))
    command = ["koderz", "memory", "serve", "--http", "127.0.0.1:0"]
    process = forks().start(command, shell.folder, shell.environment())
    assert process.stderr is not None
    url = process.stderr.readline().split()[-1]
    token = process.stderr.readline().removeprefix("token: ").strip()
    yield url, token
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in rest
    assert process.returncode in (0, 130)


def test_http_server_requires_the_token_and_the_right_host(http: tuple[str, str]) -> None:
    import httpx
    from mcp.client.client import Client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    url, token = http

    async def session() -> None:
        async with (
            create_mcp_http_client(headers={"Authorization": f"Bearer {token}"}) as web,
            Client(streamable_http_client(url, http_client=web)) as client,
        ):
            assert (await called(client, "memory_stats"))["total"] == 4
            assert "unknown field" in await refused(client, "recall", tag="mine")

    asyncio.run(session())
    hello = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    own = {"Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream"}
    with httpx.Client(trust_env=False) as web:
        assert web.post(url, json=hello).status_code == 401
        assert web.post(url, json=hello, headers={"Authorization": f"Bearer {token}x"}).status_code == 401
        assert web.get(url.replace("/mcp", "/elsewhere")).status_code == 401
        assert web.post(url, json=hello, headers={**own, "Host": "evil.example"}).status_code == 421
        assert web.post(url, json=hello, headers={**own, "Origin": "http://evil.example"}).status_code == 403


def test_body_beyond_the_limit_over_http_is_answered_by_413(http: tuple[str, str]) -> None:
    import httpx

    url, token = http
    own = {"Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream"}
    own["Content-Type"] = "application/json"
    piece = b" " * (1 << 20)
    with httpx.Client(trust_env=False, timeout=PATIENCE) as web:
        assert web.post(url, content=piece * 70, headers=own).status_code == 413
        assert web.post(url, content=(piece for _ in range(70)), headers=own).status_code == 413  # of unsaid length


def test_http_token_of_the_user_is_not_printed(shell: Shell) -> None:
    process = shell.start(
        "memory", "serve", "--http", "127.0.0.1:0", "--token-env", "MINE", env={"MINE": "0123456789abcdef-own"}
    )
    assert process.stderr is not None
    lines = [process.stderr.readline() for _ in range(2)]
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert "0123456789abcdef-own" not in "".join([*lines, out, err])


def test_http_port_that_is_taken_is_one_line(http: tuple[str, str], shell: Shell) -> None:
    address = http[0].removeprefix("http://").removesuffix("/mcp")
    done = shell("memory", "serve", "--http", address, code=2)
    assert "nothing can listen there" in done.err
    assert Path(shell.results / "memory.db").exists()
