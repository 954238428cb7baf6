"""What is asked, and how an answer is judged."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast, get_args

from koderz.errors import KoderzError, raised_at
from koderz.settings.registry import Registry, find_in_file
from koderz.settings.schema import Settings

if TYPE_CHECKING:
    from koderz.prompts import Prompts
    from koderz.sandbox import Sandbox
    from koderz.types import Headline, Judging, Lesson, Measure, Message, Reply, Task, Verdict


class Suite(Protocol):
    """A set of tasks, what models are told of them, and their judge.

    It may also have

    - `headline`, a `koderz.types.Headline`: the measure that its arms are summed up and ranked by, in lists, cards and
      leaderboards (by default success), whether experiments pass or fail at all, and which panels of the report apply;
    - `limits`, how its answers are judged (`koderz.types.Judging`), and `options`, those it was made with where the
      defaults of some are its own: these are put on record;
    - `measures`, a sequence of `koderz.types.Measure`: the direction and the unit of its scores and metrics, by which
      experiments are compared besides success;
    - `open_session(task, handles)`, `open_long_context(task, handles)`, `open_evaluator(task, handles, settings)` and
      `open_workspace(task, folder, handles)`, async context managers of what tasks say by `needs` that they need. Each
      is entered when an experiment begins whose solver names it, and left at its end; `folder` is empty, the
      experiment's alone, and removed with it. What an opener does that can't be made again goes through `handles.once`,
      so that a replay is handed the same. What it opens may have a method `conclude(solving)`: then it has the last
      word, is handed the solver's coroutine, which may return anything, and returns the Verdict;
    - `open_run(settings, environ)`, an async context manager of what all sessions and workspaces of a run share, such
      as a pool of workers. It is entered before the first experiment of a run that needs one of them, on an engine
      elsewhere in each of its containers, and left after the last; `open_session` and `open_workspace` are then handed
      what it yields as one more parameter, `shared`. `settings.of(ITS_DATACLASS)` has the suite's options. What it
      raises ends the command before anything is recorded or spent;
    - `packed()`, its tasks as the bytes of one file that it can be loaded from as its dataset, where they come from
      several files or from large ones: what an engine elsewhere is handed;
    - `portable`, needs of its tasks that it meets in sandboxes of its own wherever it is loaded, by what `packed` has
      and what is fetched: an engine elsewhere, which has no such thing itself, then takes them, after `open_run` was
      entered and left here once;
    - `export(folder)`, which writes the rows that the suite makes up, and yields each file with their number;
    - `sent(task, messages)`, a coroutine: the messages with the texts that their parts of the type `reference` stand
      for, which are recorded by reference and made again when they are sent;
    - `lesson(task, verdicts)`, what the attempts at a task teach (`koderz.types.Lesson`, or None) where the last of
      several passed: it goes into the record, and from there into memory;
    - `parts`, what it adds to a run's summary: names of `tracker.parts`, which are keys there, too, and may have a
      section in the report (`koderz.analysis.report.sections`); and `sinks`, where its runs are recorded besides, such
      as a file of its own (a solver's function may have both as attributes);
    - `required`, handles that a solver of its tasks has to name;
    - `mode`, what its runs are called; `expected(task, solver, settings)`, the calls of one experiment as
      `koderz.types.Expected`, where they are not for the solver to say; `asks_judge`, whether it asks the model in the
      role `judge` otherwise than by its `judge`;
    - `details(tasks, settings)`, what the record of a plan says of these tasks besides; `notices`, what is told of
      the suite where a run is planned; and `outline(plan)`, lines that a dry run shows of the plan besides;
    - `set_up(task, settings)`, the task as an arm with settings of its own has it, under the same id: what differs
      between arms of one task and is no parameter of a solver. Its `digest` then tells the settings, too;
    - `privacy_key`, bytes by which all that is recorded of its texts is encrypted (`tracker.privacy`), where they are
      private: what solvers ask, are told and run. What is made of the record has their digests. Its tasks need
      `privacy` then, which an engine has where nothing of them is stored elsewhere;
    - tasks that say by `generated` that their text is made up: their figures share no table with those of others;
    - `words`, verdicts of its own beside the four; one counts as passed only where a Verdict says that it `passes`;
    - `simulate(messages, sampling)`, what the simulated model replies: a pure function, by which the suite can be tried
      without a model.
    """

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> str:
        """Where the tasks come from, for the record."""
        ...

    @property
    def tasks(self) -> tuple[Task, ...]: ...

    def messages(self, task: Task, prompts: Prompts) -> tuple[Message, ...]:
        """What a model is told first of a task."""
        ...

    async def judge(self, task: Task, answer: Reply | str, sandbox: Sandbox, how: Judging) -> Verdict:
        """Raises Fault only where no candidate is to blame.

        A task that needs `exclusive` is judged while nothing else is measured on the machine, `how.core` being the core
        that is kept free for it, unless its solver names `exclusive` and takes turns itself.

        A judge that is a model has one more parameter, `ask=None`: a solver's handle, bound to the role `judge`, and
        None where the arm has no model in it. What it asks is on record, and used again when the run is rescored; for
        another record of the same answer, too, where `known_by` says what it is about. The suite's `judge_calls` says
        how many calls a verdict takes where it isn't one, for estimates.
        """
        ...


class ProgramSuite(Suite, Protocol):
    """A suite whose answers are programs, which may also be judged as such."""

    def reference(self, task: Task) -> str:
        """A program that should pass; empty where none is known."""
        ...

    async def judge_program(
        self, task: Task, program: str, sandbox: Sandbox, how: Judging, *, line_offset: int = 0
    ) -> Verdict:
        """The verdict on a whole program, as it is; `line_offset` lines before it aren't its author's."""
        ...


SUITES = Registry("suite", "suites")
"""Functions that take the dataset's path, or None for its usual place, and the suite's options if it has any.

One that makes its tasks up has a parameter `seed`, too, for the run's. One with an attribute `parts` has datasets that
are added each by its name, and a parameter `part` for the one that the path is of.
What `--mode` stands for may be said by an attribute `modes`: the names of solvers by mode, those where none is given as
the mode "".
"""


def load_suite(name: str, dataset: Path | None = None, settings: Settings | None = None) -> Suite:
    """A suite with its tasks. Raises KoderzError for an unknown one, or naming the line of a malformed row."""
    if SUITES.is_file(name):
        return _suite_in_file(name, dataset)
    load = cast("Callable[..., Suite]", SUITES.find(name))
    dataset = dataset or added_dataset(name)
    options = SUITES.options_in(name, settings)
    seed = {"seed": settings.seed if settings else 0} if "seed" in inspect.signature(load).parameters else {}
    return load(dataset, options, **seed) if options else load(dataset, **seed)


def _suite_in_file(name: str, dataset: Path | None) -> Suite:
    found = find_in_file("--suite", name)
    if callable(found):
        try:
            found = found(dataset)
        except KoderzError:
            raise
        except Exception as error:  # the user's own function may do anything
            raise KoderzError(f"--suite {name}: {type(error).__name__}: {error}{raised_at(error)}") from error
    if missing := [member for member in ("name", "source", "tasks", "messages", "judge") if not hasattr(found, member)]:
        raise KoderzError(f"--suite {name} is no suite, nor a function that returns one: it has no {missing[0]}")
    return cast("Suite", found)


def added_dataset(name: str) -> Path | None:
    """Where the dataset of a suite lies that was added for it; None where none was."""
    place = _added(name)
    return place.readlink() if place.is_symlink() else None


def add_dataset(name: str, path: Path) -> Suite:
    """Has a suite, or a part of one, read its tasks from there wherever nothing else is given.

    Raises KoderzError where it can't.
    """
    whole = next((load for load in map(SUITES.find, SUITES) if name in getattr(load, "parts", ())), None)
    suite = cast("Suite", whole(path.resolve(), part=name)) if whole else load_suite(name, path.resolve())
    place = _added(name)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(path.resolve())
    return suite


def _added(name: str) -> Path:
    from koderz.paths import cache_folder

    return cache_folder() / "suites" / hashlib.sha256(name.encode()).hexdigest()[:16]


def modes_of(name: str) -> Mapping[str, tuple[str, ...]] | None:
    """The solvers that modes stand for in the suite of that name; None where it has the usual ones.

    Raises KoderzError for an unknown suite.
    """
    if SUITES.is_file(name):  # which isn't run to read the options
        return None
    found: Mapping[str, tuple[str, ...]] | None = getattr(SUITES.find(name), "modes", None)
    return found


def limits_of(suite: object) -> Judging:
    """How a suite has its answers judged: `suite.limits`, if it has any."""
    from koderz.types import Judging

    own = getattr(suite, "limits", None)
    return own if isinstance(own, Judging) else Judging()


def measures_of(suite: object) -> tuple[Measure, ...]:
    """What a suite's experiments are compared by besides success: `suite.measures`, if it has any.

    Raises KoderzError for a measure that can't be one.
    """
    found: tuple[Measure, ...] = tuple(getattr(suite, "measures", ()))
    for measure in found:
        if measure.direction not in ("higher", "lower"):
            raise KoderzError(f"the measure {measure.name!r}: its direction has to be higher or lower")
    if len({measure.name for measure in found}) < len(found):
        raise KoderzError(f"two measures have one name among {', '.join(measure.name for measure in found)}")
    return found


def headline_of(suite: object) -> Headline | None:
    """What a suite's arms are summed up by: `suite.headline`, if it has any.

    Raises KoderzError where that is no measure of the suite's.
    """
    from tracker.records import PASSES

    found: Headline | None = getattr(suite, "headline", None)
    if found and found.measure not in (PASSES, *(measure.name for measure in measures_of(suite))):
        raise KoderzError(f"the headline names the measure {found.measure!r}, which the suite doesn't declare")
    return found


def lesson_of(suite: object, task: Task, verdicts: Sequence[Verdict]) -> Lesson | None:
    """What the attempts of an experiment teach: `suite.lesson(task, verdicts)`, if it has one."""
    own = getattr(suite, "lesson", None)
    found: Lesson | None = own(task, verdicts) if own and len(verdicts) > 1 else None
    return found


def judge_asks(suite: Suite) -> bool:
    """Whether a suite's judge asks a model: its `judge` has a parameter `ask`."""
    return "ask" in inspect.signature(suite.judge).parameters


def words_of(suite: object) -> tuple[str, ...]:
    """The verdicts that there are: the four, and those of the suite's own."""
    from koderz.types import VerdictWord

    return *get_args(VerdictWord), *getattr(suite, "words", ())


def judging_programs(suite: Suite) -> ProgramSuite:
    """The suite as one of programs. Raises KoderzError where it judges replies alone."""
    if not hasattr(suite, "judge_program"):
        raise KoderzError(f"the suite {suite.name} judges replies, not programs")
    return cast("ProgramSuite", suite)


async def judge_written(suite: ProgramSuite, task: Task, program: str, sandbox: Sandbox, how: Judging) -> Verdict:
    """The verdict on a program that was written down as such, alone or after the task's prompt; not on a reply."""
    from koderz.types import Verdict

    if not program.strip():
        return Verdict("error", "no_code", detail="There is no program.")
    offset = task.prompt.count("\n") if program.startswith(task.prompt) else 0
    return await suite.judge_program(task, program, sandbox, how, line_offset=offset)


def task_digest(*parts: str) -> str:
    """16 hex digits that change with any of the parts."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def suite_digest(suite: Suite) -> str:
    """16 hex digits of all its tasks."""
    return task_digest(*(f"{task.id} {task.digest}" for task in suite.tasks))
