"""The suite `rollouts`: prepared repositories in which an agent works, graded by hidden tests."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from koderz.errors import Fault, KoderzError
from koderz.sandbox.workspace import Backend
from koderz.settings.schema import Settings
from koderz.suites.dataset import Row
from koderz.suites.suite import JudgeContext, RunContext, Suite, SuiteSource, WorkspaceContext
from koderz.systems.rollouts.additions import USED
from koderz.systems.rollouts.agents.adapters import require_taken
from koderz.systems.rollouts.agents.own import simulate
from koderz.systems.rollouts.checking.canaries import canaries_of, with_canaries
from koderz.systems.rollouts.environments import notes_on
from koderz.systems.rollouts.evaluation import Evaluation, evaluation_in, recorded
from koderz.systems.rollouts.grading import Graded, grade
from koderz.systems.rollouts.grading.scores import (
    expected,
    is_for_judge,
    opinions,
    simulated_opinion,
)
from koderz.systems.rollouts.grading.terms import fresh_only, terms_of
from koderz.systems.rollouts.options import RolloutsOptions
from koderz.systems.rollouts.task import Rollout, in_parts
from koderz.systems.rollouts.tasks.config import (
    Config,
    Variants,
    additions_by_arm,
    config_of,
    read_config,
)
from koderz.systems.rollouts.tasks.datasets import Dataset, read_dataset, skill_notices, stood_in
from koderz.systems.rollouts.tasks.runnable import (
    ROOTED,
    Omission,
    ignored_keys,
    notices_of,
    placed,
    require_none,
    require_runnable,
    runnable,
    workable,
)
from koderz.systems.rollouts.workspaces.afresh import Terms, Work
from koderz.systems.rollouts.workspaces.machines import is_separate, stands_in
from koderz.systems.rollouts.workspaces.resources import require_network, resources_of, settled
from koderz.systems.rollouts.workspaces.workspace import Stores, Workspace, open_backend
from koderz.systems.workspaces.git import GitError
from koderz.systems.workspaces.images import ImageStore
from koderz.systems.workspaces.local import Local
from koderz.systems.workspaces.opening import open_workspaces
from koderz.types import JUDGED, Measure, Message, Reply, Task, Verdict
from koderz_tracker.messages import text_of

SAMPLE = Path(__file__).with_name("sample")
NEEDS = frozenset({"workspace"})


def _read(place: Path, options: RolloutsOptions) -> tuple[Dataset, Config]:
    """The dataset at a place, or of a configuration, and the latter, or one of an entry for each task."""
    config = read_config(place, options.variables) if place.suffix == ".toml" else None
    found = config.dataset if config else read_dataset(place, options.registry, options.variables)
    found = replace(found, tasks=stood_in(found.tasks, options.environments, options.images))
    config = replace(config, tasks=tuple(found.tasks)) if config else config_of(place, found)
    judged = {
        task_id
        for task_id, entry in zip(config.of_entries, config.entries, strict=True)
        if entry.judge_model
    }
    able, left_out = workable(
        found.tasks, lambda task: bool(options.judge_model) or task.id in judged
    )
    left_out = [*found.refused, *left_out]
    if not options.skip_unrunnable:
        require_none(left_out, len(found.tasks) + len(found.refused))
    return replace(found, tasks=able, refused=left_out), config


@dataclass(frozen=True, slots=True)
class Shared:
    """The state that the workspaces of a run share."""

    stores: Stores
    notices: Sequence[str] = ()


class GradedWorkspace(Workspace):
    """A workspace that records each test script's result as a grade, and the diff even without a verdict."""

    handles: Any
    resources: Mapping[str, Any]

    async def conclude(self, solving: Awaitable[Verdict]) -> Verdict:
        """The solver's verdict."""
        try:
            verdict = await solving
        except Fault:
            if diff := await self.unrecorded_diff():
                await self.handles.note("diff", diff)
            raise
        found = evaluation_in(verdict.artifacts)
        if self._whole.stages and found:
            await self.handles.note("steps", found)
        for path, result in found.get("test_results", {}).items():
            await self.handles.grade(path, float(result["success"]))
        facts = {
            "resources": self.resources,
            **({"mcp": self.servers} if self.servers else {}),
            **verdict.facts,
        }
        # an agent may call a server's tool by a name that doesn't tell whose it is
        if USED in facts:
            called = {
                name: True
                for record in self.servers
                for name, own in record.items()
                if own["calls"]
            }
            facts[USED] = {**facts[USED], **called}
        return replace(verdict, facts=facts)


class RolloutsSuite(Suite):
    """The tasks of a dataset (--dataset): a task's folder, one of such, a name in a registry, a file of SWE-bench rows.

    Or those of a configuration; without any, the embedded ones.
    Each is a repository. An answer is a diff; its verdict is made of hidden tests in a fresh checkout.
    """

    name = mode = "rollouts"
    options = RolloutsOptions
    modes: ClassVar[Mapping[str, Sequence[str]]] = {"": ("agent:koderz",)}
    parts: Sequence[str] = ("rollouts",)
    asks_judge = True
    measures = (
        Measure("score", "higher", "share"),
        Measure("score_of_graded", "higher", "share"),
    )

    def __init__(
        self,
        source: str,
        dataset: Dataset,
        options: RolloutsOptions,
        config: Config,
        left_out: Sequence[Omission] = (),
        sandbox: str = "",
    ) -> None:
        self.source, self._dataset, self._left_out = source, dataset, left_out
        self._images = ImageStore(options.images)
        self._making = options.making(self._images)
        tasks = [
            self._placed(task, options.sandbox_of(task.sandbox, sandbox)) for task in dataset.tasks
        ]
        self.notices = [
            *notices_of(left_out, len(tasks) + len(left_out)),
            *ignored_keys(tasks),
            *notes_on(tasks),
        ]
        self.notices += skill_notices(tasks)
        self.config, self._variants = config, Variants(config)
        if not options.entry_sandbox:
            tasks = [in_parts(task, lambda part: replace(part, sandbox="")) for task in tasks]
        tasks = [settled(task, options) for task in tasks]
        self._payloads = {task.id: task for task in tasks}
        self._additions = additions_by_arm(config, tasks)
        self.mounted = {
            f"the {each['kind'].replace('_', ' ')} {each['name']}{f' of {arm}' if arm else ''}": each[
                "digest"
            ]
            for arm, every in self._additions.items()
            for each in every
        }
        self._wholes = {task.digest: task for task in tasks}
        self.tasks: tuple[Task[Rollout], ...] = tuple(
            Task(
                task.id,
                task.instructions,
                payload=task,
                needs=NEEDS,
                digest=task.digest,
                cluster=Row(str(task.folder), task.metadata).cluster_by(options.cluster_column),
                apart=bool(task.canary_of),
            )
            for task in tasks
        )
        if options.canaries:
            self.parts = (*self.parts, "canaries")
        self._options = options
        self.judge_calls = max(
            (
                len(task.skill_eval.expectations if task.skill_eval else task.rubrics)
                for task in tasks
            ),
            default=1,
        )
        self._stores = Stores()

    def _placed(self, task: Rollout, sandbox: str) -> Rollout:
        return placed(task, self._images, self._making if sandbox in ROOTED else None)

    @classmethod
    def load(cls, source: SuiteSource) -> RolloutsSuite:
        """Raises KoderzError for a task that asks for nothing, or that nothing would judge."""
        options: RolloutsOptions = source.options
        dataset, config = _read(source.dataset or SAMPLE, options)
        left_out, sandbox = dataset.refused, source.sandbox or "local"
        if options.skip_unrunnable and source.sandbox:
            images = ImageStore(options.images)
            tasks, unable = runnable(
                dataset.tasks,
                lambda task: options.sandbox_of(task.sandbox, sandbox),
                images,
                options.making(images),
            )
            dataset, left_out = replace(dataset, tasks=tasks), [*left_out, *unable]
        if options.require_fresh:
            fresh, stale = fresh_only(dataset.tasks, sandbox, options)
            dataset, left_out = replace(dataset, tasks=fresh), [*left_out, *stale]
        if left_out and not dataset.tasks:
            raise KoderzError(f"{config.path}: no task can run here; the first: {left_out[0].why}")
        if added := canaries_of(dataset.tasks, sandbox, options):
            dataset = replace(dataset, tasks=[*dataset.tasks, *added])
            config = with_canaries(config, added)
        return cls(
            str(source.dataset or "embedded sample"),
            dataset,
            options,
            config,
            left_out,
            source.sandbox,
        )

    def details(self, tasks: Sequence[Task[Rollout]], settings: Settings) -> Mapping[str, Any]:
        """The dataset, and the tasks that were left out. Raises KoderzError for one that can't run here."""
        payloads = [task.payload for task in tasks]
        self._require_contained(settings)
        require_network(
            (task.published or task for task in payloads), settings.sandbox, self._options
        )
        require_runnable(
            payloads, lambda task: task.sandbox or settings.sandbox, self._images, self._making
        )
        left_out = (
            {"left_out": [each._asdict() for each in self._left_out]} if self._left_out else {}
        )
        about = {"dataset": dict(self._dataset.about)} if self._dataset.about else {}
        return {**about, **left_out, **({"additions": self._additions} if self._additions else {})}

    def _require_contained(self, settings: Settings) -> None:
        """Raises KoderzError where an agent would see more than its arm names."""
        added = [each for task in self._payloads.values() for each in task.additions]
        if added and "uncontained" in {
            settings.sandbox,
            *(task.sandbox for task in self._payloads.values()),
        }:
            raise KoderzError(
                f"{added[0].name}: an agent that isn't contained sees more than its arm; use --sandbox local"
            )

    def require_fit(self, task: Task[Rollout], solver: Any) -> None:
        """Raises KoderzError for an agent that can't be given what its arm or the task names."""
        if solver.name.startswith("agent:"):
            require_taken(solver.name.removeprefix("agent:"), task.payload.additions)

    def set_up(self, task: Task[Rollout], settings: Mapping[str, str | None]) -> Task[Rollout]:
        """The task with an arm's settings. Raises KoderzError if the configuration has no such entry."""
        found = self._payloads[self._variants.find(task.id, settings).id]
        return replace(task, payload=replace(found, id=task.id), digest=found.digest)

    @asynccontextmanager
    async def open_run(self, context: RunContext) -> AsyncIterator[Shared]:
        """Opens the workspaces' shared state. Raises Unreachable if commands can't be run as asked for."""
        settings = context.settings
        async with AsyncExitStack() as stack:
            for name in sorted(
                {settings.sandbox} | {task.payload.sandbox for task in self.tasks} - {""}
            ):
                backend = open_backend(name, settings, self._images)
                self._stores.backends[name] = await stack.enter_async_context(backend)
            run = self._stores.backends[""] = self._stores.backends[settings.sandbox]
            here = [
                task.payload for task in self.tasks if self._stores.backend_of(task.payload) is run
            ]
            where = (
                f"agents' commands and tests run in the sandbox {run.name}: {_isolation(here, run)}"
            )
            yield Shared(self._stores, [f"{where}{_price(run)}"])

    @asynccontextmanager
    async def open_workspace(self, context: WorkspaceContext) -> AsyncIterator[Workspace]:
        """A checkout of the task for one experiment, made on first use."""
        handles, stores, payload = context.handles, context.shared.stores, context.task.payload
        workspace = GradedWorkspace(
            payload, stores, context.folder, handles.once, self._options, lambda: handles.reused
        )
        workspace.handles = handles
        workspace.resources = self._resources(payload, stores.backend_of(payload))
        yield workspace

    async def judge(
        self, task: Task[Rollout], answer: Reply | str, context: JudgeContext
    ) -> Verdict:
        """The verdict on a diff. Raises Fault if it can't be judged, for example without pytest."""
        diff = answer.text if isinstance(answer, Reply) else answer
        work = context.workspace.work(task.payload, diff) if context.workspace else Work(diff)
        await self._stores.of(task.payload)  # which is a fault where it can't be prepared
        backend = self._stores.backend_of(task.payload)
        if task.payload.skill_eval and not task.payload.scripts:
            return await self._by_expectations(task.payload, work, context, backend)
        try:
            terms = await self._terms_of(task.payload)
            graded = await grade(task.payload, work, self._stores, terms)
        except GitError as error:
            return Verdict(
                "failed", "patch", str(error), f"The diff doesn't apply: {error}", diff, 0.0
            )
        if terms.solution == "failed" and not await self._is_rewarded(task.payload):
            check = f"koderz rollouts check {shlex.quote(str(task.payload.folder))}"
            raise Fault(
                f"{task.id}: its own solution gets no reward here, so nothing is said of an agent's: {check}",
                cause="task",
            )
        graded = replace(graded, tampering=(*work.removed, *graded.tampering))
        said = (
            await opinions(task.payload, diff, context.ask, work.message) if context.ask else None
        )
        resources = self._resources(task.payload, backend)
        return _verdict(
            task.payload, diff, graded, _isolation([task.payload], backend), said, resources
        )

    async def _by_expectations(
        self, task: Rollout, work: Work, context: JudgeContext, backend: Backend
    ) -> Verdict:
        """The verdict of the role judge on an eval without tests. Raises Fault where an expectation gets none."""
        assert task.skill_eval
        if context.ask is None:
            raise Fault(
                f"{task.id}: it has no tests, so it needs a judge; name one with --judge-model",
                cause="judge",
            )
        said = await opinions(task, work.diff, context.ask, work.message)
        holds = [each["score"] for each in said["rubric_scores"]]
        if None in holds:
            silent = said["rubric_scores"][holds.index(None)]
            why = silent["reasoning"] or "its reply isn't the JSON that it was asked for"
            raise Fault(
                f"{task.id}: no verdict of the judge on {silent['expectation']!r:.200}: {why}",
                cause="judge",
            )
        graded = Graded(expected(task, holds), (), graded="judge")
        verdict = _verdict(
            task, work.diff, graded, backend.isolation, said, self._resources(task, backend)
        )
        lines = [
            f"{'holds' if each['score'] else 'fails'}: {each['expectation']}"
            for each in said["rubric_scores"]
        ]
        log = "\n".join([*lines, "", "Last message:", work.message])
        stated = [
            task.skill_eval.expected_output,
            *(f"- {each['expectation']}" for each in said["rubric_scores"]),
        ]
        # for people who judge the same, without its verdict
        material = "\n\n".join([*stated, work.diff, work.message])
        return replace(
            verdict,
            cause="" if verdict.passed else "expectations",
            feedback=f"{holds.count(1.0)} of {len(holds)} expectations hold",
            detail=log,
            artifacts={**verdict.artifacts, "eval.log": log, JUDGED: material},
            facts={**verdict.facts, "judged_by": "model"},
        )

    async def _terms_of(self, task: Rollout) -> Terms:
        """The terms of a task or step; those of a canary are its task's, whose solution passes none of its tests."""
        whole = self._wholes.get(task.whole or task.digest, task)
        base = self._payloads.get(whole.canary_of)
        if base and not whole.stages:
            return replace(await terms_of(base, self._stores), tests=())
        return await terms_of(task, self._stores, whole)

    async def _is_rewarded(self, task: Rollout) -> bool:
        """Whether the own solution of a step's task gets a reward for other steps; a task without steps has none."""
        whole, rewarded = self._wholes.get(task.whole or task.digest, task), False
        for stage in whole.stages:
            solution = (await self._terms_of(stage.task)).solution
            rewarded = solution != "failed" or (rewarded and whole.rewards_of != "final")
            if solution == "failed" and any(least > 0 for least in stage.min_reward.values()):
                break  # since it doesn't go on here
        return rewarded

    def _resources(self, task: Rollout, backend: Backend) -> Mapping[str, Any]:
        return resources_of(
            task, backend, self._options.agent_memory, self._options.timeout_multiplier
        )

    def outline(self, plan: Any) -> Iterator[str]:
        """Lines on where agents work, and what they see of this machine."""
        alone = "" if plan.settings.sandbox == "uncontained" else ", without network"
        backend = open_workspaces(plan.settings.sandbox, plan.settings)
        yield f"Workspace: {plan.settings.sandbox}{alone}{_price(backend)}"
        tasks = [task for task, _, _ in plan.cells()]
        for place in dict.fromkeys(task.payload.workdir for task in tasks):
            yield f"Mount: the checkout at {place}"
        if plan.settings.sandbox in ("local", "contained"):
            yield "Mount: this machine's programs, read-only"
        scripts = filter(None, (arm.solver.parameters.get("script") for arm in plan.arms))
        for shown in dict.fromkeys(
            (*scripts, *(path for task in tasks for path in task.payload.agent_mounts))
        ):
            yield f"Mount: {shown}, read-only"
        for name, every in self._additions.items():
            given = (
                f"the {each['kind'].replace('_', ' ')} {each['name']} ({each['digest'][:12]}){each.get('place', '')}"
                for each in every
            )
            yield f"Given to agents{f' of {name}' if name else ''}: {', '.join(given)}"
        programs = (
            arm.solver
            for arm in plan.arms
            if arm.solver.restarts and "script" not in arm.solver.parameters
        )
        for name in dict.fromkeys(solver.name for solver in programs):
            yield f"Mount: the package of {name.removeprefix('agent:')}, read-only, and a bridge to its model"

    def simulate(self, messages: Sequence[Message], sampling: Any) -> str:  # noqa: ARG002
        """The simulated model's reply as an agent on the embedded tasks, or as a judge."""
        if is_for_judge(text := text_of(messages[0])):
            return simulated_opinion(text)
        return simulate(messages)


def _price(backend: Backend) -> str:
    """The price of commands there; empty if they are free."""
    return f"; it costs ${backend.cost * 3600:.2f} or more an hour of each" if backend.cost else ""


def _isolation(tasks: Iterable[Rollout], backend: Backend) -> str:
    """The isolation of the commands and tests of tasks there."""
    if not isinstance(backend, Local):
        return backend.isolation
    parts = [part for task in tasks for part in (task, *(stage.task for stage in task.stages))]
    images = [part.image for part in parts]
    images += [part.verifier.image for part in parts if part.verifier and part.verifier.is_separate]
    return " or ".join(dict.fromkeys(map(backend.isolation_of, images))) or backend.isolation


def _verdict(
    task: Rollout,
    diff: str,
    graded: Graded,
    isolation: str,
    said: Mapping[str, Any] | None,
    resources: Mapping[str, Any],
) -> Verdict:
    found = graded.scored
    rubrics = found.evaluation["rubrics"].values()
    tests, passed = (sum(each[name] for each in rubrics) for name in ("test_count", "tests_passed"))
    environment: Evaluation = {"environment": graded.environment} if graded.environment else {}
    prompt: Evaluation = {"prompt": task.instructions} if task.skill_eval else {}
    evaluation: Evaluation = {
        "task_id": task.id,
        "total_score": found.total_score,
        "score_of_graded": found.score_of_graded,
        "evaluation": found.evaluation,
        "test_results": {
            each.path: {"success": each.success, "output": each.output} for each in graded.results
        },
        "diff_lines": len(diff.splitlines()),
        "tampering": [*graded.tampering],
        "graded": graded.graded,
        "rewards": graded.rewards,
        "steps": [{"name": name, "rewards": rewards} for name, rewards in graded.steps],
        "published": graded.published and graded.published._asdict(),
        "isolation": graded.isolation,
        "carried": graded.carried,
        "lifted": [*graded.lifted],
        **environment,
        **prompt,
        "verifier_tools": "stand-in" if stands_in(task) else "own",
        "verifier_environment_mode": "separate" if is_separate(task) else "shared",
        "standard_metrics": graded.measured.standard,
        "custom_metrics": graded.measured.custom,
        "lm_evaluation": said,
        "resources": resources,
    }
    metrics = graded.measured.numbers | {
        "tests": float(tests),
        "tests_passed": float(passed),
        "diff_lines": float(len(diff.splitlines())),
    }
    if said and said["weighted_score"] is not None:
        metrics["lm_score"] = said["weighted_score"]
    if found.score_of_graded is not None:
        metrics["score_of_graded"] = found.score_of_graded
    return Verdict(
        "passed" if found.success else "failed",
        graded.cause,
        f"{passed} of {tests} tests passed",
        graded.log,
        diff,
        found.total_score,
        metrics,
        sandbox=f"{isolation}, {graded.isolation}",
        artifacts={"diff.patch": diff, "eval.log": graded.log, **recorded(evaluation)},
        facts={
            "resources": resources,
            **({"published_only": True} if graded.graded == "published" else {}),
        },
    )
