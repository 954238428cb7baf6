"""The suites of patches: each task is a commit, and its verdict is made of measured blocks."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, cast

import msgspec

from koderz.errors import Fault, KoderzError, Unreachable
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import Images, Timed
from koderz.settings.schema import Settings
from koderz.suites.reviews import reviewed
from koderz.suites.suite import (
    JudgeContext,
    Publication,
    RunContext,
    Suite,
    SuiteSource,
    WorkspaceContext,
)
from koderz.systems.patches.judging import verdict_on
from koderz.systems.patches.machines import Machine, Rules, TasksRecord, idle_rules, read_rules
from koderz.systems.patches.measuring.bench import Bench, Recorder
from koderz.systems.patches.measuring.verdicts import Rule
from koderz.systems.patches.options import PerformanceOptions
from koderz.systems.patches.patches import agents_in, given_by
from koderz.systems.patches.sources import fetch, refused, tasks_of
from koderz.systems.patches.tasks import ABSENT, PerfTask, can_serve
from koderz.systems.patches.trees import Trees
from koderz.systems.workspaces import git
from koderz.systems.workspaces.git import require_git
from koderz.systems.workspaces.opening import open_timed
from koderz.systems.workspaces.remote import pack
from koderz.types import EXCLUSIVE, Headline, Measure, Message, Reply, Sampling, Task, Verdict
from koderz_tracker.messages import text_of

_KIT_MARK = b"koderz-perf\n"
_MOST = 64 << 20  # bytes of a packed tree


class Kit(msgspec.Struct, frozen=True):
    """Tasks, the rules of their machines, and the user's own files."""

    tasks: tuple[PerfTask, ...]
    rules: Rules
    source: str
    # by agent and task; None: they are files here
    patches: Mapping[str, Mapping[str, tuple[str, ...]]] | None = None
    notices: tuple[str, ...] = ()  # of rules that apply to nothing
    # packed, by repository and commit, of those that nobody else has
    trees: Mapping[str, Mapping[str, bytes]] = {}

    def user_patches(
        self, agent: str, options: PerformanceOptions
    ) -> Mapping[str, tuple[str, ...]]:
        """The user's patches of an agent, by task; without a name, those of --predictions. KoderzError for none."""
        return (
            given_by(options, agent, self.tasks).patches
            if self.patches is None
            else self.patches.get(agent, {})
        )


def kit_of(name: str, dataset: Path | None, options: PerformanceOptions) -> Kit:
    """The kit of a suite, or a packed one. Raises KoderzError for a file without tasks."""
    if dataset and (packed := _packed_in(dataset)):
        return msgspec.json.decode(gzip.decompress(packed), type=Kit)
    rules = read_rules(options.overrides, options.image or "")
    tasks = tuple(rules.served(task) for task in tasks_of(dataset, name, options))
    notices = idle_rules(options.overrides, tasks)
    if dataset is None and not can_serve():
        left_out = [task.id for task in tasks if task.kind == "serving"]
        tasks = tuple(task for task in tasks if task.id not in left_out)
        notices = (*notices, *(f"{task} is left out: {ABSENT}" for task in left_out))
    source = str(
        dataset or ("released packages" if tasks[0].wheels else "embedded, generated repositories")
    )
    return Kit(tasks, rules, source, notices=notices)


def packed(kit: Kit, options: PerformanceOptions) -> bytes:
    """Packs the kit with the user's patches, and the trees of repositories on this machine.

    Raises KoderzError where one can't be read or is too large, and for an image that is built from a folder here.
    """
    if built := next((rule.build for rule in kit.rules.images if rule.build), ""):
        raise KoderzError(
            f"the image built from {built} can't be sent elsewhere: push it, and name it in its rule"
        )
    whole = msgspec.structs.replace(
        kit,
        rules=msgspec.structs.replace(kit.rules, environments=()),  # which are on this machine
        patches=kit.patches or _patches(kit, options),
        trees=kit.trees or asyncio.run(_trees(kit.tasks)),
    )
    return _KIT_MARK + gzip.compress(msgspec.json.encode(whole), mtime=0)


def _packed_in(dataset: Path) -> bytes:
    with suppress(OSError), dataset.open("rb") as file:
        if file.read(len(_KIT_MARK)) == _KIT_MARK:
            return file.read()
    return b""


def _patches(kit: Kit, options: PerformanceOptions) -> dict[str, Mapping[str, tuple[str, ...]]]:
    agents = agents_in(options.patches) if options.patches else []
    found = {}
    for agent in [*agents, *([""] if options.predictions else [])]:
        with suppress(KoderzError):  # an agent that has none of these tasks is in no arm
            found[agent] = kit.user_patches(agent, options)
    return found


async def _trees(tasks: tuple[PerfTask, ...]) -> dict[str, dict[str, bytes]]:
    """The trees of both commits of each task whose repository is on this machine."""
    found: dict[str, dict[str, bytes]] = {}
    for task in tasks:
        for commit in task.exported if not task.repo.startswith("https://") else ():
            kept = found.setdefault(task.repo, {})
            if commit not in kept:
                kept[commit] = await _tree(task.repo, commit)
    return found


async def _tree(repo: str, commit: str) -> bytes:
    with scratch() as tree:
        await git.export(repo, commit, tree)
        file = BytesIO()
        if not pack([str(tree)], file, _MOST):
            raise KoderzError(
                f"{repo} is larger than {_MOST >> 20} MB: name an https:// URL, from which it is fetched"
            )
        return file.getvalue()


_NEEDS = frozenset({"workspace", EXCLUSIVE})
_MARK = "Task: "


class PerformanceSuite(Suite):
    """Repositories to be made faster. An answer is the measurement of a patch."""

    mode = "perf"
    options = PerformanceOptions
    modes: ClassVar[Mapping[str, Sequence[str]]] = {
        "": ("patching",),
        "human": ("patch:human",),
        "agent": ("patching",),
    }
    asks_judge = True
    parts = ("perf",)
    required = portable = frozenset({"workspace", EXCLUSIVE})
    measures = (
        Measure("speedup_base", "higher", "times", average="geometric"),
        Measure("speedup_human", "higher", "times", average="geometric"),
    )
    headline = Headline(
        "speedup_base", passed="opt", panels=("cost", "trend", "causes", "comparison")
    )

    def __init__(self, dataset: Path | None, options: PerformanceOptions) -> None:
        self._kit = kit_of(self.name, dataset, options)
        self.source, self.notices = self._kit.source, self._kit.notices
        self.tasks: tuple[Task[PerfTask], ...] = tuple(
            Task(
                task.id,
                f"{_MARK}{task.id}\n\n{task.prompt}",
                payload=task,
                needs=_NEEDS,
                digest=task.digest,
                generated=bool(task.files),
                cluster=task.cluster or (task.repo if task.conventions.clustered else ""),
            )
            for task in self._kit.tasks
        )
        self._options = options
        self._rule = Rule(
            options.threshold,
            options.clock,
            options.max_blocks,
            options.gso_strict,
            options.agreement,
        )
        self._isolation = ""
        self._patches: dict[str, Mapping[str, tuple[str, ...]]] = {}  # by agent and task

    @classmethod
    def load(cls, source: SuiteSource) -> PerformanceSuite:
        """Raises KoderzError where there is no file, or naming the task that is off."""
        if cls.publication and source.dataset is None:
            raise cls.publication.missing(cls.name)
        return cls(source.dataset, source.options)

    def take_patches(self, **places: Any) -> None:
        """Reads the user's patches from these `predictions` or `patches`, as the options of these names say."""
        self._options = replace(self._options, **places)

    def require_repositories(self, wanted: Collection[str]) -> None:
        """Raises KoderzError if the repository of a task, given by id, should be on this machine and isn't."""
        for task in self.tasks:
            repo = self._kit.rules.repository(task.payload).removeprefix("file://")
            if task.id in wanted and repo and "://" not in repo and not Path(repo).exists():
                raise KoderzError(
                    f"{self.source}: {task.id}: there is no repository {repo}; write a folder or a bundle, as seen "
                    "from that file, or an https:// URL"
                )

    def refusal(self, wanted: Collection[str], settings: Settings) -> str:
        """The reason why tasks, given by id, can't be measured with these settings; empty if they can.

        Raises KoderzError for one that can't be measured anywhere.
        """
        found = [task.payload for task in self.tasks if task.id in wanted]
        return refused(found, self._machines(found, open_timed(settings)))

    def details(self, tasks: Sequence[Task[PerfTask]], settings: Settings) -> dict[str, Any]:
        """The commits of each task, before and as the human left it, and its images, for the record."""
        commits = {task.id: (task.payload.base_commit, task.payload.human_commit) for task in tasks}
        machines = self._machines([task.payload for task in tasks], open_timed(settings))
        notes = {task.id: task.payload.service.notes for task in tasks if task.payload.service}
        record = TasksRecord(
            commits, machines, {name: told for name, told in notes.items() if told}
        )
        fields: dict[str, Any] = msgspec.to_builtins(record)
        return fields

    def _machines(self, tasks: Sequence[PerfTask], backend: Timed) -> dict[str, Machine]:
        """The machines of tasks that don't run on a backend's default image, or on this machine's own Python."""
        found = {
            task.id: self._kit.rules.machine(task, has_images=backend.has_images) for task in tasks
        }
        return {name: machine for name, machine in found.items() if machine.is_own}

    def packed(self) -> bytes:
        """The tasks with everything that they need, as one file."""
        return packed(self._kit, self._options)

    @asynccontextmanager
    async def open_run(self, context: RunContext) -> AsyncIterator[Trees]:
        """Opens the trees of a run. Raises KoderzError without git, Unreachable if no process can be timed."""
        settings = context.settings
        require_git()
        wanted = [
            task.payload
            for task in self.tasks
            if not settings.problems or task.id in settings.problems
        ]
        backend = open_timed(settings)
        machines = self._machines(wanted, backend)
        if why := refused(wanted, machines):
            raise Unreachable(why)
        await fetch(wanted)
        async with backend:
            if backend.has_images:
                images = [
                    image
                    for task in wanted
                    for image in machines.get(task.id, Machine()).images(task)
                ]
                await cast("Images", backend).look_up(images, push=self._options.push)
            self._isolation = backend.isolation
            notes = [
                f"{task.id}: {note}"
                for task in wanted
                if task.service
                for note in task.service.notes
            ]
            yield Trees(backend, machines, notes, self._kit.trees)

    @asynccontextmanager
    async def open_workspace(self, context: WorkspaceContext) -> AsyncIterator[Bench]:
        """Opens the bench, with which a solver measures patches."""
        task, handles = context.task.payload, context.handles
        given = partial(self._user_patch, task, handles.identity.sample)
        yield self.bench(task, context.shared, context.folder, handles, given)

    def bench(
        self,
        task: PerfTask,
        shared: Trees,
        folder: Path,
        handles: Recorder,
        given: Callable[[str], str] = lambda _: "",
    ) -> Bench:
        """The bench for patches of a task; `given` as in `Bench`."""
        most = min(self._rule.max_blocks, self._options.rounds or self._rule.max_blocks)
        rule = replace(self._rule, max_blocks=most) if task.service else self._rule
        return Bench(
            task, shared, folder, handles, rule, seconds=self._options.timeout, given=given
        )

    def _user_patch(self, task: PerfTask, sample: int, agent: str) -> str:
        if agent not in self._patches:
            self._patches[agent] = self._kit.user_patches(agent, self._options)
        samples = self._patches[agent].get(task.id, ())
        if sample >= len(samples):
            raise Fault(f"there is no patch number {sample} of {task.id} any more", cause="data")
        return samples[sample]

    async def judge(
        self, task: Task[PerfTask], answer: Reply | str, context: JudgeContext
    ) -> Verdict:
        """The verdict on a measurement. Raises Fault if base differs too much from itself."""
        verdict, ask = (
            self.verdict_on(answer if isinstance(answer, str) else answer.text),
            context.ask,
        )
        patch = str(verdict.artifacts.get("diff.patch", ""))
        return (
            await with_review(verdict, task.payload, patch, ask)
            if ask and patch.strip()
            else verdict
        )

    def verdict_on(self, measured: str) -> Verdict:
        """The verdict on what was measured, without a review by a model."""
        return verdict_on(measured, self._rule, self._isolation)

    def simulate(self, messages: Sequence[Message], sampling: Sampling) -> str:
        """One of the patches that come with an embedded task, in turn by replies and samples."""
        told = text_of(messages[0])
        if is_for_judge(told):
            return simulated_review()
        task = next((task.payload for task in self.tasks if f"{_MARK}{task.id}\n" in told), None)
        if task is None or not task.canned:
            return "I know of nothing that would make this faster."
        turn = sum(message["role"] == "assistant" for message in messages) + (sampling.seed or 0)
        return f"```diff\n{task.canned[turn % len(task.canned)].diff}```\n"


class Mini(PerformanceSuite):
    """Nine small generated repositories to be made faster; or those of a tasks.toml (--dataset)."""

    name = "koderz-perf-mini"


class Pypi(PerformanceSuite):
    """Releases of well-known packages that made something faster, fetched by pip; or those of a tasks.toml."""

    name = "koderz-perf-pypi"


class Gso(PerformanceSuite):
    """GSO's commits, of its dataset as JSON lines (--dataset, or koderz suites add gso FILE)."""

    name = "gso"
    publication = Publication.on_hub("gso-bench/gso", "MIT, see its card")


class Iso(PerformanceSuite):
    """ISO-Bench's commits, of its dataset as JSON lines (--dataset, or koderz suites add iso FILE)."""

    name = "iso"
    publication = Publication.on_hub("Lossfunk/ISO-Bench", "see its card")


QUADRANTS = ("Q1", "Q2", "Q3", "Q4")

_FASTER = 1.05  # than base, surely
_APPROACHES = ("same", "similar", "other")
_ASKED = (
    "You review a patch that is to make a repository faster, beside what a human did. right_target: does it change "
    "what makes the code slow, which is what the human's answer changes? approach: how near is its way to the human's? "
    "What was measured of it doesn't concern you."
)
_SCHEMA = {
    "type": "object",
    "properties": {
        "right_target": {"type": "boolean"},
        "approach": {"enum": [*_APPROACHES]},
        "reasoning": {"type": "string"},
    },
    "required": ["right_target", "approach", "reasoning"],
}


async def with_review(
    verdict: Verdict, task: PerfTask, patch: str, ask: Callable[..., Awaitable[Reply]]
) -> Verdict:
    """The verdict with `review` and `quadrant` among its facts; both are null if there is no usable review.

    A patch is reviewed once in an experiment, whatever is measured of it.
    """
    texts = {
        "Task": task.prompt,
        "The human's answer": task.human_patch or "(not shown)",
        "The patch": patch,
    }
    known_by = hashlib.sha256(patch.encode("utf-8", "backslashreplace")).hexdigest()
    said = await reviewed(ask, _ASKED, texts, _SCHEMA, known_by=known_by)
    right, approach, why = (said.get(name) for name in _SCHEMA["required"])
    if not isinstance(right, bool):
        return replace(verdict, facts={**verdict.facts, "review": None, "quadrant": None})
    review = {
        "right_target": right,
        "approach": approach if approach in _APPROACHES else None,
        "reasoning": why if isinstance(why, str) else "",
    }
    if_faster, otherwise = QUADRANTS[:2] if right else QUADRANTS[2:]
    quadrant = if_faster if is_faster(verdict) else otherwise
    return replace(verdict, facts={**verdict.facts, "review": review, "quadrant": quadrant})


def is_faster(verdict: Verdict) -> bool:
    """Whether the patch works and is certainly faster than base by ISO-Bench's 5 %."""
    sound = verdict.facts["status"] == "passed" and not verdict.facts["hack"]
    return sound and verdict.metrics.get("speedup_base_low", 0.0) >= _FASTER


def is_for_judge(text: str) -> bool:
    return text.startswith(_ASKED)


def simulated_review() -> str:
    """The simulated model's review, the same for every patch."""
    said: dict[str, Any] = {
        "right_target": True,
        "approach": "similar",
        "reasoning": "Made up by the simulated model.",
    }
    return json.dumps(said)
