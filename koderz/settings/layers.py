"""Options in layers: flags over environment over koderz.toml over defaults, each validated where it is given.

Every option is a flag `--option-name`, a variable `KODERZ_OPTION_NAME` and a key `option-name` of koderz.toml,
but for what only makes sense for one command.

koderz.toml holds the settings of a folder, which may have come with another person's repository. So it may choose
tasks, local models and numbers; what could run code, send data elsewhere, spend money or write outside of the folder
needs to be trusted once, by the digest of the file. See `koderz.settings.trust`.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import msgspec

from koderz.errors import KoderzError
from koderz.settings.options import Field, fields_of, flag_of, plain
from koderz.settings.registry import Registry
from koderz.settings.requests import RATES, named, of_model_tables, of_tables, wrong_rates
from koderz.settings.schema import Settings
from koderz.settings.trust import Spends, costly, require_trust, risks_of
from koderz_tracker.files import MB, read_all

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


NAME = "koderz.toml"
_Dollars = Annotated[float, msgspec.Meta(ge=0, lt=1e9)]


class ConfigFile(NamedTuple):
    """A koderz.toml as it was parsed, neither checked nor trusted."""

    path: Path
    data: bytes
    table: Mapping[str, Any]  # the keys at the top
    owners: Mapping[str, Any]  # the tables of what may take part, such as `solver.iterative`

    def choices(self, names: Collection[str]) -> dict[str, Any]:
        """Some settings, to choose by them. Those that aren't texts are refused where all are read."""
        found = {}
        for key, value in self.table.items():
            words = value if isinstance(value, list) else [value]
            if (name := _name(key)) in names and all(isinstance(word, str) for word in words):
                found[name] = value
        return found


def read_file(folder: Path) -> ConfigFile | None:
    """The koderz.toml of a folder, if there is one. Raises KoderzError where it can't be read or is malformed.

    `[solver] name = "x"` is `solver = "x"`, beside `[solver.x]`.
    """
    path = folder / NAME
    try:
        data = read_all(path, MB)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KoderzError(f"{path} can't be read ({error.strerror})") from None
    import tomllib  # most folders have no koderz.toml

    try:
        table = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        both = (
            'beside [suite.NAME] the choice is [suite] name = "NAME"'
            if "overwrite" in str(error)
            else ""
        )
        raise KoderzError("; ".join(filter(None, (f"{path}: {error}", both)))) from None
    if isinstance(table.get("roles"), dict):
        try:
            models, options = of_tables(table.pop("roles"))
        except (TypeError, ValueError) as error:  # the former of a number that JSON can't hold
            raise KoderzError(f"{path}: {error}") from None
        table |= {"roles": models} if models else {}
        _put_first(table, "role-options", options)
    if isinstance(table.get("models"), dict):
        try:
            options, prices = of_model_tables(table.pop("models"))
        except (TypeError, ValueError) as error:
            raise KoderzError(f"{path}: {error}") from None
        _put_first(table, "model-options", options)
        if prices and isinstance(own := table.get("prices", {}), dict):
            table["prices"] = {**own, **prices}
    owners: dict[str, Any] = {}
    for kind in [kind for kind in KINDS if isinstance(table.get(kind), dict)]:
        named = table.pop(kind)
        if "name" in named:
            table[kind] = named.pop("name")
        owners |= {f"{kind}.{name}": options for name, options in named.items()}
    return ConfigFile(path, data, table, owners)


def _put_first(table: dict[str, Any], key: str, options: list[str]) -> None:
    """Puts options before those of a key; what is no list there is refused where it is read."""
    key = next((each for each in table if _name(each) == _name(key)), key)
    if options and isinstance(own := table.get(key, []), list):
        table[key] = [*options, *own]


@dataclass(frozen=True, slots=True)
class Config:
    """The content of a koderz.toml."""

    path: Path | None = None
    # what tables say of what takes part included
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # US dollars a million tokens: in, out
    prices: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    # options that several have, for one alone
    solvers: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    held_out: tuple[str, ...] = ()  # suites and files of which no judge of rewards serves a task


def load_config(
    file: ConfigFile | None,
    *,
    trust: bool = False,
    environ: Mapping[str, str] = os.environ,
    names: Collection[str],
    schema: Schema = CORE,
    spends: Spends = costly,
) -> Config:
    """The settings in `names` of a koderz.toml, as far as it has them; an empty Config without a file.

    `spends` says which models and prices could cost money; without it all of them could. Keys that nobody knows are
    refused by a schema of a run; where only the settings alone are asked for, those that are nearly one of these.

    Raises KoderzError naming file, line and key for what is malformed, and for what is to be used but not trusted.
    """
    if file is None:
        return Config()
    path, data, table = file.path, file.data, dict(file.table)
    where = partial(_where, path, data)
    prices = _prices(where("prices"), table.pop("prices", {}))
    held_out = _held_out(where("held_out"), table)
    rates = _rates(where("rates"), table.pop("rates", {}))
    values = _values(
        where, {key: table[key] for key in table if not _gives_way(schema, key, table[key])}, schema
    )
    values |= {"rates": rates} if rates else {}
    solvers: dict[str, dict[str, Any]] = {}
    for owner, own in _tables(where, file.owners, schema).items():
        kind, _, name = owner.partition(".")
        shared = {
            key for key in own if kind == "solver" and len(schema.owners(key)) > 1 and key in names
        }
        solvers[name] = {key: own[key] for key in shared}
        values |= {key: value for key, value in own.items() if key not in shared}
    used = {name: value for name, value in {**values, "prices": prices}.items() if name in names}
    risks = risks_of(schema.fields, used, spends)
    for own in solvers.values():
        risks |= risks_of(schema.fields, own, spends)
    trusted = data + _named_by(used, path.parent)
    for name, risk in risks.items():
        require_trust(trusted, f"{where(name)}: this could {risk}", grant=trust, environ=environ)
    return Config(
        path,
        {name: value for name, value in values.items() if name in names},
        prices,
        solvers,
        held_out,
    )


def results_folder(
    given: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    trust_config: bool = False,
) -> Path:
    """The results folder: `given`, else the one in the environment or koderz.toml."""
    if given is not None:
        return given
    environment = CORE.from_environment(environ)
    config = load_config(
        read_file(Path.cwd()),
        trust=trust_config,
        environ=environ,
        names={"results"} - environment.keys(),
    )
    return CORE.layered(environment, config.settings).results


def _values(
    where: Callable[[str], str], table: Mapping[str, Any], schema: Schema
) -> dict[str, Any]:
    """The options of a table, by name."""
    found = {}
    for key, value in table.items():
        name = _name(key)
        if schema is not CORE or schema.is_meant_by(name):
            found[name] = schema.field(name, where(key)).read(value, where(name))
    return found


def _gives_way(schema: Schema, key: str, value: Any) -> bool:
    """Whether a key means the setting and not the option of the same name, whose type the value doesn't fit."""
    usual = CORE.fields.get(_name(key))
    if usual is None or schema.fields[usual.name] is usual:
        return False
    try:
        usual.read(value, key)
    except KoderzError:
        return False
    return True


def _name(key: str) -> str:
    return "local_model" if key == "model" else key.replace("-", "_")


def _tables(
    where: Callable[[str], str], owners: Mapping[str, Any], schema: Schema
) -> dict[str, dict[str, Any]]:
    """The options in tables such as `[solver.iterative]`, for owners that take part."""
    found = {}
    for owner, options in owners.items():
        if not isinstance(options, dict):
            raise KoderzError(f"{where(owner)}: write [{owner}]")
        schema.require_known(owner, where(owner))
        if owner in schema.structs:
            for key in options:
                schema.field(key.replace("-", "_"), f"{where(owner)}, {key}", owner)
            found[owner] = _values(where, options, schema)
    return found


def _where(path: Path, data: bytes, name: str) -> str:
    """The place of a key, such as `koderz.toml, line 3, concurrency`."""
    key = re.escape(name).replace("_", "[-_]")
    if name == "local_model":
        key = f"(?:{key}|model)"
    text = data.decode("utf-8", "replace")
    matched = re.search(rf'(?m)^[ \t]*\[*"?{key}"?\s*[=\].]', text)
    line = f", line {text.count(chr(10), 0, matched.start()) + 1}" if matched else ""
    return f"{path}{line}, {name.replace('_', '-')}"


def _held_out(where: str, table: dict[str, Any]) -> tuple[str, ...]:
    """Takes the suites and files that are held out from rewards out of a table."""
    found = table.pop("held-out", None) or table.pop("held_out", [])
    words = [found] if isinstance(found, str) else found
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise KoderzError(
            f'{where}: write a list of suites and files, such as held-out = ["humaneval"]'
        )
    if own := [word for word in words if re.search(r":\w+$", word)]:
        raise KoderzError(
            f"{where}: {own[0]} would run code; name it on the command line: --held-out {own[0]}"
        )
    return tuple(words)


def _prices(where: str, table: Any) -> dict[str, tuple[float, float]]:
    if not isinstance(table, dict):
        raise KoderzError(
            f'{where}: write [prices."MODEL"] with input and output, US dollars a million tokens'
        )
    found = {}
    for model, price in table.items():
        try:
            found[model] = msgspec.convert(
                (price["input"], price["output"]), tuple[_Dollars, _Dollars]
            )
            if {"batch-input", "batch-output"} & price.keys():
                pair = price["batch-input"], price["batch-output"]
                found[f"{model} in batches"] = msgspec.convert(pair, tuple[_Dollars, _Dollars])
        except (TypeError, KeyError, msgspec.ValidationError):
            problem = (
                "give input and output, and if batches have prices of their own batch-input and batch-output, "
                "as numbers from 0, US dollars a million tokens"
            )
            raise KoderzError(f"{where}.{model}: {problem}") from None
    return found


def _rates(where: str, table: Any) -> tuple[str, ...]:
    """The limits of `[rates."openai"]` as the setting `rates` has them."""
    found = []
    for provider, limits in table.items() if isinstance(table, dict) else [("", None)]:
        if not isinstance(limits, dict):
            raise KoderzError(f'{where}: write [rates."PROVIDER"] with {", ".join(RATES)}')
        for name, most in limits.items():
            word = f"{provider}.{name.replace('_', '-')}={most}"
            if wrong := wrong_rates((word,)):
                raise KoderzError(f"{where}.{provider}, {name}: invalid value {most!r}; {wrong}")
            found.append(word)
    return tuple(found)


def _named_by(values: Mapping[str, Any], folder: Path) -> bytes:
    """The code of files that settings name, so that trust covers the code along with the name."""
    foreign = filter(None, (values.get("suite"), values.get("solver"), *values.get("solvers", ())))
    named = [str(name).rpartition(":")[0] for name in foreign]
    if isinstance(dataset := values.get("dataset"), str | Path):
        named.append(str(dataset))
    code = b""
    for name in named:
        with suppress(OSError):
            code += (folder / name).read_bytes()
    return code
