"""`koderz decide` on loopback servers: two models of known skill, asked task by task until it is decided."""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import koderz as api
from koderz.errors import Fault
from koderz.testing import ModelServer
from koderz.testing.engines import write_tasks
from koderz.testing.wire import Request
from koderz_tracker.sequential import Evidence
from tests.conftest import Shell, kill_after, whole_lines
from tests.e2e.answering import answering
from tests.e2e.conftest import MODEL, Remote, once_each, paid_once

TASKS, CONCURRENCY = 60, 4
MODELS = ("weak", "strong", "same")
PRICES = "".join(f'[prices."openai/{name}"]\ninput = 10.0\noutput = 20.0\n' for name in MODELS)
COMMAND = ("--dataset", "tasks.jsonl", "--concurrency", CONCURRENCY, "--max-retries", 0, "--max-tokens", 200, "--quiet")
DECIDE = ("decide", "openai/weak", "openai/strong", *COMMAND)


@dataclass
class Models:
    """Models that pass known tasks, and take longer over those that they fail."""

    passes: dict[str, set[int]]  # by model
    slow: Collection[str] = ()  # where they fail
    faults: Callable[[str, int, int], bool] = lambda model, task, asked: False  # by model, task and times asked before
    waits: Callable[[], bool] = lambda: False  # whether no answer goes out now
    asked: Counter[tuple[str, int]] = field(default_factory=Counter)

    async def reply(self, request: Request) -> str:
        (number,) = map(int, re.findall(r"def f(\d+)\(\)", str(request.messages[-1]["content"])))
        while self.waits():  # noqa: ASYNC110 # for what another process writes
            await asyncio.sleep(0.02)
        before = self.asked[request.model, number]
        self.asked[request.model, number] += 1
        passed = number in self.passes[request.model]
        if request.model in self.slow and not passed:
            await asyncio.sleep(0.1)
        if self.faults(request.model, number, before):
            raise Fault("it is broken")
        return f"```python\ndef f{number}():\n    return {number if passed else 'None'}\n```"

    def differences(self, order: list[str]) -> list[float]:
        """Strong's successes less weak's, in the order of a plan."""
        numbers = [int(task.removeprefix("T/")) for task in order]
        return [float(n in self.passes["strong"]) - float(n in self.passes["weak"]) for n in numbers]


def skilled(weak: float, strong: float, **how: Any) -> Models:
    drawn = random.Random(6)
    chances = {"weak": weak, "strong": strong}
    return Models(
        {name: {n for n in range(TASKS) if drawn.random() < chance} for name, chance in chances.items()}, **how
    )


@contextmanager
def served(koderz: Shell, models: Models) -> Iterator[dict[str, str]]:
    """The variables by which a server of the models is found, from a folder with tasks and prices."""
    write_tasks(koderz.folder / "tasks.jsonl", TASKS)
    (koderz.folder / "koderz.toml").write_text(PRICES)
    with answering(models.reply, 0, partial(ModelServer, models=MODELS)) as (env, _):
        yield env


def decision_of(results: Path) -> dict[str, Any]:
    """The only decision in the only journal of a results folder, apart from its time."""
    (path,) = results.glob("[!.]*/journal.jsonl")
    (line,) = (line for line in whole_lines(path) if line["kind"] == "decision" and line["outcome"] != "money")
    return {name: value for name, value in line.items() if name != "time"}


def plan_of(results: Path) -> dict[str, Any]:
    (path,) = results.glob("[!.]*/journal.jsonl")
    return whole_lines(path)[0]


def as_computed(found: dict[str, Any], differences: list[float], **how: Any) -> None:
    """A decision is the one that the differences lead to, in the order of the plan."""
    right = api.decide_pairs(differences, **how)
    assert (found["outcome"], found["tasks"]) == (right.outcome, right.tasks)
    assert found["difference"] == pytest.approx(100 * right.difference)
    assert found["interval"] == pytest.approx([100 * limit for limit in right.interval])
    assert found["e_value"] == pytest.approx(right.e_value)
    assert [point[0] for point in found["path"]] == [point.tasks for point in right.path]


def test_decide_counts_the_order_of_the_plan_whatever_comes_first(koderz: Shell) -> None:
    models = skilled(0.4, 0.9, slow=["strong"])
    with served(koderz, models) as env:
        done = koderz(*DECIDE, "--max-cost", 5, env=env)

    found, about = decision_of(koderz.results), plan_of(koderz.results)["until_decided"]
    as_computed(found, models.differences(about["order"]))
    assert sorted(about["order"]) == sorted(f"T/{n}" for n in range(TASKS))
    assert about["order"] != sorted(about["order"], key=lambda task: int(task[2:]))
    assert (about["arm"], about["alpha"]) == ("zero-shot · openai/weak", 0.05)
    low, high = found["interval"]
    assert f"B beats A by {low:.1f} to {high:.1f} points (95 %, valid at any stop)" in done.out
    assert f"on {found['tasks']} of {TASKS} tasks." in done.out
    assert re.search(r"Stopped there: \$0\.\d+ of \$5\.00 spent, about \$0\.\d+ saved\.", done.out)
    assert 2 * found["tasks"] <= sum(models.asked.values()) <= 2 * (found["tasks"] + 1) + 3 * CONCURRENCY
    summary = koderz.summary()
    assert {**summary["decision"], "kind": "decision"} == {"left_out": {}, "margin": None, **found}
    assert summary["status"] == "decided"


@pytest.mark.slow
def test_decide_makes_no_difference_of_how_fast_answers_come(koderz: Shell) -> None:
    """B takes long over what it fails: by arrival it would pass its first tasks, and A with the same skill wouldn't."""
    models = skilled(0.5, 0.5, slow=["strong"])
    with served(koderz, models) as env:
        koderz(*DECIDE[:-7], "--concurrency", 16, *DECIDE[-5:], env=env)

    about = plan_of(koderz.results)["until_decided"]
    as_computed(decision_of(koderz.results), models.differences(about["order"]))
    lines = [line for line in koderz.journal() if line["kind"] == "experiment"]
    by_arrival = [line["problem_id"] for line in lines if line["model"] == "openai/strong"]
    assert by_arrival != about["order"][: len(by_arrival)]


@pytest.mark.slow
def test_decide_tries_faults_once_more_and_names_what_is_left_out(koderz: Shell) -> None:
    """Of strong's tasks every seventh fails for good, and every fifth the first time."""
    models = skilled(0.5, 0.6, faults=lambda model, n, asked: model == "strong" and (not n % 7 or not (n % 5 or asked)))
    with served(koderz, models) as env:
        done = koderz(*DECIDE, "--min-tasks", TASKS, env=env, code=3)

    found = decision_of(koderz.results)
    assert found["left_out"] == {"zero-shot · openai/strong": len(range(0, TASKS, 7))}
    assert found["tasks"] == TASKS - len(range(0, TASKS, 7))
    asked = {n: models.asked["strong", n] for n in range(TASKS)}
    assert asked == {n: 1 + (not n % 7 or not n % 5) for n in range(TASKS)}
    assert "Left out after a retry: 9 since zero-shot · openai/strong could not be judged." in done.out
    assert "The interval holds whatever they would have been." in done.out
    counted = [task for task in plan_of(koderz.results)["until_decided"]["order"] if int(task[2:]) % 7]
    assert found["outcome"] == "tasks"
    assert found["difference"] == pytest.approx(100 * fmean(models.differences(counted)))
    judged = Evidence(models.differences(counted)).interval(0.05)
    assert found["interval"] == pytest.approx([100 * end for end in judged])
    assert found["interval_bounds"][0] < found["interval"][0] < found["interval"][1] < found["interval_bounds"][1]


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--limit", 12, "--min-tasks", 12)], ids=["shown", "to the end, with faults"])
def test_decide_is_the_same_after_a_kill_at_every_tenth_line(koderz: Shell, more: tuple[object, ...]) -> None:
    models = skilled(0.4, 0.85, slow=["strong"], faults=lambda model, n, _: model == "strong" and not n % 11)
    kills, command = 0, (*DECIDE, *more)

    def lines() -> list[dict[str, Any]]:
        return koderz.journal() if [*koderz.results.glob("[!.]*/journal.jsonl")] else []

    with served(koderz, models) as env:
        koderz(*command, "--results", "whole", env=env, code=3)
        while not any(line["kind"] == "finished" for line in lines()):
            enough = len(lines()) + 10
            # However late the kill comes on a busy machine, only what is in flight is written until then.
            models.waits = partial(lambda enough: len(lines()) >= enough, enough)
            kill_after(10, lines, koderz.start(*command, env=env))
            kills += 1
            command = ("benchmark", "resume", "latest", "--quiet")
    whole = decision_of(koderz.folder / "whole")
    # Of some 140 lines or 70, of which three for each of four answers in flight come before a kill.
    assert kills > (2 if more else 5)
    assert json.dumps(decision_of(koderz.results)) == json.dumps(whole)
    assert whole["left_out"] == {"zero-shot · openai/strong": 2 if more else 4}


@pytest.mark.slow
def test_decide_stops_at_the_cap_and_goes_on_with_a_higher_one(koderz: Shell) -> None:
    models = skilled(0.4, 0.9)
    with served(koderz, models) as env:
        done = koderz(*DECIDE, "--max-cost", 0.02, env=env, code=3)
        (path,) = koderz.results.glob("*.json")
        stopped = json.loads(path.read_text())
        again = koderz("benchmark", "resume", "latest", "--max-cost", 5, "--quiet", env=env)

    assert (stopped["status"], stopped["decision"]["outcome"]) == ("stopped", "money")
    assert 0 < stopped["decision"]["tasks"] < decision_of(koderz.results)["tasks"]
    assert "Not shown: B − A is between " in done.out
    assert "the cost cap is reached" in done.out
    as_computed(decision_of(koderz.results), models.differences(plan_of(koderz.results)["until_decided"]["order"]))
    assert "B beats A" in again.out


@pytest.mark.slow
def test_decide_goes_past_the_decision_only_when_told_to(koderz: Shell) -> None:
    models = skilled(0.4, 0.9)
    with served(koderz, models) as env:
        koderz("decide", "openai/strong", "openai/weak", *COMMAND, "--fail-on-regression", env=env, code=1)
        found, asked = koderz.summary()["decision"], sum(models.asked.values())
        assert "nothing to do" in koderz("benchmark", "resume", "latest", env=env).err
        assert sum(models.asked.values()) == asked
        koderz("benchmark", "resume", "latest", "--past-decision", "--quiet", env=env)

    summary = koderz.summary()
    assert (summary["status"], summary["decision"]) == ("complete", found)
    assert found["difference"] < 0
    assert sum(models.asked.values()) == 2 * TASKS
    decision_of(koderz.results)  # of which there is one


@pytest.mark.slow
def test_until_decided_lets_arms_leave_one_by_one(koderz: Shell) -> None:
    models = skilled(0.3, 0.95)
    models.passes["same"] = {n if drawn else TASKS for n, drawn in ((n, n % 2) for n in range(TASKS))}
    (koderz.folder / "arms.toml").write_text(
        "".join(f'[[arms]]\nname = "{name}"\nsolver = "zero-shot"\nmodel = "openai/{name}"\n' for name in MODELS)
    )
    with served(koderz, models) as env:
        koderz("benchmark", "--limit", TASKS, "--matrix", "arms.toml", "--until-decided", "weak", *COMMAND, env=env)

    found = koderz.summary()["decision"]["arms"]
    assert {name: each["alpha"] for name, each in found.items()} == {"strong": 0.025, "same": 0.025}
    assert (found["strong"]["outcome"], found["same"]["outcome"]) == ("shown", "tasks")
    asked = Counter(model for model, _ in models.asked.elements())
    assert (asked["weak"], asked["same"]) == (TASKS, TASKS)
    assert found["strong"]["tasks"] <= asked["strong"] <= found["strong"]["tasks"] + 3 * CONCURRENCY


@pytest.mark.slow
def test_until_decided_counts_a_task_once_whatever_its_samples(koderz: Shell) -> None:
    models = skilled(0.3, 0.9)
    with served(koderz, models) as env:
        koderz(*DECIDE, "--samples", 3, env=env)

    as_computed(decision_of(koderz.results), models.differences(plan_of(koderz.results)["until_decided"]["order"]))


AGENTS = "".join(
    f'[[arms]]\nname = "{name}"\nsolver = "agent:{name}"\nmodel = "simulated"\n' for name in ("oracle", "nop")
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "decision"),
    [
        pytest.param(
            ("--suite", "rollouts", "--matrix", "arms.toml", 0, 2), ("tasks", "oracle", "nop", -1), id="agents"
        ),
        pytest.param(
            ("--suite", "ruler", "--solvers", "direct,rlm", "--context-lengths", "1K", "--simulated-skill", 0.1, 0, 20),
            ("shown", "direct", "rlm", 1),
            id="long contexts",
        ),
    ],
)
def test_until_decided_takes_everything_that_is_paired_by_task(
    koderz: Shell, command: tuple[object, ...], decision: tuple[object, ...]
) -> None:
    (koderz.folder / "arms.toml").write_text(AGENTS)
    rule = ("--until-decided", "--alpha", 0.5, "--min-tasks", 2)
    koderz("benchmark", "--model", "simulated", *command, *rule, "--quiet")

    found = koderz.summary()["decision"]
    assert (found["outcome"], found["a"], found["b"], math.copysign(1, found["difference"])) == decision
    order = koderz.journal()[0]["until_decided"]["order"]
    ended = {line["problem_id"] for line in koderz.journal() if line["kind"] == "experiment"}
    assert ended >= {*order[: found["tasks"]]}


@pytest.mark.slow
def test_until_decided_hands_modal_no_more_than_it_may_need(on_modal: Remote) -> None:
    on_modal("benchmark", 0, 60, *MODEL, "--solvers", "zero-shot,iterative", "--until-decided", "--concurrency", 4)

    found = on_modal.summary()["decision"]
    assert found["outcome"] == "shown"
    submitted = [line["problem_id"] for line in on_modal.journal() if line["kind"] == "submitted"]
    assert 2 * found["tasks"] <= len(submitted) <= 2 * (found["tasks"] + 1) + 3 * CONCURRENCY
    once_each(on_modal, len(submitted))
    paid_once(on_modal)


@pytest.mark.slow
def test_until_decided_collects_all_that_was_handed_to_modal_and_left(on_modal: Remote) -> None:
    asked = ("--solvers", "zero-shot,iterative", "--until-decided", "--min-tasks", 2, "--alpha", 0.5, "--detach")
    done = on_modal("benchmark", 0, 12, *MODEL, *asked)
    assert "--detach: nobody looks at the results meanwhile" in done.err
    on_modal("benchmark", "resume", "latest")

    found = on_modal.summary()["decision"]
    assert found["tasks"] < 12
    once_each(on_modal, 24)
    paid_once(on_modal)
