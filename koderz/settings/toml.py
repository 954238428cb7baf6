"""koderz.toml: settings of a folder, which may have come with somebody else's repository.

So it may choose tasks, local models and numbers; what could run code, send data elsewhere, spend money or write
outside of the folder needs to be trusted once, by the digest of the file. See `koderz.settings.trust`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from koderz.errors import KoderzError
from koderz.settings.schema import FIELDS, Settings, checked, from_environment, from_flags, layered
from koderz.settings.trust import Spends, costly, require_trust, risks_of
from tracker.files import MB, read_all
from tracker.sinks import check_names

NAME = "koderz.toml"
_Dollars = Annotated[float, msgspec.Meta(ge=0, lt=1e9)]


@dataclass(frozen=True, slots=True)
class Config:
    """What a koderz.toml says."""

    path: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    prices: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # US dollars a million tokens: in, out


def load_config(
    folder: Path,
    *,
    trust: bool = False,
    environ: Mapping[str, str] = os.environ,
    names: Collection[str],
    spends: Spends = costly,
) -> Config:
    """The koderz.toml of a folder, or an empty Config where there is none; `names` are the settings to be used.

    `spends` says which models and prices could cost money; without it all of them could.

    Raises KoderzError naming file, line and key for what is malformed, and for what is to be used but not trusted.
    """
    path = folder / NAME
    try:
        data = read_all(path, MB)
    except FileNotFoundError:
        return Config()
    except OSError as error:
        raise KoderzError(f"{path} can't be read ({error.strerror})") from None
    table = _parse(path, data)
    prices = _prices(path, data, table.pop("prices", {}))
    settings = {_name(path, data, key): value for key, value in table.items()}
    values = {name: checked(name, value, _where(path, data, name)) for name, value in settings.items()}
    used = {name: value for name, value in {**values, "prices": prices}.items() if name in names}
    _require_trust(path, data, risks_of(used, spends), used, grant=trust, environ=environ)
    return Config(path, {name: value for name, value in values.items() if name in names}, prices)


@dataclass(frozen=True, slots=True)
class Sources:
    """What is said of the settings, by where it is said; the first of them wins."""

    flags: Mapping[str, Any]
    environment: Mapping[str, Any]
    config: Config

    @property
    def settings(self) -> Settings:
        return layered(self.flags, self.environment, self.config.settings)

    @property
    def is_ours(self) -> Mapping[str, Any]:
        """What the user says on this machine, and no file that may have come from elsewhere."""
        return {**self.environment, **self.flags}


def read_sources(
    given: Mapping[str, Any],
    environ: Mapping[str, str] = os.environ,
    *,
    names: Collection[str],
    trust_config: bool = False,
    spends: Spends = costly,
) -> Sources:
    """What options, variables and this folder's koderz.toml say of the settings in `names`.

    What the file says needs to be trusted only where no option or variable says otherwise. Raises KoderzError for
    what doesn't fit.
    """
    flags, environment = from_flags(given), from_environment(environ)
    nearer = {*flags, *environment}
    used = {*names} - nearer - ({"models"} if "local_model" in nearer else set())
    config = load_config(Path.cwd(), trust=trust_config, environ=environ, names=used, spends=spends)
    sources = Sources(flags, environment, config)
    check_names((*sources.settings.sinks, *sources.settings.no_sinks))
    return sources


def settings_here(
    given: Mapping[str, Any],
    environ: Mapping[str, str] = os.environ,
    *,
    names: Collection[str],
    trust_config: bool = False,
) -> Settings:
    """The settings that hold in this folder, `given` first; of koderz.toml those in `names`."""
    return read_sources(given, environ, names=names, trust_config=trust_config).settings


def results_folder(
    given: Path | None = None, environ: Mapping[str, str] = os.environ, *, trust_config: bool = False
) -> Path:
    """Where runs land: `given`, else what environment or koderz.toml say."""
    if given is not None:
        return given
    config = load_config(Path.cwd(), trust=trust_config, environ=environ, names=("results",))
    return layered(from_environment(environ), config.settings).results


def _parse(path: Path, data: bytes) -> dict[str, Any]:
    import tomllib  # most folders have no koderz.toml

    try:
        return tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise KoderzError(f"{path}: {error}") from None


def _name(path: Path, data: bytes, key: str) -> str:
    name = key.replace("-", "_")
    name = "local_model" if name == "model" else name
    if name not in FIELDS:
        raise KoderzError(f"{_where(path, data, key)}: there is no such setting; see koderz benchmark --help")
    return name


def _where(path: Path, data: bytes, name: str) -> str:
    """`koderz.toml, line 3, concurrency`."""
    key = re.escape(name).replace("_", "[-_]")
    if name == "local_model":
        key = f"(?:{key}|model)"
    text = data.decode("utf-8", "replace")
    matched = re.search(rf'(?m)^[ \t]*\[*"?{key}"?\s*[=\].]', text)
    line = f", line {text.count(chr(10), 0, matched.start()) + 1}" if matched else ""
    return f"{path}{line}, {name.replace('_', '-')}"


def _prices(path: Path, data: bytes, table: Any) -> dict[str, tuple[float, float]]:
    where = _where(path, data, "prices")
    if not isinstance(table, dict):
        raise KoderzError(f'{where}: write [prices."MODEL"] with input and output, US dollars a million tokens')
    found = {}
    for model, price in table.items():
        try:
            found[model] = msgspec.convert((price["input"], price["output"]), tuple[_Dollars, _Dollars])
        except (TypeError, KeyError, msgspec.ValidationError):
            problem = "give input and output as numbers from 0, US dollars a million tokens"
            raise KoderzError(f"{where}.{model}: {problem}") from None
    return found


def _require_trust(
    path: Path,
    data: bytes,
    risks: Mapping[str, str],
    values: Mapping[str, Any],
    *,
    grant: bool,
    environ: Mapping[str, str],
) -> None:
    trusted = data  # with the code that it names, not only the name
    if "solver" in values:
        trusted += _bytes_of(path.parent / str(values["solver"]).rpartition(":")[0])
    if "dataset" in values:
        trusted += _bytes_of(path.parent / values["dataset"])
    for name, risk in risks.items():
        require_trust(trusted, f"{_where(path, data, name)}: this could {risk}", grant=grant, environ=environ)


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
