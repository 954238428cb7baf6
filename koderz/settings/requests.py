"""How models are asked: extra fields and headers, the options of single roles and models, and of batches.

A header's value is a secret: it is in no error, and `named` is all that a record has of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import orjson

from koderz.settings.options import option
from koderz.settings.trust import SENDS
from koderz.types import MAIN, Effort

OF_REQUESTS = (
    "stop",
    "reasoning_effort",
    "reasoning_tokens",
    "wire",
    "api_version",
    "extra_body",
    "extra_headers",
    "role_options",
    "model_options",
    "timeout_is",
)
"""The settings of requests that came later. Where they are the default, digests are as before there were any."""

MOST_TOKENS = (1, 10_000_000)
TEMPERATURES = (0, 2)
_EFFORTS: tuple[str, ...] = get_args(Effort)
# what koderz says itself, and reads the answer by
_NEVER = ("model", "messages", "input", "stream", "n")
_OF_HTTP = frozenset({
    "host", "content-length", "content-type", "content-encoding", "transfer-encoding", "connection", "accept-encoding",
    "te", "trailer", "upgrade", "expect", "keep-alive", "proxy-authorization",
})  # fmt: skip
_WIRES = ("auto", "chat", "responses")
_CONTEXT = (256, 100_000_000)
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)(?:=(.*))?", re.DOTALL)
_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_ROLE_OPTION = re.compile(r"(\w+)\.([a-z_-]+)=(.*)", re.DOTALL)

RATES = ("rpm", "tpm", "input-tpm", "output-tpm")
"""The limits that a provider may be given."""


def wrong_rates(rates: Iterable[str]) -> str:
    """The message about words that are no limits of a provider; empty if all are."""
    names = "|".join(RATES)
    fine = all(re.fullmatch(rf"[^\s=]+\.(?:{names})=[1-9]\d{{0,11}}", rate) for rate in rates)
    return (
        ""
        if fine
        else f"write PROVIDER.LIMIT=N; a limit is {', '.join(RATES)}, a whole number from 1"
    )


class Header(NamedTuple):
    """A header of each request: its name, and its value or the variable that holds it."""

    name: str
    value: str | None = None  # None: it isn't on record, or in a variable
    variable: str = ""

    @property
    def recorded(self) -> str:
        """The header without its value."""
        return f"{self.name}=${self.variable}" if self.variable else self.name


def read_header(text: str) -> Header | None:
    """The header that `NAME=VALUE`, `NAME=$VARIABLE` or, from a record, `NAME` says; None where it is none."""
    if not (found := _HEADER.fullmatch(text)):
        return None
    name, value = found[1], found[2]
    if value is not None and (variable := _VARIABLE.fullmatch(value)):
        return Header(name, variable=variable[1])
    return Header(name, value)


def headers_in(texts: Iterable[str]) -> Iterator[Header]:
    """The headers that the texts say."""
    yield from filter(None, map(read_header, texts))


def named(headers: Iterable[str]) -> list[str]:
    """The headers as a record has them, without their values."""
    return [header.recorded for header in headers_in(headers)]


def is_sendable(value: str) -> bool:
    """Whether a header can have the value: one line of printable ASCII, and something."""
    return bool(value) and value.isascii() and value.isprintable() and value == value.strip()


def wrong_headers(texts: Iterable[str]) -> str:
    """The mistake in headers, without their values; empty if there is none."""
    headers = [read_header(text) for text in texts]
    found = [header for header in headers if header]
    if len(found) < len(headers):
        return "write NAME=VALUE, or NAME=$VARIABLE for a value from the environment"
    for header in found:
        if header.name.lower() in _OF_HTTP:
            return f"the header {header.name} is HTTP's own"
        if header.value is not None and not is_sendable(header.value):
            return f"the value of {header.name} has to be a line of printable ASCII"
    names = [header.name.lower() for header in found]
    twice = next((name for name in names if names.count(name) > 1), "")
    return f"the header {twice} is there twice" if twice else ""


def read_body(text: str) -> dict[str, Any]:
    """The fields that `JSON` or `@FILE` adds to requests. Raises ValueError with what is wrong."""
    where, data = "it", text.encode(errors="surrogatepass")
    if text.startswith("@"):
        where = f"the file {text[1:]}"
        try:
            data = Path(text[1:]).read_bytes()
        except OSError as error:
            raise ValueError(f"{where} can't be read ({error.strerror})") from None
    try:
        found = orjson.loads(data)
    except ValueError as error:
        raise ValueError(f"{where} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{where} has to be a JSON object, not {orjson.dumps(found).decode():.40}")  # noqa: TRY004 of a user
    if own := [name for name in _NEVER if name in found]:
        raise ValueError(f"{own[0]} can't be set by it: koderz says that itself")
    return found


def plain_body(text: str) -> str:
    """The fields as JSON text, which a plan records: a file's as well. Raises ValueError as `read_body`."""
    return orjson.dumps(read_body(text)).decode()


def wrong_body(text: str) -> str:
    """The mistake in `JSON`; a file isn't read before its run is trusted."""
    return "" if text.startswith("@") else mistake_in(read_body, text)


def mistake_in(read: Callable[..., object], *given: Any, **how: Any) -> str:
    """The message of the ValueError that reading raises; empty if it raises none."""
    try:
        read(*given, **how)
    except ValueError as error:
        return str(error)
    return ""


def wrong_stops(texts: Iterable[str]) -> str:
    """The mistake in texts at which replies end."""
    return "" if all(texts) else "a reply can't end at an empty text"


def wrong_version(text: str) -> str:
    """The mistake in a version of Azure's API."""
    return "" if re.fullmatch(r"[\w.-]{1,40}", text) else "it looks like 2024-10-21"


@dataclass(frozen=True, slots=True)
class RoleOptions:
    """The options of one role; None leaves what the run has for all."""

    reasoning_effort: str | None = None
    reasoning_tokens: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    extra_body: Mapping[str, Any] | None = None
    base_url: str | None = None
    # those that are the server's own for this role, whatever the run has
    unset: frozenset[str] = frozenset()

    def sampling(self) -> dict[str, Any]:
        """The sampling that it settles for its calls; None stands for the server's own."""
        own = {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.name not in ("base_url", "unset")
        }
        given = {name: value for name, value in own.items() if value is not None}
        levels = dict.fromkeys(_LEVELS) if {*given} & {*_LEVELS} else {}
        return {**dict.fromkeys(self.unset), **levels, **given}


_LEVELS = ("reasoning_effort", "reasoning_tokens")
_NAMES_OF_ROLES = tuple(each.name for each in fields(RoleOptions) if each.name != "unset")


def read_roles(options: Iterable[str], *, files: bool = True) -> dict[str, RoleOptions]:
    """The options of each role, from `ROLE.NAME=VALUE`; a later one wins. Raises ValueError with what is wrong.

    An empty VALUE leaves the option to the server, whatever the run says for all roles. Unless `files` are to be read,
    fields from these are left out.
    """
    found: dict[str, RoleOptions] = {}
    for text in options:
        role, name, value = _split(text)
        own = found.get(role, RoleOptions())
        unset = (own.unset - {name}) | ({name} if not value else set())
        other = {
            "reasoning_effort": "reasoning_tokens",
            "reasoning_tokens": "reasoning_effort",
        }.get(name)
        if other and value and getattr(own, other) is not None:
            raise ValueError(
                f"{role} has both a reasoning-effort and reasoning-tokens; give one of them"
            )
        if value.startswith("@") and name == "extra_body" and not files:
            continue
        found[role] = replace(
            own, **{name: _read_option(name, value) if value else None}, unset=unset
        )
    return found


def base_urls(options: Iterable[str]) -> dict[str, str]:
    """The addresses of roles that have their own."""
    return {
        role: each.base_url
        for role, each in read_roles(options, files=False).items()
        if each.base_url
    }


def plain_roles(options: Iterable[str]) -> tuple[str, ...]:
    """The options as a plan records them: files of fields as their JSON. Raises ValueError as `read_roles`."""
    split = [_split(text) for text in options]
    return tuple(
        f"{role}.{name.replace('_', '-')}={plain_body(value) if name == 'extra_body' and value else value}"
        for role, name, value in split
    )


def wrong_role_options(options: Iterable[str]) -> str:
    """The mistake in options of roles; a file isn't read before its run is trusted."""
    return mistake_in(read_roles, options, files=False)


def risk_of_roles(options: Iterable[str]) -> str:
    """The harm that options of roles could do: an address or a field says where to and what is sent."""
    risky = any(_split(text)[1] in ("base_url", "extra_body") for text in options)
    return SENDS if risky else ""


def of_tables(tables: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The models and the options in tables such as `[roles.judge]`, as the flags have them.

    Raises ValueError with what is wrong.
    """
    models, options = [], []
    for role, table in tables.items():
        if not isinstance(table, dict):
            raise ValueError(f"write [roles.{role}]")  # noqa: TRY004 a mistake in a file
        for name, value in table.items():
            if name == "model":
                models.append(f"{role}={value}")
            else:
                options.append(f"{role}.{name}={as_option(value)}")
    return models, options


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The options of one model; None leaves what the run has for all."""

    base_url: str | None = None
    api_key_env: str | None = None
    wire: str | None = None
    context: int | None = None
    extra_body: Mapping[str, Any] | None = None


_NAMES_OF_MODELS = tuple(each.name for each in fields(ModelOptions))


def read_models(options: Iterable[str], *, files: bool = True) -> dict[str, ModelOptions]:
    """The options of each model, from `MODEL.NAME=VALUE`; a later one wins. Raises ValueError with what is wrong.

    Unless `files` are to be read, fields from these are left out.
    """
    found: dict[str, ModelOptions] = {}
    for text in options:
        model, name, value = split_option(text)
        if files or not (name == "extra_body" and value.startswith("@")):
            found[model] = replace(
                found.get(model, ModelOptions()), **{name: _read_option(name, value)}
            )
    return found


def split_option(text: str) -> tuple[str, str, str]:
    """Model, option and value. A model's name has dots and colons of its own, so the option follows its last dot."""
    key, equals, value = text.partition("=")
    model, _, name = key.rpartition(".")
    if not (model and equals and value):
        raise ValueError(
            "write MODEL.NAME=VALUE, such as openai/local-1:7b.base-url=http://localhost:8001/v1"
        )
    return model, option_named(name, _NAMES_OF_MODELS, "a model"), value


def plain_models(options: Iterable[str], canonical: Callable[[str], str]) -> tuple[str, ...]:
    """The options as a plan records them: names of models in full, files of fields as their JSON.

    Raises ValueError with what is wrong. It alone looks at names of variables, since the message of an option's check
    shows the value, which may be a key that was given by mistake.
    """
    split = [split_option(text) for text in options]
    if any(
        name == "api_key_env" and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value)
        for _, name, value in split
    ):
        raise ValueError("api-key-env is the name of an environment variable, not a key")
    return tuple(
        f"{canonical(model)}.{name.replace('_', '-')}={plain_body(value) if name == 'extra_body' else value}"
        for model, name, value in split
    )


def wrong_model_options(options: Iterable[str]) -> str:
    """The mistake in options of models; a file isn't read before its run is trusted."""
    return mistake_in(read_models, options, files=False)


def risk_of_models(options: Iterable[str]) -> str:
    """The harm that options of models could do: they say where to and what is sent."""
    risky = any(
        split_option(text)[1] in ("base_url", "api_key_env", "extra_body") for text in options
    )
    return SENDS if risky else ""


def of_model_tables(tables: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The options in tables such as `[models."openai/local-1"]`, as flags have them, and the prices in them, by model.

    Raises ValueError with what is wrong.
    """
    options, prices = [], {}
    for model, table in tables.items():
        if not isinstance(table, dict):
            raise ValueError(f'write [models."{model}"]')  # noqa: TRY004 a mistake in a file
        for name, value in table.items():
            if name == "prices":
                prices[model] = value
            else:
                options.append(f"{model}.{name}={as_option(value)}")
    return options, prices


def as_option(value: Any) -> str:
    """A value of koderz.toml as a flag has it: a table as JSON."""
    return orjson.dumps(value).decode() if isinstance(value, dict) else str(value)


def option_named(text: str, names: Sequence[str], what: str) -> str:
    """The option's name, with underscores. Raises ValueError with the known ones for another one."""
    name = text.replace("-", "_")
    if name not in names:
        known = ", ".join(each.replace("_", "-") for each in names)
        raise ValueError(f"{what} has no option {name.replace('_', '-')}; it has {known}")
    return name


def _split(text: str) -> tuple[str, str, str]:
    found = _ROLE_OPTION.fullmatch(text)
    if not found:
        raise ValueError("write ROLE.NAME=VALUE, such as judge.reasoning-effort=low")
    role, name, value = found[1], found[2], found[3]
    if role == MAIN:
        raise ValueError(
            f"the options of the model that answers are those of the run: --{name.replace('_', '-')}"
        )
    return role, option_named(name, _NAMES_OF_ROLES, "a role"), value


def _read_option(name: str, value: str) -> Any:
    """The value of an option of a role or a model. Raises ValueError with what is wrong."""
    if name == "extra_body":
        return read_body(value)
    for choice, words in (("wire", _WIRES), ("reasoning_effort", _EFFORTS)):
        if name == choice and value not in words:
            raise ValueError(
                f"{name.replace('_', '-')} is one of {', '.join(words)}, not {value:.40}"
            )
    if name in ("reasoning_tokens", "max_tokens"):
        return int(_number(name, value, MOST_TOKENS, whole=True))
    if name == "temperature":
        return _number(name, value, TEMPERATURES)
    if name != "context":
        return value
    if not value.isdecimal() or not _CONTEXT[0] <= int(value) <= _CONTEXT[1]:
        raise ValueError(
            f"context has to be a whole number from {_CONTEXT[0]:,} to {_CONTEXT[1]:,}, not {value:.40}"
        )
    return int(value)


def _number(name: str, value: str, bounds: tuple[float, float], *, whole: bool = False) -> float:
    low, high = bounds
    try:
        number = int(value) if whole else float(value)
    except ValueError:
        number = None
    if number is None or not low <= number <= high:
        kind = "a whole number" if whole else "a number"
        raise ValueError(
            f"{name.replace('_', '-')} has to be {kind} from {low:,} to {high:,}, not {value:.40}"
        )
    return number


ALL_AT_ONCE = 100_000
"""Experiments under way at once where calls are sent in batches and the user says no number: all of them."""

DAY = 24 * 3600.0

_running = partial(option, panel="Running")
_of_batches = partial(_running, reader="batches")


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """The options of batches."""

    batch: bool = _running(
        False,
        "Send calls through the provider's batch API: half the price, answers within a day. The run can be left and "
        "resumed meanwhile; --concurrency is then all experiments.",
    )
    batch_roles: tuple[str, ...] = _of_batches(
        (),
        "With --batch: a role that is asked in batches, too, though at another provider than the model; repeatable.",
        "ROLE",
        flags=("--batch-role",),
    )
    batch_wait: float = _of_batches(
        DAY + 600,
        "With --batch: maximum time to wait for a batch.",
        "SECONDS",
        bounds=(0.01, 30 * DAY),
        changeable=True,
    )
    batch_fallback: Literal["fault", "live"] = _of_batches(
        "fault",
        "With --batch: what becomes of calls that aren't answered by then: a fault, or they are asked live at the "
        "full price, after their batch was cancelled.",
        "[fault|live]",
        changeable=True,
    )
    poll: float = _of_batches(
        60.0,
        "With --batch: time between two looks at a batch; up to 300 if nothing changes.",
        "SECONDS",
        bounds=(0.01, 3600),
        changeable=True,
    )
