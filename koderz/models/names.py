"""Names of models, such as `openai/gpt-6-luna`, and their endpoints: where, with which key, and how patiently to ask.

A key goes only to its provider's own address, or to one that the user gave by flag or environment: never
to an address that came with a cloned folder.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from koderz.errors import KoderzError
from koderz_tracker import addresses
from koderz_tracker.registry import names_of_others

PROVIDERS = MappingProxyType(
    {
        "openai": "koderz.models.providers:OpenAI",
        "anthropic": "koderz.models.providers:Anthropic",
        "gemini": "koderz.models.providers:Gemini",
        "ollama": "koderz.models.providers:Ollama",
        "simulated": "koderz.models.providers:Simulated",
    }
)
"""Each of koderz' own providers: `module:class`, a `Provider`."""

GROUP = "koderz.models"
"""The group of entry points by which other packages add theirs, beside the models of their systems."""

_LONGEST = 256  # characters

# Names that only a hosted provider has. A tag (`:32b`) is Ollama's way to say a size, so a name with one is
# never taken for hosted; and `gpt-oss` is a model to download, whoever made it.
_HOSTED = (
    (re.compile(r"claude-[^:/]+"), "anthropic"),
    (re.compile(r"gemini-[^:/]+"), "gemini"),
    (re.compile(r"(gpt-(?!oss)|chatgpt-|o[134](?![^-]))[^:/]*|ft:gpt-.+"), "openai"),
)


_LATEST = re.compile(r"[:-]latest$")
_SNAPSHOT = re.compile(r"([-@](\d{8}|\d{4}-\d\d-\d\d|(preview-)?\d\d-\d\d(-\d{4})?|\d{3,4}))?")


class ModelName(NamedTuple):
    """A provider and what that provider calls the model. `str()` is how it is shown, and parses back."""

    provider: str
    name: str

    def __str__(self) -> str:
        bare = self.provider in ("ollama", "simulated") and _split(self.name) == (
            self.provider,
            self.name,
        )
        if bare and (self.provider == "simulated" or not _meant(self.name)):
            return self.name
        return f"{self.provider}/{self.name}"


def parse_model_name(text: str) -> ModelName:
    """The model that a user means by `text`. Raises KoderzError where it can't be a name, or is nearly another's."""
    text = text.strip()
    if (
        not text
        or len(text) > _LONGEST
        or any(unicodedata.category(char)[0] == "C" for char in text)
    ):
        shown = ascii(text[:40])
        raise KoderzError(
            f"not a model's name: {shown}; try qwen2.5-coder:32b or openai/gpt-6-luna"
        )
    provider, name = _split(text)
    if not name:
        raise KoderzError(f"no model named after {text!r}; try {text}NAME")
    if provider == "ollama" and name == text and (meant := _meant(text)):
        raise KoderzError(
            f"unknown model {text!r}; did you mean {meant}? An Ollama's of that name is ollama/{text}"
        )
    return ModelName(provider, name)


def is_another(asked: str, answered: str) -> bool:
    """Whether a server that names `answered` as its model was not asked for that one.

    A dated snapshot, an alias such as `latest`, a missing path and a missing tag `latest` are the model itself.
    """
    if not ("/" in asked and "/" in answered):
        asked, answered = (name.rpartition("/")[2] for name in (asked, answered))
    asked, answered = (_LATEST.sub("", name.strip().lower()) for name in (asked, answered))
    longer, shorter = (asked, answered) if len(asked) > len(answered) else (answered, asked)
    return not (longer.startswith(shorter) and _SNAPSHOT.fullmatch(longer.removeprefix(shorter)))


def foreign_provider(text: str) -> str | None:
    """The provider in `PROVIDER/NAME` where an installed package brings it; None for koderz' own, and for Ollama's."""
    provider = text.strip().partition("/")[0]
    return provider if provider not in PROVIDERS and _is_of_others(provider) else None


def other_providers() -> set[str]:
    """The names of the providers that installed packages bring, beside koderz' own."""
    return names_of_others(GROUP) - set(PROVIDERS)


def _split(text: str) -> tuple[str, str]:
    if text == "simulated":
        return "simulated", "simulated"
    prefix, slash, rest = text.partition("/")
    if slash and prefix != "simulated" and (prefix in PROVIDERS or _is_of_others(prefix)):
        return prefix, rest
    for pattern, provider in _HOSTED:
        if pattern.fullmatch(text):
            return provider, text
    return "ollama", text


def _meant(text: str) -> str | None:
    """The name that a text is a slip of the pen for: `opnai/x` for `openai/x`; None where it is none."""
    import difflib

    prefix, slash, rest = text.partition("/")
    known = {*PROVIDERS, *_others_like(prefix)} - {"simulated"} if slash else {"simulated"}
    near = difflib.get_close_matches(prefix.lower(), known, n=1, cutoff=0.8)
    return f"{near[0]}{slash}{rest}" if near else None


def _is_of_others(provider: str) -> bool:
    """Whether an installed package brings this provider."""
    return provider in _others_like(provider)


def _others_like(provider: str) -> set[str]:
    """The providers of installed packages; none for a name that none can have: dots and colons are Ollama's."""
    return other_providers() if provider.replace("-", "_").isidentifier() else set()


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
