"""The simulated model on datasets: better prompts score better, and it writes them."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from statistics import fmean
from typing import Any

import pytest

from koderz.suites.reviews import json_object
from koderz.suites.suite import SuiteSource
from koderz.suites.tables import fill
from koderz.systems.optimizers.datasets.options import DatasetOptions
from koderz.systems.optimizers.datasets.payload import Dataset, Item
from koderz.systems.optimizers.datasets.simulated import RULES, SimulatedReader
from koderz.systems.optimizers.datasets.suite import DatasetSuite
from koderz.types import Message, Sampling

NAMES = ("arithmetic", "labels")


@cache
def loaded() -> dict[str, Dataset]:
    return {
        task.id: task.payload
        for task in DatasetSuite.load(SuiteSource(None, DatasetOptions(demo_datasets=NAMES))).tasks
    }


@cache
def reader() -> SimulatedReader:
    return SimulatedReader(loaded().values())


def asked(dataset: Dataset, item: Item, instruction: str, *examples: Item) -> list[Message]:
    shown: list[Message] = [{"role": "system", "content": f"{instruction}\n\n{dataset.format_line}"}]
    for example in examples:
        question, answer = dataset.demonstrate(example)
        shown += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return [*shown, {"role": "user", "content": fill(dataset.messages[-1]["content"], item.columns)}]


def accuracy(name: str, instruction: str, *examples: Item) -> float:
    dataset = loaded()[name]

    async def score(item: Item) -> float:
        reply = reader().reply(asked(dataset, item, instruction, *examples), Sampling())
        return (await dataset.metric(item, reply)).score

    return fmean(asyncio.run(score(item)) for item in dataset.test)


@pytest.mark.parametrize("name", NAMES)
def test_rules_for_its_kinds_make_it_better(name: str) -> None:
    kinds = {item.kind.partition(" ")[0] for item in loaded()[name].test}
    rules = " ".join(RULES[kind].sentence for kind in kinds)
    plain = accuracy(name, loaded()[name].messages[0]["content"])

    assert 0.2 < plain < 0.5
    assert accuracy(name, rules) > plain + 0.25


@pytest.mark.parametrize("name", NAMES)
def test_examples_make_it_better(name: str) -> None:
    first = {item.kind.partition(" ")[0]: item for item in loaded()[name].train}

    assert accuracy(name, "Answer.", *first.values(), *loaded()[name].train[:3]) > accuracy(name, "Answer.") + 0.05


def test_simulated_wording_changes_which_items_are_right() -> None:
    assert accuracy("labels", "Sort it.") == pytest.approx(accuracy("labels", "Please sort it."), abs=0.1)
    assert accuracy("labels", "Sort it.") == accuracy("labels", "Sort it.")


def test_simulated_item_is_found_behind_other_words() -> None:
    dataset = loaded()["arithmetic"]
    item = dataset.test[0]
    message = {"role": "user", "content": f"Here is one:\n{item.columns['question']}\n"}

    assert reader().reply([message], Sampling()).rpartition("#### ")[2].isdigit()
    assert reader().reply([{"role": "user", "content": "How many?"}], Sampling()) == "I do not know."


def request(text: str, wanted: str, seed: int = 0) -> dict[str, Any]:
    said = f"{text}\n\nReply with a JSON object: {wanted}"
    return dict(json.loads(reader().reply([{"role": "user", "content": said}], Sampling(temperature=1, seed=seed))))


def test_simulated_prompts_have_rules_for_failures() -> None:
    item = next(item for item in loaded()["labels"].train if item.kind == "billing mixed")
    shown = f'<instruction>\nSort it.\n</instruction>\n<item id="{item.id}">\n…\n</item>\nWrite 4 instructions.'

    prompts = request(shown, '{"prompts": [text]}')["prompts"]

    assert len(prompts) == 4
    assert all(prompt.startswith("Sort it.") for prompt in prompts)
    assert any(RULES["billing"].sentence in prompt for prompt in prompts)
    assert prompts == request(shown, '{"prompts": [text]}')["prompts"]
    assert prompts != request(shown, '{"prompts": [text]}', seed=1)["prompts"]


def test_simulated_paraphrase_uses_the_text_shown_alone() -> None:
    prompts = request("<instruction>\nSort it.\n</instruction>\nWrite 20 instructions.", '{"prompts": []}')["prompts"]

    assert len({*prompts}) > 5
    assert not any(rule.sentence in prompt for rule in RULES.values() for prompt in prompts)


def test_simulated_failure_modes_are_named_and_mended() -> None:
    items = loaded()["arithmetic"].train[:10]
    shown = "\n".join(f'<item id="{item.id}">\n</item>' for item in items)

    modes = request(shown, '{"failure_modes": []}')["failure_modes"]

    assert {mode["name"] for mode in modes} == {item.kind for item in items}
    assert all({"name", "description", "root_cause"} <= mode.keys() for mode in modes)
    mode = f'<instruction>\nSolve.\n</instruction>\n<mode name="{modes[0]["name"]}">\n</mode>\nWrite 5 instructions.'
    assert any(RULES[modes[0]["name"]].sentence in prompt for prompt in request(mode, '{"prompts": []}')["prompts"])


def test_simulated_judge_scores_replies() -> None:
    assert request("<gold>\nParis\n</gold>\n<reply>\nParis\n</reply>", '{"score": 0}')["score"] == 1
    assert request("<gold>\nParis\n</gold>\n<reply>\nRome\n</reply>", '{"score": 0}')["score"] == 0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"prompts": ["a"]}', {"prompts": ["a"]}),
        ('Sure {"note": 1}:\n```json\n{"prompts": ["a {question}"], "more": {}}\n```', {"prompts": ["a {question}"]}),
        ('{"prompts": ["line\nbreak"]}', {"prompts": ["line\nbreak"]}),
        ('{"a": {"prompts": []}}', None),
        ("[1, 2]", None),
        ("{" * 100_000, None),
        ('{"a":' * 100_000, None),
        ("", None),
    ],
)
def test_simulated_model_finds_json_in_fences_and_prose(text: str, found: dict[str, Any] | None) -> None:
    said = json_object(text, "prompts", "failure_modes")

    assert (said and {"prompts": said["prompts"]}) == found
