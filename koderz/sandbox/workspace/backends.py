"""The backends of workspaces by name, and which one is meant where none is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from koderz.errors import KoderzError, Unreachable
from koderz.sandbox import DockerOptions
from koderz.sandbox.docker import daemon_version
from koderz.sandbox.workspace import BACKENDS, Backend, Timed
from koderz.settings.schema import Settings

VARIABLE = "SANDBOX_BACKEND"


def local(_settings: Settings) -> Backend:
    from koderz.sandbox.workspace.local import Local

    return Local()


def docker(settings: Settings) -> Backend:
    from koderz.sandbox.workspace.docker import Docker

    return Docker(settings.of(DockerOptions).docker_image)


def uncontained(_settings: Settings) -> Backend:
    from koderz.sandbox.workspace.uncontained import Uncontained

    return Uncontained()


def timed(settings: Settings) -> Timed:
    """The backend that the sandbox of the settings names, for commands that are timed. KoderzError for others."""
    found = BACKENDS.find(settings.sandbox)(settings)
    if not hasattr(found, "started"):
        raise KoderzError(f"--sandbox {settings.sandbox}: nothing can be timed there; use contained or docker")
    return cast("Timed", found)


async def chosen(environ: Mapping[str, str]) -> str:
    """What SANDBOX_BACKEND names; unset: docker if a daemon answers, else local. KoderzError for what isn't known."""
    named = environ.get(VARIABLE, "")
    if named:
        if not BACKENDS.has(named):
            raise KoderzError(f"{VARIABLE}={named}: there are {', '.join(BACKENDS)}")
        return named
    try:
        await daemon_version()
    except Unreachable:
        return "local"
    return "docker"
