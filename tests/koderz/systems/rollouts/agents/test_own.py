"""How a model's reply becomes commands and edits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from koderz.errors import PromptTooLong
from koderz.prompts import load_prompts
from koderz.systems.rollouts.agents.own import Action, koderz_agent, read_actions
from koderz.types import Message, Reply, Task, Verdict


def test_blocks_are_read_in_their_order() -> None:
    text = (
        "First.\n\n```shell\nls\npwd\n```\n\n```edit a b.py\n<<<<<<< old\n=======\nnew\n>>>>>>> new\n```\n"
        "````shell\ncat <<'E'\n```\nE\n````\n```python\nnot for us\n```"
    )
    assert read_actions(text) == [
        Action("ls\npwd\n"),
        Action("", "a b.py", "", "new\n"),
        Action("cat <<'E'\n```\nE\n"),
    ]


@pytest.mark.parametrize("text", ["Done.", "", "```python\nx\n```", "say ```shell``` then"])
def test_reply_without_a_block_asks_for_nothing(text: str) -> None:
    assert read_actions(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "```shell\nls",
        "```edit\n<<<<<<<\na\n=======\nb\n>>>>>>>\n```",
        "```edit x\njust text\n```",
        "```shell\nls\n```\n```edit x\n<<<<<<<\n",
    ],
)
def test_unreadable_block_is_no_end(text: str) -> None:
    assert read_actions(text) is None


class Bench:
    """A workspace that keeps what it was asked, and a model that is told its replies."""

    workdir, seconds_left, additions = "/workspace", 100.0, ()
    offered: Mapping[str, Mapping[str, Any]] = {}

    def __init__(self, *replies: Reply) -> None:
        self.replies, self.asked = list(replies), list[Sequence[Message]]()
        self.done: list[Any] = []

    async def ask(self, messages: Sequence[Message], *_: Any, **__: Any) -> Reply:
        self.asked.append([*messages])
        return self.replies.pop(0)

    async def shell(self, line: str, seconds: float) -> dict[str, Any]:
        self.done.append(line)
        return {"output": "out\n", "status": 0, "cause": ""}

    async def edit(self, path: str, old: str, new: str) -> dict[str, Any]:
        self.done.append((path, old, new))
        return {"output": "written", "status": 0, "cause": ""}

    @asynccontextmanager
    async def tools(self) -> AsyncIterator[Mapping[str, Mapping[str, Any]]]:
        yield self.offered

    async def call(self, tool: str, arguments: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        self.done.append((tool, arguments))
        return {"output": "P-7", "status": int("key" not in arguments), "cause": ""}

    async def diff(self) -> dict[str, Any]:
        return {"diff": "d", "too_large": False}

    def solve(self, **more: Any) -> Verdict:
        async def judge(task: Task, answer: Reply | str) -> Verdict:
            return Verdict("passed")

        task = Task("t", messages=({"role": "user", "content": "do"},))
        own: Any = self
        return asyncio.run(koderz_agent(task, self.ask, judge, load_prompts(), own, **more))


def call(name: str, arguments: str, number: int = 1) -> dict[str, Any]:
    return {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_tools_are_called_and_each_call_is_answered() -> None:
    calls = (call("shell", '{"command": "ls"}'), call("edit", '{"path": "a", "old": "", "new": "b"}', 2))
    bench = Bench(Reply(1, "", tool_calls=calls), Reply(2, "Done."))
    assert bench.solve().passed
    assert bench.done == ["ls", ("a", "", "b")]
    assert [message["role"] for message in bench.asked[0]] == ["tools", "system", "user"]
    assert bench.asked[1][3:] == [
        {"role": "assistant", "content": None, "tool_calls": [*calls]},
        {"role": "tool", "tool_call_id": "c1", "content": "out\n[exit code 0]"},
        {"role": "tool", "tool_call_id": "c2", "content": "edit a: written"},
    ]


@pytest.mark.parametrize(("name", "arguments"), [("shell", "{"), ("shell", '{"line": "ls"}'), ("fly", "{}")])
def test_unreadable_call_is_answered(name: str, arguments: str) -> None:
    bench = Bench(Reply(1, "", tool_calls=(call(name, arguments),)), Reply(2, "Done."))
    assert bench.solve().passed
    assert bench.done == []
    assert "can't be called so" in bench.asked[1][-1]["content"]


def test_blocks_stand_in_where_a_server_refuses_tools() -> None:
    bench = Bench(Reply(1, "no tools here", finish_reason="rejected"), Reply(2, "```shell\nls\n```"), Reply(3, "Done."))
    assert bench.solve().passed
    assert bench.done == ["ls\n"]
    assert [message["role"] for message in bench.asked[1]] == ["system", "user"]
    assert "```shell" in bench.asked[1][0]["content"]


class Served(Bench):
    """A workspace with a tool of an MCP server."""

    schema: Mapping[str, Any] = {"type": "object", "properties": {"key": {"type": "string"}}}
    about: Mapping[str, Any] = {"name": "parcels__code", "description": "The code.", "parameters": schema}
    offered: Mapping[str, Mapping[str, Any]] = {"parcels__code": {"type": "function", "function": about}}


def test_tools_of_servers_are_offered_and_called() -> None:
    calls = call("parcels__code", '{"key": "abc"}'), call("parcels__code", "{}", 2), call("parcels__code", "[1]", 3)
    bench = Served(Reply(1, "", tool_calls=calls), Reply(2, "Done."))
    assert bench.solve().passed
    assert bench.asked[0][0]["content"][-1] == Served.offered["parcels__code"]
    assert bench.done == [("parcels__code", {"key": "abc"}), ("parcels__code", {})]
    told = [message["content"] for message in bench.asked[1][-3:]]
    assert told[:2] == ["P-7", "P-7\n[error]"]
    assert told[2].startswith("parcels__code can't be called so")


def test_tools_of_servers_are_called_by_blocks_where_a_model_takes_no_tools() -> None:
    said = '```call parcels__code\n{"key": "abc"}\n```\n```call other__tool\n{}\n```\n```call parcels__code\n{key}\n```'
    rejected = Reply(1, "no tools here", finish_reason="rejected")
    bench = Served(rejected, Reply(2, said), Reply(3, "Done."))
    assert bench.solve().passed
    assert "- parcels__code: The code. {" in bench.asked[1][0]["content"]
    assert bench.done == [("parcels__code", {"key": "abc"})]
    told = bench.asked[2][-1]["content"].split("\n\n")
    assert [line.split(":")[0] for line in told] == [
        "P-7", "other__tool can't be called so", "parcels__code can't be called so",
    ]  # fmt: skip
    assert read_actions("```call parcels__code\n{}", ["parcels__code"]) is None
    assert read_actions(said) == []  # which is none of ours without servers


def test_work_is_graded_where_its_conversation_outgrows_the_context() -> None:
    class Full(Bench):
        async def ask(self, messages: Sequence[Message], *_: Any, **__: Any) -> Reply:
            if len(self.replies) == 1:
                raise PromptTooLong(self.replies[0])
            return await super().ask(messages)

    bench = Full(Reply(1, "```shell\nls\n```"), Reply(2, "400: too long", finish_reason="context"))
    verdict = bench.solve()
    assert (bench.done, verdict.passed, verdict.cause) == (["ls\n"], True, "length")


def test_turns_are_counted() -> None:
    again = Reply(1, "", tool_calls=(call("shell", '{"command": "ls"}'),))
    bench = Bench(*[again] * 3)
    assert bench.solve(max_turns=3).cause == "turns"
    assert len(bench.asked) == 3


def test_diff_that_cannot_be_taken_is_the_agents_failure() -> None:
    class Broken(Bench):
        async def diff(self) -> dict[str, Any]:
            return {"diff": "", "too_large": False, "error": "git: invalid path"}

    found = Broken(Reply(1, "Done.")).solve()
    assert (found.verdict, found.cause, found.score) == ("failed", "patch", 0.0)
    assert "invalid path" in found.feedback
