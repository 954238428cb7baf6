"""The types of all records in a journal: a JSON object a line, whose fields only grow; `kind` and `time` lead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Any, ClassVar, Literal, get_args

import msgspec
import orjson
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from koderz_tracker.basis import PASSES as PASSES
from koderz_tracker.basis import Arm as Arm
from koderz_tracker.basis import Basis as Basis
from koderz_tracker.basis import Blob as Blob
from koderz_tracker.basis import Cell as Cell
from koderz_tracker.basis import Frame as Frame
from koderz_tracker.basis import Headline as Headline
from koderz_tracker.basis import Measure as Measure
from koderz_tracker.basis import MemoryMoment as MemoryMoment
from koderz_tracker.basis import Reused as Reused
from koderz_tracker.basis import SolverAbout as SolverAbout
from koderz_tracker.basis import T, check_settings, converted
from koderz_tracker.basis import Text as Text
from koderz_tracker.basis import UntilDecided as UntilDecided
from koderz_tracker.basis import Use as Use
from koderz_tracker.basis import Whole as Whole
from koderz_tracker.basis import kind_of as kind_of
from koderz_tracker.basis import now as now
from koderz_tracker.basis import time_of as time_of
from koderz_tracker.errors import JournalError, cause_of

SCHEMA_VERSION = 1


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
    schema_version: Whole = SCHEMA_VERSION  # the version of this format
    run_id: str | None  # None: a single experiment
    mode: str  # the mode or the solver
    arms: Sequence[Arm]  # the arms of the run
    tasks: Sequence[str]  # their ids, in the order of the run
    samples: Whole  # the largest number of samples in any cell
    cells: Sequence[Cell] | None = None  # null: each task in each arm, with `samples` samples
    config: dict[str, Any]  # the settings, as in `config` of the summary
    environment: dict[str, Any]  # versions and machine
    simulated: bool = False  # all arms that ask a model ask the simulated one; older plans: any
    generated: str = ""  # the name of the data if koderz made the tasks up
    details: dict[str, Any] = {}  # what is needed to resume the run
    measures: Sequence[Measure] = ()  # the measures that the suite declares
    parts: Sequence[str] = ()  # keys of the summary that the suite or a solver adds
    # properties by which results are broken down: a value for each task
    groups: Mapping[str, Sequence[str]] = {}
    clusters: Sequence[str] = ()  # for each task, what it shares with others; empty: nothing
    # the measure that sums up an arm; null: whether experiments passed
    headline: Headline | None = None
    # the arms that the summary compares; empty: zero-shot and iterative
    compared: Sequence[str] = ()
    apart: Sequence[str] = ()  # the tasks whose results count in no figure
    # ids of the runs that were planned together; empty: this one alone
    together: Sequence[str] = ()
    rewarded_in: Sequence[str] = ()  # journals of a training's rewards that contain its tasks
    until_decided: UntilDecided | None = None  # when it stops; null: everything is asked
    notes: Sequence[str] = ()  # what to know of its tasks or samples wherever its figures are shown
    asked: Sequence[str] = ()  # for each task, a digest of what it asks; empty: unknown

    @cached_property
    def basis(self) -> Basis:
        """The entries of `details` that belong to no suite."""
        return converted(
            {name: value for name, value in self.details.items() if value is not None}, Basis
        )

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
        return (
            self.arm(arm).simulated if any(each.simulated for each in self.arms) else self.simulated
        )

    def model_of(self, arm: str) -> str:
        """The model in the role `main` of the arm with this name."""
        return self.arm(arm).models.get("main") or str(self.config.get("local_model") or "")


class LongMessage(Line, frozen=True, kw_only=True):
    """A message above 4 KB, stored once; calls name it by its digest."""

    kind: ClassVar[Literal["message"]] = "message"
    digest: str  # by which calls refer to it
    role: str  # system, user, assistant or tool
    content: Text  # its text


class Call(OfExperiment, frozen=True, kw_only=True):
    """One request to a model and its reply, paid for once."""

    kind: ClassVar[Literal["call"]] = "call"
    call: Whole  # its number within the experiment, from 1
    purpose: str  # why the solver asked
    role: str = "main"  # the role of the model within its arm
    model: str  # the model that was asked
    # each {role, content}, or {role, digest, bytes} of a long message
    messages: Sequence[dict[str, Any]]
    reply: Text  # the whole reply as received
    text: Text | None = None  # the reply without its reasoning; None: the same as `reply`
    reasoning: Text = ""  # the reasoning, if the server returns it
    tokens_in: Whole = 0  # tokens of the request
    tokens_out: Whole = 0  # tokens of the reply, reasoning included
    # the part of `tokens_out` spent on reasoning; null: the server doesn't tell
    tokens_reasoning: Whole | None = None
    cost: float = 0.0  # US dollars
    cost_known: bool = True  # whether the price is known
    cost_source: str = ""  # "server", "list", "own", "free" or "unknown"; empty in older lines
    latency: float = 0.0  # seconds
    finish_reason: str = "stop"  # why the reply ended, such as "stop" or "length"
    answered_by: str = ""  # the model that the server named
    sampling: dict[str, Any] = {}  # temperature, seed and so on, as sent
    retries: Whole = 0  # failed tries before
    adapted: Sequence[str] = ()  # what was changed for this model, or noticed in its answer
    depth: Whole = 0  # the depth of a recursion
    parent: Whole | None = None  # the call during which this one was made
    tool_calls: Sequence[dict[str, Any]] = ()  # tools that the reply calls, as in chat completions
    body: Text = ""  # the server's whole answer, if it was passed on to a client as it is
    # items of the reply as the server sent them, for later turns
    items: list[dict[str, Any]] | Blob = []
    throttled: Whole = 0  # tries before that were refused because of load, as with 429
    # {id, custom_id} of the batch that it came in, without a latency then
    batch: dict[str, str] | None = None
    key: str = ""  # a digest of what the solver asked, by which a replay finds this line
    # the call of another run whose reply this is; null: the model was asked
    reused: Reused | None = None
    cost_saved: float = 0.0  # US dollars that the reply cost in that run
    # a digest of all that decides a reply, which a later run looks for at the end of the line
    asked: str = ""


class Attempt(OfTask, frozen=True, kw_only=True):
    """One answer and its verdict."""

    kind: ClassVar[Literal["attempt"]] = "attempt"
    task_id: str = ""  # the judged task, if it isn't the experiment's own
    sample: Whole  # the number of the sample, from 0
    number: Whole  # its number within the experiment, from 1
    call: Whole | None = None  # the call whose reply was judged
    program: Text | None = None  # the program that was judged
    verdict: str  # passed, failed, timeout or error, or a word of the suite
    cause: str = ""  # why it failed
    feedback: Text = ""  # what the solver was told
    detail: Text = ""  # the full explanation, for people
    score: float | None = None  # from 0 to 1, if the suite gives one
    metrics: dict[str, float] = {}  # numbers by name
    sandbox: str = ""  # what contained the program
    artifacts: dict[str, Text] = {}  # further texts or bytes that it left, by name
    passes: bool = False  # whether a verdict of the suite's own counts as passed
    facts: dict[str, Any] = {}  # further facts from its suite
    key: str = ""  # a digest by which a replay finds this line

    @property
    def passed(self) -> bool:
        return self.passes or self.verdict == "passed"


class Once(OfExperiment, frozen=True, kw_only=True):
    """A recorded result that can't be repeated, other than a call, an attempt or a grade."""

    kind: ClassVar[Literal["once"]] = "once"
    name: str  # what it is the result of
    value: Any = None  # the result; a reference to its JSON if `in_blob`
    in_blob: bool = False  # whether the value lies in `blobs/`
    key: str = ""  # a digest by which a replay finds this line


class Grade(OfExperiment, frozen=True, kw_only=True):
    """The score of one item within an experiment."""

    kind: ClassVar[Literal["grade"]] = "grade"
    item: str  # the id of the item
    score: float  # from 0 to 1
    metrics: dict[str, float] = {}  # numbers by name
    labels: dict[str, str] = {}  # further words, such as the split of the item
    key: str = ""  # a digest by which a replay finds this line


class Experiment(OfTask, frozen=True, kw_only=True):
    """The end of a judged experiment."""

    kind: ClassVar[Literal["experiment"]] = "experiment"
    model: str = ""  # the model in the role main
    sample: Whole  # the number of the sample, from 0
    success: bool  # whether it passed
    verdict: str  # the verdict on its last attempt
    cause: str = ""  # why it failed
    score: float | None = None  # from 0 to 1, if the suite gives one
    metrics: dict[str, float] | None = None  # numbers by name
    iterations: Whole = 0  # attempts
    # items that were graded; without a score of the verdict, `score` is their mean
    grades: Whole = 0
    calls: Whole = 0  # requests to models
    depth: Whole = 0  # the depth that a recursion reached
    cost: float = 0.0  # US dollars, for all of its calls
    cost_known: bool = True  # whether the price of every call is known
    # US dollars by tier of models; null: all are local
    cost_by_tier: dict[str, float] | None = None
    # what the local tokens would have cost on the baseline model
    baseline_cost: float | None = None
    tokens_in: Whole = 0  # tokens of all requests
    tokens_out: Whole = 0  # tokens of all replies
    # the part of `tokens_out` spent on reasoning; null: no server tells
    tokens_reasoning: Whole | None = None
    roles: dict[str, Use] | None = None  # calls and tokens by role; null: only main was asked
    latency: float = 0.0  # seconds spent waiting for models
    duration_seconds: float = 0.0  # seconds of the session that ended it
    diverged: bool = False  # whether a replay asked something else than the record has
    note: str = ""  # a remark of the solver on how it ended
    lesson: str = ""  # a lesson for later runs, without program or hidden test
    lesson_cause: str = ""  # the cause of the failure that the lesson is about
    facts: dict[str, Any] = {}  # further facts from its suite: keys of the result in the summary
    # calls by the model that was asked and another name that answered
    answered_by: dict[str, dict[str, Whole]] = {}
    # the cut-off part of the last judged reply: "text", or "reasoning" before any text
    truncated: str = ""
    throttled: dict[str, Whole] = {}  # requests that were refused because of load, by provider
    # replies that ended by a word that koderz doesn't know, by the word
    unknown_ends: dict[str, Whole] = {}
    # US dollars that replies of other runs, which answered calls, cost then
    saved_cost: float = 0.0
    reused: dict[str, list[Whole]] = {}  # the numbers of those replies' calls, by RUN/EXPERIMENT


class Fault(OfTask, frozen=True, kw_only=True):
    """An experiment that could not be judged."""

    kind: ClassVar[Literal["fault"]] = "fault"
    sample: Whole  # the number of the sample, from 0
    reason: str  # what happened, for people
    cause: str = ""  # what happened, in one word; absent in older lines
    cost: float = 0.0  # US dollars already paid
    calls: Whole = 0  # requests to models so far
    frames: list[Frame] = []  # lines of your own code that led to the error, the raising one last
    throttled: dict[str, Whole] = {}  # requests that were refused because of load, by provider
    # replies that ended by a word that koderz doesn't know, by the word
    unknown_ends: dict[str, Whole] = {}


class Resumed(Line, frozen=True, kw_only=True):
    """The beginning of a later session."""

    kind: ClassVar[Literal["resumed"]] = "resumed"
    how: str = "resume"  # resume, retry or rescore
    config: dict[str, Any] = {}  # settings that differ from the plan's


class Finished(Line, frozen=True, kw_only=True):
    """The orderly end of a session."""

    kind: ClassVar[Literal["finished"]] = "finished"
    status: str  # complete, incomplete, interrupted, stopped or failed
    reason: str = ""  # why it isn't complete


class Submitted(OfExperiment, frozen=True, kw_only=True):
    """The submission of an experiment to a remote engine, which works on it even if this process ends."""

    kind: ClassVar[Literal["submitted"]] = "submitted"
    problem_id: str  # the task
    engine: str  # the name of the engine
    call_id: str  # the id by which the engine finds it again
    url: str = ""  # where you can look at it


class Compute(OfExperiment, frozen=True, kw_only=True):
    """The machine that an experiment used elsewhere, and its cost."""

    kind: ClassVar[Literal["compute"]] = "compute"
    engine: str  # the name of the engine
    gpu: str = ""  # the type of its GPU; empty: none
    seconds: float  # this experiment's share of the time
    cost_per_second: float  # US dollars
    cost: float  # US dollars


class Reward(Line, frozen=True, kw_only=True):
    """The score of one reply by a judge of rewards, in a journal of its own."""

    kind: ClassVar[Literal["reward"]] = "reward"
    id: str  # its own id
    suite: str  # the suite, as the judge was given it
    task: str  # the id of the task
    task_digest: str  # changes with everything that the verdict depends on
    step: Whole | None = None  # the step of the training
    graded: bool = False  # whether the share of tests was asked for
    reply: Text  # the judged reply
    program: Text | None = None  # the program that was found in it
    reward: float | None  # null: a fault
    verdict: str  # passed, failed, timeout or error
    cause: str = ""  # why it failed
    tests_passed: Whole | None = None  # the number of tests that passed
    tests: Whole | None = None  # the number of tests
    fault: dict[str, str] | None = None  # cause and reason of a fault
    tampering: Sequence[str] = ()  # signs of cheating that the judge saw
    seconds: float = 0.0  # the time that judging took


class JudgeCalibration(Line, frozen=True, kw_only=True):
    """The figures of a judge that is a model, by labels of people; see `koderz.systems.publishing.labels`."""

    kind: ClassVar[Literal["calibration"]] = "calibration"
    digest: str  # a digest of the labels
    arms: dict[str, dict[str, Any]]  # the figures by arm


class Decision(Line, frozen=True, kw_only=True):
    """The end of a comparison of two arms. Differences are B less A: points for rates, else in the measure's unit."""

    kind: ClassVar[Literal["decision"]] = "decision"
    # a claim, or why it stopped without one
    outcome: Literal["shown", "similar", "futile", "money", "tasks"]
    a: str  # the first arm
    b: str  # the second arm
    tasks: Whole  # tasks that were counted
    planned: Whole  # tasks that were planned
    a_mean: float | None  # A's mean over the counted tasks, per cent for rates
    b_mean: float | None  # B's mean
    difference: float | None  # B less A
    interval: tuple[float, float] | None  # of confidence 1 - alpha, valid at any stop
    interval_method: str  # how it was computed, or why there is none
    e_value: float  # the evidence against no difference
    alpha: float  # the probability of a false claim, for this comparison
    margin: float | None = None  # the difference below which arms count as similar
    measure: str = PASSES  # the measure that is compared
    left_out: dict[str, Whole] = {}  # pairs that couldn't be judged, by arm
    # the interval whatever those left out are; None: none are
    interval_bounds: tuple[float, float] | None = None
    holds: bool = True  # whether the claim stands even if all pairs left out speak against it
    cost: float = 0.0  # US dollars, for tasks counted or left out
    cost_saved: float = 0.0  # US dollars that the remaining tasks would have cost, estimated
    # tasks, e-value, interval; at most 500 points
    path: Sequence[tuple[Whole, float, float, float]] = ()

    @property
    def is_final(self) -> bool:
        """Whether more tasks won't change it; a cap can be raised."""
        return self.outcome != "money"


class Batch(Line, frozen=True, kw_only=True):
    """A batch of calls: once before it is sent, then again with whatever its provider says of it."""

    kind: ClassVar[Literal["batch"]] = "batch"
    name: str  # a digest of its lines, which the provider keeps as the metadata `koderz_batch`
    # "sending"; then the provider's word, or "lost" if it never arrived, "gone" if its results are
    state: str
    id: str = ""  # the provider's id of it; empty: it may or may not have arrived
    provider: str  # by the word before the slash in names of models
    model: str  # that is asked
    count: Whole  # its calls
    done: Whole = 0  # of these, with a reply
    failed: Whole = 0  # of these, without one
    newest: str = ""  # the newest batch that its provider had before this one was sent
    # of each call its custom id, the digest of its request and its likely US dollars; first line only
    lines: str = ""
    reason: str = ""  # the provider's words if it failed


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
    | Batch
)

Keyed = Call | Attempt | Once | Grade
"""A record that a solver received, and that a replay finds by its key."""

KINDS: dict[str, type[Record]] = {kind.kind: kind for kind in get_args(Record)}


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
        *(
            "compared",
            "apart",
            "together",
            "headline",
            "rewarded_in",
            "until_decided",
            "notes",
            "asked",
        ),
    ),
    Measure: ("average", "bounds"),
    Cell: ("names",),
    Arm: ("baseline", "settings", "simulated"),
    Call: (
        *(
            "depth",
            "parent",
            "tool_calls",
            "body",
            "items",
            "tokens_reasoning",
            "cost_source",
            "throttled",
            "batch",
        ),
        *("reused", "cost_saved", "asked"),
    ),
    Batch: ("id", "done", "failed", "newest", "lines", "reason"),
    UntilDecided: ("margin", "measure"),
    Decision: ("margin", "left_out"),
    Attempt: ("task_id", "artifacts", "passes", "facts"),
    Blob: ("blob", "bytes", "binary", "data", "private"),
    Experiment: (
        *("grades", "depth", "roles", "lesson", "lesson_cause", "facts", "saved_cost"),
        *("answered_by", "tokens_reasoning", "truncated", "throttled", "unknown_ends", "reused"),
    ),
    Fault: ("cause", "frames", "throttled", "unknown_ends"),
    Grade: ("metrics", "labels"),
}
"""Fields that are written only if they differ from their default."""

# fields of which an empty value says something, too
_SAYING_NONE = frozenset({"settings", "tokens_reasoning"})


def as_dict(struct: Struct) -> dict[str, Any]:
    """All fields of a struct as a dict; for a journal line, `kind` comes first."""
    return {"kind": struct.kind, **asdict(struct)} if isinstance(struct, Line) else asdict(struct)


def _fields(record: Struct) -> dict[str, Any]:
    fields = as_dict(record)
    for name in _SELDOM.get(type(record), ()):
        if fields[name] is None or not (fields[name] or name in _SAYING_NONE):
            del fields[name]
    # a line from before there was either has neither
    if isinstance(record, Call) and record.cost_source:
        fields["tokens_reasoning"] = record.tokens_reasoning
    # nobody waited for this one call, and older readers know no null
    if isinstance(record, Call) and record.batch:
        del fields["latency"]
    return fields


def decode(line: bytes) -> Record | None:
    """The record of a line; None for a kind that this version doesn't know.

    Raises JournalError where a known kind has fields of another type.
    """
    decoder = _decoder(kind_of(line))
    if decoder is None:
        return None
    try:
        record: Record = decoder.decode(line)
        # What can't be written again, such as an integer beyond 64 bits, no sink and no export could take.
        orjson.dumps(record, default=as_dict)
        if isinstance(record, Plan):
            check_settings(record.config)
            record.basis  # noqa: B018 what is said of the run is typed, too
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise JournalError(f"not a journal line: {error}") from None
    return (
        replace(record, cause=cause_of(record.reason))
        if isinstance(record, Fault) and not record.cause
        else record
    )
