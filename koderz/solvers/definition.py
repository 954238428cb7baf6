"""The class `Solver` and its decorator, and the handles that a signature may name to reach models, judge and task."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, Never, ParamSpec, Protocol, TypeVar

from koderz.errors import KoderzError
from koderz.prompts import Prompts
from koderz.types import EXCLUSIVE, MAIN, Expected, Message, Reply, Task, Verdict
from koderz_tracker.registry import require_known

if TYPE_CHECKING:
    from koderz.sandbox.workspace import Launch


P = ParamSpec("P")
R = TypeVar("R")

Estimate = Callable[[float, str, Mapping[str, Any]], Sequence[Expected]]
"""Expected calls of one experiment, from the tokens of its first messages, the task's id and the parameters."""

AtHand = Callable[[Mapping[str, Any], Sequence[Task], Prompts], Mapping[str, Any]]
"""Values of parameters that are known before a run, from the options by name, the tasks and the prompts."""

REPLY_TOKENS = 400  # of a usual answer to a function-sized task


def asks_once(
    prompt_tokens: float, _task_id: str, _parameters: Mapping[str, Any]
) -> Sequence[Expected]:
    """One call of the model that answers."""
    return [Expected(MAIN, (1, 1), (prompt_tokens, prompt_tokens), (REPLY_TOKENS, REPLY_TOKENS))]


def asks_nothing(
    _prompt_tokens: float, _task_id: str, _parameters: Mapping[str, Any]
) -> Sequence[Expected]:
    """No call of any model."""
    return ()


def nothing_at_hand(
    _options: Mapping[str, Any], _tasks: Sequence[Task], _prompts: Prompts
) -> Mapping[str, Any]:
    """No value is known before the run."""
    return {}


@dataclass(frozen=True, eq=False)
class Solver(Generic[P, R]):
    """An async function that works on a task, with everything else that koderz has to know about it.

    The function is handed by name what its signature names: the handles of `koderz.solvers.definition` and the solver's
    own parameters, whose values come from options, settings and `--solver-arg K=V`. It returns the final Verdict,
    unless a handle that its suite opened makes the verdict. The decorator `solver` makes one; calling it calls the
    function.
    """

    function: Callable[P, Coroutine[Any, Any, R]]
    """The async function itself. It reaches the world only through its handles, so that it can be replayed."""

    options: type | None = None
    """A frozen dataclass of options, see `koderz.settings.options`: flags, variables and keys of koderz.toml wherever
    the solver is chosen. Its fields are handed to the parameters of the same names."""

    roles: tuple[str, ...] | None = None
    """Roles of the models that it may ask besides the one that answers, `("critic",)`. `--role` accepts these alone,
    and where it is None any role."""

    asks: bool = True
    """Whether it asks a model at all. Where it doesn't, an arm's model is only what the arm is about."""

    estimate: Estimate | None = None
    """Calls that one experiment may take, for `--dry-run` and estimates of the cost. None counts as one call."""

    at_hand: AtHand = nothing_at_hand
    """Values of parameters that are no options but known before the run begins, such as what a cache holds.

    It is called once where a run is planned; what it returns is on record and used again on resume. The first argument
    holds all options by name, and as `given` the names of those that the user has set. A KoderzError that it raises
    ends the command."""

    prompts: Mapping[str, Sequence[str]] | None = None
    """Names of the prompts that it renders, by the role or handle that they are for: `{"main": ["feedback"]}`. A run
    records these and no others, and a changed one stops `resume`. None stands for every prompt."""

    restarts: bool = False
    """Whether an interrupted experiment starts over instead of being replayed, as an external agent has to. Recorded
    replies answer it for as long as its requests match."""

    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Values that a parameter may have, by parameter, where these are few words."""

    version: int = 1
    """The version of what it does. It is on record, and raised where the same parameters come to other requests."""

    earlier: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Parameters by which it does what it did in an earlier version, by version. Old runs resume with these."""

    differs: str = ""
    """How it differs from the published method of its name: a text for the record of a run and for its report."""

    parts: tuple[str, ...] = ()
    """Keys that the summaries of its runs have besides, each a `Part` (see `tracker.parts`)."""

    sinks: tuple[str, ...] = ()
    """Sinks that its runs are recorded into beside those that the user chooses."""

    def __post_init__(self) -> None:
        """Let inspect, help() and editors see the function's own signature and docstring."""
        vars(self).update(__wrapped__=self.function, __doc__=inspect.getdoc(self.function))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function, as its author's tests do."""
        return self.function(*args, **kwargs)

    @classmethod
    def of(cls, found: object, name: str) -> Solver[..., Any]:
        """A Solver of the object that was loaded under a name.

        An undecorated function has the defaults, and where it has attributes that are called like fields, or `resume`,
        as was the way before there was the decorator, their values. Raises KoderzError for anything else.
        """
        if isinstance(found, Solver):
            return found
        if isinstance(found, partial) and isinstance(found.func, Solver):
            return replace(
                found.func, function=partial(found.func.function, *found.args, **found.keywords)
            )
        if not callable(found) or not inspect.iscoroutinefunction(found):
            raise KoderzError(f"the solver {name} is no async function")
        own = vars(found)
        declared = {each.name: own[each.name] for each in fields(Solver) if each.name in own}
        if "resume" in own:
            declared["restarts"] = own["resume"] == "restart"
        return Solver(**{**declared, "function": found})

    @cached_property
    def signature(self) -> Mapping[str, inspect.Parameter]:
        """The parameters of the function by name: handles, and those of its own."""
        return inspect.signature(self.function).parameters

    @cached_property
    def wants(self) -> frozenset[str]:
        """The handles that its signature names."""
        return HANDLES & set(self.signature)

    @property
    def asks_once(self) -> bool:
        """Whether it says that it asks once, and works with nothing but the reply."""
        return self.estimate is asks_once and not self.restarts and not self.wants & NEEDED

    @property
    def about(self) -> dict[str, Any]:
        """Its entry in the record of a plan: the version, and the difference from the method of its name."""
        return ({"version": self.version} if self.version > 1 else {}) | (
            {"differs": self.differs} if self.differs else {}
        )

    def requires(self, handle: str) -> bool:
        """Whether its signature names the handle and has no default for it."""
        parameter = self.signature.get(handle)
        return parameter is not None and parameter.default is parameter.empty

    def has_role(self, role: str) -> bool:
        """Whether it may ask a model in that role besides the one that answers."""
        return self.roles is None or role in self.roles

    def rendered(self, known: Prompts, takers: Collection[str]) -> Collection[str]:
        """The names of the `known` prompts that it may render for these roles and handles."""
        if "prompts" not in self.wants:
            return ()
        names = {MAIN: tuple(known.texts)} if self.prompts is None else self.prompts
        return [name for taker in takers for name in names.get(taker, ())]


def solver(
    *,
    options: type | None = None,
    roles: tuple[str, ...] | None = None,
    asks: bool = True,
    estimate: Estimate | None = None,
    at_hand: AtHand = nothing_at_hand,
    prompts: Mapping[str, Sequence[str]] | None = None,
    restarts: bool = False,
    choices: Mapping[str, Sequence[str]] | None = None,
    version: int = 1,
    earlier: Mapping[int, Mapping[str, Any]] | None = None,
    differs: str = "",
    parts: tuple[str, ...] = (),
    sinks: tuple[str, ...] = (),
    **misspelt: Never,
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Solver[P, R]]:
    """Decorator that makes a `Solver` of an async function. Its arguments are the fields of `Solver`.

    Raises KoderzError for a misspelt argument, with the one that it resembles.
    """
    require_known("Solver", misspelt, [each.name for each in fields(Solver)[1:]])

    def declared(function: Callable[P, Coroutine[Any, Any, R]]) -> Solver[P, R]:
        return Solver(
            function,
            options=options,
            roles=roles,
            asks=asks,
            estimate=estimate,
            at_hand=at_hand,
            prompts=prompts,
            restarts=restarts,
            choices=choices or {},
            version=version,
            earlier=earlier or {},
            differs=differs,
            parts=parts,
            sinks=sinks,
        )

    return declared


SHARING = frozenset({"session", "workspace"})
"""The handles that a suite opens with what it has opened for the whole run."""

OPENED = SHARING | {"long_context", "evaluator"}
"""The handles that a suite opens for tasks that need them."""

NEEDED = OPENED | {EXCLUSIVE}
"""The handles that are handed only where a task needs them."""

HANDLES = NEEDED | {"task", "ask", "judge", "grade", "once", "rng", "prompts", "recall", "models"}
"""Every name by which a solver's signature may ask for a handle."""

Rerun = bool | Callable[[Any], Any]
"""Whether `once` runs its function in a replay too; or a function to run instead, given the recorded value."""


class AskHandle(Protocol):
    """Asks a model, see `Handles.ask`."""

    async def __call__(
        self,
        messages: Sequence[Message],
        model: str | None = None,
        purpose: str = "attempt",
        *,
        depth: int = 0,
        parent: int | None = None,
        known_by: str = "",
        **sampling: Any,
    ) -> Reply: ...


class JudgeHandle(Protocol):
    """Judges an answer, see `Handles.judge`."""

    async def __call__(self, task: Task, answer: Reply | str) -> Verdict: ...


class GradeHandle(Protocol):
    """Records the score of one of many items, see `Handles.grade`."""

    async def __call__(self, item: str, score: float, **metrics: float | str) -> float: ...


class ExclusiveHandle(Protocol):
    """Reserves the machine: within `async with exclusive() as core`, nothing else is measured on it.

    `core` is the one that koderz keeps off, to be given to what is measured; None where the machine has but one.
    """

    def __call__(self) -> AbstractAsyncContextManager[int | None]: ...


class OnceHandle(Protocol):
    """Makes a result that can't be made again, and records it, see `Handles.once`."""

    async def __call__(self, name: str, fn: Callable[[], Any], *, rerun: Rerun = False) -> Any: ...


class LongText(Protocol):
    """A text and a question about it."""

    @property
    def context(self) -> str: ...

    @property
    def question(self) -> str: ...


class LongContextHandle(Protocol):
    """The text that a task is about, made on first use and dropped when the experiment ends."""

    async def read(self) -> LongText:
        """The text itself."""
        ...

    async def facts(self) -> dict[str, Any]:
        """Facts for the record: `digest`, `characters`, `tokens` that the benchmark itself sends, `tokenizer`, …"""
        ...

    def part(self, of: str = "context", start: int = 0, end: int | None = None) -> dict[str, Any]:
        """A message part that stands for characters of the `context`, the `question` or the whole `input`.

        It is recorded as it is; the text takes its place when the message is sent.
        """
        ...


class WorkspaceHandle(Protocol):
    """A repository to work in. All work is recorded; a replay returns the records without doing it again.

    The results hold `output` and `status`, 0 where it went well, and `cause`, the limit that a command was ended for.
    """

    message: str
    """The agent's last message, which its solver says here for a judge of expectations."""

    @property
    def workdir(self) -> str:
        """The path of the repository as commands see it."""
        ...

    @property
    def seconds_left(self) -> float:
        """The seconds that the agent has left."""
        ...

    @property
    def additions(self) -> Sequence[Any]:
        """Skills, servers and texts that the agent is given beyond its task; `mounted` has their paths for commands."""
        ...

    async def shell(self, line: str, seconds: float = 600.0) -> dict[str, Any]:
        """Runs a line in bash."""
        ...

    def tools(self) -> AbstractAsyncContextManager[Mapping[str, Mapping[str, Any]]]:
        """The tools of MCP servers among the additions, as functions that a model is offered, by name."""
        ...

    async def call(
        self, tool: str, arguments: Mapping[str, Any], seconds: float = 600.0
    ) -> dict[str, Any]:
        """Calls one of these tools while their context is open."""
        ...

    async def edit(self, path: str, old: str, new: str) -> dict[str, Any]:
        """Replaces the only occurrence of `old` in a file; with no `old`, writes the file."""
        ...

    async def agent(self, launch: Callable[[], Launch]) -> dict[str, Any]:
        """Runs an agent until its time is up. Raises the fault that left it without answers.

        Its result also has `reused`, the replies that were on record, and what its bridge tells.
        """
        ...

    async def solve(self) -> dict[str, Any]:
        """Applies the task's own solution. Raises Fault if there is none."""
        ...

    async def begin(self, stage: Any) -> dict[str, Any]:
        """Prepares a step of the task, on which the agent works from then on; `wrong` says why it can't be begun."""
        ...

    async def diff(self) -> dict[str, Any]:
        """The changes so far: `{diff, too_large}`, and the `error` if no diff can be taken."""
        ...


class RecallHandle(Protocol):
    """Looks up lessons: short texts, none if memory is off or has none."""

    async def __call__(self, verdict: Verdict) -> Sequence[str]: ...


async def no_recall(verdict: Verdict) -> Sequence[str]:  # noqa: ARG001 it is a RecallHandle
    """Returns no lessons and records nothing; used if memory is off."""
    return ()
