"""What a diff is worth: applied to a fresh checkout, tested by what nobody has shown to the agent."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from koderz.errors import Fault
from koderz.sandbox.workspace import Backend, Command, Ended, Limits, Mount, git
from koderz.sandbox.workspace.folders import scratch
from koderz.suites.rollouts.guarding import guard
from koderz.suites.rollouts.metrics import UNMEASURED, Measured, measure
from koderz.suites.rollouts.opposites import opposite
from koderz.suites.rollouts.rubrics import Scored, rewarded, scored
from koderz.suites.rollouts.scripts import ScriptResult, run_script, turned_round
from koderz.suites.rollouts.tasks import Rollout, Script

_LARGEST_REWARD = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Graded:
    """What came of grading a diff."""

    scored: Scored
    results: tuple[ScriptResult, ...]
    tampering: tuple[str, ...] = ()
    measured: Measured = UNMEASURED

    @property
    def cause(self) -> str:
        """Why it didn't pass."""
        causes = [result.cause for result in self.results if not result.success and result.cause]
        return "" if self.scored.success else (causes or ["tests"])[0]

    @property
    def log(self) -> str:
        """What the tests printed."""
        parts = [*(f"==> {result.path}\n{result.output}" for result in self.results), self.measured.log]
        return "\n".join(filter(None, parts))


async def grade(task: Rollout, diff: str, store: git.Store, backend: Backend, place: Path | None = None) -> Graded:
    """Grades a diff. Raises GitError where it doesn't apply, Fault where nothing can be said of it.

    `place` is where the agent worked; tests of Harbor and terminal-bench go on there, with all that it left.
    """
    wanted = Command(
        [], task.environment, checkout=task.workdir, image=task.image, limits=Limits(seconds=task.test_seconds)
    )
    if task.format == "tb":
        return await _by_scripts(task, diff, store, backend, wanted)
    if place:
        return await _by_own_tests(task, place, backend, wanted)
    with scratch() as fresh:
        await store.checkout(fresh / "checkout")
        await git.apply(diff.encode("utf-8", "backslashreplace"), fresh / "checkout")
        return await _by_own_tests(task, fresh, backend, wanted)


async def _by_own_tests(task: Rollout, place: Path, backend: Backend, wanted: Command) -> Graded:
    if task.format == "harbor":
        return await _by_reward(task, place, backend, wanted)
    ended = await backend.run(_tested(task, wanted, "run-tests.sh"), place)
    result = ScriptResult("run-tests.sh", not ended.status and not ended.cause, ended.output, ended.cause)
    return Graded(rewarded(task, {"tests": float(result.success)}), (result,))


async def _by_scripts(task: Rollout, diff: str, store: git.Store, backend: Backend, wanted: Command) -> Graded:
    with scratch() as place:
        aside = await _tested_tree(task.scripts, diff, store, place)
        results = [await run_script(script, place, backend, wanted) for script in task.scripts]
        measured = await measure(task.metrics, diff, place, backend, wanted) if task.metrics else UNMEASURED
    if any(result.success for result in results):
        scripts = [replace(script, content=opposite(script.content).source) for script in task.scripts]
        with scratch() as place:  # where nothing tells that it isn't the first
            await _tested_tree(scripts, diff, store, place)
            for number, script in enumerate(task.scripts):
                if results[number].success and (cause := await turned_round(script, place, backend, wanted)):
                    results[number] = replace(results[number], success=False, cause=cause)
    tampering = [
        *aside,
        *(
            f"{each.path}: a canary fared otherwise, or what judges was changed"
            for each in results
            if each.cause == "tampering"
        ),
    ]
    return Graded(scored(task, results), tuple(results), tuple(tampering), measured)


async def _tested_tree(scripts: Sequence[Script], diff: str, store: git.Store, place: Path) -> list[str]:
    """Makes the checkout in which scripts are run. Returns what of the diff was put aside."""
    checkout = place / "checkout"
    await store.checkout(checkout)
    await git.apply(diff.encode("utf-8", "backslashreplace"), checkout)
    aside = guard(checkout, await store.baseline(), scripts)
    for script in scripts:
        git.write(checkout, script.path, script.content.encode())
    return aside


async def _by_reward(task: Rollout, place: Path, backend: Backend, wanted: Command) -> Graded:
    logs = place / "logs"
    logs.mkdir()
    ended = await backend.run(
        _tested(task, wanted, "tests/test.sh", Mount(logs, "/logs/verifier", writable=True)), place
    )
    if ended.cause == "timeout":
        raise Fault(f"the verifier of {task.id} takes longer than {task.test_seconds:.0f} s")
    rewards = _rewards(logs, ended, task)
    result = ScriptResult("tests/test.sh", all(reward == 1 for reward in rewards.values()), ended.output)
    return Graded(rewarded(task, rewards), (result,))


def _tested(task: Rollout, wanted: Command, script: str, *mounts: Mount) -> Command:
    """The command that runs a task's own test script, with its folder `tests` at /tests."""
    tests = [Mount(task.folder / "tests", "/tests")] if (task.folder / "tests").is_dir() else []
    own = Mount(task.folder / script, "/opt/koderz/tests.sh")
    return replace(wanted, argv=["bash", "/opt/koderz/tests.sh"], mounts=[*tests, own, *mounts])


def _rewards(logs: Path, ended: Ended, task: Rollout) -> Mapping[str, float]:
    """Those of reward.json, else of reward.txt. Raises Fault where there is none that is a number."""
    for name in ("reward.json", "reward.txt"):
        path = logs / name
        if path.is_symlink() or not path.is_file():
            continue
        try:
            with path.open("rb") as file:
                value: Any = json.loads(file.read(_LARGEST_REWARD))
        except ValueError:
            value = None
        rewards = value if isinstance(value, dict) else {"reward": value}
        numbers = [each for each in rewards.values() if isinstance(each, int | float) and not isinstance(each, bool)]
        if len(numbers) == len(rewards) > 0 and all(map(math.isfinite, numbers)):
            return {str(key): float(each) for key, each in rewards.items()}
        raise Fault(f"the verifier of {task.id} wrote a {name} that is no finite number")
    said = ended.output.strip().splitlines() or [f"exit code {ended.status}"]
    raise Fault(f"the verifier of {task.id} wrote no reward: {said[-1][:200]}")
