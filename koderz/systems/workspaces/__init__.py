"""The system `workspaces`: repositories in which something works that isn't trusted, such as an agent or a patch.

`git` makes checkouts and takes diffs, `local` and `docker` run commands in them, and `inside` is what runs beside a
command in its sandbox. Rollouts and patches stand on it. What a command is and is held to says
`koderz.sandbox.workspace`.
"""

from __future__ import annotations

from koderz.settings.systems import System

_HERE = "koderz.systems.workspaces.opening"

SYSTEM = System(
    name="workspaces",
    workspaces={
        "contained": f"{_HERE}:open_local",
        "local": f"{_HERE}:open_local",
        "docker": f"{_HERE}:open_docker",
        "podman": f"{_HERE}:open_podman",
        "uncontained": f"{_HERE}:open_uncontained",
    },
)
