"""What people are told of agents: commands, their outputs, and little of what agents say of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from koderz.analysis.story import Experiments, Story, shortened, told_asked, told_reply, told_results
from koderz.cli.show import tell
from koderz.models.clients import packed
from koderz.systems.reports.view import _blocks
from koderz.systems.rollouts.results.screen import _record_lines
from koderz.testing import a_journal
from koderz_tracker.records import Call, Once
from tests.tracker.builders import RUN, call, judged

COMMAND, OUTPUT = "pytest -q\necho \x1b[31mdone", "1 passed\x1b[31m"
RULES = "You are an agent.\n" + "Be careful. " * 400
REMINDER = f"<system-reminder>\n{RULES}</system-reminder>"


def tool_call(**given: Any) -> dict[str, Any]:
    function = {"name": "exec_command", "arguments": orjson.dumps(given).decode()}
    return {"id": "c1", "type": "function", "function": function}


def chat(output: str) -> dict[str, Any]:
    return {
        "tools": [{"type": "function", "function": {"name": "exec_command"}}],
        "messages": [
            {"role": "system", "content": RULES},
            {"role": "user", "content": "mend it"},
            {"role": "assistant", "content": None, "tool_calls": [tool_call(cmd=COMMAND)]},
            {"role": "tool", "tool_call_id": "c1", "content": output},
        ],
    }


def responses(output: str) -> dict[str, Any]:
    given = orjson.dumps({"cmd": COMMAND}).decode()
    return {
        "tools": [{"type": "function", "name": "exec_command"}],
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": RULES}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "mend it"}]},
            {"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": "I try"}]},
            {"type": "function_call", "call_id": "c1", "name": "exec_command", "arguments": given},
            {"type": "function_call_output", "call_id": "c1", "output": output},
        ],
    }


def anthropic(output: str) -> dict[str, Any]:
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": output}]}
    use = {"type": "tool_use", "id": "c1", "name": "exec_command", "input": {"cmd": COMMAND}}
    told = [{"type": "text", "text": REMINDER}, {"type": "text", "text": "mend it"}]
    return {
        "tools": [{"name": "exec_command", "input_schema": {}}],
        "system": [{"type": "text", "text": RULES, "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": told},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [{**result, "cache_control": {"type": "ephemeral"}}]},
        ],
    }


BODIES = {"chat": chat, "responses": responses, "messages": anthropic}
FIRST = {"chat": 2, "responses": 2, "messages": 1}  # messages of the first request
each_wire = pytest.mark.parametrize("wire", BODIES)


def calls(wire: str, output: str = OUTPUT) -> list[Call]:
    """A conversation of two requests: the reply to the first is a command, of which the second tells the output."""
    body = BODIES[wire](output)
    name = "input" if wire == "responses" else "messages"
    first = packed(wire, {**body, name: body[name][: FIRST[wire]], "metadata": {"n": 1}})
    if wire == "messages":
        first[-1] = {**first[-1], "content": [{**part, "cache_control": {}} for part in first[-1]["content"]]}
    replied = replace(call(0, messages=first, text=""), reply="", tool_calls=[tool_call(cmd=COMMAND)])
    return [replied, call(0, 2, messages=packed(wire, {**body, "metadata": {"n": 2}}))]


def story(results: Path, *records: Any) -> Story:
    experiments = Experiments(a_journal(results, *records, judged(0)))
    return experiments.story(experiments.outcomes[0])


@each_wire
def test_commands_and_their_outputs_are_told_on_every_wire(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wire: str
) -> None:
    found = story(tmp_path, *calls(wire))
    tell(found, RUN)
    shown = capsys.readouterr().out
    for told in ("→ exec_command\n  cmd:\n    pytest -q\n    echo \\x1b[31mdone\n", "── result\n1 passed\\x1b[31m\n"):
        assert shown.count(told) == 1
    for absent in ("empty reply", "\x1b", "[exec_command]", "I try"):
        assert absent not in shown
    page = [(heading.split(" ")[0], text) for _, heading, text in _blocks(found)]
    assert ("Result", OUTPUT) in page
    assert ("Reply", "→ exec_command\n  cmd:\n    pytest -q\n    echo \x1b[31mdone") in page


@each_wire
def test_agent_messages_are_a_line_that_counts_the_rest(tmp_path: Path, wire: str) -> None:
    found = story(tmp_path, *calls(wire))
    first, second = ([*told_asked(step.call, step.asked)] for step in found.steps if step.call)
    texts = [text for _, text in first]
    folded = "You are an agent. … 4,800 more characters; koderz benchmark show --json has them"
    assert folded in texts
    assert "exec_command" in texts
    assert "mend it" in "\n".join(texts).splitlines()
    assert max(map(len, "\n".join(texts).splitlines())) < 300
    assert [who for who, _ in second] == ["result"]  # whatever else was sent again, and wherever it is to be cached


@each_wire
def test_long_output_is_cut_and_the_rest_counted(tmp_path: Path, wire: str) -> None:
    output = "begin" + "x" * 20_000 + "end"
    (_, second) = calls(wire, output)
    (asked,) = [text for who, text in told_asked(second, second.messages) if who == "result"]
    assert asked.startswith("beginxx")
    assert "… 16,008 characters left out; koderz benchmark show --json has them …" in asked
    assert asked.endswith("xxend")
    assert told_results(second) == [output]


@each_wire
def test_verbose_screen_shows_commands_and_outputs(wire: str) -> None:
    replied, asked = calls(wire)
    assert [*_record_lines("1", replied)][:3] == ["[1] reply:", "    → exec_command", "      cmd:"]
    assert [*_record_lines("1", asked)] == ["[1] result:", f"    {OUTPUT}", "[1] reply:", "    reply 2"]


def test_verbose_screen_shows_an_own_command_with_its_output() -> None:
    done = Once(experiment_id="e", name="shell", value={"command": "ls", "output": "a\n" * 4000, "status": 0})
    lines = [*_record_lines("1", done)]
    assert lines[:3] == ["[1] shell:", "    $ ls", "    a"]
    assert "    … 4,005 characters left out; agent.jsonl or koderz benchmark show --json has them …" in lines
    assert [*_record_lines("1", Once(experiment_id="e", name="agent-metrics", value={"tools": 1}))] == []


def test_conversations_of_one_client_are_told_once_each(tmp_path: Path) -> None:
    def asked(number: int, *said: str) -> Call:
        body = {"messages": [{"role": "user", "content": text} for text in said]}
        return call(0, number, messages=packed("chat", body))

    found = story(tmp_path, asked(1, "main"), asked(2, "other"), asked(3, "main", "more"), asked(4, "other", "again"))
    told = [[message["content"] for message in step.asked if message["role"] == "user"] for step in found.steps]
    assert told == [["main"], ["other"], ["more"], ["again"]]


def test_output_that_comes_twice_is_told_twice(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "do"}, {"role": "assistant", "content": "ls"}]
    told = {"role": "user", "content": "[exit code 0]"}
    again = [*asked, told, {"role": "assistant", "content": "ls"}, told]
    found = story(tmp_path, call(0, messages=[*asked, told]), call(0, 2, messages=again))
    assert found.steps[1].asked == [told]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ('{"cmd": "ls"}', "→ exec_command: ls"),
        ('{"path": "a", "old": "", "new": "x\\ny"}', "→ exec_command\n  path: a\n  old:\n  new:\n    x\n    y"),
        ('{"n": [1, {"a": 2}]}', '→ exec_command: [1,{"a":2}]'),
        ("not json", "→ exec_command: not json"),
        ("", "→ exec_command"),
        ("[private 0123]", "→ exec_command: [private 0123]"),
    ],
)
def test_tool_call_is_told_for_any_arguments(arguments: str, told: str) -> None:
    function = {"name": "exec_command", "arguments": arguments}
    assert told_reply(replace(call(0), text=None, reply="", tool_calls=[{"function": function}])) == told


def test_reply_without_text_and_calls_is_called_empty() -> None:
    assert told_reply(replace(call(0), reply=" ")) == "(an empty reply)"
    assert told_reply(replace(call(0), reply="<think>a</think>b", text="b"), raw=True) == "<think>a</think>b"
    assert shortened("abc", 3) == "abc"
