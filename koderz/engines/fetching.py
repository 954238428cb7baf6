"""A run that was begun on another machine, brought here by its id."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from koderz.engines.modal_names import is_configured, names_of
from koderz.errors import KoderzError
from tracker.runs import RUN_ID, create_run, find_run


async def find_anywhere(results: Path, name: str, environ: Mapping[str, str]) -> Path:
    """The folder of a run, made anew with its plan where only Modal knows it. KoderzError where nobody does."""
    try:
        return find_run(results, name)
    except KoderzError:
        if not (RUN_ID.fullmatch(name) and is_configured(environ)):
            raise
        plan = await _plan(name, environ)
        if plan is None:
            raise
    from koderz.engines.portable import plan_record

    return create_run(results, name, plan_record(plan))


async def _plan(run: str, environ: Mapping[str, str]) -> bytes | None:
    from koderz.engines.modal_store import RunStore

    return await RunStore(names_of(environ), run).plan()
