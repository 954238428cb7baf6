"""The doctor's checks of rollouts: sandboxes for agents' commands, and installed agents."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from koderz.errors import KoderzError, Unreachable
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import Backend, Command
from koderz.settings.systems import own_names, required
from koderz.solvers import SOLVERS
from koderz.systems.rollouts.options import usual_sandbox
from koderz.systems.workspaces.docker import Docker, Podman
from koderz.systems.workspaces.images import ImageStore
from koderz.systems.workspaces.local import Local
from koderz.systems.workspaces.uncontained import Uncontained
from koderz.types import Finding


async def check(environ: Mapping[str, str]) -> list[Finding]:
    """The findings of `koderz doctor` on rollouts."""
    return [await _workspaces(environ), await _images(environ), _agents()]


async def _workspaces(environ: Mapping[str, str]) -> Finding:
    """The sandbox in which agents' commands would run here, and the reasons against others."""
    backends: tuple[Backend, ...] = (Local(), Docker(""), Podman(""), Uncontained())
    # All have to end: asyncio would wait for ever for a program that is called off while it starts.
    ended = await asyncio.gather(
        usual_sandbox(environ), *map(_entered, backends), return_exceptions=True
    )
    for each in ended:
        if isinstance(each, KoderzError):
            return Finding("rollouts", "broken", str(each))
        if isinstance(each, BaseException):
            raise each
    name, *found = map(str, ended)
    told = ", ".join((*found, "modal if that is ok"))
    if found[0].startswith("no "):
        return Finding("rollouts", "missing", told, "--sandbox uncontained runs what is trusted")
    return Finding("rollouts", "ok", f"--sandbox {name} where none is named; {told}")


async def _images(environ: Mapping[str, str]) -> Finding:
    """Whether --sandbox local runs in images here, which is tried on one without programs, and those that there are."""
    folder = environ.get("KODERZ_IMAGES")
    try:
        with scratch() as place:
            (place / "image/bin").mkdir(parents=True)
            (place / "images.json").write_text('{"empty": {"path": "image"}}')
            local = Local(images=ImageStore(place))
            await local.run(
                Command(["/bin/true"], image="empty", in_image=True, checkout="/"), place
            )
    except KoderzError as error:
        return Finding(
            "images",
            "missing",
            f"not by --sandbox local: {error}",
            "--sandbox docker or podman run in them",
        )
    if not folder:
        return Finding(
            "images", "ok", "--sandbox local runs in those of --images DIR, of one user each"
        )
    try:
        names = await asyncio.to_thread(ImageStore(Path(folder)).names)
    except KoderzError as error:
        return Finding("images", "broken", str(error), "remove the file, or save the image again")
    return Finding(
        "images", "ok", f"--sandbox local runs in those of {folder}: {', '.join(names) or 'none'}"
    )


async def _entered(backend: Backend) -> str:
    """The backend's name with its isolation, or the reason why it can't run here."""
    try:
        async with backend:
            return (
                backend.name
                if backend.isolation == backend.name
                else f"{backend.name} ({backend.isolation})"
            )
    except Unreachable as error:
        return f"no {backend.name} ({str(error).removeprefix(f'--sandbox {backend.name}: ')})"


def _agents() -> Finding:
    own = [name.removeprefix("agent:") for name in SOLVERS if name.startswith("agent:")]
    adapters = {name: required("agents", name) for name in own_names("agents")}
    missing = {
        name: adapter.install for name, adapter in adapters.items() if adapter.find() is None
    }
    here = ", ".join(name for name in own if name not in missing)
    absent = "; ".join(f"{name} by {install}" for name, install in missing.items())
    return Finding("agents", "ok", here + (f" (not installed: {absent})" if absent else ""))
