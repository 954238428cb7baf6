"""Settings: flags over environment over koderz.toml over defaults, validated once.

Every field is a flag `--field-name`, a variable `KODERZ_FIELD_NAME` and a key `field-name` of koderz.toml,
but for what only makes sense for one command.
"""

from __future__ import annotations

import dataclasses
import os
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from koderz.errors import KoderzError
from koderz.types import FeedbackKind, Judging

DOCKER_IMAGE = "python:3.12-slim"

_SPARE_JUDGES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that a run depends on. Times are seconds, costs US dollars."""

    # who answers
    local_model: str | None = None
    models: tuple[str, ...] = ()  # where there are several; `local_model` is the first
    roles: tuple[str, ...] = ()  # ROLE=MODEL: models that help a solver
    base_url: str | None = None
    api_key_env: str | None = None  # the variable that holds the key for base_url
    temperature: float | None = None  # None: 0 for one sample, 0.8 for several
    top_p: float | None = None
    max_tokens: int = 4096  # of a reply
    context: int = 16384  # tokens of a conversation; Ollama's num_ctx
    keep_alive: str | None = None  # Ollama: how long the model stays loaded, e.g. "30m"
    request_timeout: float = 600.0
    max_retries: int = 6
    simulated_skill: float = 0.6  # 0..1
    simulated_latency: float = 0.0
    simulated_fault_rate: float = 0.0  # 0..1
    # what is asked
    suite: str = "humaneval"
    dataset: Path | None = None
    problems: tuple[str, ...] = ()
    limit: int | None = None
    shuffle: bool = False
    seed: int = 0
    samples: int = 1
    # how it is worked on
    mode: Literal["zero-shot", "iterative", "comparative"] = "iterative"
    solver: str | None = None  # FILE:NAME or a registered name, in place of mode
    matrix: Path | None = None  # a file of arms and cells, in place of both
    max_iterations: int = 10
    history: int = 3
    feedback: FeedbackKind = "tests"
    frontier_spec_model: str | None = None
    frontier_checkpoint_model: str | None = None
    checkpoint_interval: int = 5
    baseline_model: str | None = None
    reuse_spec: bool = False
    spec: bool = True
    checkpoints: bool = True
    cot: bool = True
    prompt_dir: Path | None = None
    use_memory: Literal["off", "other-tasks", "same-task"] = "off"
    memory_live: bool = False  # recall also what was remembered since the run began
    # where it runs
    engine: str = "local"
    gpu: str | None = None  # Modal: of the containers that perform experiments
    max_containers: int | None = None  # Modal
    sandbox: str = "contained"
    docker_image: str = DOCKER_IMAGE  # of --sandbox docker; holds Python 3.11 or later
    test_timeout: float | None = None  # CPU seconds; None: the suite's own limit
    test_memory: int | None = None  # MB; None: the suite's own limit
    judges: int | None = None  # None: see `judge_count`
    concurrency: int = 8
    max_cost: float | None = None
    grace: float = 10.0  # how long Ctrl-C lets what is under way finish
    results: Path = Path("benchmark_results")
    tags: tuple[str, ...] = ()  # WORD or K=V, by which `list` finds the run
    # what it is recorded into
    sinks: tuple[str, ...] = ("json", "mlflow", "memory")
    no_sinks: tuple[str, ...] = ()
    sink_patience: float = 30.0  # how long a sink may make no progress once the run is over
    mlflow_detail: Literal["traces", "runs", "parent", "full"] | None = None  # None: by the number of experiments

    @property
    def chosen_sinks(self) -> tuple[str, ...]:
        return tuple(name for name in dict.fromkeys(self.sinks) if name not in self.no_sinks)

    @property
    def sampling_temperature(self) -> float:
        if self.temperature is not None:
            return self.temperature
        return 0.0 if self.samples == 1 else 0.8

    @property
    def main_models(self) -> tuple[str, ...]:
        """The models that answer, each in arms of its own."""
        return self.models or ("simulated" if self.local_model is None else self.local_model,)

    @property
    def given_roles(self) -> dict[str, str]:
        """The models that help, by role, as `--role` names them."""
        return dict(role.split("=", 1) for role in self.roles)

    def judging(self, own: Judging) -> Judging:
        """How answers are judged where `own` are the limits of the suite."""
        timeout, memory_mb = self.test_timeout or own.timeout, self.test_memory or own.memory_mb
        return Judging(timeout, memory_mb, self.feedback, own.call_timeout)

    @property
    def judge_count(self) -> int:
        """One a core and a few more, since a program that doesn't end keeps its judge for as long as it may run."""
        return self.judges or (os.cpu_count() or 1) + _SPARE_JUDGES


BOUNDS: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "max_tokens": (1, 10_000_000),
    "context": (256, 100_000_000),
    "request_timeout": (0.1, 86_400),
    "max_retries": (0, 100),
    "simulated_skill": (0, 1),
    "simulated_latency": (0, 3600),
    "simulated_fault_rate": (0, 1),
    "limit": (1, 10_000_000),
    "seed": (0, 2**31 - 1),
    "samples": (1, 100_000),
    "max_iterations": (1, 1000),
    "history": (0, 1000),
    "checkpoint_interval": (1, 1000),
    "test_timeout": (0.1, 3600),
    "test_memory": (64, 1_000_000),
    "judges": (1, 256),
    "concurrency": (1, 4096),
    "max_containers": (1, 10_000),
    "max_cost": (0, 1e9),
    "grace": (0, 3600),
    "sink_patience": (0.1, 86_400),
}
"""What a number may be, ends included."""

_TAG_CHARS = 100

OF_SINKS = ("sinks", "no_sinks", "sink_patience", "mlflow_detail")
"""The settings that say where a run is recorded; no experiment depends on them."""

OF_JUDGING = ("suite", "dataset", "test_timeout", "test_memory", "judges", "sandbox", "docker_image")
"""The settings that say how programs are judged which no run has asked for."""

CHANGEABLE = ("concurrency", "max_cost", "max_containers", "judges", "grace", *OF_SINKS)
"""The settings that may differ when a run is picked up again."""

_OTHER_VARIABLES = ("MODEL", "DEBUG", "MEMORY", "PROJECT", "SETUP", "MODAL_APP", "MODAL_SECRET", "MODAL_VOLUME")

FIELDS = {field.name: field for field in dataclasses.fields(Settings)}
_TYPES = typing.get_type_hints(Settings)


LISTS = tuple(name for name, kind in _TYPES.items() if kind == tuple[str, ...])
"""The settings that are several words."""


def from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """The settings that `KODERZ_*` variables give. Unknown ones are ignored, wrong ones are a KoderzError.

    An empty variable counts as not set, but for KODERZ_SINKS: that, like `none`, is no sink at all.
    """
    found = {}
    for name in FIELDS:
        text = environ.get(f"KODERZ_{name.upper()}") or (environ.get("KODERZ_MODEL") if name == "local_model" else None)
        if name == "sinks" and environ.get("KODERZ_SINKS") in ("", "none"):
            found[name] = ()
        elif text:
            value: Any = tuple(text.replace(",", " ").split()) if name in LISTS else text
            found[name] = checked(name, value, f"KODERZ_{name.upper()}", lax=True)
    return found


def misspelt(environ: Mapping[str, str]) -> dict[str, str]:
    """The `KODERZ_*` variables that count for nothing but are one edit away from one that does, with that one."""
    known = [f"KODERZ_{name.upper()}" for name in (*FIELDS, *_OTHER_VARIABLES)]
    unknown = [name for name in environ if name.startswith("KODERZ") and name not in known]
    return {name: meant for name in unknown for meant in known if _one_edit(name, meant)}


def _one_edit(a: str, b: str) -> bool:
    """Whether one character more, less, other or exchanged with its neighbour makes one word of the other."""
    same = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    a, b = a[same:], b[same:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])


def from_flags(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that options or arguments give; None is none. Raises KoderzError for what doesn't fit."""
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    return {name: checked(name, value, flag_of(name)) for name, value in plain.items() if value is not None}


def checked(name: str, value: Any, where: str, *, lax: bool = False) -> Any:
    """The value of a setting as its type, within its bounds. Raises KoderzError beginning with `where`.

    `lax` reads numbers and booleans from text.
    """
    if lax and isinstance(value, str) and _TYPES[name] is bool:
        value = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}.get(
            value.lower(), value
        )
    try:
        converted = msgspec.convert(value, _TYPES[name], strict=not lax, dec_hook=_path)
    except msgspec.ValidationError as error:
        raise KoderzError(f"{where}: invalid value {value!r}; {_in_words(name, error)}") from None
    if name == "tags" and not all(map(_is_tag, converted)):
        raise KoderzError(f"{where}: invalid value {value!r}; a tag has 1 to {_TAG_CHARS} printable characters")
    if name == "roles" and not all(re.fullmatch(r"\w+=\S.*", role) for role in converted):
        raise KoderzError(f"{where}: invalid value {value!r}; write ROLE=MODEL, such as judge=openai/gpt-4o")
    low, high = BOUNDS.get(name, (float("-inf"), float("inf")))
    if isinstance(converted, int | float) and not low <= converted <= high:
        raise KoderzError(f"{where}: invalid value {value}; it must be between {_number(low)} and {_number(high)}")
    return converted


def layered(*layers: Mapping[str, Any]) -> Settings:
    """One Settings from layers, the first of which wins."""
    values: dict[str, Any] = {}
    for layer in reversed(layers):
        if "local_model" in layer:  # which is the only one, unless the same layer says otherwise
            values["models"] = ()
        values |= layer
    return Settings(**values)


def as_config(settings: Settings) -> dict[str, Any]:
    """The settings as JSON has them."""
    return {name: _plain(getattr(settings, name)) for name in FIELDS}


def from_config(config: Mapping[str, Any]) -> Settings:
    """Settings out of a recorded plan; fields that this version doesn't know are left out."""
    return Settings(**{name: checked(name, config[name], f"config.{name}") for name in FIELDS if name in config})


def flag_of(name: str) -> str:
    """`max_cost` as `--max-cost`."""
    return f"--{name.replace('_', '-')}"


def choices(name: str) -> tuple[str, ...]:
    """The words that a setting may be; empty where it isn't a choice."""
    kinds = (_TYPES[name], *typing.get_args(_TYPES[name]))
    return next((typing.get_args(kind) for kind in kinds if typing.get_origin(kind) is Literal), ())


def _is_tag(text: str) -> bool:
    return text.isprintable() and 0 < len(text) <= _TAG_CHARS and text == text.strip()


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value


def _path(kind: type[Any], value: Any) -> Any:
    if kind is Path and isinstance(value, str):
        if "\0" in value:
            raise ValueError("no path has a null character")
        return Path(value)
    raise TypeError(f"Expected `str`, got `{type(value).__name__}`")


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"


def _in_words(name: str, error: msgspec.ValidationError) -> str:
    if choices(name):
        return f"choose from {', '.join(choices(name))}"
    text = str(error)
    return text[:1].lower() + text[1:]
