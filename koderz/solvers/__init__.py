"""How a model works on a task.

A solver is an async function. It is handed by name what its signature names: `task`, `ask`, `judge`, `grade`,
`once`, `rng`, `prompts`, `recall` and `models`, and where its task needs them `session`, `workspace`,
`long_context`, `evaluator` and `exclusive`; every other parameter comes from the settings (or `--solver-arg k=v`). It
returns the final Verdict, unless one of its handles has the last word.

What else there is to know of one stands in attributes of the function: `resume = "restart"` where it can't be
replayed and starts over (recorded replies answer it for as long as its requests match), `roles` that it asks besides
the model that answers (without them: any that is named), `asks = False` where it asks no model, and the one that its
arm names is only what it is about, `estimate`, which says what calls an experiment may take,
`at_hand`, which finds what is known before a run, `prompts`, the names of those that it renders, by the role or handle
that it does so with (without them: any), and `options`, the dataclass of its options (see
`koderz.settings.options`), whose fields are parameters of the same names.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.prompts import Prompts
from koderz.settings.registry import Registry, find_in_file
from koderz.solvers.zero_shot import asks_once
from koderz.types import EXCLUSIVE, MAIN, Expected, Task, Verdict

SOLVERS = Registry(
    "solver",
    "solvers",
    {
        "zero-shot": "koderz.solvers.zero_shot:zero_shot",
        "iterative": "koderz.solvers.iterative:iterative",
        "direct": "koderz.solvers.direct:direct",
        "compaction": "koderz.solvers.compaction:compaction",
    },
    {"solver.iterative": "koderz.solvers.iterative:IterativeOptions"},
)

SHARING = frozenset({"session", "workspace"})
"""The handles that a suite opens with what it has opened for the whole run."""

OPENED = SHARING | {"long_context", "evaluator"}
"""The handles that a suite opens for tasks that need them."""

NEEDED = OPENED | {EXCLUSIVE}
"""The handles that are handed only where a task needs them."""

HANDLES = NEEDED | {"task", "ask", "judge", "grade", "once", "rng", "prompts", "recall", "models"}

SolverFunction = Callable[..., Awaitable[Verdict]]


@dataclass(frozen=True, slots=True)
class Solver:
    """A solver with its parameters settled."""

    name: str
    function: SolverFunction
    wants: frozenset[str]  # the handles that its signature names
    parameters: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""  # of its source
    source: str = ""  # FILE:NAME of a user's own
    is_foreign: bool = False  # not one of koderz' own, whose source changes with every version

    @property
    def restarts(self) -> bool:
        """Whether it starts over instead of being replayed."""
        return getattr(self.function, "resume", "replay") == "restart"

    @property
    def asks(self) -> bool:
        """Whether it asks a model at all."""
        return getattr(self.function, "asks", True)

    @property
    def asks_once(self) -> bool:
        """Whether it says that it asks once, and works with nothing but the reply."""
        return getattr(self.function, "estimate", None) is asks_once and not self.restarts and not self.wants & NEEDED

    def requires(self, handle: str) -> bool:
        """Whether its signature names the handle and has no default for it."""
        parameter = inspect.signature(self.function).parameters.get(handle)
        return parameter is not None and parameter.default is parameter.empty

    @property
    def about(self) -> dict[str, Any]:
        """What the record of a plan says of it: its version, and what it differs in from the original of its name."""
        return {name: getattr(self.function, name) for name in ("version", "differs") if hasattr(self.function, name)}

    def earlier(self, version: int) -> Mapping[str, Any]:
        """Parameters by which it does what it did in an earlier version."""
        known: Mapping[int, Mapping[str, Any]] = getattr(self.function, "earlier", {})
        return known.get(version, {})

    def has_role(self, role: str) -> bool:
        """Whether it may ask a model in that role besides the one that answers; one that doesn't say asks any."""
        roles: Collection[str] | None = getattr(self.function, "roles", None)
        return roles is None or role in roles

    def prompts(self, known: Prompts, taken: Collection[str]) -> Collection[str]:
        """Those among the `known` prompts that it may render with these roles and handles."""
        if "prompts" not in self.wants:
            return ()
        names: Mapping[str, Sequence[str]] = getattr(self.function, "prompts", {MAIN: tuple(known.texts)})
        return [name for taker in taken for name in names.get(taker, ())]

    def expected(self, prompt_tokens: float, task_id: str) -> Sequence[Expected]:
        """The calls of one experiment. One that doesn't say is taken for one that asks once."""
        estimate = getattr(self.function, "estimate", asks_once)
        calls: Sequence[Expected] = estimate(prompt_tokens, task_id, self.parameters)
        return calls

    def at_hand(self, options: Mapping[str, Any], tasks: Sequence[Task], prompts: Prompts) -> Mapping[str, Any]:
        """Values of parameters that are no options but known before the run begins, such as what a cache holds.

        `options` by name, and as `given` the names of those that somebody has given.
        """
        find: Callable[..., Mapping[str, Any]] = getattr(self.function, "at_hand", lambda *_: {})
        return find(options, tasks, prompts)

    def settled(self, settings: Mapping[str, Any], arguments: Mapping[str, str]) -> Solver:
        """The same with its parameters settled anew; nothing is loaded. Raises KoderzError as `load_solver` does."""
        wanted = inspect.signature(self.function).parameters
        parameters = {key: settings[key] for key in wanted if key in settings and key not in HANDLES}
        for key, text in arguments.items():
            if key not in wanted or key in HANDLES:
                known = ", ".join(sorted(set(wanted) - HANDLES)) or "none"
                raise KoderzError(f"--solver-arg {key}: {self.name} has no such parameter; it has {known}")
            parameters[key] = _read_as(wanted[key].default, settings.get(key), key, text)
        _require_all(self.name, wanted, parameters)
        return replace(self, parameters=parameters)

    def __call__(self, handles: Any, **others: Any) -> Awaitable[Verdict]:
        """Runs it on the attributes of `handles`, or on `others`, that its signature names."""
        wanted = {
            name: others[name] if name in others else getattr(handles, name)
            for name in self.wants
            if name in others or name not in NEEDED
        }
        return self.function(**wanted, **self.parameters)


def load_solver(name: str, settings: Mapping[str, Any], arguments: Mapping[str, str]) -> Solver:
    """A solver by its name, or by `FILE:NAME`.

    `settings` are offered to its parameters by name; `arguments` must each be one of them, and are read
    as the type of the parameter's default. Raises KoderzError where there is no such solver or parameter.
    """
    in_file = SOLVERS.is_file(name)
    function: SolverFunction = find_in_file("--solver", name) if in_file else SOLVERS.find(name)
    if not inspect.iscoroutinefunction(function):
        raise KoderzError(f"the solver {name} is no async function")
    solver = Solver(
        name.rpartition(":")[2].replace("_", "-") if in_file else name,
        function,
        HANDLES & set(inspect.signature(function).parameters),
        digest=_source_digest(function),
        source=name if in_file else "",
        is_foreign=name not in SOLVERS,
    )
    return solver.settled(settings, arguments)


def _require_all(label: str, wanted: Mapping[str, inspect.Parameter], given: Mapping[str, Any]) -> None:
    for key, parameter in wanted.items():
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise KoderzError(f"the solver {label} takes {key} by position only; take away the / in its signature")
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise KoderzError(f"the solver {label} takes *{key}; name the parameters, so that they can be given")
        if key not in HANDLES and key not in given and parameter.default is parameter.empty:
            raise KoderzError(f"the solver {label} needs --solver-arg {key}=…")


def _read_as(default: Any, setting: Any, key: str, text: str) -> Any:
    """The text as the type of the parameter's default, else of the setting of its name, else as it is."""
    if default in (None, inspect.Parameter.empty):
        default = setting
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise KoderzError(f"--solver-arg {key}={text}: true or false")
        return text.lower() == "true"
    if isinstance(default, int | float):
        try:
            return type(default)(text)
        except ValueError:
            raise KoderzError(f"--solver-arg {key}={text}: not a number") from None
    return text


def _source_digest(function: SolverFunction) -> str:
    file = inspect.getsourcefile(getattr(function, "func", function))  # of a partial, what it completes
    data = Path(file).read_bytes() if file else b""
    return hashlib.sha256(data).hexdigest()[:16]
