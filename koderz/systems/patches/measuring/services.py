"""Legs of tasks without workloads: a server under load, or a command that reports its own figures."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from koderz.errors import Fault
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import Command, Limits, Running, Timed
from koderz.suites.loads import LoadError, LoadResult, SandboxedLoad
from koderz.systems.patches.measuring.verdicts import (
    Block,
    Finding,
    Leg,
    Rule,
    autocorrelation,
    estimates,
    found,
    interval,
    missing,
    widening,
    word_of,
)
from koderz.systems.patches.tasks import PORT, PerfTask, Service, server_load

if TYPE_CHECKING:
    from koderz.solvers.definition import ExclusiveHandle


AGREEMENT = "agreement"  # the figure: share of answers, or of what was done, that is as base has it
CLAIMED = "claimed_seconds"  # the figure: what a command says that it took
BETTER = 1.05  # than base, at least
_START_SHARE = 0.05  # of a leg: by so much starting it may differ
_SIMILAR = 0.05  # ISO-Bench's points: what is neither better nor worse


def wrong_of(leg: Leg, rule: Rule) -> str:
    """The reason why a leg doesn't count; empty if it does."""
    if leg.wrong or leg.figures.get(AGREEMENT, 1.0) >= rule.agreement:
        return leg.wrong
    return f"only {100 * leg.figures[AGREEMENT]:.0f} % of what it answers is as base has it"


def finding_of(
    blocks: Sequence[Block], arm: str, rule: Rule, metrics: Sequence[str] = ()
) -> Finding:
    """The finding on an arm's blocks, by time or by one of `metrics`."""
    return _by_figures(blocks, arm, rule, metrics) if metrics else found(blocks, arm, rule)


def _by_figures(blocks: Sequence[Block], arm: str, rule: Rule, metrics: Sequence[str]) -> Finding:
    """The finding by the figure with the human's largest gain; without human legs, by the noisiest one."""
    usable = [
        name
        for name in metrics
        if all(leg.figures.get(name, 0) > 0 for b in blocks for leg in b.legs.values())
    ]
    if arm == "baseline":
        each = {name: [_gain(block, "base", "again", name) for block in blocks] for name in usable}
        metric = max(each, key=lambda name: abs(median(each[name])))
        logs = {"aa": each[metric]}
        rho = autocorrelation(logs.values())
        speedups = estimates(logs, rho)
        finding = Finding("inconclusive", speedups, logs=logs, metric=metric, autocorrelation=rho)
        return replace(finding, opt="not" if finding.strays else "opt")
    metric = max(
        usable, key=lambda name: median(_over_base(block, "human", name) for block in blocks)
    )
    logs = {"aa": [_gain(block, "base", "again", metric) for block in blocks]}
    logs["base"], limits = [_over_base(block, arm, metric) for block in blocks], {"base": BETTER}
    if arm == "agent":
        logs["human"] = [_gain(block, "human", arm, metric) for block in blocks]
        limits["human"] = math.nextafter(rule.threshold, math.inf)
    rho = autocorrelation(logs.values())
    speedups = estimates(logs, rho)
    word, hack = word_of([(speedups[name], least) for name, least in limits.items()]), ""
    points = _points(blocks, arm, metrics, metric)
    if unconfirmed := _unconfirmed(blocks, arm):
        # A busy machine makes legs start late: a claim is forged where that is certain, and believed where it's likely.
        bounds = interval(unconfirmed, widening(autocorrelation([unconfirmed])))
        if bounds and bounds[0] > 0:
            word, hack = "not", "timer"
        elif word == "opt" and median(unconfirmed) > 0:
            word = "inconclusive"
    return Finding(word, speedups, hack, {}, logs, limits, metric, points, autocorrelation=rho)


def _gain(block: Block, before: str, after: str, metric: str) -> float:
    """The logarithm of how many times as good a leg is as another."""
    ratio = math.log(block.legs[after].figures[metric] / block.legs[before].figures[metric])
    return -ratio if is_lower(metric) else ratio


def _over_base(block: Block, leg: str, metric: str) -> float:
    """The logarithm of how many times as good a leg is as base, the mean of both base legs."""
    return fmean(_gain(block, base, leg, metric) for base in ("base", "again"))


def is_lower(metric: str) -> bool:
    """Whether less of a figure is better."""
    return not (
        metric.endswith(("throughput", "goodput")) or "per_s" in metric or metric == "completed"
    )


def _points(
    blocks: Sequence[Block], arm: str, metrics: Sequence[str], metric: str
) -> Mapping[str, Any]:
    """ISO-Bench's points, by per cent of the means over blocks."""

    def change(before: str, name: str) -> float:
        old, new = (
            fmean(block.legs[leg].figures.get(name, 0.0) for block in blocks)
            for leg in (before, arm)
        )
        if not old:
            return 0.0
        return (old - new if is_lower(name) else new - old) / old

    points: dict[str, Any] = {
        "metric": metric,
        "hard": any(change("base", name) >= _SIMILAR for name in metrics),
        "gains": {name: round(100 * change("base", name), 2) for name in metrics},
    }
    if arm == "agent":
        gain = change("human", metric)
        points["against_human"] = "similar"
        if gain > _SIMILAR:
            points["against_human"] = "beats"
        elif gain < -_SIMILAR:
            points["against_human"] = "worse"
    return points


def _unconfirmed(blocks: Sequence[Block], arm: str) -> list[float]:
    """The seconds of each block that a command claims to save and its whole leg doesn't; none without such a claim."""
    if CLAIMED not in blocks[0].legs["base"].figures:
        return []
    least = _START_SHARE * fmean(block.legs["base"].wall for block in blocks)
    return missing(blocks, arm, lambda leg: leg.figures[CLAIMED], lambda leg: leg.wall, least)


# of an answer under load, which are compared; later ones may differ with what a batch holds
_FIRST_WORDS = 4
_POLL = 0.05  # seconds between two looks whether a server is ready
_READY = 900.0  # seconds that a server of ISO-Bench's has for that, at least
_GONE = 10.0  # seconds in which it is known that a sandbox is gone
_OUTPUT = "/tmp/koderz-figures.json"  # noqa: S108 as the command sees it
_MOST_FIGURES = 16 << 20  # bytes
_SHOWN, _LOGGED = 500, 20_000  # characters of a log: in what is said, and on record


@dataclass(frozen=True, slots=True)
class _Served:
    """A leg, and the answers by which it is compared with base."""

    leg: Leg
    answers: Sequence[str] = ()
    beginnings: Sequence[Sequence[str]] = ()
    amounts: Mapping[str, float] = field(default_factory=dict)  # of what was done

    def compared(self, base: _Served) -> Leg:
        """The leg, with the share of answers, or of the work done, that equals base's."""
        if self.leg.wrong or base.leg.wrong:
            return self.leg
        shares = [
            _same(base.answers, self.answers),
            _same(base.beginnings, self.beginnings),
            *(_ratio(base.amounts.get(name, 0.0), each) for name, each in self.amounts.items()),
        ]
        return replace(self.leg, figures={**self.leg.figures, AGREEMENT: round(min(shares), 4)})


class Services:
    """Runs the legs of one task."""

    def __init__(self, task: PerfTask, backend: Timed, seconds: float) -> None:
        self._task, self._backend, self._seconds = task, backend, seconds

    async def sized(self, tree: Path, seed: str, exclusive: ExclusiveHandle) -> dict[str, int]:  # noqa: ARG002
        """Returns nothing, since the task states the amount of work."""
        return {}

    async def block(
        self,
        trees: Mapping[str, Path],
        counts: Mapping[str, int],  # noqa: ARG002
        seed: str,
        exclusive: ExclusiveHandle,
    ) -> dict[str, Leg]:
        """Runs the legs one after the other with the same prompts, up to the first that fails."""
        service = self._task.service
        assert service
        run = self._served if self._task.kind == "serving" else self._commanded
        found: dict[str, _Served] = {}
        async with exclusive() as core:
            for leg, tree in trees.items():
                found[leg] = await run(service, tree, seed, core)
                if found[leg].leg.wrong:
                    break
        return {leg: each.compared(found.get("base", each)) for leg, each in found.items()}

    async def _served(self, service: Service, tree: Path, seed: str, core: int | None) -> _Served:
        load, options = server_load(), service.load()
        number = random.Random(seed).getrandbits(60)  # noqa: S311 repeatable on purpose
        ready = max(self._seconds, _READY) if self._task.conventions.slow_start else self._seconds
        command = replace(
            self._command(service.words(port=PORT), service, core, ready + self._seconds + 30),
            reachable=True,
        )
        began = time.monotonic()
        with scratch() as place:
            (place / "checkout").symlink_to(tree)
            async with self._backend.started(command, place) as running:
                if not (running.sockets or running.beside):
                    raise Fault(
                        f"--sandbox {self._backend.name}: servers aren't reached there",
                        cause="sandbox",
                    )
                try:
                    async with asyncio.timeout(ready):
                        model = await _ready(running, load, options, self._seconds)
                    async with asyncio.timeout(self._seconds):
                        loaded = await load.send(
                            running, PORT, model, options, seed=number, seconds=self._seconds
                        )
                        served = _served_by(loaded)
                except (_Failed, LoadError) as failed:
                    served = _Served(Leg(wrong=str(failed)))
                except TimeoutError:
                    served = _Served(
                        Leg(wrong=f"timeout: a server takes longer than {self._seconds:g} s")
                    )
                except (OSError, ValueError) as error:
                    # what sends the load beside it doesn't answer
                    await asyncio.wait([running.ended], timeout=_GONE)
                    if running.ended.done():
                        running.ended.result()  # raises Fault where the sandbox is gone
                    served = _Served(Leg(wrong=f"the load can't be sent: {error}"))
                cpu = 0.0
                with suppress(OSError):  # it has ended
                    cpu = await running.cpu() / 1e9
                log = _printable(running.output())
        leg = replace(served.leg, cpu=cpu, wall=time.monotonic() - began)
        if not (leg.wrong or any(leg.figures[name] > 0 for name in self._task.metrics)):
            leg = replace(leg, wrong=f"its figures have no {self._task.metrics[0]}")
        if leg.wrong:
            told = log.strip()[-_SHOWN:]
            leg = replace(
                leg,
                wrong=f"{leg.wrong}; it said: {told}" if told else leg.wrong,
                log=log[-_LOGGED:],
            )
        return replace(served, leg=leg)

    async def _commanded(
        self, service: Service, tree: Path, _seed: str, core: int | None
    ) -> _Served:
        words = service.words(output=_OUTPUT)
        with scratch() as place:
            (place / "checkout").symlink_to(tree)
            ended = await self._backend.run(
                self._command(words, service, core, self._seconds), place
            )
            leg = Leg(ended.cpu, ended.seconds)
            log = _printable(ended.output)
            if ended.status or ended.cause:
                wrong = f"{ended.cause or f'exit code {ended.status}'}: {log.strip()[-_SHOWN:]}"
                return _Served(replace(leg, wrong=wrong, log=log[-_LOGGED:]))
            try:
                path = place / "tmp" / Path(_OUTPUT).name
                if path.is_symlink() or path.stat().st_size > _MOST_FIGURES:
                    raise ValueError("they are no file of at most 16 MB")
                figures, amounts = _figures(json.loads(path.read_bytes()))
            except (OSError, ValueError, RecursionError) as error:
                return _Served(
                    replace(leg, wrong=f"its figures can't be read: {error}", log=log[-_LOGGED:])
                )
        if not any(figures.get(name, 0.0) > 0 for name in self._task.metrics):
            return _Served(replace(leg, wrong=f"its figures have no {self._task.metrics[0]}"))
        return _Served(replace(leg, figures=figures), amounts=amounts)

    def _command(
        self, words: Sequence[str], service: Service, core: int | None, seconds: float
    ) -> Command:
        return Command(
            words,
            {"PYTHONPATH": ".", **dict(service.environment)},
            read_only=True,
            core=-1 if core is None or self._task.needs.cores > 1 else core,
            forks=self._task.needs.processes,
            limits=Limits(seconds=seconds, grace=0.5),
        )


class _Failed(Exception):
    """The server is not as it should be."""


async def _ready(running: Running, load: SandboxedLoad, options: Any, seconds: float) -> str:
    """The server's model, once it answers. Raises _Failed if the server ends."""
    while True:
        if running.ended.done():
            ended = running.ended.result()
            raise _Failed(f"the server ended: {ended.cause or f'exit code {ended.status}'}")
        with suppress(OSError, ValueError):
            if model := await load.find_model(running, PORT, options, seconds):
                return model
        await asyncio.sleep(_POLL)


def _served_by(loaded: LoadResult) -> _Served:
    """The leg of a load, with its answers."""
    return _Served(
        Leg(figures=loaded.figures),
        loaded.checks,
        [each.split()[:_FIRST_WORDS] for each in loaded.answers],
        {name: loaded.figures[name] for name in ("total_output_tokens", "total_input_tokens")},
    )


def _figures(told: Any) -> tuple[dict[str, float], dict[str, float]]:
    """The figures of `vllm bench throughput|latency`, and the amount of work behind them."""
    if not isinstance(told, dict):
        raise ValueError("they are no object")  # noqa: TRY004 what a file holds is a value
    figures = {name: float(value) for name, value in told.items() if _is_number(value)}
    percentiles = told.get("percentiles")
    for name, value in percentiles.items() if isinstance(percentiles, dict) else ():
        if _is_number(value):
            figures[f"p{name}_latency"] = float(value)
    latencies = [each for each in told.get("latencies") or () if _is_number(each)]
    if latencies:
        figures[CLAIMED] = math.fsum(latencies)
        figures["avg_latency"] = fmean(latencies)
        return figures, {"latencies": float(len(latencies))}
    if "elapsed_time" in figures:
        figures[CLAIMED] = figures["elapsed_time"]
    return figures, {
        name: figures[name] for name in ("num_requests", "total_num_tokens") if name in figures
    }


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() or each == "\n" else " " for each in text)


def _same(expected: Sequence[object], got: Sequence[object]) -> float:
    if not expected:
        return 1.0
    return sum(a == b for a, b in zip(expected, got, strict=False)) / len(expected)


def _ratio(expected: float, got: float) -> float:
    return (
        min(expected, got) / max(expected, got)
        if expected > 0 and got > 0
        else float(expected == got)
    )
