"""Copies one run into MLflow as far as its journal goes, nothing twice."""

from __future__ import annotations

import hashlib
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

import orjson

from koderz_tracker.errors import KoderzError
from koderz_tracker.journal import NAME
from koderz_tracker.messages import text_of
from koderz_tracker.parts import from_parts
from koderz_tracker.records import (
    Attempt,
    Call,
    Experiment,
    Fault,
    Finished,
    Record,
    Resumed,
    encode,
)
from koderz_tracker.runs import is_locked
from koderz_tracker.sinks import Sink, Source
from koderz_tracker.sinks.json import encode_summary
from koderz_tracker.sinks.mlflow import target
from koderz_tracker.sinks.mlflow.page import (
    Page,
    Point,
    child_name,
    child_page,
    curve_points,
    has_several_arms,
    scores_of,
)
from koderz_tracker.sinks.mlflow.run import (
    FIGURES,
    LAYOUT,
    TABLE,
    curve,
    figures_file,
    first_arm_page,
    first_page,
    identity,
    latest_arm_page,
    latest_page,
    outcomes_of,
)
from koderz_tracker.sinks.mlflow.store import MlflowStore, chunks
from koderz_tracker.sinks.mlflow.target import RUN, Outbox, of_arm
from koderz_tracker.sinks.mlflow.trace import judgement_ids, trace_id, trace_of
from koderz_tracker.stories import Stories
from koderz_tracker.summary import Summary, summarize

_DETAILS = {"traces": "traces", "runs": "runs", "parent": "parent", "full": "runs"}
"""`parent`: the run with its table, and those of its arms. `traces`: and a trace for each experiment. `runs`, also
called `full`: and a nested run for each."""

_TRACES_UP_TO = 5000  # experiments
_PLOT_EVERY = 10.0  # seconds between two additions to the curves of a run that goes on
_TRACES_AT_ONCE = 64
_NAMED = 5  # traces in a note
_FILE_NAME = 150  # bytes; file systems take 255, and servers add something of their own


class MlflowSink(Sink):
    """A run as evaluation runs, one an arm, with its experiments as traces and, if `detail` says so, as nested runs."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._folder, self._plan, self._stories = source.folder, source.plan, source.stories
        detail = source.options.get("mlflow_detail")
        if detail is None:
            detail = "traces" if source.plan.planned <= _TRACES_UP_TO else "parent"
        elif detail not in _DETAILS:
            raise KoderzError(f"--mlflow-detail {detail}: choose one of {', '.join(_DETAILS)}")
        else:
            detail = _DETAILS[detail]
        self._detail = detail
        self._results = source.folder.resolve().parent
        wanted = source.options.get("mlflow_experiment")
        self._target = target.target_of(self._results, source.plan.suite, source.environ, wanted)
        target.configure(source.environ)
        self._file = (
            None if source.environ.get("MLFLOW_TRACKING_URI") else target.store_file(self._results)
        )
        with self._border(), target.opening(self._results):
            if self._file:
                target.log_ahead(self._file)
            self._store = MlflowStore(self._target)
        self._outbox = Outbox(source.folder, self._target.name)
        self._run: str | None = None
        self._arms: dict[str, str] = {}  # the run of each arm, where there are several
        # the names and reasons of traces that MLflow refuses, by experiment
        self._refused: dict[str, str] = {}
        self._unlinked = ""  # why the run isn't linked with its prompts and dataset
        self._is_remade = False  # whether an earlier version had made the run otherwise
        self._is_first = True
        # all was projected, and the run goes on, for all that its journal says
        self._lacks_end = False
        self._plotted = time.monotonic()

    def take(self, records: Sequence[Record]) -> None:
        """Copies the experiments that have ended. Raises SinkDown if MLflow can't be reached or written."""
        self._lacks_end = False
        with self._border():
            run = self._run = self._run or self._find_or_create()
            if self._detail != "parent":
                for some in chunks(self._pending(records), _TRACES_AT_ONCE):
                    with self._outbox.inside():
                        self._trace(run, some)
                        if self._detail == "runs":
                            self._nest(run, some)
            self._tell_run(run, records)
            if self._file:
                target.checkpoint(self._file)
            self._is_first = False
            self._lacks_end = bool(records) and not isinstance(records[-1], Finished)

    @classmethod
    def check(cls, results: Path, environ: Mapping[str, str]) -> str:
        """The address that runs are sent to. Raises SinkDown if it can't be reached, KoderzError if it is not valid."""
        uri = target.tracking_uri(results, environ)
        with target.border(uri):
            target.check_target(uri)
        return target.without_password(uri)

    @classmethod
    def rebuild(cls, results: Path, environ: Mapping[str, str]) -> None:  # noqa: ARG003 the file is ours wherever runs go
        """Moves the store in the results folder aside, so that a new one is made; a server is left alone."""
        target.put_aside(target.store_file(results))

    def close(self) -> None:
        """Marks a run whose process was killed as ended, and closes the outbox."""
        try:
            if self._run and self._lacks_end and not is_locked(self._folder):
                with self._border():
                    self._tell_run(self._run, ())
        finally:
            self._outbox.close()

    @property
    def note(self) -> str:
        """The traces that MLflow refuses, and whether the run isn't linked."""
        names = [*self._refused.values()]
        traces = "trace" if len(names) == 1 else "traces"
        more = f"; and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        refused = (
            f"without {len(names)} {traces} that MLflow refuses: {'; '.join(names[:_NAMED])}{more}"
            if names
            else ""
        )
        return "; ".join(filter(None, (refused, self._unlinked)))

    def _border(self) -> AbstractContextManager[None]:
        return target.border(self._target.uri, self._target.experiment)

    # The run

    def _find_or_create(self) -> str:
        with self._outbox.inside():
            run = self._outbox.get(RUN).run_id
            if not (
                run and self._is_as_made_now(run) and all(map(self._is_there, self._arm_keys()))
            ):
                self._outbox.forget()  # the store is another one, or a run was deleted there
                run = None
            page = first_page(self._plan, self._folder.name)
            run = run or self._found_run() or self._create(RUN, page)
            if self._outbox.is_unsure():
                self._outbox.settle(self._store.find_nested(run), self._store.experiment)
            for arm, key in zip(self._plan.arms, self._arm_keys(), strict=False):
                below = first_arm_page(self._plan, self._folder.name, arm, run)
                self._arms[arm.name] = self._outbox.get(key).run_id or self._create(key, below)
                if not self._outbox.get(RUN).run_lines:
                    self._store.tell(self._arms[arm.name], below)
            if not self._outbox.get(RUN).run_lines:
                self._outbox.created(RUN, run, self._store.experiment)
                self._store.tell(run, page)
                self._link(lambda: self._store.register([run, *self._arms.values()], self._plan))
                self._outbox.record_shown(RUN, 1)
            return run

    def _link(self, register: Callable[[], None]) -> None:
        """Links the run with prompts and its dataset, which runs share; those of another user may be out of reach."""
        from mlflow.exceptions import MlflowException

        try:
            with target.opening(self._results):
                register()
        except MlflowException as error:
            if not target.is_forbidden(error):
                raise
            self._unlinked = f"not linked with prompts or dataset of another user's ({target.short_reason(error)})"

    def _arm_keys(self) -> list[str]:
        """The outbox's keys for the runs of arms; empty if the run has one arm, whose run it is."""
        return [of_arm(arm.name) for arm in self._plan.arms] if has_several_arms(self._plan) else []

    def _is_there(self, key: str) -> bool:
        run = self._outbox.get(key).run_id
        return run is None or self._store.layout(run) is not None

    def _is_as_made_now(self, run: str) -> bool:
        """Whether the run exists with the present layout. A run of an earlier version is deleted, to be made anew."""
        layout = self._store.layout(run)
        if layout in (LAYOUT, None):
            return layout is not None
        self._store.retire(run)
        self._is_remade = True
        return False

    def _found_run(self) -> str | None:
        """The run that an outbox lost, or that a process created before it died, with its nested runs recorded."""
        while found := self._store.find_run(identity(self._plan, self._folder.name)):
            if self._is_as_made_now(found):
                self._outbox.settle(self._store.find_nested(found), self._store.experiment)
                return found
        return None

    def _tell_run(self, run: str, records: Sequence[Record]) -> None:
        turning = any(isinstance(record, Resumed | Finished) for record in records)
        is_worked_on = is_locked(self._folder)
        if turning or not is_worked_on:
            with self._outbox.inside():
                self._tell_all(run, is_worked_on=is_worked_on)
        elif time.monotonic() - self._plotted >= _PLOT_EVERY:
            with self._outbox.inside():
                self._plot(run, whole=False)

    def _tell_all(self, run: str, *, is_worked_on: bool) -> None:
        """Updates curves, figures, files and status, unless the run shows this much of the journal already."""
        size = (self._folder / NAME).stat().st_size
        # a run that its process left says more than one that goes on
        version = 2 * size + (not is_worked_on)
        if self._outbox.get(RUN).run_lines >= version:
            return
        self._plot(run, whole=True)
        summary = summarize(self._folder)
        with tempfile.TemporaryDirectory() as files:
            write_files(self._folder, summary, self._stories, Path(files))
            self._store.keep(run, Path(files))
        page = latest_page(self._plan, self._folder.name, summary, is_worked_on=is_worked_on)
        self._store.tell(run, page)
        for arm, below in self._arms.items():
            with tempfile.TemporaryDirectory() as files:
                write_arm_files(summary, arm, Path(files))
                self._store.keep(below, Path(files))
            page = latest_arm_page(
                self._plan, self._folder.name, summary, arm, is_worked_on=is_worked_on
            )
            self._store.tell(below, page)
        if found := from_parts(self._plan, lambda part: part.prompts(self._plan, self._folder)):
            self._link(lambda: self._store.register_found(found))
        self._outbox.record_shown(RUN, version)

    def _plot(self, run: str, *, whole: bool) -> None:
        """Adds missing points to the curves."""
        outcomes = list(outcomes_of(self._folder))
        entry = self._outbox.get(RUN)
        found: dict[str, list[Point]] = {}
        for arm, point in curve(self._plan, outcomes, after=entry.trace_lines, whole=whole):
            found.setdefault(self._arms.get(arm, run), []).append(point)
        for place, points in found.items():
            # passed/mean is the first column
            self._store.plot(place, sorted(points, key=lambda point: point.key != "passed/mean"))
        self._outbox.traced({RUN: len(outcomes)})
        self._plotted = time.monotonic()

    # The experiments

    def _pending(self, records: Sequence[Record]) -> Iterator[str]:
        """The ended experiments that MLflow doesn't show in full, each once.

        The first time also those that ended before: a store that was emptied lacks what this sink was handed
        long ago.
        """
        earlier = takewhile(
            lambda end: not records or end.time < records[0].time, outcomes_of(self._folder)
        )
        ends = chain(earlier if self._is_first else (), records)
        for name in dict.fromkeys(
            end.experiment_id for end in ends if isinstance(end, Experiment | Fault)
        ):
            lines = self._stories.lines_of(name)
            entry = self._outbox.get(name)
            if entry.trace_lines < lines or (self._detail == "runs" and entry.run_lines < lines):
                yield name

    def _trace(self, run: str, experiment_ids: Sequence[str]) -> None:
        """Brings the traces of these experiments up to date with their stories."""
        place = self._store.experiment
        numbers: dict[str, int] = {}
        traces, curves = [], dict[str, list[Point]]()
        names: dict[str, tuple[str, str]] = {}  # of experiments and traces, by the traces' ids
        outdated: list[tuple[str, Sequence[Record], Experiment | Fault]] = []
        for name in experiment_ids:
            before, lines = self._outbox.get(name).trace_lines, self._stories.lines_of(name)
            story, outcome = _to_its_end(self._stories.of(name))
            if outcome is None or before >= lines:
                continue
            below = self._arms.get(outcome.arm, run)
            traces.append(trace_of(self._plan, story, outcome, place=place, run=below))
            names[traces[-1][0].trace_id] = name, child_name(self._plan, outcome)
            curves.setdefault(below, []).extend(curve_points(self._plan, story))
            numbers[name] = lines
            if self._is_remade or (before and isinstance(outcome, Fault)):
                # it has what holds no longer
                outdated.append((name, story, outcome))
        if traces:
            refused = self._store.trace(traces)
            for trace, (name, title) in names.items():
                self._refused.pop(name, None)
                if trace in refused:
                    self._refused[name] = f"{title} ({refused[trace]})"
                    numbers.pop(name)  # a sync from the beginning tries it again
            for below, points in curves.items():
                self._store.plot(below, points)
            for name, story, outcome in outdated:
                if name in self._refused:
                    continue
                self._take_back(name, story, outcome)
            self._outbox.traced(numbers)

    def _take_back(self, name: str, story: Sequence[Record], outcome: Experiment | Fault) -> None:
        """Deletes the assessments of a trace that the last outcome doesn't have."""
        trace = trace_id(self._plan, self._store.experiment, name)
        names = scores_of(self._plan, outcome) if isinstance(outcome, Experiment) else ()
        self._store.take_back(trace, judgement_ids(trace, story, names))

    def _nest(self, run: str, experiment_ids: Iterable[str]) -> None:
        """Brings the nested runs of these experiments up to date with their stories."""
        for name in experiment_ids:
            if self._outbox.is_unsure():
                self._outbox.settle(self._store.find_nested(run), self._store.experiment)
            story, outcome = _to_its_end(self._stories.of(name))
            entry, lines = self._outbox.get(name), self._stories.lines_of(name)
            if outcome is None or entry.run_lines >= lines:
                continue
            page = child_page(self._plan, story, outcome, self._arms.get(outcome.arm, run))
            if entry.run_id is None:
                # without tags: it has them from its creation
                self._store.tell(self._create(name, page), replace(page, tags={}))
            else:
                self._store.tell(entry.run_id, page)
            self._outbox.record_shown(name, lines)

    def _create(self, experiment_id: str, page: Page) -> str:
        self._outbox.created(experiment_id, "", self._store.experiment)
        run_id = self._store.create(page)
        self._outbox.created(experiment_id, run_id, self._store.experiment)
        return run_id


def _to_its_end(story: Sequence[Record]) -> tuple[Sequence[Record], Experiment | Fault | None]:
    """The story up to its last outcome, and that outcome."""
    for length in range(len(story), 0, -1):
        if isinstance(outcome := story[length - 1], Experiment | Fault):
            return story[:length], outcome
    return (), None


_PROMPTS_FROM = 20  # experiments that are looked through for prompts
# experiments that are looked through for artifacts before it is said that there are none
_ARTIFACTS_FROM = 20


def write_files(folder: Path, summary: Summary, stories: Stories, into: Path) -> None:
    """Writes the artifacts of a run: summary, plan, prompts, table, and the report if there is one."""
    with (into / "summary.json").open("wb") as file:
        file.writelines(encode_summary(summary))
    plan = orjson.loads(encode(stories.plan))
    (into / "plan.json").write_bytes(orjson.dumps(plan, option=orjson.OPT_INDENT_2))
    (into / TABLE).write_bytes(orjson.dumps(_table(summary)))
    (into / FIGURES).write_bytes(figures_file(summary, list(summary.arms)))
    _write_prompts(summary, stories, into / "prompts")
    _write_artifacts(summary, stories, into / "experiments")
    for report in (folder.with_suffix(".html"), folder / "report.html"):
        if report.exists():
            (into / "report.html").write_bytes(report.read_bytes())
            break


def write_arm_files(summary: Summary, arm: str, into: Path) -> None:
    """Writes the artifacts of an arm's run: the table of its experiments and its figures."""
    (into / TABLE).write_bytes(orjson.dumps(_table(summary, arm)))
    (into / FIGURES).write_bytes(figures_file(summary, [arm]))


_COLUMNS = (
    "problem_id", "solver", "sample", "success", "verdict", "cause", "iterations", "cost", "tokens_in", "tokens_out",
    "latency", "experiment_id",
)  # fmt: skip


def _table(summary: Summary, arm: str = "") -> dict[str, Any]:
    """All experiments, or those of one arm, in MLflow's form of a table, which is grouped by its first column."""
    results = [result for result in summary.results if not arm or result.arm == arm]
    several = len({result.sample for result in results}) > 1
    rows = [
        _row({name: getattr(result, name) for name in _COLUMNS}, several=several)
        for result in results
    ]
    mine = [fault for fault in summary.faults if not arm or fault["arm"] == arm]
    rows += [_row({**fault, "verdict": "fault"}, several=several) for fault in mine]
    return {"columns": ["experiment", "outcome", *_COLUMNS], "data": rows}


def _row(known: dict[str, Any], *, several: bool) -> list[Any]:
    sample = f" · sample {known['sample']}" if several else ""
    cause = f" ({known['cause']})" if known["cause"] else ""
    attempts = (
        f" after {known['iterations']} attempts" if (known.get("iterations") or 0) > 1 else ""
    )
    name = f"{known['problem_id']} · {known['solver']}{sample}"
    return [
        name,
        f"{known['verdict']}{cause}{attempts}",
        *(known.get(column) for column in _COLUMNS),
    ]


def _write_prompts(summary: Summary, stories: Stories, into: Path) -> None:
    """Writes one conversation for each purpose and solver, as it was sent."""
    into.mkdir()
    named: dict[str, Sequence[dict[str, Any]]] = {}
    for result in summary.results[:_PROMPTS_FROM]:
        for call in stories.of(result.experiment_id):
            if isinstance(call, Call):
                named.setdefault(f"{result.solver}-{call.purpose}", call.messages)
    for name, messages in named.items():
        text = "\n\n".join(f"# {message['role']}\n\n{text_of(message)}" for message in messages)
        (into / f"{file_name(name)}.md").write_text(text, encoding="utf-8", errors="replace")


def file_name(name: str) -> str:
    """A name for a file. One that is long in bytes, or is none, is cut, and has a digest of itself at its end."""
    plain = re.sub("[/\0\ud800-\udfff]", "_", name)
    if len(plain.encode()) <= _FILE_NAME and plain.strip("."):
        return plain
    digest = hashlib.blake2b(plain.encode(), digest_size=4).hexdigest()
    return f"{plain.encode()[:_FILE_NAME].decode(errors='ignore').strip('.')}-{digest}"


def _write_artifacts(summary: Summary, stories: Stories, into: Path) -> None:
    """Writes the texts of each experiment's last attempt, such as a diff or a log, in a folder named by its id."""
    for number, result in enumerate(summary.results):
        attempts = [
            record for record in stories.of(result.experiment_id) if isinstance(record, Attempt)
        ]
        texts = {
            name: text
            for name, text in (attempts[-1].artifacts if attempts else {}).items()
            if type(text) is str
        }
        for name, text in texts.items():
            place = into / result.experiment_id / file_name(name)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8", errors="replace")
        if number == _ARTIFACTS_FROM and not into.exists():
            return  # its suite leaves none
