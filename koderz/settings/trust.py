"""What settings of somebody else's could do to the user, and what the user has said they may.

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
from koderz.paths import state_folder
from koderz.settings.schema import DOCKER_IMAGE
from tracker.files import write_whole
from tracker.sinks import KNOWN

RUNS_CODE, SENDS, SPENDS, WRITES = "run code", "send data elsewhere", "spend money", "write outside of this folder"

Spends = Callable[[Iterable[str], Mapping[str, tuple[float, float]]], bool]
"""Whether asking these models, or counting by these prices, could cost money that nobody expects."""


def costly(models: Iterable[str], prices: Mapping[str, tuple[float, float]]) -> bool:
    """Takes whatever it is shown for something that could cost money."""
    return bool([*models, *prices])


_RISKS: Mapping[str, Callable[[Any], str]] = {
    "solver": lambda _: RUNS_CODE,
    "matrix": lambda _: RUNS_CODE,  # by the solvers that it names
    "dataset": lambda _: RUNS_CODE,  # its tests, which no sandbox contains
    "docker_image": lambda image: RUNS_CODE if image != DOCKER_IMAGE else "",
    "sandbox": lambda name: {"contained": "", "docker": "", "uncontained": RUNS_CODE}.get(name, SPENDS),
    "base_url": lambda _: SENDS,
    "api_key_env": lambda _: SENDS,
    "prompt_dir": lambda _: SENDS,  # a file of the user's, through a link
    "use_memory": lambda what: SENDS if what != "off" else "",
    "sinks": lambda names: SENDS if set(names) - set(KNOWN) else "",
    "engine": lambda name: SPENDS if name != "local" else "",
    "gpu": lambda _: SPENDS,
    "max_containers": lambda _: SPENDS,
    "results": lambda path: "" if path.resolve().is_relative_to(Path.cwd()) else WRITES,
}
"""The settings that could do more than choose tasks, local models and numbers, and what each could do."""

_MODELS: Mapping[str, Callable[[Any], Iterable[str]]] = {
    "local_model": lambda name: (name,),
    "models": lambda names: names,
    "roles": lambda roles: (role.split("=", 1)[1] for role in roles),
    "frontier_spec_model": lambda name: (name,),
    "frontier_checkpoint_model": lambda name: (name,),
}
"""The settings that name models to be asked."""


def risks_of(settings: Mapping[str, Any], spends: Spends) -> dict[str, str]:
    """What the settings could do that their user may not want; those that are harmless are left out."""
    given = {name: _RISKS[name](settings[name]) for name in _RISKS if settings.get(name)}
    asked = {name: _MODELS[name](settings[name]) for name in _MODELS if settings.get(name)}
    costly = [name for name, models in asked.items() if spends(models, {})]
    costly += ["prices"] if spends((), settings.get("prices") or {}) else []
    return {name: risk for name, risk in given.items() if risk} | dict.fromkeys(costly, SPENDS)


def risks_of_plan(config: dict[str, Any]) -> dict[str, str]:
    """The same of a recorded plan. What it may cost is known to whoever goes on with the run."""
    found = risks_of(config | {"results": None}, lambda _, __: False)
    return {name: risk for name, risk in found.items() if risk != SPENDS}


def require_trust(data: bytes, what: str, *, grant: bool, environ: Mapping[str, str] = os.environ) -> None:
    """Passes if these bytes are trusted, or are so from now on. Otherwise a KoderzError that begins with `what`."""
    if grant:
        remember(data, environ)
    elif _digest(data) not in _trusted(_store(environ)):
        raise KoderzError(f"{what}. Read it; if it may, say so once with --trust-config (it holds until it changes)")


def remember(data: bytes, environ: Mapping[str, str] = os.environ) -> None:
    """Trusts these bytes from now on. Raises KoderzError where that can't be written down."""
    store = _store(environ)
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        write_whole(store, [orjson.dumps([*_trusted(store), _digest(data)])])
    except OSError as error:
        raise KoderzError(f"{store} can't be written, so trust can't be remembered ({error.strerror})") from None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _store(environ: Mapping[str, str]) -> Path:
    return state_folder(environ) / "trusted.json"


def _trusted(store: Path) -> list[Any]:
    try:
        found = orjson.loads(store.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return []
    return found if isinstance(found, list) else []
