"""The models of one run: opened by name, sharing connections and limits of their provider and address."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING, Self

from koderz.models.limiter import Limiter, RateAccount, Throttle, account_name
from koderz.models.names import (
    Endpoint,
    ModelName,
    parse_model_name,
)
from koderz.models.providers import Model, Provider, Service, provider_of
from koderz.models.tariffs import Price
from koderz.settings.schema import Settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


__all__ = ["ModelPool", "Service"]

DEFAULTS = Settings()


class ModelPool:
    """Opens models; an asynchronous context manager that closes them.

    `endpoint_of` says where a model is asked; `providers` come before those found by name; `settings` hold the options
    of those that have any; `accounts` is the folder in which rate limits are shared with other processes.
    """

    def __init__(
        self,
        endpoint_of: Callable[[ModelName], Endpoint],
        *,
        prices: Mapping[str, Price] | None = None,
        providers: Mapping[str, Provider] | None = None,
        limiter: Callable[..., Limiter] = Limiter,
        settings: Settings = DEFAULTS,
        accounts: Path | None = None,
    ) -> None:
        self.notices: list[str] = []  # what the user should hear, each once; it only grows
        self._endpoint_of = endpoint_of
        self._prices = prices or {}
        self._providers = providers or {}
        self._limiter = limiter
        self._settings = settings
        self._accounts = accounts
        self._models: dict[tuple[ModelName, str | None], Model] = {}
        self._services: dict[tuple[str, str | None, str, str, int | None], Service] = {}
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    def open(self, name: ModelName | str, endpoint: Endpoint | None = None) -> Model:
        """The model with this name, the same object each time. Raises KoderzError or Unreachable.

        `endpoint`: where this one alone is asked, in place of where its name says.
        """
        if isinstance(name, str):
            name = parse_model_name(name)
        key = (name, endpoint.base_url if endpoint else None)
        if key not in self._models:
            provider = self._providers.get(name.provider) or provider_of(name.provider)
            model = provider.open(
                name, self._service(name, provider, endpoint or self._endpoint_of(name))
            )
            self._open.push_async_callback(model.aclose)
            self._models[key] = model
        return self._models[key]

    def load(self) -> None:
        """Starts loading the HTTP libraries, which takes 0.2 s in which other things can start."""
        if any(service.endpoint.base_url for service in self._services.values()):
            Thread(target=import_module, args=("koderz.models.transport",), daemon=True).start()

    @property
    def throttle(self) -> tuple[Throttle, ...]:
        """The state of each provider's limiter."""
        return tuple(service.limiter.throttle(key[0]) for key, service in self._services.items())

    def _service(self, name: ModelName, provider: Provider, endpoint: Endpoint) -> Service:
        for notice in endpoint.notices:
            self._say(notice)
        key = (name.provider, endpoint.base_url, endpoint.api_key, endpoint.wire, endpoint.num_ctx)
        if key not in self._services:
            own = provider.options and self._settings.of(provider.options)
            limiter = self._limiter(endpoint.concurrency, account=self._account(name, endpoint))
            service = Service(provider, endpoint, self._say, self._prices, limiter, own)
            self._open.push_async_callback(service.aclose)
            self._open.callback(limiter.close)
            self._services[key] = service
        return self._services[key]

    def _account(self, name: ModelName, endpoint: Endpoint) -> RateAccount:
        path = None
        if self._accounts and endpoint.base_url:
            path = self._accounts / account_name(name.provider, endpoint.base_url, endpoint.api_key)
        return RateAccount(endpoint.rates, path, self._say)

    def _say(self, notice: str) -> None:
        if notice not in self.notices:
            self.notices.append(notice)
