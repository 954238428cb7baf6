"""Details of a plan that belong to no suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct


class SolverAbout(Struct, frozen=True):
    """A plan's record of a solver besides its digest."""

    version: int = 1
    differs: str = ""  # from the original of its name; empty: unknown


class MemoryMoment(Struct, frozen=True):
    """The state of the memory store from which a run recalls lessons."""

    last_id: int
    time: str


class Basis(Struct, frozen=True):
    """The entries of a plan's `details` that belong to no suite."""

    digest: str = ""  # of everything that decides on the results
    matches: Mapping[str, Mapping[str, str]] = {}  # digests that a resumed run has to find again, by kind and name
    prompts: Mapping[str, str] = {}  # templates by name
    expectations: Mapping[str, Mapping[str, Any]] = {}  # by task, under MLflow's names
    judge: Mapping[str, Any] = {}  # about the model that judges
    solvers: Mapping[str, SolverAbout] = {}
    solver_arguments: Mapping[str, Any] = {}
    at_hand: Mapping[str, Any] = {}
    prices: Mapping[str, Sequence[Any]] = {}  # by model: US dollars a million tokens, in and out, and tiers
    base_url_trusted: bool = True
    untrusted_roles: Sequence[str] = ()  # whose own addresses came from koderz.toml, so that no key goes there
    memory: MemoryMoment | None = None  # None: no store is looked at
    documents: Mapping[str, Mapping[str, Any]] = {}  # by the name under which a system has the document's class
    key_variables: Sequence[str] = ()  # that hold keys of the models' providers
