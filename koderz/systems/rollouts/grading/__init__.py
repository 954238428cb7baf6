"""Grading of an agent's work by tests hidden from it.

Scripts of the format tb judge a diff in a fresh checkout. A verifier that a task brings along judges twice: as
published, where the agent worked, and afresh, in a new root that carries only its work. It has to be passed both times.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from koderz.errors import Fault
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import Backend, Command, Mount
from koderz.systems.rollouts.doubt import unbelieved
from koderz.systems.rollouts.grading import verifiers
from koderz.systems.rollouts.grading.scores import (
    UNMEASURED,
    MetricValues,
    Scored,
    measure,
    rewarded,
    scored,
)
from koderz.systems.rollouts.swebench import Instance
from koderz.systems.rollouts.swebench.judging import InstanceJudge
from koderz.systems.rollouts.swebench.places import InstancePlaces
from koderz.systems.rollouts.task import Rollout
from koderz.systems.rollouts.workspaces import afresh
from koderz.systems.rollouts.workspaces.afresh import root_of
from koderz.systems.rollouts.workspaces.artifacts import files_of, published, put_back
from koderz.systems.rollouts.workspaces.machines import is_separate, lay_separate, verifier_of
from koderz.systems.rollouts.workspaces.workspace import Stores
from koderz.systems.workspaces import git
from koderz.systems.workspaces.guarding import guard
from koderz.systems.workspaces.scripts import TAMPERED, Script, ScriptResult, run_script

_LACKS = re.compile(
    r"^E {2,}ModuleNotFoundError: No module named '(\w+)'|error: unrecognized arguments",
    re.MULTILINE,
)


class Published(NamedTuple):
    """The result of a verifier as it is published, where the agent worked."""

    success: bool
    rewards: Mapping[str, float]
    cut: bool = False  # whether it ended at the limit of time


@dataclass(frozen=True, slots=True)
class Graded:
    """The result of grading a diff."""

    scored: Scored
    results: tuple[ScriptResult, ...]
    tampering: tuple[str, ...] = ()
    measured: MetricValues = UNMEASURED
    graded: afresh.Graded = "fresh"  # how the verdict was reached
    rewards: Mapping[str, float] = field(default_factory=dict)  # of the verifier, by name
    published: Published | None = None  # None: it wasn't graded as published
    isolation: verifiers.Isolation = "in-process"
    carried: afresh.Carried = "workdir"
    lifted: tuple[str, ...] = ()
    environment: str = ""  # of an instance of SWE-bench: its image, or a substitute
    steps: tuple[tuple[str, Mapping[str, float]], ...] = ()  # the name and rewards of each
    cut: bool = False  # whether a run of the tests ended at its limit of time

    @property
    def cause(self) -> str:
        """The reason why it didn't pass."""
        causes = [result.cause for result in self.results if not result.success and result.cause]
        return "" if self.scored.success else (causes or ["tests"])[0]

    @property
    def log(self) -> str:
        """The output of the tests."""
        parts = [
            *(f"==> {result.path}\n{result.output}" for result in self.results),
            self.measured.log,
        ]
        return "\n".join(filter(None, parts))


async def grade(
    task: Rollout, work: afresh.Work, stores: Stores, terms: afresh.Terms | None = None
) -> Graded:
    """Grades work, by default on the strictest terms. Raises GitError if it can't be applied, Fault if not graded.

    The processes of the agent have ended. Without its place, or with a separate verifier, nothing can be graded as
    published.
    """
    if task.instance:
        return await _by_instance(task, task.instance, work.diff, stores)
    return await grade_in(task, work, await stores.of(task), stores.backend_of(task), terms)


async def grade_in(
    task: Rollout,
    work: afresh.Work,
    store: git.Store,
    backend: Backend,
    terms: afresh.Terms | None = None,
) -> Graded:
    """Grades work on a task that is no instance of SWE-bench, as `grade`, with a repository that is prepared."""
    if task.verifier is None:
        return await _by_scripts(task, work.diff, store, backend, _wanted(task))
    terms, place = terms or afresh.Terms(), work.place
    if terms.graded == "published" and place is not None and not is_separate(task):
        return _published_alone(task, terms, await _run_published(task, place, backend))
    fresh = await grade_afresh(task, work, store, backend, terms)
    if place is None or is_separate(task):
        return fresh
    return _both(task, fresh, await grade_published(task, place, backend))


async def is_published_alone(task: Rollout, instance: Instance, stores: Stores) -> bool:
    """Whether an instance's own solution passes only as published. Raises Fault if it doesn't pass at all."""
    return (await (await _judge_of(task, instance, stores)).terms(instance)).by == "published"


async def _judge_of(task: Rollout, instance: Instance, stores: Stores) -> InstanceJudge:
    store, backend = await stores.of(task), stores.backend_of(task)
    judge = stores.judges.setdefault(backend, InstanceJudge(InstancePlaces(backend)))
    if not instance.withheld:  # else the agent's tree lacks tests that the judge's has
        judge.places.stores[instance.key] = store
    return judge


async def _by_instance(task: Rollout, instance: Instance, diff: str, stores: Stores) -> Graded:
    """Grades by the rules of SWE-bench, as published and afresh."""
    judged = await (await _judge_of(task, instance, stores)).judge(instance, diff)
    report, resolved = judged.report, bool(judged.report["resolved"])
    rewards, as_published = {"resolved": float(resolved)}, bool(report["published"]["resolved"])
    cause = ""
    if not resolved:
        cause = "tampering" if as_published else "tests"
    return Graded(
        rewarded(task, rewards),
        (ScriptResult("eval.sh", resolved, judged.log, cause),),
        tuple(report["tampering"]),
        graded=report["graded"],
        rewards=rewards,
        published=Published(as_published, {"resolved": float(as_published)}),
        lifted=tuple(report["lifted"]),
        environment=report["environment"],
    )


async def grade_published(task: Rollout, place: Path, backend: Backend) -> Published:
    """Grades by the task's own verifier where the agent worked, without any guard. It may change what is there."""
    found = await _run_published(task, place, backend)
    return Published(found.success, found.rewards, cut=found.ended.cause == "timeout")


async def _run_published(task: Rollout, place: Path, backend: Backend) -> verifiers.VerifierRun:
    mounts = published(place, backend) if task.publishes else []
    return await verifiers.run(task, place, backend, replace(_wanted(task), mounts=mounts))


def _published_alone(task: Rollout, terms: afresh.Terms, found: verifiers.VerifierRun) -> Graded:
    """The verdict on a task whose own solution passes only where it worked."""
    rewards = found.rewards or dict.fromkeys(terms.rewards or ("reward",), 0.0)
    cause: str = found.ended.cause or ("" if found.rewards else "no_reward")
    result = ScriptResult(verifier_of(task).name, found.success, found.ended.output, cause)
    cut = found.ended.cause == "timeout"
    given = Published(found.success, found.rewards, cut=cut)
    return Graded(
        rewarded(task, rewards),
        (result,),
        graded="published",
        rewards=rewards,
        published=given,
        cut=cut,
    )


async def grade_afresh(
    task: Rollout, work: afresh.Work, store: git.Store, backend: Backend, terms: afresh.Terms
) -> Graded:
    """Grades by the task's own verifier in a new root, under all guards that the terms don't lift.

    Raises GitError if the diff doesn't apply, Fault if the verifier isn't able to judge anything.
    """
    found, aside = await run_believed(task, work, store, backend, terms)
    cause: str = found.ended.cause
    cut = found.cut
    if not found.rewards:
        found, aside = await run_believed(task, work, store, backend, terms)
        cut = cut or found.cut
    if not found.rewards:
        names = terms.rewards or await _usual_rewards(task, found, store, backend, terms)
        found, cause = replace(found, rewards=dict.fromkeys(names, 0.0)), "no_reward"
    elif found.doubt:
        cause, aside = "tampering", [*aside, f"{verifier_of(task).name}: {found.doubt}"]
        found = replace(found, rewards=dict.fromkeys(found.rewards, 0.0))
    elif not (found.success or terms.rewards or verifiers.has_tested(task, found.ended)):
        await _require_able(task, found, store, backend, terms)
    result = ScriptResult(verifier_of(task).name, found.success, found.ended.output, cause)
    return Graded(
        rewarded(task, found.rewards),
        (result,),
        (*aside, *(f"refused: {what}" for what in found.ended.refused)),
        rewards=found.rewards,
        isolation=found.isolation,
        carried=terms.carried,
        lifted=terms.lifted,
        cut=cut,
    )


async def run_believed(
    task: Rollout, work: afresh.Work, store: git.Store, backend: Backend, terms: afresh.Terms
) -> tuple[verifiers.VerifierRun, Sequence[str]]:
    """A run of the verifier in a new root, in doubt where its reward isn't what its tests say; and what was put aside.

    What passed runs again with tests turned round, unless no process of the verifier's has loaded the agent's code.
    """

    causes: list[str] = []  # of all runs

    async def again(task: Rollout, work: afresh.Work = work) -> verifiers.VerifierRun:
        run, _ = await _run_afresh(task, work, store, backend, terms)
        causes.append(run.ended.cause)
        return run

    found, aside = await _run_afresh(task, work, store, backend, terms)
    if not found.success:
        return replace(found, cut=found.ended.cause == "timeout"), aside
    failed = (
        [test for test in terms.tests if not found.tests.get(test)]
        if "reports" not in terms.lifted
        else []
    )
    why = f"it gives the reward, but {failed[0]} hasn't passed" if failed else ""
    if not why and "assertions" not in terms.lifted and found.isolation == "in-process":
        why = await verifiers.doubt(task, found, again, partial(again, work=afresh.Work("")))
    return replace(found, doubt=why, cut="timeout" in (found.ended.cause, *causes)), aside


def _both(task: Rollout, fresh: Graded, published: Published) -> Graded:
    """The verdict of both gradings: passed if both say so."""
    (result,) = fresh.results
    if result.success and not published.success:
        result = replace(result, success=False, cause="tests" if published.rewards else "no_reward")
        rewards = published.rewards or dict.fromkeys(fresh.rewards, 0.0)
        fresh = replace(fresh, rewards=rewards, scored=rewarded(task, rewards))
    elif published.success and not result.success:
        result = replace(result, cause="tampering")
        if not fresh.tampering:
            why = f"{result.path}: it passes where the agent worked, and fails in a new root with the same work"
            fresh = replace(fresh, tampering=(why,))
    return replace(
        fresh, graded="both", published=published, results=(result,), cut=fresh.cut or published.cut
    )


async def _run_afresh(
    task: Rollout, work: afresh.Work, store: git.Store, backend: Backend, terms: afresh.Terms
) -> tuple[verifiers.VerifierRun, Sequence[str]]:
    mounts: Sequence[Mount]
    with scratch() as place:
        if is_separate(task):
            mounts, aside = await lay_separate(task, work.collected, store, backend, place)
            changed: Sequence[str] = ()
        else:
            changed, laid = await afresh.lay(
                task, work, store, place, terms, root_of(task, backend)
            )
            mounts, left_out = put_back(work.collected, place, task.workdir, outside=True)
            aside = [*laid, *left_out]
        files = [
            *(posixpath.join(task.workdir, path) for path in changed),
            *files_of(work.collected, task.workdir),
        ]
        guards = verifiers.Guards(files, terms.lifted, reports="reports" not in terms.lifted)
        return await verifiers.run(
            task, place, backend, replace(_wanted(task), mounts=mounts), guards
        ), aside


async def _usual_rewards(
    task: Rollout,
    found: verifiers.VerifierRun,
    store: git.Store,
    backend: Backend,
    terms: afresh.Terms,
) -> Iterable[str]:
    """The names of the rewards without the agent's changes. Raises Fault if there are none either."""
    without, _ = await _run_afresh(task, afresh.Work(""), store, backend, terms)
    if not without.rewards:
        raise Fault(found.wrong, cause="judge")
    return without.rewards


async def _require_able(
    task: Rollout,
    found: verifiers.VerifierRun,
    store: git.Store,
    backend: Backend,
    terms: afresh.Terms,
) -> None:
    """Raises Fault if the verifier also ends before a test has run without the agent's changes."""
    without, _ = await _run_afresh(task, afresh.Work(""), store, backend, terms)
    if not verifiers.has_tested(task, without.ended):
        why = verifiers.reason(found.ended.output) or f"exit code {found.ended.status}"
        raise Fault(f"the verifier of {task.id} ended before a test had run: {why}", cause="judge")


def _wanted(task: Rollout) -> Command:
    task = task.verifying
    return Command(
        [],
        task.environment,
        checkout=task.workdir,
        image=task.image,
        limits=task.limits(task.test_seconds),
        network=task.is_online,
        services=task.services,
        allowed_hosts=task.allowed_hosts,
    )


async def _by_scripts(
    task: Rollout, diff: str, store: git.Store, backend: Backend, wanted: Command
) -> Graded:
    changed = await git.touched(_bytes(diff))
    causes: set[str] = set()  # of all runs

    async def run(scripts: Sequence[Script], place: Path) -> list[ScriptResult]:
        found = [await run_script(script, place, backend, wanted, changed) for script in scripts]
        causes.update(result.cause for result in found)
        return found

    async def again(scripts: Sequence[Script], diff: str = diff) -> list[ScriptResult]:
        with scratch() as place:
            await _tested_tree(scripts, diff, store, place)
            return await run(scripts, place)

    with scratch() as place:
        aside = await _tested_tree(task.scripts, diff, store, place)
        results = await run(task.scripts, place)
        await _require_tests(task, results, changed, again)
        measured = (
            await measure(task.metrics, diff, place, backend, wanted)
            if task.metrics
            else UNMEASURED
        )
    whys = {
        number: TAMPERED for number, result in enumerate(results) if result.cause == "tampering"
    }
    for number, (cause, why) in (
        await unbelieved(task.scripts, results, again, partial(again, diff=""))
    ).items():
        output = f"{results[number].output}\n{why}\n"
        results[number] = replace(results[number], success=False, cause=cause, output=output)
        whys |= {number: why} if cause == "tampering" else {}
    tampering = [*aside, *(f"{results[number].path}: {whys[number]}" for number in sorted(whys))]
    return Graded(
        scored(task, results), tuple(results), tuple(tampering), measured, cut="timeout" in causes
    )


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
    silent = [
        script for script, result in zip(task.scripts, results, strict=True) if not result.tests
    ]
    human = task.solution_diff
    solution = human.read_text("utf-8", "replace") if silent and human and human.is_file() else ""
    if not silent:
        return
    try:
        found = await again(silent, solution)
    except git.GitError:
        solution, found = "", await again(silent, "")
    for result in found:
        if not result.tests and (solution or _lacks(task, result.output, changed)):
            why = verifiers.reason(result.output) or result.cause or "it printed nothing"
            raise Fault(
                f"{result.path} of {task.id} ended before a test had run: {why}", cause="judge"
            )


def _lacks(task: Rollout, output: str, changed: Sequence[str]) -> bool:
    """Whether the baseline lacks a module or option that nobody was asked to add."""
    found = _LACKS.search(output)
    module = found and found[1]
    is_asked = module and re.search(rf"\b{module}\b", task.instructions)
    return bool(
        found and not is_asked and not any(module in re.split(r"[/.]", path) for path in changed)
    )


async def _tested_tree(
    scripts: Sequence[Script], diff: str, store: git.Store, place: Path
) -> list[str]:
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
