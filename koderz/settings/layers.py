"""Options in layers: flags over environment over koderz.toml over defaults, each validated where it is given.

Every option is a flag `--option-name`, a variable `KODERZ_OPTION_NAME` and a key `option-name` of koderz.toml,
but for what only makes sense for one command.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from koderz.errors import KoderzError
from koderz.settings.options import Field, fields_of, flag_of, plain
from koderz.settings.registry import Registry
from koderz.settings.requests import named
from koderz.settings.schema import Settings

_OTHER_VARIABLES = (
    "MODEL",
    "DEBUG",
    "MEMORY",
    "PROJECT",
    "SETUP",
    "MODAL_APP",
    "MODAL_SECRET",
    "MODAL_VOLUME",
)


KINDS = ("suite", "solver", "sandbox", "engine", "model")
"""The kinds of things that may have options of their own."""

ADDING_UP = ("role_options", "model_options")
"""The settings whose values add up over all sources; where two say the same option, the nearer source counts."""

_LEVELS = ("reasoning_effort", "reasoning_tokens")
_NONE: Mapping[str, Any] = MappingProxyType({})


class Schema:
    """All options of a run: the settings, and the options of each suite, solver, … that takes part."""

    def __init__(
        self,
        structs: Mapping[str, type] = _NONE,
        registries: Mapping[str, Registry[Any]] = _NONE,
        idle: Collection[str] = (),
    ) -> None:
        """`structs` by owner, such as `solver.iterative`; `registries` by kind; `idle`: owners that take no part.

        Raises KoderzError where two have an option of the same name, unless both are suites, of which a run has one.
        """
        self.structs, self.registries, self.idle = structs, registries, idle
        self.fields: dict[str, Field] = dict(fields_of(Settings))
        for owner, struct in self.structs.items():
            for name, field in fields_of(struct).items():
                others = [other for other in self.owners(name) if other != owner]
                if field.about.instead:
                    self.fields[name] = field
                elif self.fields.setdefault(name, field) != field and not (
                    others and all(each.startswith("suite.") for each in (owner, *others))
                ):
                    raise KoderzError(
                        f"{owner} has an option {flag_of(name)}, but there is another one of that name"
                    )

    def owners(self, name: str) -> list[str]:
        """The owners that have an option of this name, those that take part first; empty for a setting."""
        found = [owner for owner, struct in self.structs.items() if name in fields_of(struct)]
        return sorted(found, key=lambda owner: owner in self.idle)

    def field(self, name: str, where: str, owner: str | None = None) -> Field:
        """An option, of that owner if one is named. Raises KoderzError, which suggests the nearest name, if unknown."""
        fields = fields_of(self.structs[owner]) if owner else self.fields
        if name in fields:
            return fields[name]
        raise KoderzError(
            f"{where}: there is no such setting; {_nearest(name, fields) or 'see koderz benchmark --help'}"
        )

    def is_meant_by(self, name: str) -> bool:
        """Whether the name is that of an option, or one edit away from one."""
        return name in self.fields or any(_one_edit(name, known) for known in self.fields)

    def require_known(self, owner: str, where: str) -> None:
        """Raises KoderzError, which suggests the nearest name, for a suite, solver, … that doesn't exist."""
        kind, _, name = owner.partition(".")
        known = self.registries.get(kind)
        if known is not None and name not in known and name not in (others := known.of_others()):
            nearest = (
                _nearest(name, (*known, *others)) or f"there are {', '.join((*known, *others))}"
            )
            raise KoderzError(f"{where}: there is no {kind} {name!r}; {nearest}")

    def from_environment(
        self, environ: Mapping[str, str], without: Collection[str] = ()
    ) -> dict[str, Any]:
        """The options given by `KODERZ_*` variables, except `without`. Unknown variables are ignored.

        An empty variable counts as not set, but for KODERZ_SINKS: that, like `none`, is no sink at all.
        """
        found = {}
        for name, field in self.fields.items():
            if name in without:
                continue
            variable = f"KODERZ_{name.upper()}"
            text = environ.get(variable) or (
                environ.get("KODERZ_MODEL") if name == "local_model" else None
            )
            if name == "sinks" and environ.get(variable) in ("", "none"):
                found[name] = ()
            elif text:
                found[name] = field.read(text, variable, lax=True)
        return found

    def from_flags(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options given by flags or arguments that are not None. Raises KoderzError for invalid values."""
        for name in given.keys() - self.fields.keys():
            raise KoderzError(
                f"there is no setting {name!r}; {_nearest(name, self.fields) or 'see koderz.Settings'}"
            )
        return {
            name: self.fields[name].read(plain(value), flag_of(name))
            for name, value in given.items()
            if value is not None
        }

    def layered(self, *layers: Mapping[str, Any]) -> Settings:
        """Makes one Settings from layers, the first of which wins."""
        values: dict[str, Any] = {}
        for layer in reversed(layers):
            # it is the only one, unless the same layer says otherwise
            if "local_model" in layer:
                values["models"] = ()
            if layer.keys() & {*_LEVELS}:  # of which one stands instead of the other
                values |= dict.fromkeys(_LEVELS)
            values |= beside(layer, values)
        own = tuple(
            struct(**_those_of(struct, values)) for struct in dict.fromkeys(self.structs.values())
        )
        return Settings(**_those_of_settings(values, own), own=own)

    def from_config(self, config: Mapping[str, Any]) -> Settings:
        """Settings from a recorded plan; fields that this version doesn't know are left out."""
        known = {
            name: self.fields[name].read(config[name], f"config.{name}")
            for name in self.fields
            if name in config
        }
        earlier = {
            name: field.about.unrecorded
            for name, field in self.fields.items()
            if name not in config
        }
        return self.layered(
            {**{name: value for name, value in earlier.items() if value is not None}, **known}
        )

    def misspelt(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Ignored `KODERZ_*` variables that are one edit away from a known one, each with the known one."""
        known = [f"KODERZ_{name.upper()}" for name in (*self.fields, *_OTHER_VARIABLES)]
        unknown = [name for name in environ if name.startswith("KODERZ") and name not in known]
        return {name: meant for name in unknown for meant in known if _one_edit(name, meant)}


CORE = Schema()
"""The settings alone, for commands that need no other options."""


def options_in(settings: Settings) -> Iterator[tuple[Field, Any]]:
    """The options in settings with their values, those of suites, solvers, … included."""
    for each in (settings, *settings.own):
        kind: Any = type(each)
        yield from ((field, getattr(each, name)) for name, field in fields_of(kind).items())


def secrets_in(settings: Settings) -> dict[str, str]:
    """The values of options that are not recorded, or not whole; also by the variables that give them."""
    return {
        f"KODERZ_{field.name.upper()}": value
        for field, value in options_in(settings)
        if (field.about.is_secret or field.about.is_address) and value
    }


def fields_in(settings: Settings) -> dict[str, Field]:
    """The options in settings, by name."""
    return {field.name: field for field, _ in options_in(settings)}


def as_config(settings: Settings) -> dict[str, Any]:
    """The settings in the recorded form: as `values_in`, with addresses and headers without possible secrets."""
    recorded: dict[str, Any] = {}
    for field, value in options_in(settings):
        if field.about.is_address and value:
            from koderz_tracker.scrubber import shown_address

            recorded[field.name] = shown_address(value)
        elif field.name == "extra_headers":
            recorded[field.name] = named(value)
        elif not field.about.is_secret:
            recorded[field.name] = plain(value)
    return recorded


def values_in(settings: Settings) -> dict[str, Any]:
    """The settings as JSON, with the options of suites, solvers, … beside them; secret options are left out."""
    return {
        field.name: plain(value)
        for field, value in options_in(settings)
        if not field.about.is_secret
    }


def replaced(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """The settings with some values changed, which may be options of suites, solvers, …."""
    own = tuple(replace(each, **_those_of(type(each), values)) for each in settings.own)
    return replace(settings, **_those_of_settings(values, own), own=own)


def roles_in(settings: Settings) -> dict[str, str]:
    """The models that options name for a role, except roles that another option turns off."""
    roles = [(field.about.role, value) for field, value in options_in(settings) if field.about.role]
    without = {role for role, value in roles if value is False}
    return {role: value for role, value in roles if isinstance(value, str) and role not in without}


def beside(nearer: Mapping[str, Any], farther: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a source. Before those that add up stands what the farther sources say of them."""
    together = {
        name: (*farther.get(name, ()), *nearer[name]) for name in ADDING_UP if name in nearer
    }
    return {**nearer, **together}


def _nearest(name: str, names: Iterable[str]) -> str:
    """A hint such as `did you mean max-cost?`; empty if no known name is near."""
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0].replace('_', '-')}?" if near else ""


def _those_of_settings(values: Mapping[str, Any], own: Iterable[Any]) -> dict[str, Any]:
    """The values of settings whose name is not that of a suite's or solver's own option."""
    kinds: Iterable[Any] = map(type, own)
    taken = {
        name for kind in kinds for name, field in fields_of(kind).items() if field.about.instead
    }
    return {name: value for name, value in _those_of(Settings, values).items() if name not in taken}


def _those_of(struct: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in fields_of(struct) if name in values}


def _one_edit(a: str, b: str) -> bool:
    """Whether the words differ by one character added, dropped, changed or swapped with its neighbour."""
    same = next(
        (n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
    a, b = a[same:], b[same:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])
