"""What `koderz modal deploy` puts on Modal. Imported there and while deploying, and nowhere else.

The function holds keys, so no program runs in its container: they are judged in sandboxes of their own on Modal,
without keys or network; see `koderz.modal.sandbox`.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import modal
import orjson

from koderz.engines.portable import unpack_plan
from koderz.modal.cloud import FUNCTION, MOUNT
from koderz.modal.container import ContainerState
from koderz.modal.names import CPU_CORES, INPUTS, MEMORY_MB, TIMEOUT, names_of
from koderz.modal.store import ContainerShelf
from koderz.modal.worker import perform_work

_NAMES = names_of(os.environ)
_LOCKED = Path(__file__).resolve().parents[2] / "requirements" / "core.txt"


def _image() -> modal.Image:
    """The locked dependencies; koderz' own source comes last, so that an edit builds nothing anew."""
    image = modal.Image.debian_slim(python_version="3.11")
    if _LOCKED.is_file():
        image = image.uv_pip_install(requirements=[str(_LOCKED)])
    elif modal.is_local():
        image = image.uv_pip_install(*_installed())
    if modal.is_local():
        image = image.uv_pip_install(*_extra("optimizers"), *_extra("wasm"))
    names = {f"KODERZ_MODAL_{name.upper()}": getattr(_NAMES, name) for name in _NAMES.__slots__}
    image = image.apt_install("git", "patch")  # by which suites make the trees of their sandboxes
    return image.env(names).add_local_python_source("koderz", "tracker", ignore=["**/__pycache__/**"])


def _installed() -> list[str]:
    """The dependencies of an installed koderz, at the versions that it runs with here."""
    from importlib.metadata import distribution

    found: dict[str, str] = {}
    wanted = ["koderz"]
    while wanted:
        for text in distribution(wanted.pop()).requires or ():
            name = _name_of(text)
            if name and name not in found:
                found[name] = distribution(name).version
                wanted.append(name)
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def _extra(name: str) -> list[str]:
    """What an extra of koderz takes."""
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    found = [Requirement(text) for text in requires("koderz") or ()]
    return [
        f"{each.name}{each.specifier}"
        for each in found
        if each.marker and each.marker.evaluate({"extra": name}) and not each.marker.evaluate({"extra": ""})
    ]


def _name_of(requirement: str) -> str:
    """The name in a requirement that holds here; empty for one that belongs to an extra."""
    from packaging.requirements import Requirement

    parsed = Requirement(requirement)
    return parsed.name if parsed.marker is None or parsed.marker.evaluate({"extra": ""}) else ""


app = modal.App(_NAMES.app)
volume = modal.Volume.from_name(_NAMES.volume, create_if_missing=True)


@app.function(
    name=FUNCTION,
    image=_image(),
    volumes={MOUNT: volume},
    secrets=[modal.Secret.from_name(_NAMES.secret)],
    cpu=CPU_CORES,
    memory=MEMORY_MB,
    timeout=TIMEOUT,
    retries=0,  # a retry would pay again for what wasn't stored
)
@modal.concurrent(max_inputs=INPUTS)
async def run_experiment(submission: dict[str, Any]) -> dict[str, Any]:
    """Performs one experiment; `modal_result.read_result` reads what it returns. Never raises."""
    container = _container()
    call_id = modal.current_function_call_id() or ""
    session = Session(submission["run"], orjson.dumps(submission["changes"]))
    async with container.serving(session):
        result = await perform_work(submission, call_id, container.shelf, partial(container.state, session))
    container.shelf.forget(submission["work"]["experiment_id"])
    await volume.commit.aio()  # type: ignore[no-untyped-call]
    return result


class Session(NamedTuple):
    """A run, and as JSON the settings that are others than on its record, see `changes_in`."""

    run: str
    changes: bytes


class Container:
    """What one container keeps between its inputs: the state of each session."""

    def __init__(self) -> None:
        self.shelf = ContainerShelf(_NAMES, Path(MOUNT))
        self._states: dict[Session, ContainerState] = {}
        self._served: Counter[Session] = Counter()  # experiments that are in the container

    @asynccontextmanager
    async def serving(self, session: Session) -> AsyncIterator[None]:
        """While an experiment of the session is here. The sandboxes of those that have none are given back."""
        self._served[session] += 1
        try:
            for idle in [one for one in self._states if not self._served[one]]:
                await self._states.pop(idle).aclose()
            yield
        finally:
            self._served[session] -= 1

    async def state(self, session: Session) -> ContainerState:
        """The container's state of a session, opened by whoever asks first."""
        if session not in self._states:
            folder = Path(tempfile.mkdtemp(prefix="koderz-"))
            plan = unpack_plan(await self.shelf.plan(session.run), folder, orjson.loads(session.changes))
            self._states.setdefault(session, ContainerState(plan, os.environ))
        state = self._states[session]
        await state.opened()
        return state


@cache
def _container() -> Container:
    return Container()
