"""Resumes, retries or rescores a run that was begun before."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from koderz.engines import require_able, stored_run
from koderz.engines.portable import laid_out
from koderz.engines.sources import read_sources, require_effect, restored_settings, schema_of_plan
from koderz.errors import KoderzError
from koderz.experiments.replay import Replaying
from koderz.plans.plan import restore_plan
from koderz.runs.observer import NOTHING_TO_DO, NullObserver, Observer
from koderz.runs.orchestrator import DECIDED, SessionEnd
from koderz.runs.session import SessionResult, carry_on, close
from koderz.runs.sinks import start_sinks
from koderz.settings.layers import fields_in, options_in, replaced, results_folder
from koderz.settings.options import Field, flag_of, plain
from koderz.settings.requests import BatchOptions, headers_in, named
from koderz.settings.schema import Settings
from koderz.settings.trust import require_trust, risks_of_plan
from koderz_tracker import records
from koderz_tracker.errors import CAUSES
from koderz_tracker.outline import are_decided, cut_short, decisions_in
from koderz_tracker.plain_text import REDACTED
from koderz_tracker.runs import RUN_ID, find_run, plan_and_line, read_plan, refuse_log
from koderz_tracker.scrubber import fits
from koderz_tracker.sinks import check_names
from koderz_tracker.tracker import Listener, Tracker


@dataclass(frozen=True, slots=True)
class ResumeOptions:
    """Options for working on a run again."""

    how: Literal["resume", "retry", "rescore"] = "resume"
    causes: Sequence[str] = ()  # of the faults that are retried; empty: all
    calls: bool = False  # whether rescoring may make the calls that a new verdict asks for
    ask_judge: bool = False  # whether it asks the judge's model anew
    accept_divergence: bool = False
    accept_changes: bool = False
    trust_config: bool = False
    detach: bool = False
    past_decision: bool = False  # whether to ask all that is planned of a run that has been decided
    # False: batches under way are cancelled, what they had done is taken, and no more is sent
    buys: bool = True

    def __post_init__(self) -> None:
        """Refuses a cause that is none with KoderzError."""
        for cause in self.causes:
            if cause not in CAUSES:
                raise KoderzError(
                    f"--cause {cause}: faults have no such cause; it is one of {', '.join(CAUSES)}"
                )

    def replaying(self) -> Replaying:
        """The treatment of existing records. Accepted changes make solvers diverge, so divergence is accepted then."""
        return Replaying(
            accept_divergence=self.accept_divergence or self.accept_changes,
            rescore=self.how == "rescore",
            judge_anew=self.ask_judge,
            calls_allowed=self.calls or self.how != "rescore",
            begins_new=self.how != "retry",
            buys=self.buys,
        )


async def resume_together(
    name: str,
    way: ResumeOptions,
    *,
    results: Path | None = None,
    changes: Mapping[str, Any] | None = None,
    observer: Observer | None = None,
    environ: Mapping[str, str] = os.environ,
) -> AsyncIterator[SessionResult]:
    """Resumes a run and all runs planned together with it, in their order.

    Yields a session for each, see `resume_run`; one that failed or was called off is the last.
    """
    observer = observer or NullObserver()
    folder = await find_anywhere(
        results_folder(results, environ, trust_config=way.trust_config), name, environ
    )
    left = await _planned_together(folder, observer, environ) if way.how == "resume" else [folder]
    while left:
        run = str(left.pop(0))
        session = await resume_run(
            run, way, results=results, changes=changes, observer=observer, environ=environ
        )
        if session.ended.ends_all:
            session, left = session._replace(unbegun=len(left)), []
        yield session


async def resume_run(
    name: str,
    way: ResumeOptions,
    *,
    results: Path | None = None,
    changes: Mapping[str, Any] | None = None,
    observer: Observer | None = None,
    environ: Mapping[str, str] = os.environ,
    listener: Listener | None = None,
) -> SessionResult:
    """Resumes, retries or rescores a run. If it is finished, only its summary and sinks are renewed."""
    folder = await find_anywhere(
        results_folder(results, environ, trust_config=way.trust_config), name, environ
    )
    given = {name: value for name, value in (changes or {}).items() if value is not None}
    with Tracker.reopen(folder) as tracker:
        _refuse_imported(tracker, way)
        if listener:
            tracker.tell(listener)
        settings = restored_settings(tracker.plan)
        fields = fields_in(settings)
        require_own(tracker, fields, way.trust_config, environ)
        tracker.select(faults=way.how != "resume", judged=way.how == "rescore", causes=way.causes)
        decisions = decisions_in(folder) if tracker.plan.until_decided else {}
        is_decided = cut_short(tracker.plan, decisions)
        goes_past = way.past_decision or (is_decided and way.how != "resume")
        has_all = tracker.tally.judged + tracker.tally.faults == tracker.plan.planned
        has_all &= are_decided(tracker.plan, decisions)  # or faults may have to be tried once more
        is_over = way.how != "rescore" and (has_all or (is_decided and not goes_past))
        needed = not is_over and (way.replaying().calls_allowed or way.ask_judge)
        if not (way.buys or settings.of(BatchOptions).batch):
            raise KoderzError(f"{folder.name} has no batches to be cancelled; Ctrl-C stops a run")
        addresses = {
            name: given.pop(name)
            for name in fields
            if fields[name].about.is_address and name in given
        }
        settings, from_file = _with_addresses(
            tracker.plan, settings, addresses, environ, way, needed=needed
        )
        overrides = _overrides(given, fields) | {"results": folder.parent}
        overrides |= _with_values(settings, overrides, environ, trust_config=way.trust_config)
        settings, solvers = laid_out(replaced(settings, overrides), folder / FILES)
        plan = restore_plan(
            tracker.plan, settings, accept_changes=way.accept_changes, solver_files=solvers
        )
        require_effect([plan], given)
        if from_file:
            plan = plan.having(details={**plan.record.details, "base_url_trusted": False})
        if is_over:
            without_faults = "complete" if has_all else DECIDED
            status = "incomplete" if tracker.tally.faults else without_faults
            if not tracker.is_finished:
                # it was killed before it could say so, or brought from elsewhere
                await tracker.finish(status)
            # Of faults that `retry` was to try again there are none; `resume` leaves the run with those it has.
            ended = SessionEnd(status if way.how == "resume" else "complete", NOTHING_TO_DO)
            return close(plan, tracker, ended, start_sinks(plan, folder, environ), environ)
        require_able(plan)
        return await carry_on(
            plan,
            tracker,
            way.replaying(),
            observer or NullObserver(),
            environ,
            how=way.how,
            changes={
                key: named(value) if key == "extra_headers" else value
                for key, value in given.items()
            },
            detach=way.detach,
            past_decision=goes_past,
        )


def _with_addresses(
    plan: records.Plan,
    settings: Settings,
    given: Mapping[str, Any],
    environ: Mapping[str, str],
    way: ResumeOptions,
    *,
    needed: bool,
) -> tuple[Settings, bool]:
    """The settings of a recorded plan with whole addresses, and whether `base_url` came from koderz.toml.

    What the plan hasn't whole is `given`, or else said by a variable or koderz.toml. Raises KoderzError where it is
    `needed` and not said, and for an address that isn't the recorded one.
    """
    recorded = {field.name: address for field, address in _addresses(settings)}
    for name, address in given.items():
        if not fits(str(address), recorded.get(name, "")):
            raise KoderzError(
                f"{flag_of(name)}: {_recorded(plan, name, recorded.get(name))}, which isn't what is given"
            )
    cut = {name for name, address in recorded.items() if REDACTED in address}
    if not cut or not (needed or given):
        return settings, False
    again, schema = {name: given[name] for name in cut & {*given}}, schema_of_plan(plan)
    sources = read_sources(again, environ, names=cut, schema=schema, trust_config=way.trust_config)
    said = {
        field.name: address for field, address in _addresses(sources.settings) if field.name in cut
    }
    found = {name: address for name, address in said.items() if fits(address, recorded[name])}
    if needed and (missing := sorted(cut - {*found})):
        name = missing[0]
        raise KoderzError(
            f"{_recorded(plan, name, recorded[name])}, without what could be a secret; give the same address by "
            f"{flag_of(name)}, KODERZ_{name.upper()} or koderz.toml"
            + ("; what is set there is another" * (name in said))
        )
    return replaced(settings, found), "base_url" in {*found} - {*sources.is_ours}


def _with_values(
    settings: Settings, given: Mapping[str, Any], environ: Mapping[str, str], *, trust_config: bool
) -> dict[str, Any]:
    """The headers of a recorded plan with the values that are given, or else said by a variable or koderz.toml.

    Empty where the plan has none. Raises KoderzError for a header that the plan doesn't have.
    """
    recorded = [*headers_in(settings.extra_headers)]
    told: Sequence[str] = given.get("extra_headers", ())
    if not told and any(not header.variable for header in recorded):
        sources = read_sources({}, environ, names={"extra_headers"}, trust_config=trust_config)
        told = sources.settings.extra_headers
    said = {header.name.lower(): text for text in told for header in headers_in([text])}
    if "extra_headers" in given and (
        unknown := said.keys() - {header.name.lower() for header in recorded}
    ):
        raise KoderzError(
            f"--extra-header {min(unknown)}: the plan has no such header, and can't get another"
        )
    values = tuple(said.get(header.name.lower(), header.recorded) for header in recorded)
    return {"extra_headers": values} if recorded else {}


def _addresses(settings: Settings) -> Iterator[tuple[Field, str]]:
    yield from (
        (field, value) for field, value in options_in(settings) if field.about.is_address and value
    )


def _recorded(plan: records.Plan, name: str, address: str | None) -> str:
    run = f"{plan.run_id}: " if plan.run_id else ""
    return f"{run}the plan has {address or 'none'} as its {name.replace('_', '-')}"


async def _planned_together(
    folder: Path, observer: Observer, environ: Mapping[str, str]
) -> list[Path]:
    """The existing folders of the runs planned together with the run in `folder`; else its own.

    Their plans name the same runs: one from elsewhere can't have other runs of the user's resumed.
    """
    together, found = read_plan(folder).together, []
    for name in filter(RUN_ID.fullmatch, together):
        try:
            other = (
                folder if name == folder.name else await find_anywhere(folder.parent, name, environ)
            )
            if read_plan(other).together != together:
                raise KoderzError("its plan names other runs")
            found.append(other)
        except KoderzError as error:
            observer.notice(
                f"{name}, which was planned together with {folder.name}, is left out: {error}"
            )
    return found if folder in found else [folder]


def require_own(
    tracker: Tracker, fields: Mapping[str, Field], trust: bool, environ: Mapping[str, str]
) -> None:
    """Raises KoderzError for a plan from elsewhere that names a solver's file, an address or the like."""
    for name, risk in risks_of_plan(fields, tracker.plan.config).items():
        what = f"{tracker.folder.name}: it wasn't begun here, and its {name.replace('_', '-')} could {risk}"
        require_trust(plan_and_line(tracker.folder)[1], what, grant=trust, environ=environ)


def _refuse_imported(tracker: Tracker, way: ResumeOptions) -> None:
    """Refuses to ask a model in an imported run, whose replies came from a file and maybe another model."""
    refuse_log(tracker.plan)
    if tracker.plan.config.get("imported") and way.replaying().calls_allowed:
        raise KoderzError(
            f"{tracker.folder.name} was imported, so there is nobody to ask for more; import a fuller file, "
            f"or judge it anew: koderz benchmark rescore {tracker.folder.name}"
        )


def _overrides(changes: Mapping[str, Any], fields: Mapping[str, Field]) -> dict[str, Any]:
    changeable = [name for name, field in fields.items() if field.about.changeable]
    for name in changes:
        if name not in changeable:
            raise KoderzError(
                f"{name} is settled by the plan; only {', '.join(changeable)} may differ"
            )
    overrides = {
        name: fields[name].read(plain(value), flag_of(name)) for name, value in changes.items()
    }
    check_names((*overrides.get("sinks", ()), *overrides.get("no_sinks", ())))
    return overrides


FILES = "files"  # in the folder of a run that was brought: what its plan names by path
_AT_ONCE = 16  # experiments that are read


async def find_anywhere(results: Path, name: str, environ: Mapping[str, str]) -> Path:
    """The folder of a run, made anew if only a remote engine has it. Raises KoderzError if nobody does."""
    try:
        return find_run(results, name)
    except KoderzError:
        found = await stored_run(name, environ) if RUN_ID.fullmatch(name) else None
        if found is None:
            raise
    from koderz.engines.portable import lay_out, plan_record

    plan, store = found
    with Tracker.create(results, name, plan_record(plan)) as tracker:
        lay_out(plan, tracker.folder / FILES)
        # Writes the stored records of every experiment into the journal.
        from koderz.engines.portable import read_lines

        experiments = iter(sorted(await store.experiments()))

        async def lane() -> None:
            for experiment_id in experiments:
                lines = list(read_lines(await store.lines(experiment_id)))
                await tracker.record(
                    *[line for line in lines[:-1] if line.kind not in ("experiment", "fault")]
                    + lines[-1:]
                )

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_AT_ONCE):
                    group.create_task(lane())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return tracker.folder
