"""The types of all records in a journal: a JSON object a line, whose fields only grow; `kind` and `time` lead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache, cached_property
from typing import Any, ClassVar, Literal, TypeVar, get_args

import msgspec
import orjson
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from koderz_tracker.basis import Basis as Basis
from koderz_tracker.basis import Blob as Blob
from koderz_tracker.basis import Frame as Frame
from koderz_tracker.basis import MemoryMoment as MemoryMoment
from koderz_tracker.basis import SolverAbout as SolverAbout
from koderz_tracker.basis import UntilDecided as UntilDecided
from koderz_tracker.basis import Use as Use
from koderz_tracker.basis import converted
from koderz_tracker.causes import cause_of
from koderz_tracker.errors import JournalError
from koderz_tracker.measures import PASSES as PASSES
from koderz_tracker.measures import Headline as Headline
from koderz_tracker.measures import Measure as Measure

SCHEMA_VERSION = 1

T = TypeVar("T")


def now() -> str:
    """Local time in ISO 8601 with microseconds, without an offset: the form of every recorded time."""
    return datetime.now().isoformat(timespec="microseconds")


Text = str | Blob


class Arm(Struct, frozen=True, kw_only=True):
    """A solver, the models in its roles and its parameters: the unit that is compared with other arms."""

    name: str
    solver: str
    models: dict[str, str] = {}  # by role: "main" answers, others help
    parameters: dict[str, Any] = {}  # those that were given to this arm alone
    source: str = ""  # FILE:NAME of a user's own solver
    baseline: str = ""  # the arm that it is compared with; empty: the run's first
    settings: dict[str, str | None] | None = None  # of its suite, as they may be shown; None: those of all arms
    simulated: bool = False  # it asks the simulated model; older plans say so of the run alone

    @property
    def title(self) -> str:
        """The arm's name, without the model where that stands behind it to tell several arms apart."""
        return self.name.removesuffix(f" · {self.models['main']}") if self.models.get("main") else self.name


class Cell(Struct, frozen=True):
    """One task in one arm, with a number of samples."""

    task: str
    arm: str
    samples: int
    names: Sequence[str] = ()  # what each sample goes by where it was somebody's; empty: none has a name


class Line(Struct, frozen=True, kw_only=True):
    """The first fields of every journal line: its kind, and when it was written."""

    kind: ClassVar[str]
    time: str = field(default_factory=now)


class OfExperiment(Line, frozen=True, kw_only=True):
    """A line about one experiment."""

    experiment_id: str


class OfTask(OfExperiment, frozen=True, kw_only=True):
    """A line about one experiment that also names its task and arm."""

    problem_id: str
    solver: str
    arm: str


class Plan(Line, frozen=True, kw_only=True, dict=True):
    """The first line of a journal: everything that the run will do."""

    kind: ClassVar[Literal["plan"]] = "plan"
    schema_version: int = SCHEMA_VERSION
    run_id: str | None  # None: a single experiment
    mode: str
    arms: Sequence[Arm]
    tasks: Sequence[str]  # ids, in the order of the run
    samples: int  # the most that any cell has
    cells: Sequence[Cell] | None = None  # None: each task in each arm, with `samples`
    config: dict[str, Any]  # the settings as users know them: `config` of the summary
    environment: dict[str, Any]
    simulated: bool = False  # every arm that asks a model asks the simulated one; in older plans, any of them
    generated: str = ""  # what made-up tasks go by: their figures don't belong beside those of published ones
    details: dict[str, Any] = {}  # what the runner needs to pick the run up again; see `basis` and `suite_details`
    measures: Sequence[Measure] = ()  # as the suite declares them
    parts: Sequence[str] = ()  # of the summary, that the suite or a solver owns; see tracker.parts
    groups: Mapping[str, Sequence[str]] = {}  # by what results are broken down: a value for each of the tasks
    clusters: Sequence[str] = ()  # for each of the tasks, what it shares with others; empty: no task shares anything
    headline: Headline | None = None  # as the suite declares it; None: whether experiments passed
    compared: Sequence[str] = ()  # the arms whose comparison the summary has; empty: zero-shot and iterative
    apart: Sequence[str] = ()  # the tasks whose results stand apart from all figures, see `tracker.parts`
    together: Sequence[str] = ()  # ids of the runs that were planned together, its own among them; empty: it is alone
    rewarded_in: Sequence[str] = ()  # the journals of rewards in whose tasks this run's are
    until_decided: UntilDecided | None = None  # None: all that is planned is asked

    @cached_property
    def basis(self) -> Basis:
        """The entries of `details` that belong to no suite."""
        return converted({name: value for name, value in self.details.items() if value is not None}, Basis)

    def suite_details(self, kind: type[T]) -> T:
        """The suite's own entry of `details`, as the type that the suite writes; its defaults if there is none."""
        return converted(self.details.get("suite") or {}, kind)

    def document(self, name: str, kind: type[T]) -> T:
        """A document's entry of `details`, as the type that its system writes; its defaults if there is none."""
        return converted(self.basis.documents.get(name, {}), kind)

    @property
    def planned(self) -> int:
        """The number of planned experiments."""
        if self.cells is not None:
            return sum(cell.samples for cell in self.cells)
        return len(self.tasks) * len(self.arms) * self.samples

    @property
    def planned_apart(self) -> int:
        """The number of planned experiments on tasks that stand apart from all figures."""
        if self.cells is not None:
            return sum(cell.samples for cell in self.cells if cell.task in self.apart)
        return len(self.apart) * len(self.arms) * self.samples

    @property
    def suite(self) -> str:
        """The name of the suite, or of the generated data."""
        return self.generated or str(self.config.get("suite") or "tasks")

    def arm(self, name: str) -> Arm:
        """The arm with this name."""
        return next(arm for arm in self.arms if arm.name == name)

    def is_simulated(self, arm: str) -> bool:
        """Whether the arm with this name uses the simulated model. In older plans, whether the whole run does."""
        return self.arm(arm).simulated if any(each.simulated for each in self.arms) else self.simulated

    def model_of(self, arm: str) -> str:
        """The model in the role `main` of the arm with this name."""
        return self.arm(arm).models.get("main") or str(self.config.get("local_model") or "")


class LongMessage(Line, frozen=True, kw_only=True):
    """A message above 4 KB, stored once; calls name it by its digest."""

    kind: ClassVar[Literal["message"]] = "message"
    digest: str
    role: str
    content: Text


class Call(OfExperiment, frozen=True, kw_only=True):
    """One request to a model and its reply, paid for once."""

    kind: ClassVar[Literal["call"]] = "call"
    call: int  # from 1 within the experiment
    purpose: str
    role: str = "main"  # of the model within its arm
    model: str
    messages: Sequence[dict[str, Any]]  # {role, content}, or {role, digest, bytes} of a LongMessage
    reply: Text  # raw and whole
    text: Text | None = None  # the reply without its reasoning; None: the same as `reply`
    reasoning: Text = ""
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_reasoning: int | None = None  # of `tokens_out`, as the server counts them; None: it doesn't tell
    cost: float = 0.0  # US dollars
    cost_known: bool = True
    cost_source: str = ""  # "server", "list", "own", "free" or "unknown"; empty in older lines
    latency: float = 0.0  # seconds
    finish_reason: str = "stop"
    answered_by: str = ""  # the model that the server named
    sampling: dict[str, Any] = {}
    retries: int = 0
    adapted: Sequence[str] = ()
    depth: int = 0  # of a recursion
    parent: int | None = None  # the call that this one was made for
    tool_calls: Sequence[dict[str, Any]] = ()  # of the reply, as chat completions have them
    body: Text = ""  # the server's whole answer, where it was handed on to a client as it is
    items: list[dict[str, Any]] | Blob = []  # of the reply, as the server sent them, to be sent back in later turns
    throttled: int = 0  # tries before that the provider refused for load, as with 429
    key: str = ""  # what the solver asked, as a digest: how a replay finds this line


class Attempt(OfTask, frozen=True, kw_only=True):
    """One answer and its verdict."""

    kind: ClassVar[Literal["attempt"]] = "attempt"
    task_id: str = ""  # of the judged task, where that isn't the experiment's own; in the line only then
    sample: int
    number: int  # from 1 within the experiment
    call: int | None = None  # of the judged reply
    program: Text | None = None
    verdict: str
    cause: str = ""
    feedback: Text = ""  # what the solver was told
    detail: Text = ""  # what people are told
    score: float | None = None
    metrics: dict[str, float] = {}
    sandbox: str = ""  # what contained the program
    artifacts: dict[str, Text] = {}  # what else it left, by name: a diff, a log; bytes lie in a blob
    passes: bool = False  # whether a verdict of the suite's own counts as passed
    facts: dict[str, Any] = {}  # what else its suite tells of it
    key: str = ""

    @property
    def passed(self) -> bool:
        return self.passes or self.verdict == "passed"


class Once(OfExperiment, frozen=True, kw_only=True):
    """A recorded result that can't be repeated, other than a call, an attempt or a grade."""

    kind: ClassVar[Literal["once"]] = "once"
    name: str
    value: Any = None  # a Blob of its JSON, if `in_blob`
    in_blob: bool = False
    key: str = ""


class Grade(OfExperiment, frozen=True, kw_only=True):
    """The score of one item within an experiment."""

    kind: ClassVar[Literal["grade"]] = "grade"
    item: str
    score: float
    metrics: dict[str, float] = {}
    labels: dict[str, str] = {}  # what else there is to say of it, e.g. the split that the item is of
    key: str = ""


class Experiment(OfTask, frozen=True, kw_only=True):
    """The end of a judged experiment."""

    kind: ClassVar[Literal["experiment"]] = "experiment"
    model: str = ""  # that of the role main
    sample: int
    success: bool
    verdict: str
    cause: str = ""
    score: float | None = None
    metrics: dict[str, float] | None = None
    iterations: int = 0  # attempts
    grades: int = 0  # items graded; where the verdict has no score, theirs on average is `score`
    calls: int = 0
    depth: int = 0  # the greatest of its calls, in a recursion
    cost: float = 0.0  # US dollars, of all its calls
    cost_known: bool = True
    cost_by_tier: dict[str, float] | None = None  # None: all of it is local
    baseline_cost: float | None = None  # what the local tokens would have cost on the baseline model
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_reasoning: int | None = None  # of `tokens_out`, as far as servers tell; None: none does
    roles: dict[str, Use] | None = None  # its calls and tokens by role; None: all of them are of main
    latency: float = 0.0  # seconds spent waiting for models
    duration_seconds: float = 0.0  # of the session that ended it
    diverged: bool = False
    note: str = ""
    lesson: str = ""  # what it taught, as its suite tells it: neither a program nor a hidden test is in it
    lesson_cause: str = ""  # of the failure that it is about
    facts: dict[str, Any] = {}  # what else its suite tells of it: keys of their own in the summary's result
    answered_by: dict[str, dict[str, int]] = {}  # calls by the model asked and the other name that the server gave
    truncated: str = ""  # what of the last judged reply its limit cut off: "text", or "reasoning" before any text
    throttled: dict[str, int] = {}  # requests that were refused for load, by provider


class Fault(OfTask, frozen=True, kw_only=True):
    """An experiment that could not be judged."""

    kind: ClassVar[Literal["fault"]] = "fault"
    sample: int
    reason: str
    cause: str = ""  # a word of `tracker.causes`; older lines have none, and are read with one
    cost: float = 0.0  # US dollars already paid
    calls: int = 0
    frames: list[Frame] = []  # in the user's own files, where their code raised an error, the raising line last
    throttled: dict[str, int] = {}  # requests that were refused for load, by provider


class Resumed(Line, frozen=True, kw_only=True):
    """The beginning of a later session."""

    kind: ClassVar[Literal["resumed"]] = "resumed"
    how: str = "resume"  # or "retry", "rescore"
    config: dict[str, Any] = {}  # what differs from the plan's


class Finished(Line, frozen=True, kw_only=True):
    """The orderly end of a session."""

    kind: ClassVar[Literal["finished"]] = "finished"
    status: str  # complete | incomplete | interrupted | stopped | failed
    reason: str = ""


class Submitted(OfExperiment, frozen=True, kw_only=True):
    """The submission of an experiment to a remote engine, which works on it even if this process ends."""

    kind: ClassVar[Literal["submitted"]] = "submitted"
    problem_id: str
    engine: str
    call_id: str  # by which the engine finds it again
    url: str = ""  # where people can look at it


class Compute(OfExperiment, frozen=True, kw_only=True):
    """The machine that an experiment used elsewhere, and its cost."""

    kind: ClassVar[Literal["compute"]] = "compute"
    engine: str
    gpu: str = ""  # its type; empty for none
    seconds: float  # this experiment's share of the time
    cost_per_second: float  # US dollars
    cost: float  # US dollars


class Reward(Line, frozen=True, kw_only=True):
    """The score of one reply by a judge of rewards, in a journal of its own."""

    kind: ClassVar[Literal["reward"]] = "reward"
    id: str
    suite: str  # as the judge was given it
    task: str
    task_digest: str
    step: int | None = None  # of the training
    graded: bool = False  # the share of tests was asked for
    reply: Text
    program: Text | None = None  # that was found in the reply
    reward: float | None  # None: a fault
    verdict: str
    cause: str = ""
    tests_passed: int | None = None
    tests: int | None = None
    fault: dict[str, str] | None = None  # its cause and reason
    tampering: Sequence[str] = ()
    seconds: float = 0.0  # of judging


class JudgeCalibration(Line, frozen=True, kw_only=True):
    """The figures of a judge that is a model, by labels of people; see `koderz.analysis.labels`."""

    kind: ClassVar[Literal["calibration"]] = "calibration"
    digest: str  # of the labels
    arms: dict[str, dict[str, Any]]


class Decision(Line, frozen=True, kw_only=True):
    """The end of a comparison of two arms. Differences are B less A: points for rates, else in the measure's unit."""

    kind: ClassVar[Literal["decision"]] = "decision"
    outcome: Literal["shown", "similar", "futile", "money", "tasks"]
    a: str  # an arm
    b: str
    tasks: int  # that were counted
    planned: int  # tasks
    a_mean: float | None  # over the counted tasks, per cent for rates
    b_mean: float | None
    difference: float | None
    interval: tuple[float, float] | None  # of confidence 1 - alpha, valid at any stop
    interval_method: str
    e_value: float  # against no difference
    alpha: float  # of this comparison
    margin: float | None = None
    measure: str = PASSES
    left_out: dict[str, int] = {}  # pairs, by the arm that could not be judged
    holds: bool = True  # a claim, even if all pairs left out spoke against it
    cost: float = 0.0  # US dollars, of the tasks counted or left out
    cost_saved: float = 0.0  # US dollars, about: what the tasks that are left would have cost
    path: Sequence[tuple[int, float, float, float]] = ()  # tasks, e-value and interval, thinned to 500 points

    @property
    def is_final(self) -> bool:
        """Whether more tasks won't change it; a cap can be raised."""
        return self.outcome != "money"


Record = (
    Plan
    | LongMessage
    | Call
    | Attempt
    | Once
    | Experiment
    | Fault
    | Resumed
    | Finished
    | Submitted
    | Compute
    | Grade
    | Reward
    | JudgeCalibration
    | Decision
)

Keyed = Call | Attempt | Once | Grade
"""A record that a solver received, and that a replay finds by its key."""

KINDS: dict[str, type[Record]] = {kind.kind: kind for kind in get_args(Record)}

_PREFIX = b'{"kind":"'


@cache
def _decoder(kind: str) -> msgspec.json.Decoder[Any] | None:
    """The decoder for a kind of record, made when first needed: making all takes longer than most commands."""
    return msgspec.json.Decoder(KINDS[kind]) if kind in KINDS else None


def encode(record: Record) -> bytes:
    """Encodes a record as one journal line, newline included. Raises JournalError for text that isn't Unicode."""
    try:
        return orjson.dumps(record, default=_fields, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError as error:
        raise JournalError(f"a {record.kind} can't be written down as JSON: {error}") from None


_SELDOM: dict[type[Struct], tuple[str, ...]] = {
    Plan: (
        *("generated", "measures", "parts", "groups", "clusters"),
        *("compared", "apart", "together", "headline", "rewarded_in", "until_decided"),
    ),
    Measure: ("average", "bounds"),
    Cell: ("names",),
    Arm: ("baseline", "settings", "simulated"),
    Call: ("depth", "parent", "tool_calls", "body", "items", "tokens_reasoning", "cost_source", "throttled"),
    UntilDecided: ("margin", "measure"),
    Decision: ("margin", "left_out"),
    Attempt: ("task_id", "artifacts", "passes", "facts"),
    Blob: ("blob", "bytes", "binary", "data", "private"),
    Experiment: (
        "grades",
        "depth",
        "roles",
        "lesson",
        "lesson_cause",
        *("facts", "answered_by", "tokens_reasoning", "truncated", "throttled"),
    ),
    Fault: ("cause", "frames", "throttled"),
    Grade: ("metrics", "labels"),
}
"""Fields that are written only if they differ from their default."""

_SAYING_NONE = frozenset({"settings", "tokens_reasoning"})  # of which an empty value says something, too


def as_dict(struct: Struct) -> dict[str, Any]:
    """All fields of a struct as a dict; for a journal line, `kind` comes first."""
    return {"kind": struct.kind, **asdict(struct)} if isinstance(struct, Line) else asdict(struct)


def _fields(record: Struct) -> dict[str, Any]:
    fields = as_dict(record)
    for name in _SELDOM.get(type(record), ()):
        if fields[name] is None or not (fields[name] or name in _SAYING_NONE):
            del fields[name]
    if isinstance(record, Call) and record.cost_source:  # a line from before there was either has neither
        fields["tokens_reasoning"] = record.tokens_reasoning
    return fields


def kind_of(line: bytes) -> str:
    """The kind of a journal line, found without parsing the rest of it; "" if it is no such line."""
    end = line.find(b'"', len(_PREFIX)) if line.startswith(_PREFIX) else len(_PREFIX)
    return line[len(_PREFIX) : end].decode("ascii", "replace")


def decode(line: bytes) -> Record | None:
    """The record of a line; None for a kind that this version doesn't know.

    Raises JournalError where a known kind has fields of another type.
    """
    decoder = _decoder(kind_of(line))
    if decoder is None:
        return None
    try:
        record: Record = decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise JournalError(f"not a journal line: {error}") from None
    return replace(record, cause=cause_of(record.reason)) if isinstance(record, Fault) and not record.cause else record
