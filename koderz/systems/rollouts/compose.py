"""The compose file of a task: one service can be honoured in its image; several need compose itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.systems.rollouts.recipes import Recipe

_OWN = {"main", "client"}  # the agent's service, as Harbor and terminal-bench call it
_IDLE = {"command", "entrypoint", "init", "tty", "stdin_open", "restart", "container_name", "hostname"}
"""Keys that say how an idle container is held open, which koderz doesn't need: it starts commands itself."""

COMPOSE = "docker or podman with compose, which koderz doesn't start"
"""The machine that several services need."""


def read_compose(path: Path, recipe: Recipe) -> tuple[list[tuple[str, str]], Recipe]:
    """Settings that need compose itself, each with the machine that it needs, and the path of the one service.

    `recipe`: the way to it by its Dockerfile. Raises KoderzError for a file that is none.
    """
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        services = found["services"]
        if not all(isinstance(each, Mapping) for each in services.values()):
            raise TypeError("each service has to be a table")
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise KoderzError(f"{path}: no compose file ({str(error).splitlines()[0]})") from None
    if {*services} - _OWN or len(services) > 1:
        return [(f"services {', '.join(map(str, services))}", COMPOSE)], recipe
    lacks = []
    for name, service in services.items():
        for key, value in service.items():
            if key == "environment":
                recipe = replace(recipe, environment={**recipe.environment, **_variables(value)})
            elif key == "working_dir":
                recipe = replace(recipe, workdir=str(value), is_assumed=False)
            elif key == "image":
                recipe = replace(recipe, image="" if "${" in str(value) else str(value))
            elif not _is_usual(key, value):
                lacks.append((f"services.{name}.{key}", COMPOSE))
    return lacks, recipe


def _is_usual(key: str, value: Any) -> bool:
    """Whether koderz does the same without being told."""
    if key == "build":
        built = value if isinstance(value, Mapping) else {"context": value}
        context, dockerfile = str(built.get("context", ".")), str(built.get("dockerfile", "Dockerfile"))
        is_own = context in (".", "./") or context.startswith("${")
        return not built.keys() - {"context", "dockerfile"} and is_own and dockerfile == "Dockerfile"
    if key == "volumes" and isinstance(value, list):  # folders of logs, which terminal-bench names by variables
        return all(isinstance(each, str) and each.startswith("${T_BENCH_") for each in value)
    return key in _IDLE


def _variables(value: Any) -> dict[str, str]:
    """The variables of a service, without those that terminal-bench sets itself."""
    pairs = value.items() if isinstance(value, Mapping) else (str(each).partition("=")[::2] for each in value or ())
    return {str(name): str(text) for name, text in pairs if text is not None and "${T_BENCH_" not in str(text)}
