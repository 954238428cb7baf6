"""How a model works on a task.

A solver is an async function. It is handed by name what its signature names: `task`, `ask`, `judge`, `grade`,
`once`, `rng`, `prompts`, `recall` and `models`, and where its task needs them `session`, `workspace`,
`long_context`, `evaluator` and `exclusive`; every other parameter comes from the settings (or `--solver-arg k=v`). It
returns the final Verdict, unless one of its handles has the last word.

Everything else that there is to know of one is declared by the decorator `solver`, see the fields of `Solver`.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError, raised_at
from koderz.settings.registry import Registry, digest_of_file, find_in_file, handed
from koderz.solvers.definition import HANDLES, NEEDED, asks_once
from koderz.solvers.definition import Solver as Solver
from koderz.solvers.definition import solver as solver
from koderz.types import Expected

SOLVERS: Registry[Solver[..., Any]] = Registry(
    "solver",
    "solvers",
    Solver.of,
    {
        "zero-shot": "koderz.solvers.direct:zero_shot",
        "iterative": "koderz.solvers.iterative:iterative",
        "direct": "koderz.solvers.direct:direct",
    },
    {"solver.iterative": "koderz.solvers.iterative:IterativeOptions"},
)


@dataclass(frozen=True)
class SettledSolver(Solver[..., Any]):
    """A solver whose parameters have values, under the name by which it was chosen."""

    name: str = field(kw_only=True)
    """The name that arms, records and screens have."""

    parameters: Mapping[str, Any] = field(kw_only=True, default_factory=dict)
    """Values of its own parameters, by name."""

    digest: str = field(kw_only=True)
    """16 hex digits of the file that defines it."""

    source: str = field(kw_only=True, default="")
    """FILE:NAME of a user's own; empty otherwise."""

    is_foreign: bool = field(kw_only=True, default=False)
    """Whether it isn't one of koderz' own, whose source changes with every version."""

    def expected(self, prompt_tokens: float, task_id: str) -> Sequence[Expected]:
        """The calls of one experiment. Raises KoderzError where the solver's own estimate raises anything."""
        defaults = {
            name: each.default
            for name, each in self.signature.items()
            if each.default is not each.empty
        }
        try:
            return (self.estimate or asks_once)(
                prompt_tokens, task_id, {**defaults, **self.parameters}
            )
        except Exception as error:  # the user's own function may do anything
            what = f"{type(error).__name__}: {error}{raised_at(error)}"
            raise KoderzError(f"the estimate of the solver {self.name} raised {what}") from error

    def settled(self, settings: Mapping[str, Any], arguments: Mapping[str, str]) -> SettledSolver:
        """The same with its parameters settled anew; nothing is loaded. Raises KoderzError as `load_solver` does."""
        wanted = self.signature
        parameters = {
            key: settings[key] for key in wanted if key in settings and key not in HANDLES
        }
        for key, text in arguments.items():
            if key not in wanted or key in HANDLES:
                known = ", ".join(sorted(set(wanted) - HANDLES)) or "none"
                raise KoderzError(
                    f"--solver-arg {key}: {self.name} has no such parameter; it has {known}"
                )
            parameters[key] = _read_as(wanted[key].default, settings.get(key), key, text)
        for key, parameter in wanted.items():
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise KoderzError(
                    f"the solver {self.name} takes {key} by position only; take away the / in its signature"
                )
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise KoderzError(
                    f"the solver {self.name} takes *{key}; name the parameters, so that they can be given"
                )
            if (
                key not in HANDLES
                and key not in parameters
                and parameter.default is parameter.empty
            ):
                raise KoderzError(f"the solver {self.name} needs --solver-arg {key}=…")
        return replace(self, parameters=parameters)

    def run(self, handles: Any, **others: Any) -> Coroutine[Any, Any, Any]:
        """Call the function with the attributes of `handles`, or with the `others`, that its signature names."""
        wanted = {
            name: others[name] if name in others else getattr(handles, name)
            for name in self.wants
            if name in others or name not in NEEDED
        }
        return self.function(**wanted, **self.parameters)


def load_solver(
    name: str, settings: Mapping[str, Any], arguments: Mapping[str, str]
) -> SettledSolver:
    """A solver by its name, or by `FILE:NAME`.

    `settings` are offered to its parameters by name; `arguments` must each be one of them, and are read
    as the type of the parameter's default. Raises KoderzError where there is no such solver or parameter.
    """
    in_file = SOLVERS.is_file(name)
    found = Solver.of(find_in_file("--solver", name), name) if in_file else SOLVERS.load(name)
    declared = {each.name: vars(found)[each.name] for each in fields(Solver)}
    if handed(name):
        digest = digest_of_file(name)
    else:
        function = found.function
        file = inspect.getsourcefile(function.func if isinstance(function, partial) else function)
        digest = hashlib.sha256(Path(file).read_bytes() if file else b"").hexdigest()[:16]
    solver = SettledSolver(
        **declared,
        name=name.rpartition(":")[2].replace("_", "-") if in_file else name,
        digest=digest,
        source=name if in_file else "",
        is_foreign=name not in SOLVERS,
    )
    return solver.settled(settings, arguments)


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
