"""Options of single models: each may have a server of its own, with its key, wire format and limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from koderz.settings.requests import as_option, mistake_in, option_named, plain_body, read_body
from koderz.settings.trust import SENDS

_WIRES = ("auto", "chat", "responses")
_CONTEXT = (256, 100_000_000)


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The options of one model; None leaves what the run has for all."""

    base_url: str | None = None
    api_key_env: str | None = None
    wire: str | None = None
    context: int | None = None
    extra_body: Mapping[str, Any] | None = None


_NAMES = tuple(each.name for each in fields(ModelOptions))


def read_models(options: Iterable[str], *, files: bool = True) -> dict[str, ModelOptions]:
    """The options of each model, from `MODEL.NAME=VALUE`; a later one wins. Raises ValueError with what is wrong.

    Unless `files` are to be read, fields from these are left out.
    """
    found: dict[str, ModelOptions] = {}
    for text in options:
        model, name, value = split_option(text)
        if files or not (name == "extra_body" and value.startswith("@")):
            found[model] = replace(found.get(model, ModelOptions()), **{name: _read(name, value)})
    return found


def split_option(text: str) -> tuple[str, str, str]:
    """Model, option and value. A model's name has dots and colons of its own, so the option follows its last dot."""
    key, equals, value = text.partition("=")
    model, _, name = key.rpartition(".")
    if not (model and equals and value):
        raise ValueError("write MODEL.NAME=VALUE, such as openai/local-1:7b.base-url=http://localhost:8001/v1")
    return model, option_named(name, _NAMES, "a model"), value


def plain_models(options: Iterable[str], canonical: Callable[[str], str]) -> tuple[str, ...]:
    """The options as a plan records them: names of models in full, files of fields as their JSON.

    Raises ValueError with what is wrong. It alone looks at names of variables, since the message of an option's check
    shows the value, which may be a key that was given by mistake.
    """
    split = [split_option(text) for text in options]
    if any(name == "api_key_env" and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value) for _, name, value in split):
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
    risky = any(split_option(text)[1] in ("base_url", "api_key_env", "extra_body") for text in options)
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


def _read(name: str, value: str) -> Any:
    if name == "extra_body":
        return read_body(value)
    if name == "wire" and value not in _WIRES:
        raise ValueError(f"wire is one of {', '.join(_WIRES)}, not {value:.40}")
    if name != "context":
        return value
    if not value.isdecimal() or not _CONTEXT[0] <= int(value) <= _CONTEXT[1]:
        raise ValueError(f"context has to be a whole number from {_CONTEXT[0]:,} to {_CONTEXT[1]:,}, not {value:.40}")
    return int(value)
