"""The doctor's checks of rollouts: sandboxes for agents' commands, and installed agents."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from koderz.errors import KoderzError, Unreachable
from koderz.sandbox.workspace import Backend, chosen
from koderz.sandbox.workspace.docker import Docker
from koderz.sandbox.workspace.local import Local
from koderz.sandbox.workspace.uncontained import Uncontained
from koderz.settings.systems import own_names, required
from koderz.solvers import SOLVERS
from koderz.types import Finding


async def check(environ: Mapping[str, str]) -> list[Finding]:
    """The findings of `koderz doctor` on rollouts."""
    return [await _workspaces(environ), _agents()]


async def _workspaces(environ: Mapping[str, str]) -> Finding:
    """The sandbox in which agents' commands would run here, and the reasons against others."""
    backends: tuple[Backend, ...] = (Local(), Docker(""), Uncontained())
    try:
        name, *found = await asyncio.gather(chosen(environ), *map(_entered, backends))
    except KoderzError as error:
        return Finding("rollouts", "broken", str(error))
    told = ", ".join((*found, "modal if that is ok"))
    if found[0].startswith("no "):
        return Finding("rollouts", "missing", told, "--sandbox uncontained runs what is trusted")
    return Finding("rollouts", "ok", f"--sandbox {name} where none is named; {told}")


async def _entered(backend: Backend) -> str:
    """The backend's name with its isolation, or the reason why it can't run here."""
    try:
        async with backend:
            return backend.name if backend.isolation == backend.name else f"{backend.name} ({backend.isolation})"
    except Unreachable as error:
        return f"no {backend.name} ({str(error).removeprefix(f'--sandbox {backend.name}: ')})"


def _agents() -> Finding:
    own = [name.removeprefix("agent:") for name in SOLVERS if name.startswith("agent:")]
    adapters = {name: required("agents", name) for name in own_names("agents")}
    missing = {name: adapter.install for name, adapter in adapters.items() if adapter.find() is None}
    here = ", ".join(name for name in own if name not in missing)
    absent = "; ".join(f"{name} by {install}" for name, install in missing.items())
    return Finding("agents", "ok", here + (f" (not installed: {absent})" if absent else ""))
