"""A recursion that is killed at any moment pays no call twice but those that were in flight."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from koderz.testing.wire import Request
from tests.conftest import PATIENCE, Shell, kill_after
from tests.e2e.answering import answering

RUN = ("benchmark", "--suite", "ruler", "--solver", "rlm", "--model", "openai/recorded", "--sink", "json", "--limit", 4)
DEEP = ("--max-depth", 2, "--context-lengths", "1K", "--concurrency", 4)
KILLS = 9


def deep(request: Request) -> str:
    """Three turns at the root, whose cells ask six leaves and three children, each of two turns and a leaf."""
    messages = request.messages
    turn = 1 + sum(one["role"] == "assistant" for one in messages)
    if messages[0]["role"] != "system":
        return f"a leaf of {len(str(messages[0]['content']))}"
    if "The question:" not in str(messages[1]["content"]):
        return _repl("a = llm_query('about ' + context)") if turn == 1 else "FINAL_VAR(a)"
    if turn == 3:
        return _repl("answer['content'] = str(r)", "answer['ready'] = True")
    asked = _repl(f"x = llm_query_batched([str(n) + '{turn}' + context[-60:] for n in range(3)])", "print(x)")
    children = _repl("r = rlm_query_batched([str(n) + context[-60:] for n in range(3)])", "print(r)")
    return asked if turn == 1 else f"{asked}\n{children}"


def _repl(*lines: str) -> str:
    return "\n".join(["```repl", *lines, "```"])


@pytest.mark.slow
def test_recursion_of_18_calls(koderz: Shell) -> None:
    with answering(deep, latency=0.15) as (environ, asked):
        koderz(*RUN[:-1], 1, *DEEP, "--quiet", env=environ)

    calls = [line for line in koderz.journal() if line["kind"] == "call"]
    assert len(asked) == len(calls) == 18
    counted = Counter((call["purpose"], call.get("depth", 0)) for call in calls)
    assert counted == {("root", 0): 3, ("sub", 1): 6, ("child", 1): 6, ("sub", 2): 3}


@pytest.mark.slow
def test_killed_recursion_repeats_no_recorded_call(koderz: Shell) -> None:
    moments = random.Random(0)
    with answering(deep, latency=0.15) as (environ, asked):
        running = koderz.start(*RUN, *DEEP, env=environ)
        for _ in range(KILLS):
            kill_after(moments.randint(1, 11), lambda: asked, running)
            running = koderz.start("benchmark", "resume", "latest", env=environ)
        _, err = running.communicate(timeout=PATIENCE)

    calls = [line for line in koderz.journal() if line["kind"] == "call"]
    assert set(Counter((call["experiment_id"], call["key"]) for call in calls).values()) == {1}, err
    assert len(calls) == 4 * 18, err
    assert len(asked) <= len(calls) + KILLS * 4 * 5  # kills, experiments, calls in flight of each
    summary = koderz.summary()
    assert (summary["status"], len(summary["results"])) == ("complete", 4), err
    assert not any(result.get("diverged") for result in summary["results"])
