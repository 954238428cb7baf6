"""The bench of an experiment: applies a patch and times it, block after block, until a verdict is certain."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from koderz.sandbox.workspace import ManyMachines
from koderz.systems.patches.measuring.legs import Workloads
from koderz.systems.patches.measuring.scripts import Scripts, drawn_for
from koderz.systems.patches.measuring.services import Services, finding_of, wrong_of
from koderz.systems.patches.measuring.verdicts import (
    Block,
    Leg,
    Rule,
    is_look,
    is_noise,
    require_sound,
)
from koderz.systems.patches.patches import patch_of
from koderz.systems.patches.tasks import PerfTask
from koderz.systems.patches.trees import Applied, Trees, texts_of

if TYPE_CHECKING:
    from koderz.solvers.definition import ExclusiveHandle

LEGS: Mapping[str, tuple[str, ...]] = {
    "baseline": ("base", "again"),
    "human": ("base", "again", "human"),
    "agent": ("base", "again", "human", "agent"),
}
"""The legs of a block for each arm."""

# what users are told of them as
_LABELS = {"again": "base, the second time", "human": "the human's answer"}


@dataclass(frozen=True, slots=True)
class Measured:
    """The record of measuring one patch, from which its verdict is made."""

    arm: str
    patch: str
    applied: Applied
    blocks: tuple[Block, ...] = ()
    stopped: bool = False  # before its time, as no more may be measured
    metrics: tuple[str, ...] = ()  # the figures that may decide; none where time does
    # `fresh` in each block, `seeds`: drawn by others than the published, `fixed`; empty: not known
    inputs: str = ""


class Recorder(Protocol):
    """The handles of an experiment by which a bench records its work."""

    @property
    def experiment_id(self) -> str: ...

    async def once(self, name: str, fn: Callable[[], Any]) -> Any: ...

    def can_make(self, name: str) -> bool: ...


class TaskWork(Protocol):
    """The work of a task's legs, and the comparison of their outputs with base's."""

    async def sized(self, tree: Path, seed: str, exclusive: ExclusiveHandle) -> dict[str, int]:
        """The amount of each workload in a leg, so that base takes long enough. Raises Fault if base fails."""
        ...

    async def block(
        self,
        trees: Mapping[str, Path],
        counts: Mapping[str, int],
        seed: str,
        exclusive: ExclusiveHandle,
    ) -> dict[str, Leg]:
        """Runs a leg of each tree in this order, possibly only up to one that fails.

        `counts`: what `sized` gave.
        """
        ...


class Bench:
    """Measures patches of one experiment. All work is recorded, each block separately."""

    def __init__(
        self,
        task: PerfTask,
        trees: Trees,
        folder: Path,
        handles: Recorder,
        rule: Rule,
        *,
        seconds: float,
        given: Callable[[str], str] = lambda _: "",
    ) -> None:
        """`seconds`: the time limit of a leg; `given`: returns the sample's patch by a named agent."""
        self._task, self._trees, self._folder, self._handles, self._rule = (
            task,
            trees,
            folder,
            handles,
            rule,
        )
        self._given = given
        self._files: Mapping[str, str] | None = None
        without_server = Scripts if task.conventions.published else Workloads
        work = Services if task.service else without_server
        self._work: TaskWork = work(task, trees.on(task), seconds)
        self._patched: dict[str, Path] = {}  # by patch
        self._count = self._made = 0  # what was to be measured, and the blocks that were made here

    async def files(self) -> str:
        """The files of base as a model sees them, each in a block."""
        return "\n\n".join(
            f"```file {path}\n{text}```" for path, text in (await self._shown()).items()
        )

    async def patch_of(self, reply: str) -> str:
        """The diff in a reply; empty if it has none."""
        return patch_of(reply, await self._shown())

    async def user_patch(self, agent: str) -> str:
        """The user's patch by an agent for this sample. Raises Fault if it is gone."""
        return str(await self._handles.once("patch", partial(self._given, agent)))

    async def _shown(self) -> Mapping[str, str]:
        if self._files is None:
            self._files = dict(await self._handles.once("files", self._readable))
        return self._files

    async def _readable(self) -> dict[str, str]:
        return texts_of(await self._trees.base(self._task), self._task)

    async def measured(self, exclusive: ExclusiveHandle, arm: str, patch: str = "") -> str:
        """The measurement of an arm, for `judge`: blocks up to the first look at which a verdict is certain."""
        # what isn't on this machine need not wait here
        if isinstance(self._trees.backend, ManyMachines):
            exclusive = self._trees.backend.apart
        applied = Applied("passed")
        if arm == "agent":
            applied = msgspec.convert(
                await self._handles.once("applied", partial(self._applied, patch)), Applied
            )
        self._count += 1
        found = Measured(arm, patch, applied, metrics=self._task.metrics)
        if applied.status == "passed":
            calls: dict[str, int] = await self._handles.once(
                "calls", partial(self._sized, exclusive)
            )
            found = replace(found, inputs=self._inputs(calls))
            begins = f"patch/{self._count}/" if self._count > 1 else ""
            found = await self._tried(
                found, begins, partial(self._block, exclusive, arm, patch, calls)
            )
        return json.dumps(msgspec.to_builtins(found))

    def _inputs(self, calls: Mapping[str, int]) -> str:
        if self._task.service:
            return ""
        if not self._task.conventions.published:
            return "fresh"
        return (
            "seeds" if all(drawn_for(name) in calls for name in self._task.workloads) else "fixed"
        )

    async def _tried(
        self, measured: Measured, begins: str, measure: Callable[[str], Any]
    ) -> Measured:
        """The measurement with its blocks. Noisy blocks are measured anew in a later session."""
        place = begins
        for number in count(2):
            made = self._made
            found = await self._with_blocks(measured, place, measure)
            place = f"{begins}try/{number}/"
            if (
                self._made > made
                or not self._is_noise(found)
                or not self._handles.can_make(f"{place}block/1")
            ):
                return found
        raise AssertionError

    async def _with_blocks(
        self, measured: Measured, place: str, measure: Callable[[str], Any]
    ) -> Measured:
        """The measurement with enough blocks, whose names begin with `place`."""
        blocks: list[Block] = []
        while not (blocks and self._is_enough(blocks, measured.arm)):
            name = f"{place}block/{len(blocks) + 1}"
            if not self._handles.can_make(name):
                return replace(measured, blocks=tuple(blocks), stopped=True)
            blocks.append(
                msgspec.convert(await self._handles.once(name, partial(measure, name)), Block)
            )
        return replace(measured, blocks=tuple(blocks))

    def _is_noise(self, found: Measured) -> bool:
        if found.stopped or wrong_of(found.blocks[-1].legs[LEGS[found.arm][-1]], self._rule):
            return False
        finding = finding_of(found.blocks, found.arm, self._rule, found.metrics)
        return is_noise(finding, found.arm, len(found.blocks))

    def _is_enough(self, blocks: Sequence[Block], arm: str) -> bool:
        if (
            wrong_of(blocks[-1].legs[LEGS[arm][-1]], self._rule)
            or len(blocks) >= self._rule.max_blocks
        ):
            return True
        if not is_look(len(blocks), self._rule.max_blocks):
            return False
        finding = finding_of(blocks, arm, self._rule, self._task.metrics)
        return finding.opt == "opt" or (finding.opt == "not" and arm != "baseline")

    async def _applied(self, patch: str) -> dict[str, Any]:
        folder = self._folder / f"patched-{len(self._patched)}"
        applied = await self._trees.patched(self._task, patch, folder)
        self._patched[patch] = folder
        return dict(msgspec.to_builtins(applied))

    async def _tree(self, leg: str, patch: str) -> Path:
        if leg in ("base", "again"):
            return await self._trees.base(self._task)
        if leg == "human":
            return await self._trees.human(self._task)
        if patch not in self._patched:  # it was applied before this process began
            await self._applied(patch)
        return self._patched[patch]

    async def _sized(self, exclusive: ExclusiveHandle) -> dict[str, int]:
        return await self._work.sized(await self._trees.base(self._task), self._seed, exclusive)

    async def _block(
        self, exclusive: ExclusiveHandle, arm: str, patch: str, counts: Mapping[str, int], name: str
    ) -> dict[str, Any]:
        """Runs the legs one after the other, in a random order."""
        self._made += 1
        order = sorted(LEGS[arm])
        random.Random(f"{self._seed}/{name}").shuffle(order)  # noqa: S311 repeatable on purpose
        trees = {leg: await self._tree(leg, patch) for leg in order}
        legs = await self._work.block(trees, counts, f"{self._seed}/{name}", exclusive)
        for leg, came in legs.items():
            if leg != arm or arm == "human":
                require_sound(
                    replace(came, wrong=wrong_of(came, self._rule)), _LABELS.get(leg, leg)
                )
        return dict(msgspec.to_builtins(Block(legs)))

    @property
    def _seed(self) -> str:
        return self._handles.experiment_id
