"""The evaluator holds a search to its budget, whatever the order of replies, and picks the winner fairly."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from koderz.suites.metrics import Gradable, Graded, TextMetric, Unread
from koderz.suites.suite import AskJudge
from koderz.systems.optimizers.datasets.payload import Item
from koderz.testing import FakeModel, a_model
from koderz.types import Completion, Message, Sampling
from koderz_tracker.journal import NAME
from tests.koderz.systems.optimizers.solvers.worlds import World, candidates_of, plan_of, results_of, searched
from tests.koderz.systems.optimizers.solvers.worlds import test_scores as scores_on_test
from tests.koderz.world import Run, begun, resumed

RULES = World("rule", tests=20)
OWN = '''
import asyncio
from koderz.systems.optimizers.datasets.payload import Item

async def shorter(evaluator, *, tries=5):
    for number in range(tries):
        await evaluator.score(evaluator.initial.with_system(f"Answer briefly, {number}."))

async def greedy(evaluator):
    """Far more at once than the budget has room for."""
    candidates = [evaluator.initial.with_system(f"variant {n}") for n in range(100)]
    await asyncio.gather(*(evaluator.score(each, evaluator.validation) for each in candidates))

async def repeating(evaluator):
    while True:
        await evaluator.score(evaluator.initial)

async def asking(evaluator):
    while True:
        for text in (await evaluator.propose([{"role": "user", "content": "More?"}])).get("prompts", ()):
            await evaluator.score(evaluator.initial.with_system(text))

async def odd(evaluator):
    initial = evaluator.initial
    for candidate in (
        initial.with_system("x" * 20_001),
        initial.with_user("What is it?"),
        initial.with_user("{question} Answer!"),
        initial.with_demos(["world/test/1"]),
        initial.with_system("For example, " + SECRET.upper() + "!"),
        initial.with_system("Say {question} and {nothing}."),
        initial.with_user("Well: {question}"),
    ):
        scored = await evaluator.score(candidate, evaluator.validation[:1])
        assert bool(scored.refused) == (not scored.scores)

async def peeking(evaluator):
    await evaluator.score(evaluator.initial, [Item("world/test/0", {}, "")])
'''


def own(folder: Path, name: str, **values: Any) -> str:
    path = folder / "own.py"
    path.write_text("".join(f"{key} = {value!r}\n" for key, value in values.items()) + OWN)
    return f"{path}:{name}"


def asked_items(model: FakeModel) -> int:
    return sum(sampling.temperature == 0 for _, sampling in model.asked)


class Late(FakeModel):
    """A model that answers at random moments."""

    async def wait(self) -> None:
        await asyncio.sleep(random.random() * 0.002)


def content_of(run: Run, *without: str) -> tuple[Any, ...]:
    """What a run came to, by arm and sample, without ids, times and these fields of what was done once."""
    names = {line.experiment_id: (line.arm, line.sample) for line in run.of("experiment")}
    grades = sorted((*names[g.experiment_id], g.item, *sorted(g.labels.items()), g.score) for g in run.of("grade"))
    once = {
        (*names[o.experiment_id], o.name): {name: value for name, value in o.value.items() if name not in without}
        for o in run.of("once")
    }
    scores = {names[e.experiment_id]: (e.verdict, e.score, e.metrics, e.note) for e in run.of("experiment")}
    return grades, once, scores


ALL = ("random_search", "few_shot", "meta_prompt", "evolutionary_optimizer", "hierarchical_reflective", "gepa")
FEW = [pytest.param(name, marks=() if name in ("few_shot", "meta_prompt") else pytest.mark.slow) for name in ALL]


@pytest.mark.slow
@pytest.mark.parametrize("solver", FEW)
def test_seed_and_replies_determine_the_search_at_any_pace(tmp_path: Path, solver: str) -> None:
    one = searched(tmp_path / "a", RULES, "none", solver, seeds=2, budget_calls=200, item_concurrency=1)
    other = searched(
        tmp_path / "b", RULES, "none", solver, seeds=2, budget_calls=200, item_concurrency=16, concurrency=1,
        model=Late(RULES),
    )  # fmt: skip

    assert content_of(one, "calls") == content_of(other, "calls")


def test_prompt_that_the_context_cannot_hold_scores_nothing(tmp_path: Path) -> None:
    def line(messages: Sequence[Message], sampling: Sampling) -> str | Completion:
        is_long = "briefly, 1" in str(messages[0]["content"])
        return Completion("400: too long", finish_reason="context") if is_long else RULES(messages, sampling)

    run = searched(tmp_path, RULES, own(tmp_path, "shorter"), model=a_model(line), budget_calls=150)
    (experiment,) = run.of("experiment")
    assert (experiment.verdict in ("selected", "kept"), run.of("fault")) == (True, [])
    long = {call.call for call in run.of("call") if call.finish_reason == "context"}
    assert long
    assert {grade.score for grade in run.of("grade") if grade.metrics.get("call") in long} == {0.0}


@pytest.mark.parametrize("name", ["greedy", *ALL])
def test_budget_of_metric_calls_is_kept_without_repeats(tmp_path: Path, name: str) -> None:
    model = a_model(RULES)
    solver = own(tmp_path, name) if name == "greedy" else name
    run = searched(tmp_path, RULES, solver, model=model, budget_calls=150, item_concurrency=64)

    (result,) = results_of(run).values()
    calls = Counter(call.purpose for call in run.of("call"))
    pairs = Counter((grade.item, grade.labels["candidate"]) for grade in run.of("grade"))
    assert calls["item"] == result["metric_calls"] <= 150
    assert set(pairs.values()) == {1}
    assert calls["test"] in (0, 20)


@pytest.mark.slow
@pytest.mark.parametrize("solver", FEW)
def test_search_cut_off_anywhere_ends_as_if_undisturbed(tmp_path: Path, solver: str) -> None:
    plan = plan_of(tmp_path, RULES, solver, budget_calls=120)
    whole = asyncio.run(begun(plan, a_model(RULES)))
    lines = (whole.folder / NAME).read_bytes().splitlines(keepends=True)
    for cut in random.Random(solver).sample(range(2, len(lines)), 4):
        folder = tmp_path / str(cut) / whole.folder.name
        folder.mkdir(parents=True)
        (folder / NAME).write_bytes(b"".join(lines[:cut]))
        recorded = sum(b'"kind":"call"' in line for line in lines[:cut])
        model = Late(RULES)
        again = asyncio.run(resumed(folder, replace(plan, record=whole.lines[0]), model))  # type: ignore[arg-type]
        assert again.ended.status == "complete"
        assert content_of(again) == content_of(whole)
        assert len(model.asked) == len(whole.of("call")) - recorded


def test_requests_in_flight_of_an_experiment_are_bounded(tmp_path: Path) -> None:
    model = Late(RULES)
    settings = {"max_connections": 100}
    searched(tmp_path, RULES, "meta_prompt", model=model, budget_calls=120, item_concurrency=3, settings=settings)
    assert model.most_at_once == 3


def test_baseline_asks_for_the_test_split_alone(tmp_path: Path) -> None:
    model = a_model(RULES)
    run = searched(tmp_path, RULES, "none", model=model)

    assert len(model.asked) == 20
    assert {grade.labels["split"] for grade in run.of("grade")} == {"test"}
    (experiment,) = run.of("experiment")
    assert experiment.verdict == "baseline"
    assert experiment.score == pytest.approx(sum(scores_on_test(run, "none")[0].values()) / 20)


def test_initial_prompt_that_wins_is_not_tested_again(tmp_path: Path) -> None:
    def always(messages: Sequence[Message], sampling: Sampling) -> str:
        return "wrong"

    run = searched(tmp_path, RULES, own(tmp_path, "shorter"), model=a_model(always))
    (experiment,), (result,) = run.of("experiment"), results_of(run).values()
    assert (experiment.verdict, experiment.score) == ("kept", None)
    assert result["winner"] == result["initial"]
    assert "nothing beat the initial prompt" in experiment.note
    assert not [call for call in run.of("call") if call.purpose == "test"]


def test_winner_is_the_best_on_all_of_validation(tmp_path: Path) -> None:
    run = searched(tmp_path, RULES, "meta_prompt", budget_calls=300)
    (result,) = results_of(run).values()
    means = result["validation"]
    assert result["winner"] == max(means, key=lambda digest: means[digest])
    assert 2 <= len(means) <= 4
    for digest in means:
        graded = {g.item for g in run.of("grade") if g.labels == {"split": "validation", "candidate": digest}}
        assert len(graded) == 40


def test_proposals_without_news_end_a_search_after_20(tmp_path: Path) -> None:
    run = searched(tmp_path, RULES, own(tmp_path, "repeating"))
    (result,) = results_of(run).values()
    assert (result["finish_reason"], result["metric_calls"]) == ("stale", 40)


def test_unreadable_replies_are_asked_for_once_more_and_counted(tmp_path: Path) -> None:
    def mute(messages: Sequence[Message], sampling: Sampling) -> str:
        return "I would rather not."

    model = a_model(mute)
    run = searched(tmp_path, RULES, own(tmp_path, "asking"), model=model)
    (result,) = results_of(run).values()
    assert (result["finish_reason"], result["unreadable"], result["reasoning_calls"]) == ("stale", 20, 40)


@pytest.mark.parametrize("reply", ['{"failure_modes": [{"name": "all"}]}', '{"prompts": ["Answer.", "{}", "Answer."]}'])
@pytest.mark.parametrize("solver", ["meta_prompt", "evolutionary_optimizer", "hierarchical_reflective", "gepa"])
def test_search_ends_where_replies_bring_nothing_asked_for(tmp_path: Path, solver: str, reply: str) -> None:

    def useless(messages: Sequence[Message], sampling: Sampling) -> str:
        return reply if sampling.temperature else RULES(messages, sampling)

    run = searched(tmp_path, RULES, solver, model=a_model(useless))
    (result,) = results_of(run).values()
    assert result["finish_reason"] in ("stale", "converged")
    assert result["reasoning_calls"] <= 100


def test_prompt_requests_are_single_with_their_own_seeds(tmp_path: Path) -> None:
    model = a_model(RULES)
    searched(tmp_path, RULES, "meta_prompt", model=model, budget_calls=200)
    requests = [sampling for messages, sampling in model.asked if "JSON object" in str(messages[-1]["content"])]
    assert len(requests) > 1
    assert {each.temperature for each in requests} == {1.0}
    assert len({each.seed for each in requests}) == len(requests)


def test_prompt_model_may_be_another(tmp_path: Path) -> None:
    writer = a_model(RULES)
    plan = plan_of(tmp_path, RULES, "meta_prompt", budget_calls=200, roles={"reasoning": "writer"})
    run = asyncio.run(begun(plan, {"scripted": a_model(RULES), "writer": writer}))
    assert writer.asked
    assert {call.role for call in run.of("call") if call.purpose == "propose"} == {"reasoning"}


def test_proposals_too_long_leaking_or_without_item_are_refused(tmp_path: Path) -> None:
    secret = RULES.item("test", 3).text
    model = a_model(RULES)
    run = searched(tmp_path, RULES, own(tmp_path, "odd", SECRET=secret), model=model)
    (result,) = results_of(run).values()
    assert result["refused"] == 5
    told = [str(messages[0]["content"]) for messages, _ in model.asked]
    assert "Say {question} and {nothing}.\n\nAnswer with one word." in told  # which no value takes the place of


def test_item_braces_are_not_filled(tmp_path: Path) -> None:
    dataset = World("rule", tests=10).dataset(10, 10)
    columns = {"question": "copper {question} {gold}", "gold": "no"}
    item = Item("world/test/0", columns, "x")
    dataset = replace(dataset, splits={**dataset.splits, "test": (item,)})
    model = a_model(RULES)
    asyncio.run(begun(plan_of(tmp_path, dataset, "none"), model))
    assert [messages[-1]["content"] for messages, _ in model.asked] == ["copper {question} {gold}"]


def test_solver_cannot_reach_the_test_split(tmp_path: Path) -> None:
    run = searched(tmp_path, RULES, own(tmp_path, "peeking"))
    assert "neither a train nor a validation item" in run.of("fault")[0].reason


def test_cost_cap_ends_a_search_with_room_for_its_last_passes(tmp_path: Path) -> None:
    def dear(messages: Sequence[Message], sampling: Sampling) -> Completion:
        return Completion(RULES(messages, sampling), cost=0.001)

    settings = {"max_experiment_cost": 0.3}
    run = searched(tmp_path, RULES, "meta_prompt", model=a_model(dear), settings=settings)
    (result,), (experiment,) = results_of(run).values(), run.of("experiment")
    assert result["finish_reason"] == "usd"
    assert experiment.cost <= 0.3
    assert len(scores_on_test(run, "meta_prompt")[0]) == 20


@dataclass(frozen=True)
class Judged(TextMetric):
    """A metric that asks a model, whose replies on some items can't be read."""

    name: str = "judged"
    asks_judge: bool = True

    async def __call__(self, item: Gradable, reply: str, ask_judge: AskJudge | None = None) -> Graded:
        assert ask_judge
        said = await ask_judge([{"role": "user", "content": f"Is it right? {item.id} {reply}"}])
        if item.id.endswith("7"):
            raise Unread(said.text)
        return Graded(float(said.text), {}, "" if said.text == "1" else "wrong")


def test_items_whose_judge_cannot_be_read_are_left_out_and_counted(tmp_path: Path) -> None:
    dataset = replace(RULES.dataset(10, 10), metric=Judged())

    def model(messages: Sequence[Message], sampling: Sampling) -> str:
        return "1" if "Is it right?" in str(messages[-1]["content"]) else "wrong"

    run = asyncio.run(begun(plan_of(tmp_path, dataset, "none", roles={"judge": "scripted"}), a_model(model)))
    (experiment,), (result,) = run.of("experiment"), results_of(run).values()
    assert (experiment.score, result["faults"]) == (1.0, 2)
    assert {g.item for g in run.of("grade") if "fault" in g.labels} == {"world/test/7", "world/test/17"}
    assert {call.purpose for call in run.of("call")} == {"test", "judge"}


def test_search_ends_where_its_parameters_say_so(tmp_path: Path) -> None:
    run = searched(tmp_path, RULES, "meta_prompt", parameters={"max_trials": 3})
    (result,) = results_of(run).values()
    assert result["finish_reason"] == "limit"


def test_users_solver_is_scored_without_returning_anything(tmp_path: Path) -> None:
    run = searched(tmp_path, RULES, own(tmp_path, "shorter"), parameters={"tries": 2})
    (result,), (experiment,) = results_of(run).values(), run.of("experiment")
    assert (result["finish_reason"], experiment.solver) == ("converged", "shorter")
    assert len(candidates_of(run, experiment.experiment_id)) == 3


def test_failing_call_ends_the_experiment_and_retry_goes_on(tmp_path: Path) -> None:
    from koderz.errors import Fault

    class Failing(FakeModel):
        async def wait(self) -> None:
            if len(self.asked) == 60:
                raise Fault("the server is gone")

    plan = plan_of(tmp_path, RULES, "meta_prompt", budget_calls=120)
    model = Failing(RULES)
    run = asyncio.run(begun(plan, model))
    assert [fault.reason for fault in run.of("fault")] == ["the server is gone"]
    recorded = len(run.of("call"))
    again = a_model(RULES)
    done = asyncio.run(resumed(run.folder, replace(plan, record=run.lines[0]), again, faults=True))  # type: ignore[arg-type]
    assert done.ended.status == "complete"
    assert len(again.asked) == len(done.of("call")) - recorded
