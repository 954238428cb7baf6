"""Providers of models: one is found by its name, and opens models at an address, with a key, in a wire format.

koderz' own providers stand at the end. Another package adds one by an entry point of the group `koderz.models`, whose
name is the provider's and which names a subclass of `Provider`; these are looked for only where koderz has none of
that name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable
from urllib.parse import urlencode

from koderz.errors import KoderzError, Unreachable
from koderz.models.names import (
    GROUP,
    PROVIDERS,
    Endpoint,
    ModelName,
    base_url_of,
    is_loopback,
    ollama_url,
    other_providers,
    shown,
)
from koderz.models.tariffs import FREE, Price
from koderz.settings.systems import Optioned
from koderz_tracker.registry import Extensible, find

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from koderz.models.batches import BatchApi
    from koderz.models.limiter import Limiter
    from koderz.models.transport import Http
    from koderz.types import Completion, Message, Sampling

_DEFAULTS = Endpoint()
_NO_PRICES: Mapping[str, Price] = MappingProxyType({})

WIRES: Mapping[str, str] = MappingProxyType(
    {
        "chat": "koderz.models.openai:open_model",
        "messages": "koderz.models.anthropic:open_model",
        "ollama": "koderz.models.ollama:open_model",
    }
)
"""Wire formats by name, and the function of each that opens a model."""


class Model(Protocol):
    """One model, ready to be asked. Any number of calls may be in flight."""

    @property
    def name(self) -> ModelName: ...

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Return one paid answer.

        Raises Fault if this call can't be answered, and FatalFault if every further call would end the same way.
        """

    async def check(self) -> dict[str, str]:
        """Look at the model before the run, at no cost; return what to record, such as Ollama's `digest`.

        Raises Unreachable or FatalFault, saying what to do, if no call can succeed.
        """

    def price(self) -> Price | None:
        """Return what its tokens cost; None if nobody knows."""

    async def aclose(self) -> None:
        """Release what this model alone holds."""


@runtime_checkable
class ClientModel(Protocol):
    """A model that speaks wire formats of clients, such as agents, as they are."""

    @property
    def clients(self) -> Collection[str]:
        """The wire formats whose requests it takes untranslated."""


@runtime_checkable
class BatchModel(Protocol):
    """A model that may be asked in batches."""

    @property
    def batches(self) -> BatchApi | None:
        """The batch API of its server, if its wire format has one."""

    def batch_price(self) -> Price | None:
        """Return what its tokens cost in a batch; None if nobody knows."""


class Opener(Protocol):
    """A function that opens a model on what it shares with the others of its provider and address."""

    def __call__(self, name: ModelName, service: Service, /) -> Model: ...


@dataclass(eq=False)
class Service:
    """One provider at one address: connections, a limiter, and whom to tell what the user should hear."""

    provider: Provider
    endpoint: Endpoint
    say: Callable[[str], None]
    prices: Mapping[str, Price]  # the user's own
    limiter: Limiter
    options: Any = None  # an instance of `Provider.options`; None if the provider has none

    @cached_property
    def http(self) -> Http:
        """Connections to the address. Raises KoderzError if the provider has none."""
        if not self.endpoint.base_url:
            raise KoderzError(self.provider.no_address)
        return self._connected(self.endpoint.base_url)

    @cached_property
    def batch_http(self) -> Http:
        """Connections to the address below which batches are; Azure has them beside its deployments."""
        address, below, _ = (self.endpoint.base_url or "").partition("/deployments/")
        return self._connected(address) if below and self.endpoint.is_deployment else self.http

    def _connected(self, address: str) -> Http:
        from koderz.models.transport import Http

        endpoint = self.endpoint
        query = urlencode({"api-version": endpoint.api_version}) if endpoint.is_deployment else ""
        return Http(
            address,
            timeout=endpoint.timeout,
            secret=endpoint.api_key,
            headers=endpoint.headers,
            query=query,
            retries_timeouts=endpoint.timeout_is != "failure",
        )

    async def aclose(self) -> None:
        """Close the connections, if there ever were any."""
        for name in self.__dict__.keys() & {"http", "batch_http"}:
            await self.__dict__[name].aclose()


class Provider(Extensible):
    """Source of the models named `PROVIDER/MODEL`: their address, key, wire format and prices.

    A subclass changes the members that differ. It is made without arguments, once for each use, and keeps no state.
    """

    name: str = ""
    """The word before the slash in its models' names. The name of the entry point, which may be left out here."""

    address: str = ""
    """The base URL at which it is asked. Empty: the user gives one by `address_variable` or `--base-url`."""

    address_variable: str = ""
    """The environment variable that holds another base URL."""

    key_variable: str = ""
    """The environment variable that holds the key. Its value is sent to the provider, and kept out of all records."""

    needs_key: bool = True
    """Whether nobody is answered at `address` without a key: a run that lacks it ends with exit code 4."""

    wire: str = "chat"
    """The wire format: `chat` (OpenAI's chat completions, and responses where these are asked for), `messages`
    (Anthropic's) or `ollama`. Not used by a provider that overrides `open`."""

    options: type | None = None
    """A dataclass of options of its own (see `koderz.settings.options`): flags, variables and keys of koderz.toml. The
    run's values are `service.options` when a model is opened."""

    prices: Mapping[str, Price] = _NO_PRICES
    """US dollars a million tokens, by the model's name after the slash."""

    price_origin: str = "as its provider says"
    """How the prices are known, in words that follow one: "free, since an Ollama runs it"."""

    def price(self, model: str) -> Price | None:
        """Return what the tokens of a model cost; None for the published price, if there is one.

        Called for estimates, for a run's costs and for cost caps. A price in the user's koderz.toml comes before it.
        """
        return self.prices.get(model)

    def read_address(self, text: str, model: str) -> str:  # noqa: ARG002 of use to those that override it
        """Return the base URL that a flag or a variable means. Raises KoderzError if it is malformed."""
        return base_url_of(text)

    def open(self, name: ModelName, service: Service) -> Model:
        """Return a model that is ready to be asked. Called once for each model of a run.

        `service` has the address and key in `endpoint`, HTTP connections in `http`, and `options`. Raises KoderzError
        if the provider has no such model.
        """
        if not service.endpoint.base_url:
            raise KoderzError(self.no_address)
        opener: Opener = find("wire format", self.wire, WIRES, "")
        return opener(name, service)

    @property
    def remedy(self) -> str:
        """Advice for the message that nothing answers at the address."""
        variable = f" or {self.address_variable}" if self.address_variable else ""
        return f"start the server, or set --base-url{variable} to where it is"

    @property
    def no_address(self) -> str:
        """The message of a model that is asked although no address is known."""
        variable = f", or set {self.address_variable}" if self.address_variable else ""
        return f"no address is known for {self.name}/ models: give one by --base-url{variable}"


class _OpenedBy(Provider):
    """A provider that another package writes as a function that opens its models, perhaps with `options`."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self.options = opener.options if isinstance(opener, Optioned) else None

    def open(self, name: ModelName, service: Service) -> Model:
        return self._opener(name, service)


def provider_of(name: str) -> Provider:
    """The provider of a name. Raises KoderzError where there is none, or its package can't be loaded."""
    return as_provider(find("model provider", name, PROVIDERS, GROUP), name)


def as_provider(found: Any, name: str) -> Provider:
    """The provider that an object stands for which was loaded under a name. Raises KoderzError if it is none."""
    if isinstance(found, type) and issubclass(found, Provider):
        found = found()
    if not (isinstance(found, Provider) or callable(found)):
        raise KoderzError(
            f"model provider {name!r}: {found!r:.80} is no subclass of koderz.models.Provider"
        )
    provider = found if isinstance(found, Provider) else _OpenedBy(cast("Opener", found))
    if provider.name not in ("", name):
        raise KoderzError(f"model provider {name!r}: its class has another name, {provider.name!r}")
    provider.name = name
    return provider


def every_provider() -> Iterator[str]:
    """The names of koderz' own providers, then those of installed packages."""
    yield from PROVIDERS
    yield from sorted(other_providers())


def endpoint_for(
    name: ModelName,
    *,
    environ: Mapping[str, str],
    base_url: str | None = None,
    base_url_trusted: bool = True,
    api_key_env: str | None = None,
    settings: Endpoint = _DEFAULTS,
) -> Endpoint:
    """`settings` with the address and key of a model filled in.

    `base_url` wins over the provider's variable, that over its own address; it is not trusted with a key
    where it came from a koderz.toml. Raises KoderzError for a malformed address, and Unreachable where a
    key is needed and missing.
    """
    provider = provider_of(name.provider)
    own = base_url or environ.get(provider.address_variable, "").strip()
    address = provider.read_address(own, name.name) if own else provider.address
    trusted = base_url_trusted or not base_url or address == provider.address
    variable = api_key_env or provider.key_variable
    key = environ.get(variable, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise KoderzError(f"{variable} holds characters that no key has; set it anew")
    needed = api_key_env or (variable and provider.needs_key and address == provider.address)
    if trusted and not key and needed:
        raise Unreachable(f"{name} needs a key: set {variable}")
    notices: tuple[str, ...] = ()
    if key and not trusted:
        notices = (
            f"{variable} is not sent to {shown(address)}, which koderz.toml names; give it by --base-url",
        )
    elif key and address.startswith("http://") and not is_loopback(address):
        notices = (f"{variable} goes unencrypted to {shown(address)}",)
    return replace(
        settings,
        base_url=address or None,
        api_key=key if trusted else "",
        notices=(*settings.notices, *notices),
    )


class OpenAI(Provider):
    """OpenAI, or any server that speaks its chat completions."""

    address = "https://api.openai.com/v1"
    address_variable = "OPENAI_BASE_URL"
    key_variable = "OPENAI_API_KEY"


class Anthropic(Provider):
    """Anthropic's messages, below a base URL without `/v1`."""

    address = "https://api.anthropic.com"
    address_variable = "ANTHROPIC_BASE_URL"
    key_variable = "ANTHROPIC_API_KEY"
    wire = "messages"
    remedy = "see whether this machine is online, or set ANTHROPIC_BASE_URL"

    def read_address(self, text: str, model: str) -> str:  # noqa: ARG002
        return base_url_of(text).removesuffix("/v1")


class Gemini(Provider):
    """Google's models, in OpenAI's format."""

    address = "https://generativelanguage.googleapis.com/v1beta/openai"
    address_variable = "GEMINI_BASE_URL"
    key_variable = "GEMINI_API_KEY"


class Ollama(Provider):
    """An Ollama, by default on this machine."""

    address = "http://127.0.0.1:11434"
    address_variable = "OLLAMA_HOST"
    key_variable = "OLLAMA_API_KEY"
    needs_key = False
    wire = "ollama"
    price_origin = "since an Ollama runs it"
    remedy = "start it by: ollama serve; or set OLLAMA_HOST to where it is"

    def price(self, model: str) -> Price | None:  # noqa: ARG002
        return FREE

    def read_address(self, text: str, model: str) -> str:
        address = ollama_url(text)
        if address.endswith("/v1"):
            raise KoderzError(
                f"{shown(address)} speaks OpenAI's format; name the model openai/{model}"
            )
        return address


class Simulated(Provider):
    """The simulated model, which a run opens with its tasks."""

    price_origin = "since it is simulated"

    def price(self, model: str) -> Price | None:  # noqa: ARG002
        return FREE
