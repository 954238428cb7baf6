"""Parts of lines of the journal: the basis of a plan, how its run stops, and what other lines are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from koderz_tracker.errors import JournalError

T = TypeVar("T")


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
    untrusted_models: Sequence[str] = ()  # the same, of models
    memory: MemoryMoment | None = None  # None: no store is looked at
    documents: Mapping[str, Mapping[str, Any]] = {}  # by the name under which a system has the document's class
    key_variables: Sequence[str] = ()  # that hold keys of the models' providers


class UntilDecided(Struct, frozen=True, kw_only=True):
    """The way in which a run stops once its arms are told apart, see `tracker.stopping`."""

    arm: str  # with which each other arm is compared
    order: Sequence[str]  # the tasks as they are asked and counted, those of a cluster together
    alpha: float = 0.05  # of all comparisons together
    margin: float | None = None  # points of rates, else the measure's unit; None: nothing is called similar
    fewest: int = 6  # tasks before anything is claimed
    measure: str = "success"
    largest: int = 0  # tasks of the largest cluster; 0: each task stands alone, or the run is too old to tell
    samples: Mapping[str, Mapping[str, int]] = {}  # in a summary, by arm and task; empty: each arm asks each task once


class Blob(Struct, frozen=True):
    """A reference to a text or to bytes that lie compressed in `blobs/`, or that are private and so encrypted."""

    blob: str = ""  # SHA-256, hex; empty: what it stands for is in `data`
    bytes: int = 0  # of the text in UTF-8
    binary: bool = False  # no text
    data: str = ""  # in base64: what is private; what is binary, on its way to or from where it is stored
    private: str = ""  # of what is encrypted, the SHA-256 as it was

    def __str__(self) -> str:
        return f"[private {self.private[:12]}]" if self.private else f"[{self.bytes} bytes]"


class Use(Struct, frozen=True, gc=False):
    """Totals of the calls of one role."""

    calls: int
    tokens_in: int
    tokens_out: int


class Frame(Struct, frozen=True):
    """A line of user code in the traceback of an error."""

    file: str
    line: int
    function: str
    source: str = ""  # the line's text


def converted(value: Any, kind: type[T]) -> T:
    """Details as a type. Raises JournalError where they are of another."""
    try:
        return msgspec.convert(value, kind, from_attributes=True)
    except msgspec.ValidationError as error:
        raise JournalError(f"the plan's details can't be read: {error}") from None
