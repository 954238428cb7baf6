"""The models of one run: opened by name, sharing connections and limits of their provider and address."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING, Any, Self

from koderz.models import opener_of, parse_model_name
from koderz.models.limiter import Limiter, Throttle
from koderz.settings.schema import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from koderz.models import Model, Opener
    from koderz.models.endpoints import Endpoint
    from koderz.models.names import ModelName
    from koderz.models.prices import Price
    from koderz.models.transport import Http

DEFAULTS = Settings()


@dataclass(eq=False)
class Service:
    """One provider at one address: connections, a limiter, and a way to notify the user."""

    endpoint: Endpoint
    say: Callable[[str], None]
    prices: Mapping[str, Price]
    limiter: Limiter
    options: Any = None  # of the provider's own, where it has any

    @cached_property
    def http(self) -> Http:
        """The connections to the provider."""
        from koderz.models.transport import Http

        assert self.endpoint.base_url, "only a provider with a server of its own does without"
        return Http(self.endpoint.base_url, timeout=self.endpoint.timeout, secret=self.endpoint.api_key)

    async def aclose(self) -> None:
        """Closes the connections, if there are any."""
        if "http" in self.__dict__:
            await self.http.aclose()


class ModelPool:
    """Opens models; an asynchronous context manager that closes them.

    `endpoint_of` says where a model is asked; `openers` come before the registry's, by provider; `settings` hold the
    options of those that have any.
    """

    def __init__(
        self,
        endpoint_of: Callable[[ModelName], Endpoint],
        *,
        prices: Mapping[str, Price] | None = None,
        openers: Mapping[str, Opener] | None = None,
        limiter: Callable[[int], Limiter] = Limiter,
        settings: Settings = DEFAULTS,
    ) -> None:
        self.notices: list[str] = []  # what the user should hear, each once; it only grows
        self._endpoint_of = endpoint_of
        self._prices = prices or {}
        self._openers = openers or {}
        self._limiter = limiter
        self._settings = settings
        self._models: dict[ModelName, Model] = {}
        self._services: dict[tuple[str, str | None, str], Service] = {}
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    def open(self, name: ModelName | str) -> Model:
        """The model with this name, the same object each time. Raises KoderzError or Unreachable."""
        if isinstance(name, str):
            name = parse_model_name(name)
        if name not in self._models:
            opener = self._openers.get(name.provider) or opener_of(name.provider)
            model = opener(name, self._service(name, getattr(opener, "options", None)))
            self._open.push_async_callback(model.aclose)
            self._models[name] = model
        return self._models[name]

    def load(self) -> None:
        """Starts loading the HTTP libraries, which takes 0.2 s in which other things can start."""
        if any(service.endpoint.base_url for service in self._services.values()):
            Thread(target=import_module, args=("koderz.models.transport",), daemon=True).start()

    @property
    def throttle(self) -> tuple[Throttle, ...]:
        """The state of each provider's limiter."""
        return tuple(service.limiter.throttle(key[0]) for key, service in self._services.items())

    def _service(self, name: ModelName, options: type | None) -> Service:
        endpoint = self._endpoint_of(name)
        for notice in endpoint.notices:
            self._say(notice)
        key = (name.provider, endpoint.base_url, endpoint.api_key)
        if key not in self._services:
            own = options and self._settings.of(options)
            service = Service(endpoint, self._say, self._prices, self._limiter(endpoint.concurrency), own)
            self._open.push_async_callback(service.aclose)
            self._services[key] = service
        return self._services[key]

    def _say(self, notice: str) -> None:
        if notice not in self.notices:
            self.notices.append(notice)
