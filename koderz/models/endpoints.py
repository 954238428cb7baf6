"""Where a model is asked, with which key, and how patiently.

A key goes only to its provider's own address, or to one that the user gave by flag or environment: never
to an address that came with a cloned folder.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, urlsplit

from koderz.errors import KoderzError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koderz.models.names import ModelName


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of a provider, and how it is used."""

    base_url: str | None = None  # None: the provider has no server
    api_key: str = field(default="", repr=False)
    timeout: float = 600.0  # seconds for one request, from sent to read
    max_retries: int = 8
    backoff: float = 0.5  # seconds before the first retry; doubles, up to a minute
    concurrency: int = 8  # requests in flight at most
    num_ctx: int | None = None  # Ollama: tokens of context
    keep_alive: str | int | None = None  # Ollama: how long the model stays loaded, "10m" or seconds
    notices: tuple[str, ...] = ()  # what the user should hear once


class _Home(NamedTuple):
    url: str
    url_variable: str
    key_variable: str
    hosted: bool  # nobody is answered there without a key


_GOOGLE = "https://generativelanguage.googleapis.com/v1beta/openai"  # which speaks OpenAI's format

_HOMES = MappingProxyType(
    {
        "anthropic": _Home("https://api.anthropic.com", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", hosted=True),
        "gemini": _Home(_GOOGLE, "GEMINI_BASE_URL", "GEMINI_API_KEY", hosted=True),
        "ollama": _Home("http://127.0.0.1:11434", "OLLAMA_HOST", "OLLAMA_API_KEY", hosted=False),
        "openai": _Home("https://api.openai.com/v1", "OPENAI_BASE_URL", "OPENAI_API_KEY", hosted=True),
    }
)

_EVERYWHERE = MappingProxyType({"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"})  # noqa: S104


def endpoint_for(
    name: ModelName,
    *,
    environ: Mapping[str, str],
    base_url: str | None = None,
    base_url_trusted: bool = True,
    api_key_env: str | None = None,
    settings: Endpoint = Endpoint(),
) -> Endpoint:
    """`settings` with the address and key of a model filled in.

    `base_url` wins over the provider's variable, that over its own address; it is not trusted with a key
    where it came from a koderz.toml. Raises KoderzError for a malformed address, and Unreachable where a
    key is needed and missing.
    """
    home = _HOMES.get(name.provider, _Home("", "", "", hosted=False))
    address = _address(name, home, base_url, environ)
    trusted = base_url_trusted or not base_url or address == home.url
    variable = api_key_env or home.key_variable
    key = _key(variable, environ)
    if trusted and not key and (api_key_env or (home.hosted and address == home.url)):
        raise Unreachable(f"{name} needs a key: set {variable}")
    return replace(
        settings,
        base_url=address or None,
        api_key=key if trusted else "",
        notices=(*settings.notices, *_notices(address, variable, key, trusted)),
    )


def own_address(provider: str) -> str:
    """The base URL at which a provider is found unless said otherwise; empty where it has none."""
    return _HOMES[provider].url if provider in _HOMES else ""


def is_loopback(base_url: str) -> bool:
    """Whether the address is this machine's own."""
    host = urlsplit(base_url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def base_url_of(text: str) -> str:
    """A base URL in its one form, without a slash at its end. Raises KoderzError where it is none."""
    if "@" in text:  # said before anything that would show the text
        raise KoderzError("a base URL must not hold a user name or password; put the key into a variable")
    parts = _parts(text.strip(), text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise KoderzError(f"not a base URL: {_shown(text)!r}; it looks like http://127.0.0.1:8000/v1")
    if parts.query or parts.fragment:
        raise KoderzError(f"a base URL has no '?' or '#' in it: {_shown(text)!r}")
    return f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}"


def ollama_url(host: str) -> str:
    """The base URL that a value of OLLAMA_HOST means: `host`, `host:port`, `:port` or a URL.

    As Ollama reads it: port 11434 unless a scheme is given, and an address to listen on everywhere
    (0.0.0.0) is reached at the loopback address.
    """
    text = host.strip().strip("\"'")
    if "://" in text or "@" in text:
        url, default = base_url_of(text), ""
    else:
        bare_ipv6 = text.count(":") > 1 and not text.startswith("[")
        url, default = f"http://[{text}]" if bare_ipv6 else f"http://{text}", ":11434"
    parts = _parts(url, host)
    name = _EVERYWHERE.get(parts.hostname or "", parts.hostname)
    port = f":{parts.port}" if parts.port else default
    return base_url_of(f"{parts.scheme}://{f'[{name}]' if ':' in str(name) else name}{port}{parts.path}")


def _address(name: ModelName, home: _Home, base_url: str | None, environ: Mapping[str, str]) -> str:
    given = base_url or environ.get(home.url_variable, "").strip()
    if not given:
        return home.url
    if name.provider != "ollama":
        address = base_url_of(given)
        return address.removesuffix("/v1") if name.provider == "anthropic" else address
    address = ollama_url(given)
    if address.endswith("/v1"):
        raise KoderzError(f"{_shown(address)} speaks OpenAI's format; name the model openai/{name.name}")
    return address


def _key(variable: str, environ: Mapping[str, str]) -> str:
    key = environ.get(variable, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise KoderzError(f"{variable} holds characters that no key has; set it anew")
    return key


def _notices(address: str, variable: str, key: str, trusted: bool) -> tuple[str, ...]:
    if key and not trusted:
        return (f"{variable} is not sent to {_shown(address)}, which koderz.toml names; give it by --base-url",)
    if key and address.startswith("http://") and not is_loopback(address):
        return (f"{variable} goes unencrypted to {_shown(address)}",)
    return ()


def _shown(address: str) -> str:
    """The address as it may be told of."""
    from tracker.scrubber import shown_address  # which few commands have to load

    return shown_address(address)


def _parts(text: str, given: str) -> SplitResult:
    try:
        if not text.isprintable() or " " in text:
            raise ValueError("it holds blanks or control characters")
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as error:
        raise KoderzError(f"not a base URL: {_shown(given)!r}: {error}") from error
    return parts
