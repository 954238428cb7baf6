"""Whether agents can work here: which sandboxes there are for their commands, and which of them are installed."""

from __future__ import annotations

from collections.abc import Mapping

from koderz.errors import KoderzError, Unreachable
from koderz.sandbox.workspace.backends import chosen
from koderz.sandbox.workspace.local import Local
from koderz.solvers import SOLVERS
from koderz.solvers.agents.adapters import AGENTS, ENTRY_POINTS
from koderz.types import Finding
from tracker.registry import find


async def check(environ: Mapping[str, str]) -> list[Finding]:
    """What `koderz doctor` says of rollouts."""
    return [await _workspaces(environ), _agents()]


async def _workspaces(environ: Mapping[str, str]) -> Finding:
    """Where agents' commands would run here: which of the sandboxes, and what is to be had besides."""
    try:
        name = await chosen(environ)
        async with Local() as local:
            found = f"local ({local.isolation})"
    except Unreachable as error:
        return Finding("rollouts", "missing", str(error), "--sandbox uncontained runs what is trusted")
    except KoderzError as error:
        return Finding("rollouts", "broken", str(error))
    return Finding("rollouts", "ok", f"--sandbox {name} where none is named; {found}, docker, uncontained")


def _agents() -> Finding:
    own = [name.removeprefix("agent:") for name in SOLVERS if name.startswith("agent:")]
    adapters = {name: find("agent", name, AGENTS, ENTRY_POINTS) for name in AGENTS}
    missing = {name: adapter.install for name, adapter in adapters.items() if adapter.find() is None}
    here = ", ".join(name for name in own if name not in missing)
    absent = "; ".join(f"{name} by {install}" for name, install in missing.items())
    return Finding("agents", "ok", here + (f" (not installed: {absent})" if absent else ""))
