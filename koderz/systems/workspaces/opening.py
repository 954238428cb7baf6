"""Workspaces by the name of a sandbox."""

from __future__ import annotations

from koderz.errors import KoderzError
from koderz.sandbox import SANDBOXES, DockerOptions
from koderz.sandbox.workspace import Backend, Timed
from koderz.settings.schema import Settings
from koderz.settings.systems import added, names_of


def open_workspaces(name: str, settings: Settings) -> Backend:
    """The backend of a sandbox' workspaces, not yet entered. KoderzError for an unknown sandbox, or one without."""
    if opener := added("workspaces", name):
        backend: Backend = opener(settings)
        return backend
    return SANDBOXES.load(name).open_workspaces(settings)


def has_workspaces(name: str) -> bool:
    """Whether there is a sandbox of that name, or workspaces alone."""
    return SANDBOXES.has(name) or name in names_of("workspaces")


def open_timed(settings: Settings) -> Timed:
    """The backend that the sandbox of the settings has for commands that are timed. KoderzError for others."""
    found = open_workspaces(settings.sandbox, settings)
    if not isinstance(found, Timed):
        raise KoderzError(
            f"--sandbox {settings.sandbox}: nothing can be timed there; use contained or docker"
        )
    return found


def open_local(settings: Settings) -> Backend:  # noqa: ARG001 it opens workspaces
    """Commands in namespaces of this machine."""
    from koderz.systems.workspaces.local import Local

    return Local()


def open_uncontained(settings: Settings) -> Backend:  # noqa: ARG001 it opens workspaces
    """Commands as processes of this machine."""
    from koderz.systems.workspaces.uncontained import Uncontained

    return Uncontained()


def open_docker(settings: Settings) -> Backend:
    """Commands in containers."""
    from koderz.systems.workspaces.docker import Docker

    return Docker(settings.of(DockerOptions).docker_image)


def open_podman(settings: Settings) -> Backend:
    """Commands in containers of podman."""
    from koderz.systems.workspaces.docker import Podman

    return Podman(settings.of(DockerOptions).docker_image)
