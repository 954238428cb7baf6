"""FakeModel worlds for optimizers: items of four kinds, a model that prompts help or not, and one that writes them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from koderz.models.tariffs import FREE
from koderz.plans.arms import Arm
from koderz.plans.plan import Plan, Subject, make_plan
from koderz.prompts import Prompts, load_prompts
from koderz.settings.schema import Settings
from koderz.solvers import load_solver
from koderz.suites.metrics import TextMetric
from koderz.suites.suite import ExperimentContext, Suite
from koderz.systems.optimizers.datasets import BASELINE
from koderz.systems.optimizers.datasets.evaluator import WORDS, Evaluator, open_evaluator
from koderz.systems.optimizers.datasets.options import SearchOptions
from koderz.systems.optimizers.datasets.payload import SPLITS, Dataset, Item, Leakage
from koderz.systems.optimizers.datasets.suite import described
from koderz.testing import FakeModel, a_model
from koderz.types import Message, Sampling, Task
from koderz_tracker.records import Cell
from tests.koderz.world import Run, begun, settings_of

KINDS = ("copper", "silver", "marble", "velvet")
LOW, HIGH, FLAT = 0.3, 0.9, 0.6
_MADE: dict[str, tuple[Run, dict[Path, bytes]]] = {}


@dataclass(frozen=True)
class World:
    """What helps the model: a `rule` for a kind in the instruction, an `example` of the kind, or `nothing`."""

    helps: str
    number: int = 0
    tests: int = 100  # items of the test split

    def item(self, split: str, number: int) -> Item:
        kind = KINDS[number % len(KINDS)]
        words = " ".join(_drawn(self.number, split, number, at).hex() for at in range(6))
        return Item(f"world/{split}/{number}", {"question": f"{kind} {words}"}, _answer(f"{kind} {words}"), kind=kind)

    def dataset(self, train: int = 40, validation: int = 40) -> Dataset:
        sizes = {"train": train, "validation": validation, "test": self.tests}
        return Dataset(
            name="world",
            source="made up",
            licence="none",
            splits={split: tuple(self.item(split, n) for n in range(size)) for split, size in sizes.items()},  # type: ignore[misc]
            messages=({"role": "system", "content": "Answer the question."}, {"role": "user", "content": "{question}"}),
            format_line="Answer with one word.",
            metric=TextMetric("equals"),
            leakage=Leakage("drop", dict.fromkeys(SPLITS, 0), dict.fromkeys(SPLITS, 0)),
            generated=True,
        )

    def __call__(self, messages: Sequence[Message], sampling: Sampling) -> str:
        """What the model replies."""
        text = str(messages[-1]["content"])
        if text.rpartition("\n")[2].startswith("Reply with a JSON object"):
            return self._written(text, sampling.seed or 0)
        if text.endswith("``` blocks."):
            return self._reflected(text, sampling.seed or 0)
        kind = text.partition(" ")[0]
        chance = FLAT if self.helps == "nothing" else HIGH if self._is_helped(messages, kind) else LOW
        asked = json.dumps([dict(each) for each in messages])
        drawn = int.from_bytes(_drawn(self.number, asked), "big") / 2**64
        return _answer(text) if drawn < chance else "wrong"

    def _is_helped(self, messages: Sequence[Message], kind: str) -> bool:
        if self.helps == "rule":
            return f"rule for {kind}" in str(messages[0]["content"])
        shown = [str(each["content"]) for each in messages[:-1] if each["role"] == "user"]
        return any(text.startswith(kind) for text in shown)

    def _written(self, text: str, seed: int) -> str:
        rng = random.Random(f"{self.number} {seed} {text}")
        shown = re.findall(r"<(?:item|mode)\b.*?</(?:item|mode)>", text, re.DOTALL)
        kinds = [kind for block in shown for kind in KINDS if kind in block]
        if '"failure_modes"' in text:
            modes = [{"name": kind, "description": "wrong", "root_cause": "no rule"} for kind in dict.fromkeys(kinds)]
            return f"Here they are: {json.dumps({'failure_modes': modes})}"
        told = re.findall(r"<instruction>\n(.*?)\n</instruction>", text, re.DOTALL)
        rules = list(dict.fromkeys(re.findall(r"rule for \w+", " ".join(told[:2]))))
        wanted = re.search(r"Write (\d+) instructions", text)
        written = []
        for _ in range(int(wanted[1]) if wanted else 1):
            kind = (
                rng.choice(kinds) if kinds and rng.random() < 0.8 else rng.choice(KINDS) if rng.random() < 0.3 else ""
            )
            own = dict.fromkeys([*rules, *([f"rule for {kind}"] if kind else [])])
            written.append(f"Answer the question, variant {rng.randrange(10**6)}. {'. '.join(own)}")
        return f"```json\n{json.dumps({'prompts': written})}\n```"

    def _reflected(self, text: str, seed: int) -> str:
        """A reply to the request of the package gepa."""
        rng = random.Random(f"{self.number} {seed} {text}")
        kinds = re.findall(r"^## Inputs\n(\w+)", text, re.MULTILINE)
        rules = dict.fromkeys(re.findall(r"rule for \w+", text.split("```")[1]))
        own = [*rules, *([f"rule for {rng.choice(kinds)}"] if rng.random() < 0.8 else [])]
        return f"```\nAnswer the question, variant {rng.randrange(10**6)}. {'. '.join(dict.fromkeys(own))}\n```"


@dataclass
class WorldSuite(Suite):
    """A suite of one task, which is a world's dataset."""

    dataset: Dataset
    name: str = "world"
    source: str = "made up"
    words: Sequence[str] = WORDS
    parts: Sequence[str] = ("optimize",)

    def __post_init__(self) -> None:
        needs, messages = frozenset({"evaluator"}), tuple(self.dataset.messages)
        self.tasks = (Task("world", payload=self.dataset, needs=needs, digest="1", messages=messages),)

    def messages(self, task: Task[Dataset], prompts: Prompts) -> tuple[Message, ...]:
        return task.messages

    def details(self, tasks: Sequence[Task[Dataset]], settings: Settings) -> dict[str, Any]:
        return {task.id: described(task.payload) for task in tasks}

    def open_evaluator(self, context: ExperimentContext) -> AbstractAsyncContextManager[Evaluator]:
        return open_evaluator(context.task.payload, context.handles, context.settings)


def plan_of(
    folder: Path,
    world: World | Dataset,
    *solvers: str,
    seeds: int = 1,
    parameters: Mapping[str, Any] | None = None,
    concurrency: int = 8,
    settings: Mapping[str, Any] | None = None,
    roles: Mapping[str, str] | None = None,
    **search: Any,
) -> Plan:
    """A plan of these optimizers on a world; `none` is in it once, the others `seeds` times."""
    own = SearchOptions(**{"budget_calls": 500, **search})
    given = settings_of(
        local_model="scripted", seed=42, temperature=0.0, results=folder / "results", samples=seeds,
        concurrency=concurrency, **(settings or {}),
    )  # fmt: skip
    given = replace(given, own=(*given.own, own))
    dataset = world.dataset() if isinstance(world, World) else world
    suite, prompts = WorldSuite(dataset), load_prompts()
    arms = tuple(
        Arm(loaded.name, loaded, {"main": "scripted", **(roles or {})}, parameters or {})
        for name in solvers
        for loaded in [load_solver(name, parameters or {}, {})]
    )
    cells = [Cell("world", arm.name, 1 if arm.name == BASELINE else seeds) for arm in arms]
    return make_plan(given, Subject(suite, suite.tasks, prompts), arms, cells=cells)


def searched(folder: Path, world: World, *solvers: str, model: FakeModel | None = None, **how: Any) -> Run:
    """A run of these optimizers. With a model of the world's own it is made once a process, and copied."""
    key = repr((world, solvers, sorted(how.items())))
    if model or key not in _MADE:
        made = asyncio.run(begun(plan_of(folder, world, *solvers, **how), model or a_model(world, price=FREE)))
        if not model:
            _MADE[key] = made, {path.relative_to(folder): path.read_bytes() for path in _files(made.folder)}
        return made
    made, files = _MADE[key]
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return replace(made, folder=folder / "results" / made.folder.name)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def results_of(run: Run) -> dict[str, dict[str, Any]]:
    """What each experiment put on record as its result, by its id."""
    return {line.experiment_id: line.value for line in run.of("once") if line.name == "result"}


def candidates_of(run: Run, experiment: str) -> list[dict[str, Any]]:
    return [
        line.value for line in run.of("once") if line.experiment_id == experiment and line.name.startswith("candidate/")
    ]


def test_scores(run: Run, arm: str) -> list[dict[str, float]]:
    """Scores by test item, of each of an arm's experiments that has tested something."""
    ids: dict[str, dict[str, float]] = {line.experiment_id: {} for line in run.of("experiment") if line.arm == arm}
    for grade in run.of("grade"):
        if grade.labels["split"] == "test" and grade.experiment_id in ids:
            ids[grade.experiment_id][grade.item] = grade.score
    return list(ids.values())


def gain(run: Run, arm: str) -> float:
    """The mean difference to the baseline on test over an arm's experiments; 0 where the initial prompt was kept."""
    (base,) = test_scores(run, BASELINE)
    found = test_scores(run, arm)
    gains = [sum(scores[item] - base[item] for item in base) / len(base) if scores else 0.0 for scores in found]
    return sum(gains) / len(gains)


def _drawn(*what: object) -> bytes:
    return hashlib.blake2b(repr(what).encode(), digest_size=8).digest()


def _answer(question: str) -> str:
    return _drawn("answer", question).hex()
