"""What tokens cost.

Own prices win; then a model of this machine is free; then the published prices of `genai-prices` count,
with their cached tokens and tiers. What none of these knows has no price: that is never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from koderz.models.endpoints import is_loopback, own_address

if TYPE_CHECKING:
    from collections.abc import Mapping

    from genai_prices.types import ModelInfo, Provider

    from koderz.models.names import ModelName

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call."""

    tokens_in: int  # the cached ones included
    tokens_out: int  # reasoning included
    cache_read: int = 0
    cache_write: int = 0


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens."""

    input: float
    output: float
    cached_input: float | None = None  # None: as other input

    def cost(self, usage: Usage) -> float:
        """US dollars."""
        cached = min(usage.cache_read, usage.tokens_in)
        cached_price = self.input if self.cached_input is None else self.cached_input
        fresh = (usage.tokens_in - cached) * self.input
        return (fresh + cached * cached_price + usage.tokens_out * self.output) / _MILLION


class Tariff(Protocol):
    """How a model's calls are charged."""

    @property
    def price(self) -> Price:
        """The plain price, for estimates: of short contexts, at this time of day."""

    def cost(self, usage: Usage) -> float:
        """US dollars."""


@dataclass(frozen=True, slots=True)
class Flat:
    """Every token at one price."""

    price: Price

    def cost(self, usage: Usage) -> float:
        return self.price.cost(usage)


@dataclass(frozen=True, slots=True)
class Published:
    """The list price of a model, as `genai-prices` has it."""

    provider: Provider
    model: ModelInfo
    price: Price

    def cost(self, usage: Usage) -> float:
        from genai_prices import Usage as Counted

        read = min(usage.cache_read, usage.tokens_in)
        counted = Counted(
            input_tokens=usage.tokens_in,
            output_tokens=usage.tokens_out,
            cache_read_tokens=read,
            cache_write_tokens=min(usage.cache_write, usage.tokens_in - read),
        )
        return float(self.model.calc_price(counted, self.provider).total_price)


FREE = Flat(Price(0.0, 0.0))


def tariff_of(name: ModelName, base_url: str | None, own: Mapping[str, Price]) -> Tariff | None:
    """How calls of a model at an address are charged; None where nobody knows.

    `own` is by the name as shown (`openai/gpt-4o-mini`) or the provider's (`gpt-4o-mini`).
    """
    mine = own.get(str(name)) or own.get(name.name)
    if mine is not None:
        return Flat(mine)
    if name.provider in ("ollama", "simulated") or (base_url and is_loopback(base_url)):
        return FREE
    return _published(name, base_url)


def price_of(name: ModelName, own: Mapping[str, Price], base_url: str | None = None) -> Price | None:
    """The price of a model that need not be opened, such as one to compare with; None where unknown."""
    tariff = tariff_of(name, base_url, own)
    return tariff.price if tariff else None


def _published(name: ModelName, base_url: str | None) -> Published | None:
    from datetime import UTC, datetime

    from genai_prices.data_snapshot import get_snapshot  # 0.4 s, so only where a model may cost something

    elsewhere = base_url if base_url and base_url != own_address(name.provider) else None
    try:
        provider, model = get_snapshot().find_provider_model(
            name.name, None, None if elsewhere else name.provider, elsewhere
        )
    except LookupError:
        return None
    listed = model.get_prices(datetime.now(UTC))
    prices = [_plain(getattr(listed, f"{kind}_mtok", None)) for kind in ("input", "output", "cache_read")]
    if prices[0] is None or prices[1] is None:
        return None
    return Published(provider, model, Price(prices[0], prices[1], prices[2]))


def _plain(price: object) -> float | None:
    """A listed price, which may be in tiers by the length of the context: then the first."""
    base: Any = getattr(price, "base", price)
    return None if base is None else float(base)
