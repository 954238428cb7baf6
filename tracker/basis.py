"""Parts of lines of the journal: kind and time, measures, the basis of a plan, and what other lines are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from koderz_tracker.errors import JournalError

_PREFIX = b'{"kind":"'


class _Other(Struct):
    """The fields that a line of any kind has."""

    kind: str
    time: str


def kind_of(line: bytes) -> str:
    """The kind of a journal line; "" if it is no such line.

    As koderz writes lines, it is found without parsing the rest.
    """
    if line.startswith(_PREFIX):
        return line[len(_PREFIX) : line.find(b'"', len(_PREFIX))].decode("ascii", "replace")
    try:  # another program may have put blanks between, or its keys in another order
        return msgspec.json.decode(line, type=_Other).kind
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def time_of(line: bytes) -> str:
    """The time at which a line was written, for lines of unknown kinds too."""
    return msgspec.json.decode(line, type=_Other).time


T = TypeVar("T")


def now() -> str:
    """Local time in ISO 8601 with microseconds, without an offset: the form of every recorded time."""
    return datetime.now().isoformat(timespec="microseconds")


Whole = Annotated[int, Meta(ge=-(1 << 40), le=1 << 40)]
"""An integer in a record: of millions of them, the sum still fits into 64 bits, beyond which JSON isn't portable."""


class Arm(Struct, frozen=True, kw_only=True):
    """A solver, the models in its roles and its parameters: the unit that is compared with other arms."""

    name: str  # the name that results and reports use
    solver: str  # the name of the solver
    models: dict[str, str] = {}  # by role: "main" answers, others help
    parameters: dict[str, Any] = {}  # parameters of this arm alone
    source: str = ""  # FILE:NAME of a user's own solver
    baseline: str = ""  # the arm that it is compared with; empty: the run's first
    # settings of its suite, secrets replaced; null: the same in all arms
    settings: dict[str, str | None] | None = None
    simulated: bool = False  # whether it asks the simulated model

    @property
    def title(self) -> str:
        """The arm's name, without the model where that stands behind it to tell several arms apart."""
        return (
            self.name.removesuffix(f" · {self.models['main']}")
            if self.models.get("main")
            else self.name
        )


class Cell(Struct, frozen=True):
    """One task in one arm, with a number of samples."""

    task: str  # the id of the task
    arm: str  # the name of the arm
    samples: Whole  # the number of samples
    names: Sequence[str] = ()  # names of the samples, if they had any before


class SolverAbout(Struct, frozen=True):
    """A plan's record of a solver besides its digest."""

    version: Whole = 1
    differs: str = ""  # from the original of its name; empty: unknown


class MemoryMoment(Struct, frozen=True):
    """The state of the memory store from which a run recalls lessons."""

    last_id: Whole
    time: str


class Basis(Struct, frozen=True):
    """The entries of a plan's `details` that belong to no suite."""

    digest: str = ""  # of everything that decides on the results
    # digests that a resumed run has to find again, by kind and name
    matches: Mapping[str, Mapping[str, str]] = {}
    prompts: Mapping[str, str] = {}  # templates by name
    expectations: Mapping[str, Mapping[str, Any]] = {}  # by task, under MLflow's names
    questions: Mapping[str, str] = {}  # by task: the beginning of what it asks, for lists of tasks
    judge: Mapping[str, Any] = {}  # about the model that judges
    solvers: Mapping[str, SolverAbout] = {}
    solver_arguments: Mapping[str, Any] = {}
    at_hand: Mapping[str, Any] = {}
    # by model: US dollars a million tokens, in and out, and tiers
    prices: Mapping[str, Sequence[Any]] = {}
    base_url_trusted: bool = True
    # roles whose own addresses came from koderz.toml, so that no key goes there
    untrusted_roles: Sequence[str] = ()
    untrusted_models: Sequence[str] = ()  # the same, of models
    memory: MemoryMoment | None = None  # None: no store is looked at
    # by the name under which a system has the document's class
    documents: Mapping[str, Mapping[str, Any]] = {}
    key_variables: Sequence[str] = ()  # that hold keys of the models' providers


class UntilDecided(Struct, frozen=True, kw_only=True):
    """The way in which a run stops once its arms are told apart, see `tracker.stopping`."""

    arm: str  # with which each other arm is compared
    order: Sequence[str]  # the tasks as they are asked and counted, those of a cluster together
    alpha: float = 0.05  # of all comparisons together
    # points of rates, else the measure's unit; None: nothing is called similar
    margin: float | None = None
    fewest: Whole = 6  # tasks before anything is claimed
    measure: str = "success"
    # tasks of the largest cluster; 0: each task stands alone, or the run is too old to tell
    largest: Whole = 0
    samples: Mapping[
        str, Mapping[str, Whole]
    ] = {}  # in a summary, by arm and task; empty: each arm asks each task once


class Blob(Struct, frozen=True):
    """A reference to a text or to bytes that lie compressed in `blobs/`, or that are private and so encrypted."""

    blob: str = ""  # SHA-256, hex; empty: what it stands for is in `data`
    bytes: Whole = 0  # of the text in UTF-8
    binary: bool = False  # no text
    # in base64: what is private; what is binary, on its way to or from where it is stored
    data: str = ""
    private: str = ""  # of what is encrypted, the SHA-256 as it was

    def __str__(self) -> str:
        return f"[private {self.private[:12]}]" if self.private else f"[{self.bytes} bytes]"


Text = str | Blob


class Use(Struct, frozen=True, gc=False):
    """Totals of the calls of one role."""

    calls: Whole
    tokens_in: Whole
    tokens_out: Whole


class Reused(Struct, frozen=True):
    """The call of another run whose reply answers a call, so that the model wasn't asked again."""

    run_id: str
    experiment_id: str
    call: Whole  # its number within its experiment
    time: str  # when the model replied


class Frame(Struct, frozen=True):
    """A line of user code in the traceback of an error."""

    file: str
    line: Whole
    function: str
    source: str = ""  # the line's text


class _Settings(Struct):
    """The settings of a plan that readers of any run look at; each may be missing."""

    local_model: str | None = None
    models: Sequence[str] | None = None
    suite: str | None = None
    tags: Sequence[str] | None = None
    engine: str | None = None
    extra_headers: Sequence[str] | None = None


def check_settings(config: Mapping[str, Any]) -> None:
    """Raises msgspec.ValidationError where a setting that readers of any run look at is of another type."""
    msgspec.convert(config, _Settings)
    msgspec.convert(
        {name: each for name, each in config.items() if name.endswith("_url")},
        dict[str, str | None],
    )


def converted(value: Any, kind: type[T]) -> T:
    """Details as a type. Raises JournalError where they are of another."""
    try:
        return msgspec.convert(value, kind, from_attributes=True)
    except msgspec.ValidationError as error:
        raise JournalError(f"the plan's details can't be read: {error}") from None


TIMES = "times"
"""The unit of ratios, whose mean is the geometric one."""


class Measure(Struct, frozen=True):
    """A quantity by which experiments are compared besides success: their score, or a metric by its name."""

    name: str
    direction: Literal["higher", "lower"]  # which is better
    unit: str = ""
    two_valued: bool = False  # only ever 0 or 1
    # empty: geometric of TIMES, else arithmetic
    average: Literal["", "arithmetic", "geometric", "median"] = ""
    # of its values; None: of a share 0 and 1, else unknown
    bounds: tuple[float, float] | None = None

    @property
    def averaged(self) -> str:
        """The kind of average for the measure's values: "arithmetic", "geometric" or "median"."""
        return self.average or ("geometric" if self.unit == TIMES else "arithmetic")


PASSES = "success"
"""The measure `success`, which every run has."""


class Headline(Struct, frozen=True):
    """The figure that stands for an arm in lists and titles, and other settings of its system's runs."""

    measure: str = PASSES  # that, or a measure that the suite declares
    # what is said of experiments that pass; empty: they neither pass nor fail
    passed: str = "passed"
    panels: Sequence[str] | None = None  # of the report; None: all


PASSING = Headline()
"""The headline of runs whose suite declares none."""
