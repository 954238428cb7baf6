"""The compose file of a task: one service is an image with settings, which are read; several need compose itself."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.systems.rollouts.recipes import Recipe
from koderz.systems.rollouts.tasks import RequestedResources

COMPOSE = "docker or podman with compose, which koderz doesn't start"
"""The machine that several services need, and settings that only a daemon can give."""

HARBOR_SERVICES = ("main", "client")
"""The names of the agent's service in Harbor, beside which any other is a second one."""

_IDLE = {
    *("command", "entrypoint", "init", "tty", "stdin_open", "restart", "container_name", "hostname", "domainname"),
    *("ports", "expose", "healthcheck", "depends_on", "networks", "labels", "logging", "shm_size", "ulimits"),
    *("stop_grace_period", "stop_signal", "pull_policy", "profiles", "extra_hosts", "dns"),
}
"""Keys that say how an idle container is held open and reached; koderz starts commands itself."""

_USUAL: Mapping[str, Collection[str]] = {
    "network_mode": ("none", "bridge", "default"),
    "platform": ("linux", "linux/amd64", "linux/x86_64"),
    "privileged": ("False",),
    "read_only": ("False",),
    "scale": ("1",),
    "user": ("root", "0", "0:0", "root:root"),
}
_OF_BUILD = {"context", "dockerfile", "network", "platforms", "tags", "labels", "cache_from", "pull", "no_cache"}
_EMPTY = ("/tmp", "/run", "/dev/shm", "/var/tmp")  # noqa: S108
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_VARIABLE = re.compile(r"\$(?:(\$)|(\w+)|\{(\w+)(?:(:?[-+?])((?:[^{}]|\{[^{}]*\})*))?\})")
_HARNESS = "${T_BENCH_"  # what terminal-bench sets itself
_WAITS = re.compile(
    r"(?:exec )?(?:sleep (?:infinity|inf|\d{3,}\w?)|tail -[fF] /dev/null|cat|bash|sh|/bin/bash|/bin/sh)"
)
_SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash")


@dataclass(slots=True)
class Service:
    """The one service of a compose file."""

    lacks: list[tuple[str, str]] = field(default_factory=list)  # what only compose can honour, and what that needs
    ignored: list[str] = field(default_factory=list)  # settings that make no difference here, or that can't be had
    image: str = ""  # a published one that takes the place of a Dockerfile's
    workdir: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    cpus: float | None = None
    memory_mb: int | None = None
    mounted: list[tuple[str, str]] = field(default_factory=list)  # folders of the context, each with its place


def read_compose(path: Path, variables: Mapping[str, str], own: Sequence[str] = ()) -> Service:
    """The one service of a compose file, where there are several a service that lacks compose.

    `variables` of this machine are those that values may be taken from, `own` the names that the service may have; it
    may have any by default. Raises KoderzError for a file that is none.
    """
    import yaml

    try:
        services = yaml.safe_load(path.read_text(encoding="utf-8"))["services"]
        if not services or not all(isinstance(each, Mapping) for each in services.values()):
            raise TypeError("it needs services, each of which has to be a table")
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise KoderzError(f"{path}: no compose file ({str(error).splitlines()[0]})") from None
    if len(services) > 1 or (own and {*services} - {*own}):
        return Service([(f"services {', '.join(map(str, services))}", COMPOSE)])
    ((name, table),) = services.items()
    found = Service()
    for key, value in table.items():
        try:
            _take(found, key, value, table, variables)
        except (ValueError, TypeError, AttributeError) as error:
            what, more = error.args if isinstance(error, _LackError) else (key, str(value)[:60])
            found.lacks.append((f"services.{name}.{what}", f"{COMPOSE}{more and f' ({more})'}"))
    found.ignored = [f"services.{name}.{key}" for key in found.ignored]
    return found


def with_service(recipe: Recipe, service: Service) -> Recipe:
    """The way to a machine with the settings of its service, which lacks what can't be mounted."""
    mounted = []
    for source, target in service.mounted:
        place = posixpath.relpath(target, recipe.workdir)
        if place.startswith(".."):
            more = f"{source}:{target}, outside of the working folder {recipe.workdir}"
            service.lacks.append(("volumes", f"{COMPOSE} ({more})"))
        mounted.append((source, place))
    return replace(
        recipe,
        environment={**recipe.environment, **service.environment},
        image=service.image or recipe.image,
        asked=RequestedResources(service.cpus, service.memory_mb),
        mounted=tuple(mounted),
    )


class _LackError(ValueError):
    """A setting that can't be honoured, by its name below the service, and its value."""

    def __init__(self, name: str, value: object = "") -> None:
        super().__init__(name, str(value)[:60])


def _take(found: Service, key: str, value: Any, table: Mapping[str, Any], variables: Mapping[str, str]) -> None:
    """Takes in one setting of the service. Raises ValueError or what odd values lead to where it can't be honoured."""
    takers: Mapping[str, Callable[[], None]] = {
        "build": lambda: _require_build(value),
        "cpus": lambda: _limit(found, {"cpus": value}, "cpus"),
        "mem_limit": lambda: _limit(found, {"memory": value}, "mem_limit"),
        "deploy": lambda: _deploy(found, value),
        "environment": lambda: found.environment.update(_variables(value, variables)),
        "volumes": lambda: found.mounted.extend(_mounts(value)),
        "tmpfs": lambda: found.ignored.extend(_made_elsewhere(value)),
    }
    if key == "image":
        if "build" not in table and _HARNESS not in str(value):  # beside `build` it is the name of what is built
            found.image = filled(str(value), variables)
    elif key == "working_dir":
        found.workdir = posixpath.normpath(filled(str(value), variables))
    elif key in takers:
        takers[key]()
    elif key in ("command", "entrypoint") and not _is_waiting(value):
        raise _LackError(key, _words(value))
    elif key not in _IDLE and str(value) not in _USUAL.get(key, ()) and value not in (None, [], {}):
        raise _LackError(key, value)


def _require_build(value: Any) -> None:
    built = value if isinstance(value, Mapping) else {"context": value}
    context, dockerfile = str(built.get("context", ".")), str(built.get("dockerfile", "Dockerfile"))
    others = {key for key in built.keys() - _OF_BUILD if built[key] not in (None, {}, [])}
    if others:
        raise _LackError(f"build.{min(others)}")
    if context.rstrip("/") != "." and not context.startswith("${"):
        raise _LackError("build", context)
    if dockerfile.removeprefix("./") != "Dockerfile":
        raise _LackError("build", dockerfile)


def _deploy(found: Service, value: Mapping[str, Any]) -> None:
    resources = value.get("resources") or {}
    if value.get("replicas", 1) != 1:
        raise _LackError("deploy.replicas")
    if any((resources.get(kind) or {}).get("devices") for kind in ("reservations", "limits")):
        raise _LackError("deploy.resources.reservations.devices")
    _limit(found, resources.get("limits") or {}, "deploy.resources.limits")


def _limit(found: Service, limits: Mapping[str, Any], where: str) -> None:
    if (cpus := limits.get("cpus")) is not None:
        found.cpus = float(cpus) or None
    if (memory := limits.get("memory")) is not None:
        size = _SIZE.fullmatch(str(memory).strip())
        if not size:
            raise _LackError(where, memory)
        found.memory_mb = max(1, int(float(size[1]) * _FACTORS[size[2].lower()] / (1 << 20)))


def _variables(value: Any, known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The variables of a service, without those that terminal-bench sets itself and those that nothing gives."""
    if isinstance(value, Mapping):
        pairs = [*value.items()]
    else:
        pairs = [
            (name, text if equals else None) for name, equals, text in (str(x).partition("=") for x in value or ())
        ]
    for name, text in pairs:
        if text is None:  # taken from where compose runs
            if str(name) in known:
                yield str(name), known[str(name)]
        elif _HARNESS not in str(text):
            yield str(name), filled(str(text).lower() if isinstance(text, bool) else str(text), known)


def _mounts(value: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """The folders of the context that are mounted; those of logs, which terminal-bench names by variables, are none."""
    for each in value:
        if isinstance(each, Mapping):
            source, target = str(each.get("source", "")), str(each["target"])
            is_bound = each.get("type", "bind") == "bind" and not each.get("read_only")
        elif str(each).startswith(_HARNESS):
            continue
        else:
            source, _, rest = str(each).partition(":")
            target, _, mode = rest.partition(":")
            is_bound = mode in ("", "rw", "z", "Z", "cached", "delegated")
        inner = posixpath.normpath(source)
        if not is_bound or not source.startswith(".") or inner.startswith("..") or not target.startswith("/"):
            raise _LackError("volumes", f"{source}{target and ':'}{target}")
        yield inner, posixpath.normpath(target)


def _made_elsewhere(value: Any) -> Iterator[str]:
    """The folders of memory that aren't there anyway."""
    for each in [value] if isinstance(value, str) else value:
        place = posixpath.normpath(str(each).partition(":")[0])
        if place not in _EMPTY:
            yield f"tmpfs = {place}"


def _words(value: Any) -> str:
    return shlex.join(map(str, value)) if isinstance(value, list) else str(value)


def _is_waiting(value: Any) -> bool:
    """Whether a command does nothing but hold its container open."""
    words = [str(each) for each in value] if isinstance(value, list) else shlex.split(str(value or ""))
    if len(words) == 3 and words[0] in _SHELLS and words[1] in ("-c", "-lc"):
        return _WAITS.fullmatch(words[2].strip().rstrip(";")) is not None
    return not words or _WAITS.fullmatch(" ".join(words)) is not None


def filled(text: str, known: Mapping[str, str]) -> str:
    """A value with its variables filled in as compose does: one that nothing gives is empty."""

    def value(found: re.Match[str]) -> str:
        dollar, bare, name, how, word = found.groups()
        if dollar:
            return "$"
        given = known.get(bare or name)
        has = given is not None and (bool(given) or not (how or "").startswith(":"))
        if how and how.endswith("+"):
            return filled(word, known) if has else ""
        if has:
            return given or ""
        if how and how.endswith("?"):
            raise _LackError("environment", f"{name} isn't given: {word}")
        return filled(word, known) if how else ""

    return _VARIABLE.sub(value, text)
