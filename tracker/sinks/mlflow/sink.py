"""Brings one run into MLflow, as far as its journal goes, and never anything of it twice."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain, takewhile
from pathlib import Path

from tracker.journal import NAME
from tracker.records import Experiment, Fault, Finished, Record, Resumed
from tracker.runs import is_locked
from tracker.sinks import Source
from tracker.sinks.mlflow.detail import detail_of
from tracker.sinks.mlflow.outbox import PARENT, Entry, Outbox
from tracker.sinks.mlflow.page import Page, child_page
from tracker.sinks.mlflow.parent import curve, first_page, latest_page, outcomes_of, write_files
from tracker.sinks.mlflow.store import Store
from tracker.sinks.mlflow.target import (
    border,
    check_target,
    configure,
    opening,
    store_file,
    target_of,
    tracking_uri,
    without_password,
)
from tracker.sinks.mlflow.trace import Place, trace_id, trace_of
from tracker.summary import summarize

_PLOT_EVERY = 10.0  # seconds between two additions to the curves of a run that goes on


class MlflowSink:
    """A run as a run of MLflow's, with a nested run and a trace for each experiment, as detail has it."""

    def __init__(self, source: Source) -> None:
        self._folder, self._plan, self._stories = source.folder, source.plan, source.stories
        self._detail = detail_of(source.plan.planned, source.options.get("mlflow_detail"))
        results = source.folder.resolve().parent
        suite = str(source.plan.config.get("suite") or "tasks")
        self._target = target_of(results, suite, source.environ)
        configure(source.environ)
        with border(self._target.uri), opening(results):
            self._store = Store(self._target)
        self._outbox = Outbox(source.folder, self._target.name)
        self._parent: str | None = None
        self._is_first = True
        self._plotted = time.monotonic()

    def take(self, records: Sequence[Record]) -> None:
        """Projects what has ended. Raises SinkDown where MLflow can't be reached or written."""
        with border(self._target.uri):
            if self._plan.run_id is not None and self._parent is None:
                self._parent = self._find_or_create_parent()
            if self._detail != "parent":
                self._project(self._pending(records))
            if self._parent is not None:
                self._link_traces(self._parent)
                self._tell_parent(self._parent, records)
            self._is_first = False

    @staticmethod
    def check(results: Path, environ: Mapping[str, str]) -> str:
        """Where the runs go. Raises SinkDown where that can't be reached, KoderzError where it can't be."""
        uri = tracking_uri(results, environ)
        with border(uri):
            check_target(uri)
        return without_password(uri)

    @staticmethod
    def rebuild(results: Path, environ: Mapping[str, str]) -> None:  # noqa: ARG004 the file is ours wherever runs go
        """Puts the store in the results folder aside, so that a new one is made; a team's server is left alone."""
        store = store_file(results)
        if store.exists():
            store.replace(store.with_name(f"{store.name}.{datetime.now():%Y%m%d_%H%M%S}.old"))

    def close(self) -> None:
        """Lets go of the outbox; MLflow's client holds nothing."""
        self._outbox.close()

    # The parent

    def _find_or_create_parent(self) -> str:
        with self._outbox.inside():
            entry = self._outbox.get(PARENT) or Entry()
            if entry.run_id is not None and not self._store.is_there(entry.run_id):
                self._outbox.forget()  # the store is another one, or the run was deleted there
                entry = Entry()
            page = first_page(self._plan, self._folder.name)
            run_id = entry.run_id or self._searched_parent() or self._create(PARENT, page)
            if not entry.run_lines:
                self._outbox.created(PARENT, run_id, self._store.experiment)
                self._store.tell(run_id, page)
                self._store.name_dataset(run_id, self._plan)
                self._outbox.told(PARENT, 1)
            return run_id

    def _searched_parent(self) -> str | None:
        """The parent that an outbox lost, or that a process created and died; its children are taken in."""
        found = self._store.find_parent(self._folder.name)
        if found is not None:
            self._outbox.settle(self._store.find_children("mlflow.parentRunId", found), self._store.experiment)
        return found

    def _tell_parent(self, parent: str, records: Sequence[Record]) -> None:
        turning = any(isinstance(record, Resumed | Finished) for record in records)
        is_worked_on = is_locked(self._folder)
        if turning or not is_worked_on:
            with self._outbox.inside():
                self._tell_all(parent, is_worked_on=is_worked_on)
        elif time.monotonic() - self._plotted >= _PLOT_EVERY:
            with self._outbox.inside():
                self._plot(parent, whole=False)

    def _tell_all(self, parent: str, *, is_worked_on: bool) -> None:
        """Curves, figures, files and status, unless the parent tells of this much of the journal already."""
        size = (self._folder / NAME).stat().st_size
        version = 2 * size + (not is_worked_on)  # a run that its process left says more than one that goes on
        if (self._outbox.get(PARENT) or Entry()).run_lines >= version:
            return
        self._plot(parent, whole=True)
        summary = summarize(self._folder)
        with tempfile.TemporaryDirectory() as files:
            write_files(self._folder, summary, self._stories, Path(files))
            self._store.keep(parent, Path(files))
        page = latest_page(self._plan, self._folder.name, summary, is_worked_on=is_worked_on)
        self._store.tell(parent, page)
        self._outbox.told(PARENT, version)

    def _plot(self, parent: str, *, whole: bool) -> None:
        """Adds to the curves what they lack."""
        outcomes = list(outcomes_of(self._folder))
        entry = self._outbox.get(PARENT) or Entry()
        self._store.plot(parent, curve(self._plan, outcomes, after=entry.trace_lines, whole=whole))
        self._outbox.traced(PARENT, len(outcomes))
        self._plotted = time.monotonic()

    # The children

    def _pending(self, records: Sequence[Record]) -> Iterator[str]:
        """The experiments that ended and that MLflow doesn't tell in full, each once.

        The first time also those that ended before: a store that was emptied lacks what this sink was handed
        long ago.
        """
        earlier = takewhile(lambda end: not records or end.time < records[0].time, outcomes_of(self._folder))
        ends = chain(earlier if self._is_first else (), records)
        for name in dict.fromkeys(end.experiment_id for end in ends if isinstance(end, Experiment | Fault)):
            lines = self._stories.lines_of(name)
            entry = self._outbox.get(name) or Entry()
            if entry.run_lines < lines or (self._detail == "full" and entry.trace_lines < lines):
                yield name

    def _project(self, experiment_ids: Iterable[str]) -> None:
        for experiment_id in experiment_ids:
            story, outcome = _to_its_end(self._stories.of(experiment_id))
            if outcome is not None:
                with self._outbox.inside():
                    self._tell_child(story, outcome, self._stories.lines_of(experiment_id))

    def _tell_child(self, story: Sequence[Record], outcome: Experiment | Fault, lines: int) -> None:
        experiment_id = outcome.experiment_id
        if self._outbox.is_unsure():
            self._outbox.settle(self._search_children(experiment_id), self._store.experiment)
        page = child_page(self._plan, story, outcome, self._parent)
        entry = self._outbox.get(experiment_id) or Entry()
        run_id = entry.run_id
        if run_id is None:
            run_id = self._create(experiment_id, page)
            page = replace(page, tags={})  # it has them from its creation
        if entry.run_lines < lines:
            self._store.tell(run_id, page)
            self._outbox.told(experiment_id, lines)
        if self._detail == "full" and entry.trace_lines < lines:
            place = Place(self._store.experiment, run_id)
            self._store.trace(*trace_of(self._plan, story, outcome, place))
            self._outbox.traced(experiment_id, lines)

    def _search_children(self, experiment_id: str) -> Iterator[tuple[str, str]]:
        if self._parent is not None:
            return self._store.find_children("mlflow.parentRunId", self._parent)
        return self._store.find_children("koderz.experiment_id", experiment_id)

    def _create(self, experiment_id: str, page: Page) -> str:
        self._outbox.begin(experiment_id)
        run_id = self._store.create(page)
        self._outbox.created(experiment_id, run_id, self._store.experiment)
        return run_id

    def _link_traces(self, parent: str) -> None:
        """Shows the traces on the parent's page too."""
        if unlinked := self._outbox.unlinked():
            with self._outbox.inside():
                self._store.link(parent, [trace_id(self._plan, self._store.experiment, name) for name in unlinked])
                self._outbox.linked(unlinked)


def _to_its_end(story: Sequence[Record]) -> tuple[Sequence[Record], Experiment | Fault | None]:
    """The story up to its last outcome, and that."""
    for position in range(len(story) - 1, -1, -1):
        outcome = story[position]
        if isinstance(outcome, Experiment | Fault):
            return story[: position + 1], outcome
    return (), None
