"""Grading of a diff: applied to a fresh checkout and tested by scripts hidden from the agent."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from koderz.errors import Fault
from koderz.sandbox.workspace import Backend, Command, Limits, git
from koderz.sandbox.workspace.folders import scratch
from koderz.sandbox.workspace.guarding import guard
from koderz.sandbox.workspace.scripts import TAMPERED, Script, ScriptResult, run_script
from koderz.systems.rollouts.doubt import unbelieved
from koderz.systems.rollouts.metrics import UNMEASURED, MetricValues, measure
from koderz.systems.rollouts.rubrics import Scored, rewarded, scored
from koderz.systems.rollouts.tasks import OWN_TESTS, SOLUTION, Rollout
from koderz.systems.rollouts.verifiers import reason, verified

_LACKS = re.compile(r"^E {2,}ModuleNotFoundError: No module named '(\w+)'|error: unrecognized arguments", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Graded:
    """The result of grading a diff."""

    scored: Scored
    results: tuple[ScriptResult, ...]
    tampering: tuple[str, ...] = ()
    measured: MetricValues = UNMEASURED

    @property
    def cause(self) -> str:
        """The reason why it didn't pass."""
        causes = [result.cause for result in self.results if not result.success and result.cause]
        return "" if self.scored.success else (causes or ["tests"])[0]

    @property
    def log(self) -> str:
        """The output of the tests."""
        parts = [*(f"==> {result.path}\n{result.output}" for result in self.results), self.measured.log]
        return "\n".join(filter(None, parts))


async def grade(task: Rollout, diff: str, store: git.Store, backend: Backend, place: Path | None = None) -> Graded:
    """Grades a diff. Raises GitError if it doesn't apply, Fault if it can't be graded.

    `place` is where the agent worked; tests of Harbor and terminal-bench go on there, with all that it left.
    """
    wanted = Command(
        [], task.environment, checkout=task.workdir, image=task.image, limits=Limits(seconds=task.test_seconds)
    )
    if task.format == "tb":
        return await _by_scripts(task, diff, store, backend, wanted)
    if place:
        return await _by_own_tests(task, place, store, backend, wanted)
    with scratch() as fresh:
        await store.checkout(fresh / "checkout")
        await git.apply(_bytes(diff), fresh / "checkout")
        return await _by_own_tests(task, fresh, store, backend, wanted)


async def _by_own_tests(task: Rollout, place: Path, store: git.Store, backend: Backend, wanted: Command) -> Graded:
    ended, rewards = await verified(task, place, store, backend, wanted)
    success = all(reward == 1 for reward in rewards.values())
    return Graded(rewarded(task, rewards), (ScriptResult(OWN_TESTS[task.format], success, ended.output, ended.cause),))


async def _by_scripts(task: Rollout, diff: str, store: git.Store, backend: Backend, wanted: Command) -> Graded:
    changed = await git.touched(_bytes(diff))

    async def run(scripts: Sequence[Script], place: Path) -> list[ScriptResult]:
        return [await run_script(script, place, backend, wanted, changed) for script in scripts]

    async def again(scripts: Sequence[Script], diff: str = diff) -> list[ScriptResult]:
        with scratch() as place:
            await _tested_tree(scripts, diff, store, place)
            return await run(scripts, place)

    with scratch() as place:
        aside = await _tested_tree(task.scripts, diff, store, place)
        results = await run(task.scripts, place)
        await _require_tests(task, results, changed, again)
        measured = await measure(task.metrics, diff, place, backend, wanted) if task.metrics else UNMEASURED
    whys = {number: TAMPERED for number, result in enumerate(results) if result.cause == "tampering"}
    for number, (cause, why) in (await unbelieved(task.scripts, results, again, partial(again, diff=""))).items():
        output = f"{results[number].output}\n{why}\n"
        results[number] = replace(results[number], success=False, cause=cause, output=output)
        whys |= {number: why} if cause == "tampering" else {}
    tampering = [*aside, *(f"{results[number].path}: {whys[number]}" for number in sorted(whys))]
    return Graded(scored(task, results), tuple(results), tuple(tampering), measured)


async def _require_tests(
    task: Rollout,
    results: Sequence[ScriptResult],
    changed: Sequence[str],
    again: Callable[[Sequence[Script], str], Awaitable[Sequence[ScriptResult]]],
) -> None:
    """Raises Fault if a script ran no test for a reason that isn't the agent's doing.

    It has none where the human's diff runs no test either. Without such a diff it has none in what the baseline lacks:
    options of plugins, and modules that neither the instructions name nor the agent's diff has.
    """
    silent = [script for script, result in zip(task.scripts, results, strict=True) if not result.tests]
    human = task.folder / SOLUTION
    solution = human.read_text("utf-8", "replace") if silent and human.is_file() else ""
    if not silent:
        return
    try:
        found = await again(silent, solution)
    except git.GitError:
        solution, found = "", await again(silent, "")
    for result in found:
        if not result.tests and (solution or _lacks(task, result.output, changed)):
            why = reason(result.output) or result.cause or "it printed nothing"
            raise Fault(f"{result.path} of {task.id} ended before a test had run: {why}", cause="judge")


def _lacks(task: Rollout, output: str, changed: Sequence[str]) -> bool:
    """Whether the baseline lacks a module or option that nobody was asked to add."""
    found = _LACKS.search(output)
    module = found and found[1]
    is_asked = module and re.search(rf"\b{module}\b", task.instructions)
    return bool(found and not is_asked and not any(module in re.split(r"[/.]", path) for path in changed))


async def _tested_tree(scripts: Sequence[Script], diff: str, store: git.Store, place: Path) -> list[str]:
    """Makes the checkout in which scripts run. Returns the parts of the diff that were set aside."""
    checkout = place / "checkout"
    await store.checkout(checkout)
    await git.apply(_bytes(diff), checkout)
    aside = guard(checkout, await store.baseline(), scripts)
    for script in scripts:
        git.write(checkout, script.path, script.content.encode())
    return aside


def _bytes(diff: str) -> bytes:
    return diff.encode("utf-8", "backslashreplace")
