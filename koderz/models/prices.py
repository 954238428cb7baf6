"""Prices of tokens, and the cost of calls.

Own prices win. Else an Ollama's models are free, and the published prices of `genai-prices` count, with their
cached tokens and tiers, wherever the model is asked: proxies on this machine bill too. What is asked on this
machine and has no published price is free. What none of these knows has no price: that is never guessed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from koderz.models.endpoints import is_loopback, own_address
from koderz.models.names import WIRE_FORMATS, parse_model_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from genai_prices.types import ModelInfo, Provider

    from koderz.models.names import ModelName

_MILLION = 1_000_000
_PUBLISHED = "as published"
_LIST = "genai_prices"
_UNLISTED = 3  # the exit code of who finds no published price
_LOOK = f"""
import gc, os, sys
gc.disable()  # for so short a life
from koderz.models.names import parse_model_name
from koderz.models.prices import _listed_tariff

os._exit(0 if _listed_tariff(parse_model_name(sys.argv[1]), sys.argv[2]) else {_UNLISTED})
"""

# Models that nobody can download, however a proxy prefixes their names; and those of OpenAI's that anybody can.
_HOSTED_ONLY = re.compile(r"(?:.*/)?((?:claude|chatgpt|gemini|grok|gpt(?!-oss))-.+|o[134](?:-.+)?)", re.IGNORECASE)
_OPEN_WEIGHTS = re.compile(r"(?:.*/)?gpt-oss\b.*", re.IGNORECASE)


class Usage(NamedTuple):
    """The token counts of one call."""

    tokens_in: int  # the cached ones included
    tokens_out: int  # reasoning included
    cache_read: int = 0
    cache_write: int = 0


class Tier(NamedTuple):
    """US dollars per million tokens, for all tokens of a call whose prompt is longer than a number of tokens."""

    above: int
    input: float
    output: float


class Price(NamedTuple):
    """US dollars per million tokens."""

    input: float
    output: float
    tiers: tuple[Tier, ...] = ()  # the lowest first

    def cost(self, tokens_in: float, tokens_out: float) -> float:
        """The cost of one call in US dollars."""
        paid, charged = self.input, self.output
        for tier in self.tiers:
            if tokens_in > tier.above:
                _, paid, charged = tier
        return (tokens_in * paid + tokens_out * charged) / _MILLION


class Tariff(NamedTuple):
    """The way in which a model's calls are charged. `str()` is the reason in words: "free, since an Ollama runs it"."""

    price: Price  # for estimates: of tokens that are in no cache, at this time of day
    origin: str  # how it is known, in words that follow the price
    assumed: bool = False  # whether it is worth a word that it may be otherwise
    listed: tuple[Provider, ModelInfo] | None = None  # by `genai-prices`

    def __str__(self) -> str:
        price = self.price
        if price.input == price.output == 0:
            return f"free, {self.origin}"
        dearer = f" (more above {price.tiers[0].above:,} tokens of prompt)" if price.tiers else ""
        return f"${price.input:g} in, ${price.output:g} out, a million tokens{dearer}, {self.origin}"

    def cost(self, usage: Usage) -> float:
        """The cost of a call in US dollars."""
        if self.listed is None:
            return self.price.cost(usage.tokens_in, usage.tokens_out)
        from genai_prices import Usage as Counted

        provider, model = self.listed
        read = min(usage.cache_read, usage.tokens_in)
        counted = Counted(
            input_tokens=usage.tokens_in,
            output_tokens=usage.tokens_out,
            cache_read_tokens=read,
            cache_write_tokens=min(usage.cache_write, usage.tokens_in - read),
        )
        return float(model.calc_price(counted, provider).total_price)


_FREE = Price(0.0, 0.0)


def tariff_of(name: ModelName, base_url: str | None, own: Mapping[str, Price]) -> Tariff | None:
    """The tariff of a model at an address; None if no price is known.

    `own` is by the name as shown (`openai/gpt-4o-mini`) or the provider's (`gpt-4o-mini`).
    """
    mine = own.get(str(name)) or own.get(name.name)
    if mine is not None:
        return Tariff(mine, "as koderz.toml says")
    if name.provider == "simulated":
        return Tariff(_FREE, "since it is simulated")
    if name.provider == "ollama":
        return Tariff(_FREE, "since an Ollama runs it")
    published = _published(name, base_url)
    if published is None and base_url and is_loopback(base_url):
        return Tariff(_FREE, "since it is asked on this machine and has no published price", assumed=True)
    return published


def price_of(name: ModelName, own: Mapping[str, Price], base_url: str | None = None) -> Price | None:
    """The price of a model that need not be opened, such as one to compare with; None if unknown."""
    tariff = tariff_of(name, base_url, own)
    return tariff.price if tariff else None


def could_spend(models: Iterable[str], prices: Mapping[str, tuple[float, float]]) -> bool:
    """Whether settings from another person could spend the user's money.

    They could where a model is hosted, or a price (US dollars a million tokens: in, out) is below the published one.
    """
    hosted = (parse_model_name(name).provider not in ("ollama", "simulated") for name in models)
    return any(hosted) or any(_is_understated(*price) for price in prices.items())


def _is_understated(name: str, price: tuple[float, float]) -> bool:
    """Whether a price is below the published one, so that the user's cap would allow more than it says."""
    names = [parse_model_name(each) for each in (name, *(f"{provider}/{name}" for provider in WIRE_FORMATS))]
    published = [found for found in (price_of(each, {}) for each in names) if found]
    return any(price[0] < each.input or price[1] < each.output for each in published)


def _published(name: ModelName, base_url: str | None) -> Tariff | None:
    if base_url and is_loopback(base_url) and _LIST not in sys.modules and _is_unlisted(name, base_url):
        return None
    return _listed_tariff(name, base_url)


@cache
def _is_unlisted(name: ModelName, base_url: str) -> bool:
    """Whether another process finds no published price, which is usual for models on this machine.

    The list would take 13 MB for as long as this one lives. Where the look fails, it has to look itself.
    """
    command = [sys.executable, "-P", "-c", _LOOK, str(name), base_url]
    try:
        looked = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError:
        return False
    return looked.returncode == _UNLISTED


def _listed_tariff(name: ModelName, base_url: str | None) -> Tariff | None:
    from datetime import UTC, datetime

    from genai_prices.data_snapshot import get_snapshot  # 0.2 s, so only where a model may cost something

    snapshot = get_snapshot()
    for listing in _listings(name, base_url):
        try:
            provider, model = snapshot.find_provider_model(listing.model, None, listing.provider, listing.address)
        except LookupError:
            continue
        if listing.exact and model.id.lower() != listing.model.lower():
            continue
        listed = model.get_prices(datetime.now(UTC))
        paid, charged = listed.input_mtok, listed.output_mtok
        if paid is not None and charged is not None:
            price = Price(_listed(paid), _listed(charged), _tiers(paid, charged))
            return Tariff(price, listing.origin, listing.origin != _PUBLISHED, (provider, model))
    return None


class _Listing(NamedTuple):
    """A place where a price may be published."""

    model: str
    provider: str | None = None
    address: str | None = None
    origin: str = _PUBLISHED
    exact: bool = False  # whether the name has to be that of the published model


def _listings(name: ModelName, base_url: str | None) -> Iterator[_Listing]:
    """The places where a price may be published, the most specific first."""
    if not base_url or base_url == own_address(name.provider):
        yield _Listing(name.name, name.provider)
        return
    yield _Listing(name.name, address=base_url)
    if _OPEN_WEIGHTS.fullmatch(name.name):
        return
    elsewhere = "as its provider publishes it, although another address is asked"
    yield _Listing(name.name, name.provider, origin=elsewhere)
    hosted = _HOSTED_ONLY.fullmatch(name.name)
    yield _Listing(hosted[1] if hosted else name.name.rpartition("/")[2], origin=elsewhere, exact=not hosted)


def _tiers(*prices: object) -> tuple[Tier, ...]:
    """The tiers of listed prices for input and output, each of which may have its own."""
    starts = {tier.start for price in prices for tier in getattr(price, "tiers", ())}
    return tuple(Tier(start, *(_listed(price, start) for price in prices)) for start in sorted(starts))


def _listed(price: object, start: int = 0) -> float:
    """The listed price above a number of tokens of context."""
    found: Any = getattr(price, "base", price)
    for tier in getattr(price, "tiers", ()):  # the lowest first
        if tier.start <= start:
            found = tier.price
    return float(found)
