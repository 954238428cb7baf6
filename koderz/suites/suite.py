"""The class that every suite is a subclass of, the values that its methods take, and clusters of its tasks."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, runtime_checkable

from koderz.errors import KoderzError
from koderz.types import (
    Expected,
    Headline,
    Judging,
    Lesson,
    Measure,
    Message,
    Reply,
    Sampling,
    Task,
    Verdict,
)
from koderz_tracker.registry import Extensible

if TYPE_CHECKING:
    import random

    from koderz.models import Model
    from koderz.prompts import Prompts
    from koderz.sandbox import Sandbox
    from koderz.settings.schema import Settings
    from koderz.suites.matrix import Matrix
    from koderz.suites.options import SimulatedOptions


AskJudge = Callable[..., Awaitable[Reply]]
"""A solver's `ask`, bound to the model in the role `judge`."""


@dataclass(frozen=True, slots=True)
class SuiteSource:
    """The dataset, options and seed that a suite is loaded from."""

    dataset: Path | None = None  # None: the suite's usual place, or tasks that it makes up
    options: Any = None  # a value of the suite's own dataclass of options; None: it has none
    seed: int = 0  # of the run, for tasks that are made up
    part: str = ""  # the one of `named_datasets` that `dataset` is the place of; empty: all of them
    sandbox: str = ""  # the sandbox of the run; empty: none is known


@dataclass(frozen=True, slots=True)
class JudgeContext:
    """The sandbox, limits and judge model that a verdict is made with."""

    sandbox: Sandbox  # runs programs; one that refuses where no task needs `judge`
    limits: Judging
    # None: the arm has no model in the role `judge`, or the suite doesn't say `asks_judge`
    ask: AskJudge | None = None
    # kept free for the measured process of a task that needs `exclusive`; None: there is none
    core: int | None = None
    # whether the verdict is to say how many of the tests were passed, where they can be parted
    graded: bool = False
    # what the suite opened for the experiment; None: it has none, or an answer alone is judged
    workspace: Any = None


@dataclass(frozen=True, slots=True)
class RunContext:
    """The settings and environment of a run that is about to begin."""

    settings: Settings
    environ: Mapping[str, str]


class ExperimentHandles(Protocol):
    """The handles of an experiment that its session, workspace, evaluator or long context may use."""

    @property
    def identity(self) -> Any:
        """The experiment's id, task, arm and sample."""
        ...

    @property
    def experiment_id(self) -> str:
        """The experiment's id."""
        ...

    @property
    def rng(self) -> random.Random:
        """A random generator that is seeded by the experiment's id."""
        ...

    @property
    def reused(self) -> int:
        """The number of replies so far that were on record."""
        ...

    async def ask(
        self,
        messages: Sequence[Message],
        model: str | None = None,
        purpose: str = "attempt",
        **sampling: Any,
    ) -> Reply:
        """One reply of a model, as a solver's `ask` returns it. Raises Fault if none can be had."""
        ...

    async def grade(self, item: str, score: float, **metrics: float | str) -> float:
        """Record the score of one of many items, and return it."""
        ...

    async def once(self, name: str, fn: Callable[[], Any], *, rerun: bool = False) -> Any:
        """The value of `fn()`, or of the coroutine that it returns: made once, recorded, and the same in a replay.

        `rerun`: `fn` can be called again, and a replay does so.
        """
        ...

    async def note(self, name: str, value: Any) -> None:
        """Record a value that no replay asks for."""
        ...

    def can_make(self, name: str) -> bool:
        """Whether the next `once` of that name has a value to return; rescoring has only those on record."""
        ...


@dataclass(frozen=True, slots=True)
class ExperimentContext:
    """The experiment for which a session, an evaluator or a long context is opened."""

    task: Task
    handles: ExperimentHandles
    settings: Settings
    shared: Any  # what `open_run` yielded


@dataclass(frozen=True, slots=True)
class WorkspaceContext(ExperimentContext):
    """The experiment for which a workspace is opened."""

    folder: Path  # empty, the experiment's alone, and removed at its end


@runtime_checkable
class Concluding(Protocol):
    """A session, workspace, evaluator or long context that makes the experiment's verdict in place of its solver."""

    async def conclude(self, solving: Awaitable[Any]) -> Verdict:
        """The verdict. `solving` is the solver's coroutine, to be awaited here; it may return anything."""
        ...


@runtime_checkable
class Noticing(Protocol):
    """A value that sessions and workspaces of a run share, with sentences to be shown about it."""

    @property
    def notices(self) -> Sequence[str]:
        """One sentence a line on the screen, such as the sandbox in which commands run."""
        ...


@dataclass(frozen=True, slots=True)
class Publication:
    """Where a published set of tasks is, and how its file is known."""

    licence: str
    place: str  # in words
    command: str  # of a shell, that fetches it
    # `rows_digest` of the files as published; empty: none is known here
    digests: frozenset[str] = frozenset()

    @classmethod
    def on_hub(
        cls, repository: str, licence: str, *, files: str = "", folder: str = "", or_from: str = ""
    ) -> Publication:
        """A dataset's repository on Hugging Face's hub.

        `files` is a pattern of the files that are needed, without which all are fetched; `folder` is the one that they
        are put into, by default the repository's name; `or_from` is another place, in words.
        """
        place = f"{repository} on Hugging Face" + (f", or {or_from}" if or_from else "")
        wanted = f" --include '{files}'" if files else ""
        folder = folder or repository.rpartition("/")[2].lower()
        return cls(
            licence,
            place,
            f"hf download {repository} --repo-type dataset{wanted} --local-dir {folder}",
        )

    def missing(
        self, name: str, place: str = "FILE", *, option: str = "--dataset FILE"
    ) -> KoderzError:
        """The error where the file isn't here, with the remedy.

        `name` is the suite's, or that of one of its `named_datasets`, `place` what `koderz suites add` takes, `option`
        how to name that for one run.
        """
        return KoderzError(
            f"{name} needs its file: get it with: {self.command}; then name it with {option}, or once for all: "
            f"koderz suites add {name} {place} (licence: {self.licence})"
        )


class Suite(Extensible):
    """A set of tasks, the messages that models are sent for them, and the judge of their answers.

    A subclass has a `name`, a `source` and `tasks`, and makes verdicts by a `scorer`, or by a method `score` or `judge`
    of its own. All else has a default. A class that is registered under a name is loaded by its classmethod `load`.
    """

    # The tasks

    name: str
    """The suite's name in records and on screens."""

    source: str
    """Where the tasks come from, for the record: a file, a package, a seed."""

    tasks: tuple[Task, ...]
    """The tasks, in the order in which they are numbered."""

    def messages(self, task: Task, prompts: Prompts) -> tuple[Message, ...]:
        """The first messages about a task. Called once a task, when a run is planned. By default the task's prompt."""
        return ({"role": "user", "content": task.prompt},)

    async def sent(self, task: Task, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages with the texts that their parts of the type `reference` stand for.

        Called before a request is sent that has such parts. They are recorded as references.
        """
        return tuple(messages)

    def set_up(self, task: Task, settings: Mapping[str, str | None]) -> Task:
        """The task under the settings of one arm of a matrix, with the same id and a digest of its own.

        Raises KoderzError if the suite has no such settings, as by default.
        """
        raise KoderzError(
            f"the suite {self.name} has no settings for single arms, such as {', '.join(settings)}"
        )

    # The verdict

    scorer: str = ""
    """The name of the scorer by which `score` compares a reply with the task's payload, the expected text.

    `exact_match` and `f1` are SQuAD's, `rougeL` and `levenshtein_ratio` say how near the texts are, `equals` compares
    them as they are, and `number` the number that the reply ends in.
    """

    limits: Judging = Judging()
    """The limits of judged programs, and how much of a failure is shown to the solver."""

    asks_judge: bool = False
    """Whether verdicts ask the model in the role `judge` (`--role judge=MODEL`) where an arm has one."""

    judge_calls: float = 1
    """The calls that one verdict of a judge model takes, for estimates."""

    judge_prompts: Sequence[str] = ()
    """The prompts that a judge model is sent, by name: they are part of the plan where an arm has one."""

    judge_record: Mapping[str, Any] = MappingProxyType({})
    """Facts about a judge model's prompt that the plan records where an arm has one."""

    words: Sequence[str] = ()
    """Verdict words besides `passed`, `failed`, `timeout` and `error`. One counts as passed if its Verdict `passes`."""

    async def judge(self, task: Task, answer: Reply | str, context: JudgeContext) -> Verdict:
        """The verdict on an answer: a reply, or the text of one. By default `passed` is a `score` of 1.

        Called whenever a solver has an answer judged. A task that needs `exclusive` is judged while nothing else is
        measured on the machine, unless its solver names `exclusive` and takes turns itself. Calls by `context.ask` are
        recorded, and used again when the run is resumed or rescored. Raises Fault only if no candidate is to blame.
        """
        score = self.score(task, answer.text if isinstance(answer, Reply) else answer)
        if score == 1:
            return Verdict("passed", score=score)
        return Verdict(
            "failed", "answer", f"score {score:.4g}", f"The score is {score:.4g}.", score=score
        )

    def score(self, task: Task, reply: str) -> float:
        """The score of a reply's text, 0 to 1. Called by `judge`. By default that of the `scorer`.

        Raises KoderzError if the suite names no scorer, as one whose verdicts are made by a handle.
        """
        from koderz.suites.scorers import scorer_of

        if not self.scorer:
            raise KoderzError(
                f"the suite {self.name} judges no single answer of {task.id}: it names no `scorer`"
            )
        return scorer_of(self.scorer)(str(task.payload), reply)

    def lesson(self, task: Task, verdicts: Sequence[Verdict]) -> Lesson | None:
        """The lesson of an experiment with several attempts, of which the last passed; None if there is none.

        Called at the experiment's end with all its verdicts. The lesson is recorded, and memory learns it from there.
        """
        return None

    # How results are shown and compared

    mode: str = ""
    """What runs of the suite are called in place of their mode; by default as the suite, if it states `arms`."""

    headline: Headline | None = None
    """The measure by which arms are summed up and ranked in lists, cards and leaderboards. By default success."""

    measures: Sequence[Measure] = ()
    """The direction and unit of scores and metrics. Experiments are compared by these besides success."""

    parts: Sequence[str] = ()
    """Parts that the suite adds to a run's summary: names in `tracker.parts`, and keys of the summary."""

    sinks: Sequence[str] = ()
    """Sinks that runs of the suite are recorded into besides those that the user chooses."""

    notices: Sequence[str] = ()
    """Sentences that are shown when a run of the suite is planned."""

    def outline(self, plan: Any) -> Iterable[str]:
        """Lines that a dry run shows besides the plan's own."""
        return ()

    def details(self, tasks: Sequence[Task], settings: Settings) -> Mapping[str, Any]:
        """Facts about the run's tasks for the plan's record. Raises KoderzError if the settings don't fit them."""
        return {}

    def require_fit(self, task: Task, solver: Any) -> None:
        """Raises KoderzError for a task that a solver can't work on. By default none is refused.

        Called for each task in each of its arms when a run is planned, if its solver asks for a handle.
        """

    def expected(self, task: Task, solver: Any, settings: Settings) -> Sequence[Expected] | None:
        """The calls that one experiment is expected to make, those of a judge model among them.

        Called when a run is planned. None, the default: the solver knows, and each answer is judged by `judge_calls`.
        """
        return None

    def export(self, folder: Path) -> Iterable[tuple[Path, int]]:
        """Write the rows of tasks that are made up, and yield each file with the number of its rows.

        Raises KoderzError if the suite has no rows of its own, as by default.
        """
        raise KoderzError(
            f"the suite {self.name} has no rows of its own to write; its dataset is {self.source}"
        )

    # How it is chosen and loaded

    options: ClassVar[type | None] = None
    """The frozen dataclass of the suite's options, each field made by `koderz.settings.options.option`."""

    configuration: Any = None
    """The options with the defaults that are this suite's own, to be recorded in place of the settings' options."""

    modes: ClassVar[Mapping[str, Sequence[str]] | None] = None
    """Solvers by the mode that stands for them, those without `--mode` as the mode "". None: the usual modes."""

    named_datasets: ClassVar[Collection[str]] = ()
    """Names of datasets that can be added one by one (`koderz suites add NAME PATH`).

    A mapping says where each is published.
    """

    listed: ClassVar[bool] = True
    """Whether `koderz suites list` shows the suite."""

    publication: ClassVar[Publication | None] = None
    """Where its tasks are published; None if koderz brings them, or they are the user's own."""

    rule_text: str = ""
    """How answers are read and judged, in words, where there is more than one way to."""

    def pairing_text(self, task: Task) -> str:
        """Return what a task asks, without what a template says around it: by default its prompt, empty if unknown.

        Tasks of one id in two runs are compared as pairs unless they ask something else.
        """
        return task.prompt

    def rows_digest(self) -> str:
        """16 hex digits of the tasks in no order, by which a published file is known. By default of their prompts."""
        return digest_of_rows(task.prompt for task in self.tasks)

    required: frozenset[str] = frozenset()
    """Handles that a solver of its tasks has to name."""

    def arms(self, tasks: Sequence[Task], settings: Settings) -> Matrix | None:
        """The arms and cells of a run about these tasks, which the suite may make of its options, `settings.of(…)`.

        Called when a run is planned of which nothing says how tasks are solved: no `--mode`, `--solver`, `--solvers` or
        `--matrix`, nor the command of a system. Arms without a model are there once for each of the run's. None, the
        default: the solvers of the usual mode. Raises KoderzError if the settings don't fit.
        """
        return None

    @classmethod
    def load(cls, source: SuiteSource) -> Suite:
        """The suite with its tasks, when it is chosen by name. By default the class is made without arguments.

        Raises KoderzError for a dataset that is missing, or naming the line of a malformed row.
        """
        return cls()

    # What experiments open

    def open_run(self, context: RunContext) -> AbstractAsyncContextManager[Any]:
        """A context manager of what all sessions and workspaces of a run share, such as a pool of workers.

        Entered before the first experiment of a run that needs one of them, on an engine elsewhere in each of its
        containers, and left after the last. It yields what `context.shared` is in `open_session` and `open_workspace`;
        a sequence `notices` of it is shown. What it raises ends the command before anything is recorded or spent.
        """
        return nullcontext()

    def open_session(self, context: ExperimentContext) -> AbstractAsyncContextManager[Any]:
        """A context manager of the handle `session` of a task that needs one.

        Entered when an experiment begins whose solver names the handle, and left at its end, as those below. What
        can't be made again goes through `context.handles.once`, so that a replay gets the same.
        """
        raise self._opens_no("session")

    def open_workspace(self, context: WorkspaceContext) -> AbstractAsyncContextManager[Any]:
        """A context manager of the handle `workspace`, in a folder of the experiment's own."""
        raise self._opens_no("workspace")

    def open_evaluator(self, context: ExperimentContext) -> AbstractAsyncContextManager[Any]:
        """A context manager of the handle `evaluator`, which scores candidates on the items of a task."""
        raise self._opens_no("evaluator")

    def open_long_context(self, context: ExperimentContext) -> AbstractAsyncContextManager[Any]:
        """A context manager of the handle `long_context`, a text that is held only while it is worked on."""
        raise self._opens_no("long_context")

    def overrides(self, member: str) -> bool:
        """Whether the suite's class has a method of its own in place of the default, such as an opener."""
        return getattr(type(self), member) is not getattr(Suite, member)

    def _opens_no(self, handle: str) -> KoderzError:
        return KoderzError(
            f"the suite {self.name} has tasks that need a {handle}, but no open_{handle}"
        )

    # Elsewhere, in private, without a model

    portable: frozenset[str] = frozenset()
    """Needs of its tasks that the suite meets in sandboxes of its own, wherever it is loaded."""

    def packed(self) -> bytes | None:
        """The tasks as one file that the suite can be loaded from as its dataset, for an engine elsewhere.

        None, the default: its dataset is one file, or none.
        """
        return None

    own_files: Mapping[str, str] = {}
    """Digests of the user's files that tasks' digests include, by the option that names each, such as `--scorer`.

    If one has changed when a run is resumed, it is named in place of the tasks.
    """

    mounted: Mapping[str, str] = {}
    """Digests of what agents are given beyond their tasks, by what each is called, such as `the skill sql-style`.

    Tasks' digests include them. If one has changed when a run is resumed, it is named in place of the tasks.
    """

    privacy_key: bytes = b""
    """The key by which recorded texts are encrypted, if the tasks are private; they then need `privacy`."""

    def simulate(self, messages: Sequence[Message], sampling: Sampling) -> str:
        """The simulated model's reply, a pure function: by it the suite can be tried without a model."""
        raise NotImplementedError

    def simulated_model(self, tasks: Sequence[Task], seed: int, options: SimulatedOptions) -> Model:
        """The simulated model of a run of these tasks. By default it replies by `simulate`.

        Raises KoderzError if the suite has no `simulate` of its own.
        """
        from koderz.models.simulated import SimulatedReplies

        if not self.overrides("simulate"):
            raise KoderzError(
                f"the simulated model knows nothing of the suite {self.name}; name a --model"
            )
        return SimulatedReplies(
            self.simulate,
            latency=options.simulated_latency,
            fault_rate=options.simulated_fault_rate,
        )


def digest_of_rows(texts: Iterable[str]) -> str:
    """16 hex digits of texts in no order."""
    rows = sorted(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts)
    return hashlib.sha256(b"".join(rows)).hexdigest()[:16]


class ProgramSuite(Suite):
    """A suite whose answers are programs, which are also judged without a reply around them."""

    is_sound: bool = False
    """Whether every reference is known to pass, so that none is tried before its task is judged."""

    def reference(self, task: Task) -> str:
        """A program that should pass; empty, the default, where none is known."""
        return ""

    async def judge_program(
        self, task: Task, program: str, context: JudgeContext, *, line_offset: int = 0
    ) -> Verdict:
        """The verdict on a whole program as it is; `line_offset` lines before it aren't its author's.

        By default that on a reply with this text.
        """
        return await self.judge(task, program, context)

    async def judge_written(self, task: Task, program: str, context: JudgeContext) -> Verdict:
        """The verdict on a program that was written down alone or after the task's prompt."""
        if not program.strip():
            return Verdict("error", "no_code", detail="There is no program.")
        offset = task.prompt.count("\n") if program.startswith(task.prompt) else 0
        return await self.judge_program(task, program, context, line_offset=offset)


_T = TypeVar("_T")


def linked(shares: Mapping[_T, Collection[str]]) -> dict[_T, str]:
    """The cluster of each thing that has a label in common with another one, directly or by way of third ones.

    `shares` are the labels of each; a cluster is named by one of its labels. Things that share nothing are left out.
    """
    parents: dict[str, str] = {}

    def root(label: str) -> str:
        while (parent := parents.setdefault(label, label)) != label:
            parents[label] = parents[parent]
            label = parent
        return label

    for labels in shares.values():
        first, *others = map(root, labels) if labels else [""]
        for other in others:
            parents[root(other)] = root(first)
    found = {thing: root(next(iter(labels))) for thing, labels in shares.items() if labels}
    sizes = Counter(found.values())
    return {thing: cluster for thing, cluster in found.items() if sizes[cluster] > 1}
