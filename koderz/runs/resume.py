"""A run that was begun before is taken up again: resumed, retried or rescored."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from koderz.engines import require_able
from koderz.engines.owners import restored_settings
from koderz.engines.portable import laid_out
from koderz.errors import KoderzError
from koderz.experiments.replay import Replaying
from koderz.plans.plan import restore_plan
from koderz.runs.observer import NOTHING_TO_DO, NullObserver, Observer
from koderz.runs.orchestrator import Ended
from koderz.runs.remote import FILES, find_anywhere
from koderz.runs.session import Session, carry_on, close
from koderz.runs.sinks import start_sinks
from koderz.settings.layers import fields_in, replaced
from koderz.settings.options import Field, flag_of, plain
from koderz.settings.toml import results_folder
from koderz.settings.trust import require_trust, risks_of_plan
from tracker.runs import plan_and_line
from tracker.sinks import check_names
from tracker.tracker import Tracker


@dataclass(frozen=True, slots=True)
class ResumeOptions:
    """How a run is taken up again."""

    how: Literal["resume", "retry", "rescore"] = "resume"
    calls: bool = False  # whether rescoring may make the calls that a new verdict asks for
    ask_judge: bool = False  # whether it asks the judge's model anew
    accept_divergence: bool = False
    accept_changes: bool = False
    trust_config: bool = False
    detach: bool = False

    def replaying(self) -> Replaying:
        """What that means for what is on record. Accepted changes make solvers go other ways."""
        return Replaying(
            accept_divergence=self.accept_divergence or self.accept_changes,
            rescore=self.how == "rescore",
            judge_anew=self.ask_judge,
            calls_allowed=self.calls or self.how != "rescore",
            begins_new=self.how != "retry",
        )


async def resume_run(
    name: str,
    way: ResumeOptions,
    *,
    results: Path | None = None,
    changes: Mapping[str, Any] | None = None,
    observer: Observer | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Session:
    """Resumes, retries or rescores a run. Of a finished one only its summary and its sinks are redone."""
    folder = await find_anywhere(results_folder(results, environ, trust_config=way.trust_config), name, environ)
    given = {name: value for name, value in (changes or {}).items() if value is not None}
    with Tracker.reopen(folder) as tracker:
        settings = restored_settings(tracker.plan)
        _require_own(tracker, fields_in(settings), way.trust_config, environ)
        _refuse_imported(tracker, way)
        overrides = _overrides(given, fields_in(settings)) | {"results": folder.parent}
        settings, solvers = laid_out(replaced(settings, overrides), folder / FILES)
        plan = restore_plan(tracker.plan, settings, accept_changes=way.accept_changes, solver_files=solvers)
        tracker.select(faults=way.how != "resume", judged=way.how == "rescore")
        if way.how != "rescore" and tracker.tally.judged + tracker.tally.faults == plan.record.planned:
            if not tracker.is_finished:  # it was killed before it could say so, or brought from elsewhere
                await tracker.finish("incomplete" if tracker.tally.faults else "complete")
            return close(plan, tracker, Ended("complete", NOTHING_TO_DO), start_sinks(plan, folder, environ), environ)
        require_able(plan)
        observer = observer or NullObserver()
        return await carry_on(
            plan, tracker, way.replaying(), observer, environ, how=way.how, changes=given, detach=way.detach
        )


def _require_own(tracker: Tracker, fields: Mapping[str, Field], trust: bool, environ: Mapping[str, str]) -> None:
    """Raises KoderzError for a plan that came from elsewhere and names a solver's file, an address or the like."""
    for name, risk in risks_of_plan(fields, tracker.plan.config).items():
        what = f"{tracker.folder.name}: it wasn't begun here, and its {name.replace('_', '-')} could {risk}"
        require_trust(plan_and_line(tracker.folder)[1], what, grant=trust, environ=environ)


def _refuse_imported(tracker: Tracker, way: ResumeOptions) -> None:
    """Its replies came from a file: a model that is asked now would answer for somebody else."""
    if tracker.plan.config.get("imported") and way.replaying().calls_allowed:
        raise KoderzError(
            f"{tracker.folder.name} was imported, so there is nobody to ask for more; import a fuller file, "
            f"or judge it anew: koderz benchmark rescore {tracker.folder.name}"
        )


def _overrides(changes: Mapping[str, Any], fields: Mapping[str, Field]) -> dict[str, Any]:
    changeable = [name for name, field in fields.items() if field.about.changeable]
    for name in changes:
        if name not in changeable:
            raise KoderzError(f"{name} is settled by the plan; only {', '.join(changeable)} may differ")
    overrides = {name: fields[name].read(plain(value), flag_of(name)) for name, value in changes.items()}
    check_names((*overrides.get("sinks", ()), *overrides.get("no_sinks", ())))
    return overrides
