"""Trust in settings that may have come from another person: their risks, and the digests that the user trusts.

A koderz.toml and a run's plan can both come with somebody else's repository. What is trusted is remembered by the
digest of the bytes that ask for it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from koderz.errors import KoderzError
from koderz.settings.options import Field
from koderz.settings.paths import note_once, state_folder
from koderz_tracker.files import links_in, sync_folder
from koderz_tracker.sinks import KNOWN

RUNS_CODE, SENDS, SPENDS, WRITES = (
    "run code",
    "send data elsewhere",
    "spend money",
    "write outside of this folder",
)
READS = "send a file from outside of this folder to a model"

Spends = Callable[[Iterable[str], Mapping[str, tuple[float, float]]], bool]
"""Whether asking these models, or counting by these prices, could cost money unexpectedly."""


def costly(models: Iterable[str], prices: Mapping[str, tuple[float, float]]) -> bool:
    """The cautious answer: any models and prices could cost money."""
    return bool([*models, *prices])


def risks_of(
    fields: Mapping[str, Field], settings: Mapping[str, Any], spends: Spends
) -> dict[str, str]:
    """The risks of settings, by name; harmless settings are left out.

    It is what an option declares, else that of a file outside the working directory, links included.
    """
    here = Path.cwd()

    def lies_here(path: Path) -> bool:
        return Path(os.path.realpath(path)).is_relative_to(here)

    found = {}
    for name, field in fields.items():
        if name not in settings:
            continue
        value = settings[name]
        if spends(field.models(value), {}):
            found[name] = SPENDS
        elif field.about.risk:
            found[name] = field.risk(value)
        # A folder elsewhere, which may be the whole disk, is told by its name: only one that lies here is walked.
        elif not all(
            lies_here(path) and all(lies_here(path / link) for link in links_in(path))
            for path in field.files(value)
        ):
            found[name] = READS
    if spends((), settings.get("prices") or {}):
        found["prices"] = SPENDS
    return {name: risk for name, risk in found.items() if risk}


def risk_of_suite(name: str) -> str:
    """The risk of a suite by its name: one of a file is code."""
    return RUNS_CODE if ":" in name else ""


def risk_of_sandbox(name: str) -> str:
    """The risk of a sandbox: rented ones cost money."""
    return {"docker": "", "podman": "", "local": "", "uncontained": RUNS_CODE}.get(name, SPENDS)


def risk_of_sinks(names: Iterable[str]) -> str:
    """The risk of sinks: others than koderz' own may send records anywhere."""
    return SENDS if {*names} - {*KNOWN} else ""


def risk_of_results(path: Path) -> str:
    """The risk of a results folder: one elsewhere is written to."""
    return "" if path.resolve().is_relative_to(Path.cwd()) else WRITES


def risks_of_plan(fields: Mapping[str, Field], config: Mapping[str, Any]) -> dict[str, str]:
    """The risks of a recorded plan's settings, except its cost, which the one who resumes the run knows."""
    found = risks_of(fields, {**config, "results": None}, lambda _, __: False)
    return {name: risk for name, risk in found.items() if risk != SPENDS}


def require_trust(
    data: bytes, what: str, *, grant: bool, environ: Mapping[str, str] = os.environ
) -> None:
    """Returns if these bytes are or become trusted. Otherwise raises a KoderzError that begins with `what`."""
    if grant:
        remember(data, environ)
    elif not is_trusted(data, environ):
        raise KoderzError(
            f"{what}. Read it; if it may, say so once with --trust-config (it holds until it changes)"
        )


def is_trusted(data: bytes, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether these bytes are trusted."""
    digest = _digest(data)
    if (_store(environ) / digest).exists():
        return True
    # Earlier versions wrote all digests into a single file.
    try:
        found = orjson.loads((state_folder(environ) / "trusted.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return False
    return isinstance(found, list) and digest in found


def remember(data: bytes, environ: Mapping[str, str] = os.environ) -> None:
    """Trusts these bytes from now on, or notes that this can't be recorded.

    Each digest has an empty file of its own, so that runs which begin at once don't overwrite each other's.
    """
    store = _store(environ)
    try:
        store.mkdir(parents=True, exist_ok=True)
        (store / _digest(data)).touch()
        sync_folder(store)
    except OSError as error:
        note_once(f"{store} can't be written, so trust isn't remembered ({error.strerror})")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _store(environ: Mapping[str, str]) -> Path:
    return state_folder(environ) / "trusted"
