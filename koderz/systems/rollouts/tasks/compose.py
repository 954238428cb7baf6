"""The compose file of a task: the agent's service is an image with settings; those beside it are compose's to start."""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.sandbox.workspace import Limits, Services
from koderz.systems.rollouts.dockerfiles.recipes import Recipe
from koderz.systems.rollouts.task import Need, RequestedResources
from koderz.systems.workspaces.cores import available_cores

REFUSED = "what no container of koderz has"
"""The machine that settings need which koderz gives to nobody."""

COMPOSED = ("docker", "podman")
"""The sandboxes that start services where they have compose."""

HARBOR_SERVICES = ("main", "client")
"""The names of the agent's service in Harbor, beside which any other is a second one."""

_IDLE = {
    *(
        "command",
        "entrypoint",
        "init",
        "tty",
        "stdin_open",
        "restart",
        "container_name",
        "hostname",
        "domainname",
    ),
    *(
        "ports",
        "expose",
        "healthcheck",
        "depends_on",
        "networks",
        "labels",
        "logging",
        "shm_size",
        "ulimits",
    ),
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
_KEPT = {
    *(
        "image",
        "command",
        "entrypoint",
        "healthcheck",
        "depends_on",
        "working_dir",
        "user",
        "tmpfs",
        "init",
        "tty",
    ),
    *(
        "stdin_open",
        "shm_size",
        "ulimits",
        "stop_grace_period",
        "stop_signal",
        "restart",
        "hostname",
        "cap_drop",
    ),
    *("read_only", "platform"),
}
"""Keys of the services beside the agent's that compose gets as they are."""

_REPLACED = {
    *(
        "build",
        "environment",
        "volumes",
        "networks",
        "container_name",
        "deploy",
        "cpus",
        "mem_limit",
        "pids_limit",
    ),
    *("ports", "expose", "labels", "logging", "pull_policy"),
}
"""Those that it gets otherwise, or not at all. All others, such as `privileged` and `env_file`, are refused."""

_OF_BUILD = {
    "context",
    "dockerfile",
    "network",
    "platforms",
    "tags",
    "labels",
    "cache_from",
    "pull",
    "no_cache",
}
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
class ComposeService:
    """The one service of a compose file."""

    # what only compose can honour, and what that needs
    lacks: list[tuple[str, str]] = field(default_factory=list)
    # settings that make no difference here, or that can't be had
    ignored: list[str] = field(default_factory=list)
    image: str = ""  # a published one that takes the place of a Dockerfile's
    workdir: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    cpus: float | None = None
    memory_mb: int | None = None
    # folders of the context, each with its place
    mounted: list[tuple[str, str]] = field(default_factory=list)
    beside: Services | None = None  # the other services


def read_compose(
    path: Path, variables: Mapping[str, str], own: Sequence[str] = ()
) -> ComposeService:
    """The service of a compose file in which the agent works, with those beside it.

    `variables` of this machine are those that values may be taken from. `own` are the names that the service may have,
    the first even where the file has no such service; by default any where it is alone, else Harbor's.
    Raises KoderzError for a file that is none.
    """
    import yaml

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        services = document["services"]
        if not services or not all(isinstance(each, Mapping) for each in services.values()):
            raise TypeError("it needs services, each of which has to be a table")
    except (
        OSError,
        ValueError,
        yaml.YAMLError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise KoderzError(f"{path}: no compose file ({str(error).splitlines()[0]})") from None
    alone = [*services] if len(services) == 1 and not own else []
    name = next(
        (each for each in (*HARBOR_SERVICES, *alone) if each in services), own[0] if own else ""
    )
    if not name:
        return ComposeService(
            [
                (
                    f"services {', '.join(map(str, services))}",
                    f"one named {' or '.join(HARBOR_SERVICES)}",
                )
            ]
        )
    found, table = ComposeService(), services.get(name, {})
    for key, value in table.items():
        try:
            _take(found, key, value, table, variables)
        except (ValueError, TypeError, AttributeError) as error:
            what, more = error.args if isinstance(error, _LackError) else (key, str(value)[:60])
            found.lacks.append((f"services.{name}.{what}", f"{REFUSED}{more and f' ({more})'}"))
    if {*services} - {name}:
        try:
            found.beside = _beside(document, name, path.parent, variables)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            what, more = (
                error.args if isinstance(error, _LackError) else ("services", str(error)[:60])
            )
            found.lacks.append((what, f"{REFUSED}{more and f' ({more})'}"))
    found.ignored = [f"services.{name}.{key}" for key in found.ignored]
    return found


def needs_of(compose: Path, service: ComposeService) -> tuple[Need, ...]:
    """The parts of a compose file that not every sandbox can honour."""
    found = [Need(f"{compose}: {what}", machine) for what, machine in service.lacks]
    if service.beside:
        names = ", ".join(service.beside.services)
        found.append(
            Need(
                f"{compose}: services.{names}", "--sandbox docker or podman with compose", COMPOSED
            )
        )
    return tuple(found)


def with_service(recipe: Recipe, service: ComposeService) -> Recipe:
    """The way to a machine with the settings of its service, which lacks what can't be mounted."""
    mounted = []
    for source, target in service.mounted:
        place = posixpath.relpath(target, recipe.workdir)
        if place.startswith(".."):
            more = f"{source}:{target}, outside of the working folder {recipe.workdir}"
            service.lacks.append(("volumes", f"{REFUSED} ({more})"))
        mounted.append((source, place))
    return replace(
        recipe,
        environment={**recipe.environment, **service.environment},
        image=service.image or recipe.image,
        asked=RequestedResources(service.cpus, service.memory_mb),
        mounted=tuple(mounted),
        services=service.beside,
    )


class _LackError(ValueError):
    """A setting that can't be honoured, by its name below the service, and its value."""

    def __init__(self, name: str, value: object = "") -> None:
        super().__init__(name, str(value)[:60])


def _take(
    found: ComposeService,
    key: str,
    value: Any,
    table: Mapping[str, Any],
    variables: Mapping[str, str],
) -> None:
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
        # beside `build` it is the name of what is built
        if "build" not in table and _HARNESS not in str(value):
            found.image = filled(str(value), variables)
    elif key == "working_dir":
        found.workdir = posixpath.normpath(filled(str(value), variables))
    elif key in takers:
        takers[key]()
    elif key in ("command", "entrypoint") and not _is_waiting(value):
        raise _LackError(
            key, shlex.join(map(str, value)) if isinstance(value, list) else str(value)
        )
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


def _deploy(found: ComposeService, value: Mapping[str, Any]) -> None:
    resources = value.get("resources") or {}
    if value.get("replicas", 1) != 1:
        raise _LackError("deploy.replicas")
    if any((resources.get(kind) or {}).get("devices") for kind in ("reservations", "limits")):
        raise _LackError("deploy.resources.reservations.devices")
    _limit(found, resources.get("limits") or {}, "deploy.resources.limits")


def _limit(found: ComposeService, limits: Mapping[str, Any], where: str) -> None:
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
            (name, text if equals else None)
            for name, equals, text in (str(x).partition("=") for x in value or ())
        ]
    for name, text in pairs:
        if text is None:  # taken from where compose runs
            if str(name) in known:
                yield str(name), known[str(name)]
        elif _HARNESS not in str(text):
            yield (
                str(name),
                filled(str(text).lower() if isinstance(text, bool) else str(text), known),
            )


def _mounts(value: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """The folders of the context that are mounted; those of logs, which terminal-bench names by variables, are none."""
    for each in value:
        if isinstance(each, Mapping):
            source, target = str(each.get("source", "")), str(each.get("target", ""))
            is_bound = each.get("type", "bind") == "bind" and not each.get("read_only")
        elif str(each).startswith(_HARNESS):
            continue
        else:
            source, _, rest = str(each).partition(":")
            target, _, mode = rest.partition(":")
            is_bound = mode in ("", "rw", "z", "Z", "cached", "delegated")
        inner = posixpath.normpath(source)
        if (
            not is_bound
            or not source.startswith(".")
            or inner.startswith("..")
            or not target.startswith("/")
        ):
            raise _LackError("volumes", f"{source}{target and ':'}{target}")
        yield inner, posixpath.normpath(target)


def _made_elsewhere(value: Any) -> Iterator[str]:
    """The folders of memory that aren't there anyway."""
    for each in [value] if isinstance(value, str) else value:
        place = posixpath.normpath(str(each).partition(":")[0])
        if place not in _EMPTY:
            yield f"tmpfs = {place}"


def _is_waiting(value: Any) -> bool:
    """Whether a command does nothing but hold its container open."""
    words = (
        [str(each) for each in value] if isinstance(value, list) else shlex.split(str(value or ""))
    )
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


def _beside(
    document: Mapping[str, Any], main: str, folder: Path, known: Mapping[str, str]
) -> Services:
    """The services beside the agent's, as compose gets them. Raises _LackError for what they can't have."""
    for key in document:
        if key not in ("services", "volumes", "networks", "version", "name") and not str(
            key
        ).startswith("x-"):
            raise _LackError(str(key))
    for kind, driver in (("volumes", "local"), ("networks", "bridge")):
        for name, about in (document.get(kind) or {}).items():
            if about not in (None, {}, {"driver": driver}):
                raise _LackError(f"{kind}.{name}", about)
    services, volumes = document["services"], document.get("volumes") or {}
    if len({frozenset(table.get("networks") or ["default"]) for table in services.values()}) > 1:
        raise _LackError("networks", "services are on different ones")
    waited = services.get(main, {}).get("depends_on") or {}
    if isinstance(waited, Mapping) and "service_completed_successfully" in str(waited):
        raise _LackError(f"services.{main}.depends_on", "service_completed_successfully")
    found = {}
    for name, table in services.items():
        try:
            if name != main:
                found[str(name)] = _service(table, main, folder, volumes, known)
        except _LackError as lack:
            raise _LackError(f"services.{name}.{lack.args[0]}", lack.args[1]) from None
    return Services(found, {each: {} for each in volumes}, folder, main)


def _service(
    table: Mapping[str, Any],
    main: str,
    folder: Path,
    volumes: Collection[str],
    known: Mapping[str, str],
) -> dict[str, Any]:
    if odd := [
        key
        for key, value in table.items()
        if key not in _KEPT | _REPLACED and value not in (None, False, [], {})
    ]:
        raise _LackError(str(odd[0]), table[odd[0]])
    if main in (table.get("depends_on") or ()):
        raise _LackError("depends_on", main)
    own = {key: _plain(value, known) for key, value in table.items() if key in _KEPT}
    asked, usual = ComposeService(), Limits()
    _limit(asked, {"cpus": table.get("cpus"), "memory": table.get("mem_limit")}, "mem_limit")
    _deploy(asked, table.get("deploy") or {})
    memory = f"{asked.memory_mb or usual.memory_mb}m"
    own |= {"mem_limit": memory, "memswap_limit": memory, "pids_limit": usual.processes}
    if asked.cpus:
        own["cpus"] = min(asked.cpus, available_cores())
    own["environment"] = dict(_variables(table.get("environment"), known))
    mounts = [each for each in table.get("volumes") or () if not str(each).startswith(_HARNESS)]
    own["volumes"] = [_mount(_plain(each, known), volumes, folder) for each in mounts]
    networks = table.get("networks") or {}
    tables = [each or {} for each in networks.values()] if isinstance(networks, Mapping) else []
    if any(each.keys() - {"aliases"} for each in tables):
        raise _LackError("networks", networks)
    aliases = [alias for each in tables for alias in each.get("aliases") or ()]
    if name := table.get("container_name"):  # one of all of the machine, which can't be taken twice
        aliases.append(name)
    own["networks"] = {
        "default": {
            "aliases": [_plain(each, known) for each in aliases if _HARNESS not in str(each)]
        }
    }
    if "build" in table:
        own.pop("image", None)  # the name of what is built
        own["build"] = _built(table["build"], folder, known)
    elif (
        _HARNESS in str(table.get("image", _HARNESS))
        or not own["image"]
        or own["image"].startswith("-")
    ):
        raise _LackError("image", table.get("image", ""))
    return own


def _built(value: Any, folder: Path, known: Mapping[str, str]) -> dict[str, Any]:
    built = value if isinstance(value, Mapping) else {"context": value}
    if odd := built.keys() - {"context", "dockerfile", "args", "target"}:
        raise _LackError(f"build.{min(odd)}")
    context = _inner(filled(str(built.get("context", ".")), known), folder, "build")
    dockerfile = filled(str(built.get("dockerfile", "Dockerfile")), known)
    _inner(posixpath.join(context, dockerfile), folder, "build")
    target = {"target": str(built["target"])} if "target" in built else {}
    return {
        "context": context,
        "dockerfile": dockerfile,
        "args": dict(_variables(built.get("args"), known)),
        **target,
    }


def _mount(each: Any, volumes: Collection[str], folder: Path) -> dict[str, Any]:
    """A mount of a service: a volume of the task's, or what lies in its folder, which can't be changed."""
    if isinstance(each, Mapping):
        if odd := each.keys() - {"type", "source", "target", "read_only"}:
            raise _LackError(f"volumes.{min(odd)}", each)
        kind, source, target = (
            each.get("type"),
            str(each.get("source", "")),
            str(each.get("target", "")),
        )
        is_kept = bool(each.get("read_only"))
    else:
        source, _, rest = str(each).partition(":") if ":" in str(each) else ("", "", str(each))
        target, _, mode = rest.partition(":")
        is_kept, kind = (
            "ro" in mode.split(","),
            "bind" if source.startswith((".", "/", "~")) else "volume",
        )
    if not target.startswith("/") or kind not in ("bind", "volume", "tmpfs"):
        raise _LackError("volumes", f"{source}:{target}")
    if kind == "bind":
        place = {"source": _inner(source, folder, "volumes"), "bind": {"create_host_path": False}}
        return {"type": kind, "target": target, "read_only": True, **place}
    if source and source not in volumes:
        raise _LackError("volumes", f"{source}:{target}")
    return {
        "type": kind,
        "target": target,
        "read_only": is_kept,
        **({"source": source} if source else {}),
    }


def _inner(source: str, folder: Path, key: str) -> str:
    """A path in the task's folder, which compose takes for nothing else; no link leads there."""
    inner = posixpath.normpath(source)
    there = folder.resolve() / inner
    if inner.startswith(("/", "..")) or os.path.realpath(there) != str(there) or not there.exists():
        raise _LackError(key, source)
    return f"./{inner}"


def _plain(value: Any, known: Mapping[str, str]) -> Any:
    """A value as JSON has it, with its variables filled in."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each, known) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each, known) for each in value]
    return (
        value
        if value is None or isinstance(value, bool | int | float)
        else filled(str(value), known)
    )
