"""Systems: what belongs to one kind of benchmark, each named by one value, of koderz or of another package.

A system adds suites, solvers and whatever else only its own runs need. Its value, a `System`, names all of it as
`module:attribute`, so that nothing is imported before it is used. koderz' own lie in `koderz.systems`; those of other
packages are entry points of the group `koderz.systems`, and may add the same.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from koderz_tracker.registry import find, names_of_others, require_known, systems_of_others

OWN = (
    *("code", "questions", "long_context", "optimizers", "rollouts", "patches", "serving"),
    *("rewards", "modal", "publishing", "reports", "memory", "workspaces"),
)
"""Folders of `koderz.systems`, in the order in which lists and help show what they add."""

Named = Mapping[str, str]
"""Names and the `module:attribute` that each stands for."""


@runtime_checkable
class Optioned(Protocol):
    """An extension that may have options of its own."""

    @property
    def options(self) -> type | None:
        """The frozen dataclass of its options; None if it has none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class System:
    """Everything that one system adds to koderz, by name."""

    name: str

    suites: Named = field(default_factory=dict)
    """Classes of `koderz.extend.Suite`, by the name that `--suite` takes."""

    solvers: Named = field(default_factory=dict)
    """Solvers, by the name that `--solver` takes.

    A name that ends in `*` stands for all that begin so: it names a function of the rest, which returns a solver.
    """

    models: Named = field(default_factory=dict)
    """Classes of `koderz.extend.Provider`, by the word before the slash in `--model`."""

    engines: Named = field(default_factory=dict)
    """Classes of `koderz.extend.Engine`, by the name that `--engine` takes."""

    sandboxes: Named = field(default_factory=dict)
    """Classes of `koderz.extend.Sandbox`, by the name that `--sandbox` takes."""

    sinks: Named = field(default_factory=dict)
    """Classes of `koderz.extend.Sink`, by the name that `--sink` takes."""

    options: Named = field(default_factory=dict)
    """Dataclasses of options, by kind and name as koderz.toml has them: `suite.ruler`, `solver.rlm`.

    They are named here, so that help and settings need not import what takes them.
    """

    commands: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Commands of `koderz`: where each is (a module with a Typer `app`, or `module:function`), and its line of help.

    A name of two words, such as `perf serve-bench`, is a command of a group, which is made where nobody else has it.
    """

    accounts: Named = field(default_factory=dict)
    """How runs are presented while they go on and at their end, by mode: classes of `koderz.cli.session.Account`."""

    comparisons: Named = field(default_factory=dict)
    """How `koderz benchmark compare` compares runs, by mode: functions, see `koderz.analysis.compare`."""

    sections: Named = field(default_factory=dict)
    """Sections of what is shown of a run, by parts of its summary: functions, see `koderz.analysis.sections`."""

    summaries: Named = field(default_factory=dict)
    """Parts of a run's summary, by their keys: instances of `tracker.parts.Part`."""

    documents: Named = field(default_factory=dict)
    """Files of a run's own, by kind: classes of `koderz.runs.sinks.Document`."""

    formats: Named = field(default_factory=dict)
    """Export formats, by the name that `--format` takes: functions, see `koderz.analysis.export`."""

    logs: Named = field(default_factory=dict)
    """Logs of other tools: functions of a path that return its reader, or None, see `koderz.analysis.logs`."""

    tasksets: Named = field(default_factory=dict)
    """Packages of a suite for trainers, by the name that `koderz suites export --format` takes.

    Functions of the suite and the folder, which yield each file that they write with its number of tasks.
    """

    checks: Named = field(default_factory=dict)
    """What `koderz doctor` looks at: async functions of the environment that return Findings."""

    agents: Named = field(default_factory=dict)
    """Command lines of coding agents: values of `koderz.systems.rollouts.agents.adapters.Adapter`."""

    loads: Named = field(default_factory=dict)
    """Loads for servers that suites start themselves: subclasses of `koderz.suites.loads.SandboxedLoad`."""

    workspaces: Named = field(default_factory=dict)
    """Where agents' workspaces are, by the name of the sandbox: functions of the settings that return a Backend."""

    if not TYPE_CHECKING:  # a type checker goes by the fields

        def __new__(cls, *_values: object, **members: object) -> System:
            """Raises KoderzError for a misspelt member, with the one that it resembles."""
            require_known(cls.__name__, members, cls.__dataclass_fields__)
            return super().__new__(cls)

    def names(self, kind: str) -> Named:
        """Everything that the system adds of a kind, which is the name of a member, such as `formats`."""
        found: Named = vars(self).get(kind, {})
        return found


@cache
def own_systems() -> tuple[System, ...]:
    """The systems of koderz itself."""
    found = []
    for name in OWN:
        try:
            found.append(importlib.import_module(f"koderz.systems.{name}").SYSTEM)
        except ModuleNotFoundError as error:
            # koderz may be installed without one
            if error.name not in {f"koderz.systems.{each}" for each in OWN}:
                raise
    return tuple(found)


def own_names(kind: str) -> dict[str, str]:
    """Everything that koderz' own systems add of a kind, such as `formats`."""
    return {name: target for system in own_systems() for name, target in system.names(kind).items()}


def names_of_other_systems(kind: str) -> dict[str, str]:
    """Everything that the systems of other packages add of a kind."""
    return {
        name: target
        for system in systems_of_others()
        for name, target in system.names(kind).items()
    }


def names_of(kind: str) -> list[str]:
    """The names of everything that systems, or entry points of other packages, add of a kind; koderz' own first."""
    own = own_names(kind)
    return [*own, *sorted(names_of_others(f"koderz.{kind}") - own.keys())]


def required(kind: str, name: str) -> Any:
    """The thing of a kind, such as `formats`, that a system or an entry point adds under a name.

    Raises KoderzError where none does, or where it can't be loaded.
    """
    return find(kind.removesuffix("s"), name, own_names(kind), f"koderz.{kind}")


def added(kind: str, name: str) -> Any:
    """The same, or None if none adds it. Raises KoderzError where it can't be loaded."""
    return (
        required(kind, name)
        if name in own_names(kind) or name in names_of_others(f"koderz.{kind}")
        else None
    )
