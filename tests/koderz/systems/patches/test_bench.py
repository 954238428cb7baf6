"""A bench records each block by itself, and measures again what was too noisy, without mixing what it has on record."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import cycle, islice, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from koderz.errors import Fault
from koderz.systems.patches.judging import verdict_on
from koderz.systems.patches.measuring.bench import Bench
from koderz.systems.patches.measuring.verdicts import Leg, Rule, Timing
from koderz.systems.patches.tasks import PerfTask
from koderz.systems.patches.trees import Applied

RULE = Rule(max_blocks=12)


class Record:
    """What is on record, by name and which time that is in a session; `only`: nothing else may be made."""

    experiment_id = "exp_0"

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}
        self.only = False
        self._nth: Counter[str] = Counter()

    async def once(self, name: str, fn: Callable[[], Awaitable[Any]]) -> Any:
        self._nth[name] += 1
        key = f"{name}/{self._nth[name]}"
        if key not in self.made:
            self.made[key] = json.loads(json.dumps(await fn()))
        return self.made[key]

    def can_make(self, name: str) -> bool:
        return not self.only or f"{name}/{self._nth[name] + 1}" in self.made

    def begin(self, *, only: bool = False) -> Record:
        """Another session."""
        self.only, self._nth = only, Counter()
        return self

    @property
    def blocks(self) -> int:
        return sum("block/" in name for name in self.made)


class Timed:
    """Legs that take these seconds, block after block: base's second one, and the agent's; base's first takes one."""

    def __init__(self, blocks: Iterator[tuple[float, float]]) -> None:
        self._blocks = blocks

    async def sized(self, *_: object) -> dict[str, int]:
        return {"w": 1}

    async def block(self, trees: Mapping[str, Path], *_: object) -> dict[str, Leg]:
        again, agent = next(self._blocks)
        seconds = {"base": 1.0, "again": again, "human": 0.5, "agent": agent}
        return {leg: Leg(seconds[leg], seconds[leg], {"w": Timing(*[seconds[leg]] * 3)}) for leg in trees}


async def _found(*_: object) -> Path:
    return Path()


async def _applied(*_: object) -> Applied:
    return Applied("passed")


def _measured(
    record: Record, blocks: Iterator[tuple[float, float]], rule: Rule = RULE, patches: int = 1
) -> list[dict[str, Any]]:
    """What came of so many patches in one session."""
    trees = SimpleNamespace(backend=None, on=lambda _: None, base=_found, human=_found, patched=_applied)
    bench = Bench(PerfTask("t", "0"), cast("Any", trees), Path(), record, rule, seconds=1)
    bench._work = Timed(blocks)

    async def several() -> list[dict[str, Any]]:
        return [json.loads(await bench.measured(cast("Any", None), "agent", f"patch {n}")) for n in range(patches)]

    return asyncio.run(several())


def _opt(measured: Mapping[str, Any], rule: Rule = RULE) -> Any:
    return verdict_on(json.dumps(measured), rule, "").facts["opt"]


NOISY, GOOD, WEAK = (1.2, 0.55), (1.0, 0.4), (1.0, 1.0)


def _of_human(*ratios: float) -> Iterator[tuple[float, float]]:
    """Blocks whose patch has these shares of the human's speed, in turn."""
    return ((1.0, 0.5 / ratio) for ratio in cycle(ratios))


def test_noise_is_measured_anew_on_another_try() -> None:
    record = Record()
    (noise,) = _measured(record, repeat(NOISY))
    with pytest.raises(Fault, match="noise"):
        _opt(noise)
    assert record.blocks == 12
    (again,) = _measured(record.begin(), repeat(GOOD))
    assert _opt(again) == "opt"
    assert record.blocks == 12 + 7
    assert _measured(record.begin(only=True), iter(())) == [again]


def test_noise_is_measured_once_a_session() -> None:
    record = Record()
    for number in (1, 2, 3):
        _measured(record.begin(), repeat(NOISY))
        assert record.blocks == 12 * number


def test_blocks_of_one_patch_are_never_taken_for_those_of_another() -> None:
    record, strict = Record(), Rule(max_blocks=12, threshold=0.99)
    first, second = [*islice(_of_human(0.94, 0.97), 12)], [*islice(_of_human(0.97, 1.02), 7)]
    measured = _measured(record, iter([*first, *second]), patches=2)
    assert [len(each["blocks"]) for each in measured] == [12, 7]
    assert [_opt(each) for each in measured] == ["inconclusive", "opt"]
    rescored = _measured(record.begin(only=True), iter(()), strict, patches=2)
    assert [len(each["blocks"]) for each in rescored] == [7, 7]
    assert [_opt(each, strict) for each in rescored] == ["not", "inconclusive"]
