"""Where a model is asked, with which key, and how patiently.

A key goes only to its provider's own address, or to one that the user gave by flag or environment: never
to an address that came with a cloned folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from koderz.errors import KoderzError
from koderz_tracker import addresses

LEAST_HIDDEN = 6
"""Characters of a header's value that is kept out of replies: a shorter one is a word that any of them may hold."""


class Rates(NamedTuple):
    """The user's own limits for a provider and key, each a minute's; None for none."""

    rpm: int | None = None
    tpm: int | None = None
    input_tpm: int | None = None
    output_tpm: int | None = None


NO_RATES = Rates()


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
    # "failure": a reply that doesn't end by then is the model's, and isn't asked for again
    timeout_is: str = "fault"
    # OpenAI's formats: "chat", "responses", or "auto": by what is asked, and where
    wire: str = "auto"
    # sent with each request; values are secrets
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    api_version: str = ""  # Azure: of a deployment's API
    notices: tuple[str, ...] = ()  # what the user should hear once
    rates: Rates = NO_RATES  # the user's own limits

    @property
    def is_deployment(self) -> bool:
        """Whether it is a deployment on Azure, asked by a version of its API and with the key in `api-key`."""
        return bool(self.api_version and self.base_url and is_deployment(self.base_url))


_EVERYWHERE = MappingProxyType({"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"})  # noqa: S104


def is_deployment(base_url: str) -> bool:
    """Whether the address is that of a deployment on Azure, which wants a version of its API."""
    return re.search(r"/openai/deployments/[^/]+$", base_url) is not None


def is_loopback(base_url: str) -> bool:
    """Whether the address is this machine's own."""
    return addresses.is_loopback(urlsplit(base_url).hostname or "")


def base_url_of(text: str) -> str:
    """A base URL in its one form, without a slash at its end. Raises KoderzError where it is none."""
    if "@" in text:  # said before anything that would show the text
        raise KoderzError(
            "a base URL must not hold a user name or password; put the key into a variable"
        )
    parts = _parts(text.strip(), text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise KoderzError(
            f"not a base URL: {shown(text)!r}; it looks like http://127.0.0.1:8000/v1"
        )
    if parts.query or parts.fragment:
        raise KoderzError(f"a base URL has no '?' or '#' in it: {shown(text)!r}")
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
    return base_url_of(
        f"{parts.scheme}://{f'[{name}]' if ':' in str(name) else name}{port}{parts.path}"
    )


def shown(address: str) -> str:
    """The address without what could be a secret in it."""
    from koderz_tracker.scrubber import shown_address  # which few commands have to load

    return shown_address(address)


def _parts(text: str, given: str) -> SplitResult:
    try:
        if not text.isprintable() or " " in text:
            raise ValueError("it holds blanks or control characters")
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as error:
        raise KoderzError(f"not a base URL: {shown(given)!r}: {error}") from error
    return parts
