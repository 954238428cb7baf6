"""Harbor's task.toml, schema 1.4, as typed values: a dataclass for each table, with Harbor's names and defaults.

Older files are read too: `version`, `memory` and `storage` as "2G", and `allow_internet`. A key that no table has is
ignored, as by Harbor, but noted, since it could be a misspelt one; [metadata] may hold any.
"""

from __future__ import annotations

import difflib
import functools
import ipaddress
import math
import re
import tomllib
import types
import typing
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec

from koderz.errors import KoderzError

NetworkMode = Literal["public", "no-network", "allowlist"]
User = str | int | None

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMG])\s*", re.IGNORECASE)
_MB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_PORTABLE = re.compile(r'[^<>:"/\\|?*\x00-\x1f\x7f]*[^<>:"/\\|?*\x00-\x1f\x7f. ]')
_SCHEMA = re.compile(r"1(?:\.\d+)*")


@dataclass(frozen=True, slots=True)
class AuthorTable:
    """An author of a task."""

    name: str
    email: str | None = None


@dataclass(frozen=True, slots=True)
class PackageTable:
    """[task]: the name of a task as `org/name`, and what a registry shows of it."""

    name: str
    version: str | None = None
    description: str = ""
    authors: tuple[AuthorTable, ...] = ()
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HealthcheckTable:
    """A command that is run until it ends with 0. Its numbers mean the same as Docker's. Times are seconds."""

    command: str
    interval_sec: float = 5.0
    timeout_sec: float = 30.0
    start_period_sec: float = 0.0  # in which failures don't count
    start_interval_sec: float = 5.0
    retries: int = 3  # failures in a row


@dataclass(frozen=True, slots=True)
class TpuTable:
    """A slice of TPUs."""

    type: str
    topology: str


@dataclass(frozen=True, slots=True)
class McpServerTable:
    """An MCP server that the agent is to have."""

    name: str
    transport: Literal["stdio", "sse", "streamable-http", "http"] = "sse"
    url: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EnvironmentTable:
    """[environment] and [verifier.environment]: the machine, its image and its network."""

    network_mode: NetworkMode | None = None  # None: public
    allowed_hosts: tuple[str, ...] | None = None
    build_timeout_sec: float = 600.0
    docker_image: str | None = None
    os: Literal["linux", "windows"] = "linux"
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int | None = None
    gpu_types: tuple[str, ...] | None = None
    tpu: TpuTable | None = None
    mcp_servers: tuple[McpServerTable, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    skills_dir: str | None = None
    healthcheck: HealthcheckTable | None = None
    workdir: str | None = None
    allow_internet: bool | None = None  # older files
    memory: str | None = None
    storage: str | None = None


@dataclass(frozen=True, slots=True)
class AgentTable:
    """[agent]: the agent's time, user and network."""

    timeout_sec: float | None = None
    user: User = None
    network_mode: NetworkMode | None = None  # None: the environment's
    allowed_hosts: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class CollectTable:
    """A command that is run once the agent has ended, before artifacts are collected."""

    command: str
    service: str = "main"
    timeout_sec: float = 60.0
    user: User = None


@dataclass(frozen=True, slots=True)
class VerifierTable:
    """[verifier]: the verifier's time, user and network, and whether it has a machine of its own."""

    timeout_sec: float = 600.0
    env: Mapping[str, str] = field(default_factory=dict)
    user: User = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: EnvironmentTable | None = None
    collect: tuple[CollectTable, ...] = ()
    network_mode: NetworkMode | None = None
    allowed_hosts: tuple[str, ...] | None = None

    @property
    def mode(self) -> Literal["shared", "separate"] | None:
        """The mode as far as the table itself says: an environment implies a separate verifier."""
        return self.environment_mode or ("separate" if self.environment else None)


@dataclass(frozen=True, slots=True)
class SolutionTable:
    """[solution]: the variables of solve.sh."""

    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ArtifactTable:
    """A file or folder of the agent's that is kept, and that a separate verifier gets."""

    source: str
    destination: str | None = None  # below the folder of artifacts
    exclude: tuple[str, ...] = ()  # patterns of names in a folder
    service: str | None = None


@dataclass(frozen=True, slots=True)
class StepTable:
    """[[steps]]: a part of the task with instructions and a verifier of its own, after those before it."""

    name: str
    agent: AgentTable = field(default_factory=AgentTable)
    verifier: VerifierTable = field(default_factory=VerifierTable)
    min_reward: float | Mapping[str, float] | None = None
    healthcheck: HealthcheckTable | None = None
    artifacts: tuple[str | ArtifactTable, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskTable:
    """The whole file."""

    schema_version: str = "1.4"
    version: str | None = None  # older files
    task: PackageTable | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    agent: AgentTable = field(default_factory=AgentTable)
    verifier: VerifierTable = field(default_factory=VerifierTable)
    environment: EnvironmentTable = field(default_factory=EnvironmentTable)
    solution: SolutionTable = field(default_factory=SolutionTable)
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    steps: tuple[StepTable, ...] | None = None
    artifacts: tuple[str | ArtifactTable, ...] = ()


def read_task_toml(path: Path, text: str) -> tuple[TaskTable, tuple[str, ...]]:
    """Reads a task.toml: its table, and the keys that are ignored, each with the one that may be meant.

    Raises KoderzError with the file, the field and what is wrong with it.
    """
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise KoderzError(f"{path}: not TOML ({error})") from None
    for environment in _environments(found):
        if isinstance(environment.get("os"), str):
            environment["os"] = environment["os"].lower()
    try:
        table = msgspec.convert(found, TaskTable)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$.")
        raise KoderzError(
            f"{path}: {f'{place[:-1]}: ' if place else ''}{what[0].lower()}{what[1:]}"
        ) from None
    for name, wrong in _wrong(table):
        raise KoderzError(f"{path}: {name} {wrong}")
    return table, tuple(_ignored(found, TaskTable, ""))


def artifact_of(entry: str | ArtifactTable) -> ArtifactTable:
    """An artifact that may be written as its path alone."""
    return ArtifactTable(entry) if isinstance(entry, str) else entry


def megabytes(amount: int | None, old: str | None) -> int | None:
    """The amount in MB, which older files write as a text such as "2G". None or 0: no limit."""
    if amount is None and old and (found := _SIZE.fullmatch(old)):
        amount = int(float(found[1]) * _MB[found[2].upper()])
    return amount or None


def _environments(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The tables of environments, before they are typed."""
    steps = found.get("steps")
    verifiers = [
        found,
        *(step for step in (steps if isinstance(steps, list) else ()) if isinstance(step, dict)),
    ]
    own = [table.get("verifier") for table in verifiers]
    for each in (found, *(table for table in own if isinstance(table, dict))):
        if isinstance(each.get("environment"), dict):
            yield each["environment"]


def _ignored(found: object, kind: Any, name: str) -> Iterator[str]:
    """The keys that the table of this type hasn't got, in tables within it too."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        tables = (
            each
            for each in typing.get_args(kind)
            if is_dataclass(each) or typing.get_origin(each) is tuple
        )
        kind = next(tables, None)
    if isinstance(found, list) and typing.get_origin(kind) is tuple:
        for each in found:
            yield from _ignored(each, typing.get_args(kind)[0], name)
    elif isinstance(found, dict) and isinstance(kind, type) and is_dataclass(kind):
        kinds = _kinds(kind)
        for key, value in found.items():
            where = f"{name}.{key}".lstrip(".")
            if key in kinds:
                yield from _ignored(value, kinds[key], where)
            else:
                near = difflib.get_close_matches(key, kinds, 1)
                yield f"{where} (did you mean {near[0]}?)" if near else where


@functools.cache
def _kinds(table: type) -> Mapping[str, Any]:
    """The type of each field of a table. Finding them takes longer than reading a file."""
    return typing.get_type_hints(table)


def _wrong(table: TaskTable) -> Iterator[tuple[str, str]]:
    """Each value that its type doesn't exclude: the field's name, and what is wrong with it."""
    schema = table.version or table.schema_version
    if not _SCHEMA.fullmatch(schema):
        yield (
            "schema_version",
            f'= "{schema[:100]}" is none that koderz reads; it reads 1.4 and those before',
        )
    yield from _wrong_environment(table.environment, "environment")
    yield from _wrong_phase(table.agent, "agent")
    yield from _wrong_verifier(table.verifier, "verifier")
    yield from _wrong_artifacts(table.artifacts, "artifacts")
    names = set[str]()
    for step in table.steps or ():
        where, key = f"steps.{step.name}", unicodedata.normalize("NFC", step.name).casefold()
        if not _PORTABLE.fullmatch(step.name) or len(step.name.encode()) > 255:
            yield "steps.name", f"= {step.name!r} can't be the name of a folder"
        if key in names:
            yield "steps.name", f'= "{step.name}": two steps have it'
        names.add(key)
        yield from _wrong_phase(step.agent, f"{where}.agent")
        yield from _wrong_verifier(step.verifier, f"{where}.verifier")
        yield from _wrong_healthcheck(step.healthcheck, f"{where}.healthcheck")
        yield from _wrong_artifacts(step.artifacts, f"{where}.artifacts")
        least = (
            step.min_reward
            if isinstance(step.min_reward, Mapping)
            else {"reward": step.min_reward or 0.0}
        )
        if not all(map(math.isfinite, least.values())):
            yield f"{where}.min_reward", "has to be a finite number, or a table of such"


def _wrong_verifier(table: VerifierTable, where: str) -> Iterator[tuple[str, str]]:
    yield from _wrong_phase(table, where)
    if table.environment_mode == "shared" and table.environment:
        yield (
            f"{where}.environment_mode",
            f'= "shared" contradicts [{where}.environment], which is a separate one',
        )
    if table.environment:
        yield from _wrong_environment(table.environment, f"{where}.environment")
    for hook in table.collect:
        yield from _seconds(hook.timeout_sec, f"{where}.collect.timeout_sec")


def _wrong_phase(table: AgentTable | VerifierTable, where: str) -> Iterator[tuple[str, str]]:
    yield from _seconds(table.timeout_sec, f"{where}.timeout_sec")
    yield from _wrong_network(table.network_mode, table.allowed_hosts, where)


def _wrong_environment(table: EnvironmentTable, where: str) -> Iterator[tuple[str, str]]:
    yield from _seconds(table.build_timeout_sec, f"{where}.build_timeout_sec")
    yield from _wrong_network(table.network_mode, table.allowed_hosts, where)
    yield from _wrong_healthcheck(table.healthcheck, f"{where}.healthcheck")
    amounts = {
        "cpus": table.cpus,
        "memory_mb": table.memory_mb,
        "storage_mb": table.storage_mb,
        "gpus": table.gpus,
    }
    for name, amount in amounts.items():
        if amount is not None and not 0 <= amount < math.inf:
            yield f"{where}.{name}", f"= {amount} has to be a number from 0 up"
    for name, size, amount in (
        ("memory", table.memory, table.memory_mb),
        ("storage", table.storage, table.storage_mb),
    ):
        if size is not None and not _SIZE.fullmatch(size):
            yield f"{where}.{name}", f'= "{size}" has to be of the form 512M or 2G'
        elif size is not None and amount is not None and megabytes(None, size) != (amount or None):
            yield f"{where}.{name}", f'= "{size}" contradicts {name}_mb = {amount}'
    if table.workdir is not None and (
        not table.workdir.startswith("/") or ".." in table.workdir.split("/")
    ):
        yield f"{where}.workdir", f'= "{table.workdir}" has to be an absolute path'


def _wrong_healthcheck(table: HealthcheckTable | None, where: str) -> Iterator[tuple[str, str]]:
    if table is None:
        return
    yield from _seconds(table.timeout_sec, f"{where}.timeout_sec")
    periods = {"interval_sec": table.interval_sec, "start_interval_sec": table.start_interval_sec}
    for name, seconds in (periods | {"start_period_sec": table.start_period_sec}).items():
        if not 0 <= seconds < math.inf:
            yield f"{where}.{name}", "has to be a number of seconds from 0 up"
    if table.retries < 1:
        yield f"{where}.retries", "has to be a whole number from 1 up"


def _wrong_network(
    mode: NetworkMode | None, hosts: tuple[str, ...] | None, where: str
) -> Iterator[tuple[str, str]]:
    if hosts and mode != "allowlist":
        yield f"{where}.allowed_hosts", 'is for network_mode = "allowlist" alone'
    for host in hosts or ():
        if not is_host(host.strip().lower().rstrip(".")):
            yield (
                f"{where}.allowed_hosts",
                f'"{host}" has to be a host, *.HOST, an address or a CIDR range',
            )


def is_host(host: str) -> bool:
    """Whether a text is a host, `*.HOST`, an address or a CIDR range."""
    try:
        if "/" in host:
            ipaddress.ip_network(host)
        elif not host.startswith("*."):
            ipaddress.ip_address(host)
        else:
            raise ValueError
    except ValueError:
        bare = host.removeprefix("*.")
        is_numeric = bare.replace(".", "").isdigit()
        return (
            "/" not in host
            and not is_numeric
            and all(_LABEL.fullmatch(label) for label in bare.split("."))
        )
    return True


def _wrong_artifacts(
    entries: tuple[str | ArtifactTable, ...], where: str
) -> Iterator[tuple[str, str]]:
    for artifact in map(artifact_of, entries):
        if not artifact.source or ".." in PurePosixPath(artifact.source).parts:
            yield f"{where}.source", f"= {artifact.source!r} has to be a path without `..`"
        destination = PurePosixPath(artifact.destination or "artifact")
        leaves = destination.is_absolute() or ".." in destination.parts or "\\" in str(destination)
        if leaves or destination.as_posix() in (".", "manifest.json"):
            yield (
                f"{where}.destination",
                f"= {artifact.destination!r} has to be a relative path, not manifest.json",
            )


def _seconds(value: float | None, where: str) -> Iterator[tuple[str, str]]:
    if value is not None and not 0 < value < math.inf:
        yield where, "has to be a number of seconds above 0"
