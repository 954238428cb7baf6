"""Iterating: feedback, history, specifications and reviews, and when to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from koderz.models import Price
from koderz.prompts import load_prompts
from koderz.solvers.direct import zero_shot
from koderz.solvers.iterative import IterativeOptions, cached_spec, iterative, keep_spec
from koderz.testing import FakeModel, a_model
from koderz.types import Completion, Message, Reply, Sampling, Task, Verdict
from tests.koderz.world import Run, begun, planned

PROMPTS = load_prompts()
VALUES = {"prompt": "def f():\n    ...", "entry_point": "f"}
TASK = Task("T/0", values=VALUES, messages=PROMPTS.first_messages(VALUES))


@dataclass
class Table:
    """What a solver sees: replies attempt 1, attempt 2, …, judged by what they are told to be."""

    passes: int = 0  # which attempt passes; 0: none
    replies: Callable[[int], str] = "attempt {}".format
    asked: list[tuple[str, list[Message], str | None]] = field(default_factory=list)

    async def ask(
        self, messages: Sequence[Message], model: str | None = None, purpose: str = "attempt", **sampling: Any
    ) -> Reply:
        self.asked.append((purpose, list(messages), model))
        number = len(self.of("attempt"))
        return Reply(
            len(self.asked), self.replies(number) if purpose == "attempt" else f"{purpose} {len(self.of(purpose))}"
        )

    async def judge(self, task: Task, answer: Reply | str) -> Verdict:
        number = len(self.of("attempt"))
        passed = number == self.passes
        return Verdict("passed") if passed else Verdict("failed", "assertion", f"feedback {number}")

    def of(self, purpose: str) -> list[list[Message]]:
        return [messages for kind, messages, _ in self.asked if kind == purpose]

    def turns(self, attempt: int) -> list[str]:
        """What the prompt of an attempt holds after the task."""
        return [message["content"] for message in self.of("attempt")[attempt - 1][2:]]


def iterated(table: Table, *helpers: str, **parameters: Any) -> Verdict:
    """The end of an experiment in whose arm there is a frontier model in each role of `helpers`."""
    models = {"main": "local"} | dict.fromkeys(helpers, "frontier")
    own = IterativeOptions()
    usual = {name: getattr(own, name) for name in ("max_iterations", "history", "checkpoint_interval")}
    return asyncio.run(iterative(TASK, table.ask, table.judge, PROMPTS, models, **usual | parameters))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_zero_shot_is_one_reply_and_its_verdict() -> None:
    table = Table()
    verdict = asyncio.run(zero_shot(TASK, table.ask, table.judge))

    assert verdict.feedback == "feedback 1"
    assert table.of("attempt") == [list(TASK.messages)]


@pytest.mark.parametrize("passes", [1, 2, 5])
def test_attempts_go_on_until_one_passes(passes: int) -> None:
    table = Table(passes)

    assert iterated(table).passed
    assert len(table.asked) == passes


@pytest.mark.parametrize("most", [1, 3, 10])
def test_iterations_end_at_the_limit(most: int) -> None:
    table = Table()
    verdict = iterated(table, max_iterations=most)

    assert (verdict.feedback, len(table.asked)) == (f"feedback {most}", most)


def test_attempt_sees_the_last_one_and_its_feedback() -> None:
    table = Table(2)
    iterated(table)

    assert table.of("attempt")[0] == list(TASK.messages)
    said, told = table.of("attempt")[1][2:]
    assert said == {"role": "assistant", "content": "attempt 1"}
    assert told["role"] == "user"
    assert "feedback 1" in told["content"]


@pytest.mark.parametrize(("history", "shown"), [(1, [3]), (2, [2, 3]), (3, [1, 2, 3]), (9, [1, 2, 3]), (0, [])])
def test_history_shows_as_many_attempts_as_asked_for(history: int, shown: list[int]) -> None:
    table = Table()
    iterated(table, max_iterations=4, history=history)

    assert table.turns(4)[::2] == [f"attempt {number}" for number in shown]
    assert all(f"feedback {number}" in told for number, told in zip(shown, table.turns(4)[1::2], strict=True))


def test_history_drops_the_oldest_beyond_the_context() -> None:
    table = Table(replies=lambda number: f"attempt {number} ".ljust(1500, "."))
    iterated(table, max_iterations=6, history=5, context=3000)

    sizes = [sum(len(message["content"]) for message in messages) for messages in table.of("attempt")]
    assert all(size <= 1500 * 3 for size in sizes)
    assert [text.split(".")[0] for text in table.turns(6)[::2]] == ["attempt 4 ", "attempt 5 "]


def test_history_always_shows_the_very_last_attempt() -> None:
    table = Table(replies=lambda number: f"attempt {number} ".ljust(9000, "."))
    iterated(table, max_iterations=3, context=256)

    assert [len(table.turns(number)) for number in (1, 2, 3)] == [0, 2, 2]
    assert table.turns(3)[0].startswith("attempt 2 ")


def test_room_is_left_for_the_reply() -> None:
    """What a server counts as context is the conversation and the reply to it."""
    table = Table(replies=lambda number: f"attempt {number} ".ljust(3000, "."))
    iterated(table, max_iterations=20, history=20, context=8192)

    longest = max(sum(len(message["content"]) for message in messages) for messages in table.of("attempt"))
    assert longest / 3 + 4096 <= 8192


def test_history_shows_an_empty_reply_as_one() -> None:
    table = Table(2, replies=lambda number: "")
    iterated(table)

    assert table.turns(2)[0] == "(an empty reply)"


# Stopping early


def test_repeated_reply_at_temperature_0_ends_it_with_a_note() -> None:
    table = Table(replies=lambda number: "attempt 1" if number == 4 else f"attempt {number}")
    verdict = iterated(table, temperature=0.0)

    assert len(table.asked) == 4
    assert (verdict.feedback, verdict.note) == ("feedback 4", "stopped after 4: the reply repeats at temperature 0")


@pytest.mark.parametrize("temperature", [0.8, 0.01, None])
def test_repeated_reply_by_chance_does_not_end_it(temperature: float | None) -> None:
    table = Table(replies=lambda number: "the same")
    verdict = iterated(table, temperature=temperature, max_iterations=5)

    assert (len(table.asked), verdict.note) == (5, "")


def test_repeated_reply_that_passes_is_a_pass() -> None:
    table = Table(2, replies=lambda number: "the same")

    assert iterated(table, temperature=0.0).passed


# Specifications


def test_specification_is_written_first_and_every_attempt_sees_it() -> None:
    table = Table()
    iterated(table, "spec", max_iterations=3)

    assert [(purpose, model) for purpose, _, model in table.asked] == [("spec", "spec"), *[("attempt", None)] * 3]
    assert "def f():" in table.of("spec")[0][0]["content"]
    assert all("spec 1" in messages[1]["content"] for messages in table.of("attempt"))


def test_specification_at_hand_is_used() -> None:
    table = Table(1)
    iterated(table, "spec", specs={"T/0": "it is at hand", "T/1": "of another"})

    assert [purpose for purpose, _, _ in table.asked] == ["attempt"]
    assert "it is at hand" in table.of("attempt")[0][1]["content"]


def test_specification_for_another_task_is_not_used() -> None:
    table = Table(1)
    iterated(table, "spec", specs={"T/1": "of another"})

    assert [purpose for purpose, _, _ in table.asked] == ["spec", "attempt"]


@pytest.mark.parametrize("cot", [True, False])
def test_step_by_step_thinking_works_beside_a_specification(cot: bool) -> None:
    table = Table(1)
    iterated(table, "spec", cot=cot)

    assert ("step by step" in table.of("attempt")[0][1]["content"]) is cot


# Reviews


@pytest.mark.parametrize(
    ("interval", "most", "reviews"), [(2, 7, 3), (2, 6, 2), (5, 5, 0), (5, 6, 1), (1, 4, 3), (9, 4, 0)]
)
def test_reviews_come_every_few_failures_and_none_at_the_end(interval: int, most: int, reviews: int) -> None:
    table = Table()
    iterated(table, "checkpoint", max_iterations=most, checkpoint_interval=interval)

    assert (len(table.of("attempt")), len(table.of("checkpoint"))) == (most, reviews)
    assert {model for purpose, _, model in table.asked if purpose == "checkpoint"} <= {"checkpoint"}


def test_review_fits_into_the_context() -> None:
    table = Table(replies=lambda number: f"attempt {number} ".ljust(9000, "."))
    iterated(table, "checkpoint", max_iterations=11, checkpoint_interval=5, context=8192)

    for (message,) in table.of("checkpoint"):
        assert len(message["content"]) / 3 + 4096 <= 8192
        assert all(f"Attempt {number}:" in message["content"] for number in range(1, 6))


def test_review_sees_attempts_since_the_last_and_advises_the_next() -> None:
    table = Table()
    iterated(table, "checkpoint", max_iterations=6, checkpoint_interval=2)

    second = table.of("checkpoint")[1][0]["content"]
    assert all(f"attempt {number}" in second for number in (3, 4))
    assert all(f"feedback {number}" in second for number in (3, 4))
    assert not any(f"attempt {number}" in second for number in (1, 2, 5))
    assert "checkpoint 1" not in " ".join(table.turns(2))
    assert "checkpoint 1" in table.turns(3)[-1]
    assert "checkpoint 2" in table.turns(5)[-1]


def test_advice_that_was_paid_for_is_seen_also_without_a_history() -> None:
    table = Table()
    iterated(table, "checkpoint", max_iterations=3, history=0, checkpoint_interval=1)

    assert "checkpoint 1" in " ".join(message["content"] for message in table.of("attempt")[1])


# In a run: what is kept apart, and what can be left out


def tiered(folder: Path, *, baseline: Price | None = None, **settings: Any) -> tuple[Run, dict[str, FakeModel]]:
    def line(cost: float) -> Callable[[Sequence[Message], Sampling], Completion]:
        texts = iter(range(1000))
        return lambda messages, sampling: Completion(f"BAD {next(texts)}", tokens_in=1000, tokens_out=100, cost=cost)

    models = {"scripted": a_model(line(0.01)), "spec": a_model(line(1.0)), "review": a_model(line(0.5))}
    given = {
        "mode": "iterative",
        "max_iterations": 5,
        "checkpoint_interval": 2,
        "frontier_spec_model": "spec",
        "frontier_checkpoint_model": "review",
        **settings,
    }

    async def go() -> Run:
        return await begun(await planned(folder, 2, **given), models, baseline=baseline)

    return asyncio.run(go()), models


def test_cost_is_kept_by_tier(tmp_path: Path) -> None:
    run, models = tiered(tmp_path)

    assert {name: len(model.asked) for name, model in models.items()} == {"scripted": 10, "spec": 2, "review": 4}
    for result in run.summary.results:
        assert result.cost_by_tier == pytest.approx({"checkpoint": 1.0, "local": 0.05, "spec": 1.0})
        assert result.cost == pytest.approx(2.05)
        assert (result.iterations, result.calls) == (5, 8)
    assert run.summary.summary.cost_by_tier == pytest.approx({"checkpoint": 2.0, "local": 0.1, "spec": 2.0})


def test_local_tokens_are_priced_on_the_baseline_model(tmp_path: Path) -> None:
    run, _ = tiered(tmp_path, baseline=Price(10.0, 100.0))

    assert run.summary.summary.baseline_cost == pytest.approx(2 * 5 * (1000 * 10 + 100 * 100) / 1e6)


@pytest.mark.parametrize(
    ("settings", "purposes"),
    [
        ({"spec": False}, {"attempt", "checkpoint"}),
        ({"checkpoints": False}, {"attempt", "spec"}),
        ({"spec": False, "checkpoints": False}, {"attempt"}),
        ({"mode": "zero-shot"}, {"attempt"}),
    ],
)
def test_options_switch_off_each_part(tmp_path: Path, settings: dict[str, Any], purposes: set[str]) -> None:
    run, _ = tiered(tmp_path, **settings)

    assert {call.purpose for call in run.of("call")} == purposes


def test_specifications_of_another_run_are_reused_and_in_the_plan(
    tmp_path: Path,
) -> None:
    first, _ = tiered(tmp_path)
    again, models = tiered(tmp_path, reuse_spec=True)

    written = {call.experiment_id: call.reply for call in first.of("call") if call.purpose == "spec"}
    assert models["spec"].asked == []
    (plan,) = again.of("plan")
    assert set(plan.details["at_hand"]["specs"].values()) == set(written.values())
    prompts = [messages[1]["content"] for messages, _ in models["scripted"].asked]
    assert all(any(str(text) in prompt for text in written.values()) for prompt in prompts)


def test_specifications_of_another_model_are_not(tmp_path: Path) -> None:
    keep_spec("another", ({"role": "user", "content": "x"},), "not this one")
    _, models = tiered(tmp_path, reuse_spec=True)

    assert len(models["spec"].asked) == 2


async def test_early_stop_note_is_in_the_record(tmp_path: Path) -> None:
    (result,) = (await begun(await planned(tmp_path, 1, mode="iterative"), a_model(lambda m, s: "BAD"))).summary.results
    assert (result.iterations, result.note) == (2, "stopped after 2: the reply repeats at temperature 0")


def test_specification_is_kept_for_another_run() -> None:
    table = Table(passes=1)
    iterated(table, "spec")
    (messages,) = table.of("spec")
    assert cached_spec("frontier", tuple(messages)) == "spec 1"
