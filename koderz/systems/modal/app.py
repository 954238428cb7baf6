"""The Modal app that `koderz modal deploy` deploys. Imported only there and while deploying.

The function holds keys, so no program runs in its container: they are judged in sandboxes of their own on Modal,
without keys or network; see `koderz.systems.modal.sandbox`.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import modal
import orjson

from koderz.engines.portable import unpack_plan
from koderz.errors import KoderzError
from koderz.systems.modal.cloud import FUNCTION, MOUNT, stored
from koderz.systems.modal.names import CPU_CORES, INPUTS, MEMORY_MB, TIMEOUT, names_of
from koderz.systems.modal.store import ContainerShelf, RunStore
from koderz.systems.modal.worker import ContainerState, perform_work

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_NAMES = names_of(os.environ)
_LOCKED = Path(__file__).resolve().parents[3] / "requirements" / "core.txt"


def _image() -> modal.Image:
    """The image with the locked dependencies; koderz' own source comes last, so that an edit rebuilds nothing else."""
    image = modal.Image.debian_slim(python_version="3.11")
    if _LOCKED.is_file():
        image = image.uv_pip_install(requirements=[str(_LOCKED)])
    elif modal.is_local():
        image = image.uv_pip_install(*_installed())
    if modal.is_local():
        image = image.uv_pip_install(*_extra("optimizers"), *_extra("wasm"))
    names: dict[str, Any] = {
        f"KODERZ_MODAL_{name.upper()}": own for name, own in _NAMES._asdict().items()
    }
    image = image.apt_install("git", "patch")  # by which suites make the trees of their sandboxes
    return image.env(names).add_local_python_source(
        "koderz", "koderz_tracker", ignore=["**/__pycache__/**"]
    )


def _installed() -> list[str]:
    """The dependencies of an installed koderz, at the versions installed here."""
    from importlib.metadata import version

    found: dict[str, str] = {}
    wanted = ["koderz"]
    while wanted:
        for requirement in _required(wanted.pop()):
            if requirement.name not in found:
                found[requirement.name] = version(requirement.name)
                wanted.append(requirement.name)
    return [f"{name}=={found[name]}" for name in sorted(found)]


def _extra(name: str) -> list[str]:
    """The dependencies of an extra of koderz."""
    always = _required("koderz")
    return [
        f"{each.name}{each.specifier}" for each in _required("koderz", name) if each not in always
    ]


def _required(name: str, extra: str = "") -> list[Requirement]:
    """The requirements of a package installed here, those of an extra included."""
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    found = map(Requirement, requires(name) or ())
    return [each for each in found if each.marker is None or each.marker.evaluate({"extra": extra})]


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
    """Runs one experiment; `worker.read_result` reads the returned value. Never raises."""
    container = _container()
    call_id = modal.current_function_call_id() or ""
    session = Session(submission["run"], orjson.dumps(submission["changes"]))
    shelf = ContainerShelf(
        container.store(session.run), submission["work"]["experiment_id"], Path(MOUNT)
    )
    async with container.serving(session):
        result = await perform_work(submission, call_id, shelf, partial(container.state, session))
    await volume.commit.aio()  # type: ignore[no-untyped-call]
    return result


class Session(NamedTuple):
    """A run and the settings that differ from its record, as JSON, see `changes_in`."""

    run: str
    changes: bytes


class Container:
    """The state that one container keeps between its inputs, by session."""

    def __init__(self) -> None:
        self._stores: dict[str, RunStore] = {}
        self._states: dict[Session, ContainerState] = {}
        self._served: Counter[Session] = Counter()  # experiments that are in the container

    @asynccontextmanager
    async def serving(self, session: Session) -> AsyncIterator[None]:
        """A block in which an experiment of the session runs here. Sessions without one give back their sandboxes."""
        self._served[session] += 1
        try:
            for idle in [one for one in self._states if not self._served[one]]:
                await self._states.pop(idle).aclose()
            yield
        finally:
            self._served[session] -= 1

    def store(self, run: str) -> RunStore:
        return self._stores.setdefault(run, RunStore(_NAMES, run))

    async def state(self, session: Session) -> ContainerState:
        """The container's state of a session, opened on first use."""
        if session not in self._states:
            async with stored():
                packed = await self.store(session.run).plan()
            if packed is None:
                raise KoderzError(f"the plan of {session.run} is not in the run's store any more")
            plan = unpack_plan(
                packed, Path(tempfile.mkdtemp(prefix="koderz-")), orjson.loads(session.changes)
            )
            self._states.setdefault(session, ContainerState(plan, os.environ))
        state = self._states[session]
        await state.opened()
        return state


@cache
def _container() -> Container:
    return Container()
