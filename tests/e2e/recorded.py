"""Runs of each mode and system, what their journals say of them, read without koderz, and what a query prints."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Server, Shell, nothing_judged, whole_lines

Line = Mapping[str, Any]
ENDS = ("experiment", "fault")
OLD_COMPARATIVE = "bench_00000000_20250101_000000"
OLD_SINGLE = "bench_00000001_20250101_000000"


@dataclass(frozen=True)
class Recorded:
    """A run by the lines of its journal alone; its summary is only where it lies."""

    path: Path  # of the summary
    journal: Path

    @cached_property
    def lines(self) -> Sequence[Line]:
        return whole_lines(self.journal)

    @property
    def plan(self) -> Line:
        return self.lines[0]

    @property
    def is_old(self) -> bool:
        """Whether the summary has no `arms`, as the first versions wrote them."""
        return self.path.stem in (OLD_COMPARATIVE, OLD_SINGLE)

    @cached_property
    def ended(self) -> Sequence[Line]:
        """The line that last ended each experiment: a fault until a retry ends it otherwise."""
        return [*{line["experiment_id"]: line for line in self.lines if line["kind"] in ENDS}.values()]

    @cached_property
    def judged(self) -> Sequence[Line]:
        """The judged experiments, canaries included."""
        return [line for line in self.ended if line["kind"] == "experiment"]

    @cached_property
    def experiments(self) -> Sequence[Line]:
        """The judged experiments that figures are about: arm after arm, as planned."""
        tasks, arms = self.plan["tasks"], [arm["name"] for arm in self.plan["arms"]]
        own = [line for line in self.judged if line["problem_id"] not in self.plan.get("apart", ())]
        return sorted(own, key=lambda e: (arms.index(e["arm"]), e["sample"], tasks.index(e["problem_id"])))

    @property
    def arms(self) -> Mapping[str, Sequence[Line]]:
        """The experiments of each arm."""
        return {
            arm["name"]: [line for line in self.experiments if line["arm"] == arm["name"]] for arm in self.plan["arms"]
        }

    @property
    def failed(self) -> Sequence[str]:
        return [line["problem_id"] for line in self.experiments if not line["success"]]


def rate(experiments: Sequence[Line]) -> float:
    """The share of experiments that passed, in per cent; 0 where nothing was judged."""
    passed: int = sum(line["success"] for line in experiments)
    return 100 * passed / max(1, len(experiments))


def cost(experiments: Iterable[Line]) -> float:
    return math.fsum(line["cost"] for line in experiments)


def recorded(koderz: Shell) -> Sequence[Recorded]:
    """The runs in the results folder of a shell, in the order of their files' names."""
    return [
        Recorded(path, koderz.results / (_run_of(path) or path.stem) / "journal.jsonl")
        for path in sorted(koderz.results.glob("bench_*.json"))
    ]


def newest(koderz: Shell) -> Recorded:
    """The run whose plan is the newest."""
    return max(recorded(koderz), key=lambda run: run.plan["time"])


def _run_of(path: Path) -> str | None:
    """The run of which an older summary is a copy."""
    made: str | None = json.loads(path.read_text()).get("copy_of")
    return made


def make_code_runs(koderz: Shell, server: Server) -> None:
    """One arm, two, three, two models, two samples, one that stops early; rescored, retried, and with faults alone."""
    env, usual = server.env(), ("--model", "gpt-4o-mini", "--quiet")
    koderz("benchmark", 0, 6, "--mode", "iterative", *usual, env=env)
    single = newest(koderz)
    koderz("benchmark", 0, 8, "--mode", "comparative", *usual, env=env)
    comparative = newest(koderz)
    koderz("benchmark", "rescore", comparative.path.stem, "--quiet", env=env)
    (koderz.folder / "mine.py").write_text(
        "async def once(task, ask, judge):\n    return await judge(task, await ask(task.messages))\n"
    )
    koderz("benchmark", 0, 5, "--solvers", "zero-shot,iterative,mine.py:once", *usual, env=env)
    koderz("benchmark", 0, 5, "--mode", "comparative", *usual, "--model", "gpt-4o", "--samples", 2, env=env)
    koderz("benchmark", 0, 40, "--mode", "comparative", "--until-decided", *usual, "--concurrency", 1, env=env)

    simulated = ("--model", "simulated", "--quiet", "--simulated-fault-rate", 0.3)
    koderz("benchmark", 0, 8, "--mode", "comparative", *simulated, code=3)
    koderz("benchmark", 0, 12, "--mode", "zero-shot", *simulated, code=3)
    koderz("benchmark", "retry", newest(koderz).path.stem, "--quiet", code=(0, 3))
    nothing_judged(koderz, "iterative")
    _make_older(comparative, OLD_COMPARATIVE)
    _make_older(single, OLD_SINGLE)


def _make_older(run: Recorded, run_id: str) -> None:
    summary = json.loads(run.path.read_text())
    del summary["arms"]
    for arm in (summary, summary.get("zero_shot"), summary.get("iterative")):
        for result in (arm or {}).get("results", ()):
            del result["model"]
    made = summary | {"run_id": run_id, "copy_of": run.path.stem}
    run.path.with_name(f"{run_id}.json").write_text(json.dumps(made))


def make_runs_of_other_systems(koderz: Shell) -> None:
    """What the systems' own commands make: with canaries, with seeds, and from the interface of an older runner."""
    koderz("rlm", "run", "--simulated", "--benchmark", "ruler", "--max-tasks", 2, "--no-save", "--quiet")
    koderz("rollouts", "run", "--agent", "nop", "--canaries", 1, "--quiet")
    optimized = ("--demo-datasets", "labels", "--optimizers", "random_search", "--models", "simulated")
    items = ("--train-items", 20, "--validation-items", 20, "--test-items", 20, "--budget-calls", 60)
    koderz("optimize", "run", *optimized, *items, "--quiet")


def json_values(text: str) -> Iterator[Any]:
    """The JSON values that jq prints, one after the other."""
    decoder, rest = json.JSONDecoder(), text.strip()
    while rest:
        value, end = decoder.raw_decode(rest)
        yield value
        rest = rest[end:].lstrip()


def comparable(value: Any) -> Any:
    """A value in which numbers are alike that jq and Python write in other ways."""
    match value:
        case bool() | None:
            return value
        case float() | int():
            return pytest.approx(value)
        case dict():
            return {key: comparable(each) for key, each in value.items()}
        case list() | tuple():
            return [comparable(each) for each in value]
        case str() if match := re.fullmatch(r"(.*: \$?)(-?\d[\d.e+-]*)", value):
            return f"{match[1]}{float(match[2]):.9f}"
    return value
