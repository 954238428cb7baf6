"""The suite `rollouts`: prepared repositories in which an agent works, graded by hidden tests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from koderz.errors import Fault, KoderzError
from koderz.sandbox.workspace import BACKENDS, Backend
from koderz.sandbox.workspace.git import GitError
from koderz.suites.suite import JudgeContext, RunContext, Suite, SuiteSource, WorkspaceContext
from koderz.systems.rollouts.config import Config, read_config
from koderz.systems.rollouts.formats import load_task, require_work
from koderz.systems.rollouts.grading import Graded, grade
from koderz.systems.rollouts.opinions import is_for_judge, opinions, simulated_opinion
from koderz.systems.rollouts.options import RolloutsOptions
from koderz.systems.rollouts.simulated import simulate
from koderz.systems.rollouts.tasks import Rollout
from koderz.systems.rollouts.variants import Variants
from koderz.systems.rollouts.workspaces import PLACE, Stores, Workspace
from koderz.types import Measure, Message, Reply, Task, Verdict
from tracker.messages import text_of

SAMPLE = Path(__file__).with_name("sample")
NEEDS = frozenset({"workspace"})


def _read(folder: Path, options: RolloutsOptions) -> tuple[Sequence[Rollout], Config | None]:
    """The tasks of a folder or a configuration, and the latter."""
    if folder.suffix == ".toml":
        config = read_config(folder)
        judged = {
            task_id for task_id, entry in zip(config.of_entries, config.entries, strict=True) if entry.judge_model
        }
        for task in config.tasks:
            require_work(task, judged=bool(options.judge_model) or task.id in judged)
        return config.tasks, config
    if not folder.is_dir():
        raise KoderzError(f"{folder} is no folder of tasks, nor a configuration that ends with .toml")
    try:
        tasks = [load_task(folder)]
    except KoderzError:
        names = {"tb_meta.json", "task.toml", "task.yaml"}
        folders = [path for path in sorted(folder.iterdir()) if any((path / name).is_file() for name in names)]
        if not folders:
            raise
        tasks = [load_task(path) for path in folders]
    for task in tasks:
        require_work(task, judged=bool(options.judge_model))
    ids = [task.id for task in tasks]
    if twice := sorted({each for each in ids if ids.count(each) > 1}):
        raise KoderzError(f"{folder}: two tasks have the id {twice[0]}")
    return tasks, None


@dataclass(frozen=True, slots=True)
class Shared:
    """The state that the workspaces of a run share."""

    stores: Stores
    notices: Sequence[str] = ()


class GradedWorkspace(Workspace):
    """A workspace that records each test script's result as a grade, and the diff even without a verdict."""

    handles: Any

    async def conclude(self, solving: Awaitable[Verdict]) -> Verdict:
        """The solver's verdict."""
        try:
            verdict = await solving
        except Fault:
            if found := await self.unrecorded_diff():
                await self.handles.note("diff", found)
            raise
        told = verdict.artifacts.get("evaluation_results.json")
        results = json.loads(told)["test_results"] if isinstance(told, str) else {}
        for path, result in results.items():
            await self.handles.grade(path, float(result["success"]))
        return verdict


class RolloutsSuite(Suite):
    """The tasks of a folder (--dataset), a prepared one or one of such, or of a configuration; else embedded ones.

    Each is a repository. An answer is a diff; its verdict is made of hidden tests in a fresh checkout.
    """

    name = mode = "rollouts"
    options = RolloutsOptions
    modes: ClassVar[Mapping[str, Sequence[str]]] = {"": ("agent:koderz",)}
    parts = ("rollouts",)
    asks_judge = True
    measures = (
        Measure("score", "higher", "share"),
        Measure("score_of_graded", "higher", "share"),
    )

    def __init__(
        self, source: str, tasks: Sequence[Rollout], options: RolloutsOptions, config: Config | None = None
    ) -> None:
        self.source = source
        self._variants = Variants(config) if config else None
        if not options.entry_sandbox:
            tasks = [replace(task, sandbox="") for task in tasks]
        self._payloads = {task.id: task for task in tasks}
        self.tasks: tuple[Task[Rollout], ...] = tuple(
            Task(task.id, task.instructions, payload=task, needs=NEEDS, digest=task.digest) for task in tasks
        )
        self._options = options
        self.judge_calls = max((len(task.rubrics) for task in tasks), default=1)
        self._stores = Stores()

    @classmethod
    def load(cls, source: SuiteSource) -> RolloutsSuite:
        """Raises KoderzError for a task that asks for nothing, or that nothing would judge."""
        options: RolloutsOptions = source.options
        tasks, config = _read(source.dataset or SAMPLE, options)
        return cls(str(source.dataset or "embedded sample"), tasks, options, config)

    def set_up(self, task: Task[Rollout], settings: Mapping[str, str | None]) -> Task[Rollout]:
        """The task with an arm's settings. Raises KoderzError if the configuration has no such entry."""
        if self._variants is None:
            raise KoderzError(f"{self.source} is no configuration, so arms have no settings there")
        found = self._payloads[self._variants.find(task.id, settings).id]
        return replace(task, payload=replace(found, id=task.id), digest=found.digest)

    @asynccontextmanager
    async def open_run(self, context: RunContext) -> AsyncIterator[Shared]:
        """Opens the workspaces' shared state. Raises Unreachable if commands can't be run as asked for."""
        settings = context.settings
        async with AsyncExitStack() as stack:
            for name in sorted({settings.sandbox} | {task.payload.sandbox for task in self.tasks} - {""}):
                backend = await stack.enter_async_context(BACKENDS.find(name)(settings))
                self._stores.backends[name] = backend
            run = self._stores.backends[""] = self._stores.backends[settings.sandbox]
            where = f"agents' commands and tests run in the sandbox {run.name}: {run.isolation}"
            yield Shared(self._stores, [f"{where}{_price(run)}"])

    @asynccontextmanager
    async def open_workspace(self, context: WorkspaceContext) -> AsyncIterator[Workspace]:
        """A checkout of the task for one experiment, made on first use."""
        handles, stores, payload = context.handles, context.shared.stores, context.task.payload
        workspace = GradedWorkspace(
            payload, stores, context.folder, handles.once, self._options, lambda: handles.reused
        )
        workspace.handles = handles
        PLACE.set(context.folder)
        yield workspace

    async def judge(self, task: Task[Rollout], answer: Reply | str, context: JudgeContext) -> Verdict:
        """The verdict on a diff. Raises Fault if it can't be judged, for example without pytest."""
        diff = answer.text if isinstance(answer, Reply) else answer
        store, backend = await self._stores.of(task.payload), self._stores.backend_of(task.payload)
        try:
            graded = await grade(task.payload, diff, store, backend, self._stores.left(task.payload, diff))
        except GitError as error:
            return Verdict("failed", "patch", str(error), f"The diff doesn't apply: {error}", diff, 0.0)
        graded = replace(graded, tampering=(*self._stores.removed, *graded.tampering))
        said = await opinions(task.payload, diff, context.ask) if context.ask else None
        return _verdict(task.payload, diff, graded, backend.isolation, said)

    def outline(self, plan: Any) -> Iterator[str]:
        """Lines on where agents work, and what they see of this machine."""
        alone = "" if plan.settings.sandbox == "uncontained" else ", without network"
        yield f"Workspace: {plan.settings.sandbox}{alone}{_price(BACKENDS.find(plan.settings.sandbox)(plan.settings))}"
        tasks = [task for task, _, _ in plan.cells()]
        for place in dict.fromkeys(task.payload.workdir for task in tasks):
            yield f"Mount: the checkout at {place}"
        if plan.settings.sandbox in ("local", "contained"):
            yield "Mount: this machine's programs, read-only"
        scripts = filter(None, (arm.solver.parameters.get("script") for arm in plan.arms))
        for shown in dict.fromkeys((*scripts, *(path for task in tasks for path in task.payload.agent_mounts))):
            yield f"Mount: {shown}, read-only"
        programs = (arm.solver for arm in plan.arms if arm.solver.restarts and "script" not in arm.solver.parameters)
        for name in dict.fromkeys(solver.name for solver in programs):
            yield f"Mount: the package of {name.removeprefix('agent:')}, read-only, and a bridge to its model"

    def simulate(self, messages: Sequence[Message], sampling: Any) -> str:  # noqa: ARG002
        """The simulated model's reply as an agent on the embedded tasks, or as a judge."""
        if is_for_judge(text_of(messages[0])):
            return simulated_opinion()
        return simulate(messages)


def _price(backend: Backend) -> str:
    """The price of commands there; empty if they are free."""
    return f"; it costs ${backend.cost * 3600:.2f} or more an hour of each" if backend.cost else ""


def _verdict(task: Rollout, diff: str, graded: Graded, isolation: str, said: Mapping[str, Any] | None) -> Verdict:
    found = graded.scored
    rubrics = found.evaluation["rubrics"].values()
    results = {each.path: {"success": each.success, "output": each.output} for each in graded.results}
    tests, passed = (sum(each[name] for each in rubrics) for name in ("test_count", "tests_passed"))
    told = {
        "task_id": task.id,
        "total_score": found.total_score,
        "score_of_graded": found.score_of_graded,
        "evaluation": found.evaluation,
        "test_results": results,
        "diff_lines": len(diff.splitlines()),
        "tampering": [*graded.tampering],
        "standard_metrics": graded.measured.standard,
        "custom_metrics": graded.measured.custom,
        "lm_evaluation": said,
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
        sandbox=f"{isolation}, in-process" if task.format == "tb" else isolation,
        artifacts={"diff.patch": diff, "eval.log": graded.log, "evaluation_results.json": json.dumps(told, indent=2)},
    )
