"""Test scripts of GSO and ISO-Bench: programs whose `experiment` is timed from outside, with compared results.

A leg is a process of each script, from its tree, called as their harness calls it. What a script itself says of the
time that its experiment took is only held against what was seen from outside.
"""

from __future__ import annotations

import ast
import filecmp
import json
import math
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Final, NamedTuple

from koderz.errors import Fault
from koderz.sandbox.scratch import make_usable, scratch
from koderz.sandbox.workspace import CHECKOUT, HOME, Mount, Timed
from koderz.systems.patches.measuring.legs import (
    ENOUGH,
    TOOLS,
    CallTimes,
    Frames,
    Legs,
    ProtocolBroken,
    Reading,
    after_calls,
    clock_of,
    passed,
    timing_of,
)
from koderz.systems.patches.measuring.verdicts import Leg, require_sound
from koderz.systems.patches.tasks import PerfTask

if TYPE_CHECKING:
    from koderz.solvers.definition import ExclusiveHandle


_RESULTS = "results"  # the folder of its home in which a script runs
_EXPECTED, _GOT = "/opt/koderz/expected", "/opt/koderz/got"
_PYTHON = ".venv/bin/python"  # of a tree, where its install made one
_MOST_RUNS, _MOST_CALLS = 5, 10_000
_BELIEVED = 0.8  # share of what is seen from outside that a script says it took, at least


class _Script(NamedTuple):
    """A test script, as published or with other seeds."""

    name: str
    source: str


@dataclass(slots=True)
class _Run:
    """One process of a script."""

    folder: Path  # what it stored
    prefix: str  # with which the names of that begin
    is_gso: bool  # whether its script takes GSO's arguments; ISO-Bench's are fewer
    leg: Leg = field(default_factory=Leg)
    # each call of `experiment`, with what came after the last
    taken: list[CallTimes] = field(default_factory=list)
    stored: list[str] = field(default_factory=list)  # the names under which results are
    claim: float | None = None  # seconds that a call took, as it says

    @property
    def counted(self) -> list[CallTimes]:
        """The calls that count: all of them for GSO, whose mean is over all.

        Some of its scripts have their main program twice or more. Of others the first is a warm-up, if there are more.
        """
        if not self.is_gso or not self.taken:
            return self.taken[1:] or self.taken
        mean = CallTimes(*(round(fmean(each)) for each in zip(*self.taken, strict=True)))
        return [mean] * len(self.taken)

    @property
    def is_believed(self) -> bool:
        """Whether the outside clock confirms the times that the script claims."""
        seen = min(each.wall for each in self.taken) / 1e9
        return self.claim is not None and self.claim >= _BELIEVED * seen


class Scripts:
    """The `Work` of tasks whose workloads are test scripts."""

    def __init__(self, task: PerfTask, backend: Timed, seconds: float) -> None:
        self._task, self._legs = task, Legs(task, backend, seconds)

    async def sized(self, tree: Path, seed: str, exclusive: ExclusiveHandle) -> dict[str, int]:
        """The number of processes of each script in a leg: enough for all scripts together to take long enough.

        Beside them, under `drawn_for`, the number by which each script has other seeds that works with them.
        """
        counts, enough = {}, ENOUGH / len(self._task.workloads)
        with scratch() as aside:
            for name, source in self._task.workloads.items():
                async with exclusive() as core:
                    run = await self._run(tree, _Script(name, source), "base", aside, core)
                require_sound(run.leg, f"base: {name}")
                if not (run.taken and run.stored):
                    raise Fault(
                        f"base_failed: {name} calls no `experiment`, or stores no result by `store_result`",
                        cause="base_failed",
                    )
                counts[name] = min(_MOST_RUNS, math.ceil(enough / timing_of(run.counted).total))
                drawn = random.Random(f"{seed}/{name}").getrandbits(31)  # noqa: S311 repeatable on purpose
                if await self._works(
                    tree, _Script(name, reseeded(source, drawn)), len(run.taken), exclusive
                ):
                    counts[drawn_for(name)] = drawn
        return counts

    async def _works(
        self, tree: Path, script: _Script, calls: int, exclusive: ExclusiveHandle
    ) -> bool:
        """Whether a script with other seeds, if any, does as much on base, and base gives one result twice."""
        if not script.source:
            return False
        with scratch() as aside:
            async with exclusive() as core:
                base, again = [
                    await self._run(tree, script, leg, aside, core) for leg in ("base", "again")
                ]
            if base.leg.wrong or len(base.taken) != calls or not base.stored:
                return False
            try:
                return not (await self._judged(script, tree, base, again)).wrong
            except Fault:  # base's own result can't be read again
                return False

    async def block(
        self,
        trees: Mapping[str, Path],
        counts: Mapping[str, int],
        seed: str,
        exclusive: ExclusiveHandle,
    ) -> dict[str, Leg]:
        """Runs each script on one tree after the other. A leg ends with the first script that fails.

        The first block has the seeds that are published, all others those that were drawn.
        """
        legs, is_first = dict.fromkeys(trees, Leg()), seed.endswith("/1")
        for name, source in self._task.workloads.items():
            count, drawn = counts[name], counts.get(drawn_for(name))
            script = _Script(name, source if drawn is None or is_first else reseeded(source, drawn))
            taken: dict[str, list[CallTimes]] = {leg: [] for leg in trees}
            for _ in range(count):
                going_on = [leg for leg in trees if not legs[leg].wrong]
                with scratch() as aside:
                    async with exclusive() as core:
                        runs = {
                            leg: await self._run(trees[leg], script, leg, aside, core)
                            for leg in going_on
                        }
                    for leg in going_on:
                        judged = await self._judged(script, trees["base"], runs["base"], runs[leg])
                        legs[leg] = _added(legs[leg], judged)
                        taken[leg] += runs[leg].counted
                if legs["base"].wrong:
                    return legs
            for leg in trees:
                if not legs[leg].wrong:
                    legs[leg] = replace(
                        legs[leg], work={**legs[leg].work, name: timing_of(taken[leg])}
                    )
        return legs

    async def _run(
        self, tree: Path, script: _Script, leg: str, aside: Path, core: int | None
    ) -> _Run:
        """Runs one process of a script; its stored results are then in a folder in `aside`."""
        name = script.name
        run = _Run(aside / f"{leg}-{name}", f"{leg}_{name}", "--file_prefix" in script.source)

        before = Reading(0, 0)  # when the process began, then when the last call ended

        async def talk(frames: Frames) -> None:
            flags = ["--file_prefix" if run.is_gso else "--prefix", run.prefix]
            argv = [*([f"{HOME}/times.txt"] if run.is_gso else []), "--reference", *flags]
            await frames.send(self._order(tree, name, argv=argv, folder=f"{HOME}/{_RESULTS}"))
            nonlocal before
            began: Reading | None = None
            while not (said := await frames.receive()).startswith(b"end"):
                if said == b"call" and began is None and len(run.taken) < _MOST_CALLS:
                    began = await clock_of(frames.running)
                    await frames.send(b"go")
                elif said == b"done" and began:
                    ended = await clock_of(frames.running)
                    run.taken.append(passed(before, began, ended))
                    before, began = ended, None
                    await frames.send(b"on")
                elif said.startswith(b"stored") and len(run.stored) < _MOST_CALLS:
                    run.stored.append(os.fsdecode(said[6:]))
                else:
                    raise ProtocolBroken("it says what it shouldn't of its calls")
            run.claim = _claim(said[3:])
            await frames.send(b"on")

        with scratch() as place:
            self._furnish(place, tree, script)
            run.leg = await self._legs.process(self._argv(tree, "script.py"), place, core, talk)
            after = round(after_calls(run.leg, before, len(run.taken)))
            run.taken = [each._replace(between=each.between + after) for each in run.taken]
            _keep_files(place / "home" / _RESULTS, run.folder)
        return run

    def _argv(self, tree: Path, tool: str) -> list[str]:
        return [
            f"{CHECKOUT}/{_PYTHON}" if _has_python(tree) else "python3",
            "-s",
            "-B",
            f"{TOOLS}/{tool}",
        ]

    def _order(self, tree: Path, name: str, **more: object) -> bytes:
        path = [] if _has_python(tree) else [f"{CHECKOUT}/{self._task.path}"]
        return json.dumps({"path": path, "file": f"{HOME}/{name}.py", **more}).encode()

    def _furnish(self, place: Path, tree: Path, script: _Script) -> None:
        (place / "checkout").symlink_to(tree)
        (place / "home" / _RESULTS).mkdir(parents=True)
        (place / "home" / f"{script.name}.py").write_text(script.source, encoding="utf-8")

    async def _judged(self, script: _Script, tree: Path, base: _Run, run: _Run) -> Leg:
        """The leg of a run, with what is wrong with it."""
        name = script.name
        if run is base or run.leg.wrong or base.leg.wrong:
            return replace(run.leg, wrong=f"{name}: {run.leg.wrong}") if run.leg.wrong else run.leg
        if len(run.taken) != len(base.taken):
            why = f"it calls `experiment` {len(run.taken)} times, base {len(base.taken)} times"
        elif base.is_believed and not run.is_believed:
            seen = timing_of(run.counted).wall
            why = f"it says that its experiment took {run.claim} s; seen from outside it was {seen:.6f} s"
            return replace(run.leg, wrong=f"{name}: {why}", hack="timer")
        else:
            why = "" if _is_same(base, run) else await self._difference(script, tree, base, run)
        return replace(run.leg, wrong=f"{name}: {why}") if why else run.leg

    async def _difference(self, script: _Script, tree: Path, base: _Run, run: _Run) -> str:
        """The difference of two results by the script's own check, run with base's code; empty if equal."""
        name = script.name
        told: list[bytes] = []

        async def talk(frames: Frames) -> None:
            names = [(stored, stored.replace(base.prefix, run.prefix)) for stored in base.stored]
            swapped = self._task.conventions.checked_first
            places = {"expected": _EXPECTED, "got": _GOT}
            await frames.send(self._order(tree, name, names=names, swapped=swapped, **places))
            told.append(await frames.receive())

        mounts = [Mount(base.folder, _EXPECTED), Mount(run.folder, _GOT)]
        with scratch() as place:
            self._furnish(place, tree, script)
            leg = await self._legs.process(
                self._argv(tree, "equivalence.py"), place, None, talk, mounts
            )
        if leg.wrong:
            return f"its results can't be compared: {leg.wrong}"
        of_base, why = json.loads(told[0])
        if of_base:
            raise Fault(
                f"base_failed: {name}: base's own result can't be read again: {why}",
                cause="base_failed",
            )
        return str(why)


def drawn_for(name: str) -> str:
    """The key of the number by which a script's other seeds were drawn, in the result of `Scripts.sized`."""
    return f"seeds of {name}"


def _added(leg: Leg, more: Leg) -> Leg:
    return Leg(leg.cpu + more.cpu, leg.wall + more.wall, leg.work, more.wrong, more.hack)


def _has_python(tree: Path) -> bool:
    return (tree / _PYTHON).is_symlink() or (tree / _PYTHON).exists()


def _claim(told: bytes) -> float | None:
    try:
        return float(json.loads(told)[-1])
    except (ValueError, TypeError, LookupError, RecursionError):
        return None


def _keep_files(folder: Path, target: Path) -> None:
    """Moves a folder, keeping only folders and regular files in it."""
    if folder.is_symlink() or not folder.is_dir():
        target.mkdir()
        return
    make_usable(folder)
    folder.rename(target)
    for path in [*target.rglob("*")]:
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            path.unlink()


def _is_same(base: _Run, run: _Run) -> bool:
    """Whether both runs stored the same bytes under names that differ only by their prefix."""
    expected, got = _files(base.folder), _files(run.folder)
    renamed = {name.replace(base.prefix, run.prefix): name for name in expected}
    return renamed.keys() == {*got} and all(
        filecmp.cmp(base.folder / before, run.folder / after, shallow=False)
        for after, before in renamed.items()
    )


def _files(folder: Path) -> Sequence[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


_SEEDING: Final = frozenset(
    {
        *(
            "seed",
            "seed_instance",
            "manual_seed",
            "manual_seed_all",
            "set_seed",
            "set_random_seed",
            "default_rng",
        ),
        *(
            "Random",
            "RandomState",
            "PRNGKey",
            "SeedSequence",
            "PCG64",
            "PCG64DXSM",
            "MT19937",
            "Philox",
            "SFC64",
        ),
    }
)
"""Functions whose first argument is a seed, of random, NumPy, PyTorch, TensorFlow, JAX, transformers and Faker."""

_NAMES: Final = ("seed", "random_state")  # what the name of an argument or a variable has in it
_MOST = 1 << 31  # that all of these take


def reseeded(source: str, drawn: int) -> str:
    """The script with other seeds, drawn by a number; empty if it has none. Equal seeds stay equal."""
    found = {(each.lineno, each.col_offset): each for each in _seeds(ast.parse(source))}
    if not found:
        return ""
    lines = source.encode().split(b"\n")
    for (line, column), node in sorted(found.items(), reverse=True):
        other = random.Random(f"{drawn}/{node.value!r}").randrange(1, _MOST)  # noqa: S311 repeatable on purpose
        text = lines[line - 1]
        lines[line - 1] = text[:column] + b"%d" % other + text[node.end_col_offset :]
    return b"\n".join(lines).decode()


def _seeds(tree: ast.AST) -> Iterator[ast.Constant]:
    """The numbers in the script that are seeds."""
    for node in ast.walk(tree):
        given: list[ast.expr | None] = []
        if isinstance(node, ast.Call):
            given += node.args[:1] if _name(node.func) in _SEEDING else []
            given += [each.value for each in node.keywords if _is_seed(each.arg)]
        elif isinstance(node, ast.Assign):
            given += [node.value] if any(_is_seed(_name(each)) for each in node.targets) else []
        elif isinstance(node, ast.AnnAssign):
            given += [node.value] if _is_seed(_name(node.target)) else []
        elif isinstance(node, ast.arguments):
            positional = [*node.posonlyargs, *node.args]
            with_default = positional[len(positional) - len(node.defaults) :]
            pairs = [
                *zip(with_default, node.defaults, strict=True),
                *zip(node.kwonlyargs, node.kw_defaults, strict=True),
            ]
            given += [default for argument, default in pairs if _is_seed(argument.arg)]
        for each in given:
            if isinstance(each, ast.Constant) and type(each.value) is int:
                yield each


def _name(node: ast.expr) -> str:
    """The last part of a dotted name."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _is_seed(name: str | None) -> bool:
    return any(each in (name or "").lower() for each in _NAMES)
