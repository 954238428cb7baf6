"""Prices of tokens, and the cost of calls.

The user's own prices win, then those of the model's provider: an Ollama's models are free. Else the published prices
of `genai-prices` count, with their cached tokens and tiers, wherever the model is asked: proxies on this machine bill
too. What is asked on this machine and has no published price is free. What none of these knows has no price: that is
never guessed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from koderz.models.names import PROVIDERS, is_loopback, parse_model_name
from koderz.models.providers import provider_of
from koderz.models.tariffs import FREE, Price, Tariff, Tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from koderz.models.names import ModelName

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
_HOSTED_ONLY = re.compile(
    r"(?:.*/)?((?:claude|chatgpt|gemini|grok|gpt(?!-oss))-.+|o[134](?:-.+)?)", re.IGNORECASE
)
_OPEN_WEIGHTS = re.compile(r"(?:.*/)?gpt-oss\b.*", re.IGNORECASE)


def tariff_of(name: ModelName, base_url: str | None, own: Mapping[str, Price]) -> Tariff | None:
    """The tariff of a model at an address; None if no price is known.

    `own` is by the name as shown (`openai/gpt-6-luna`) or the provider's (`gpt-6-luna`).
    """
    mine = own.get(str(name)) or own.get(name.name)
    if mine is not None:
        return Tariff(mine, "as koderz.toml says", own=True)
    provider = provider_of(name.provider)
    if (price := provider.price(name.name)) is not None:
        return Tariff(price, provider.price_origin)
    if (
        base_url
        and is_loopback(base_url)
        and _LIST not in sys.modules
        and _is_unlisted(name, base_url)
    ):
        published = None
    else:
        published = _listed_tariff(name, base_url)
    if published is None and base_url and is_loopback(base_url):
        return Tariff(
            FREE, "since it is asked on this machine and has no published price", assumed=True
        )
    return published


def price_of(
    name: ModelName, own: Mapping[str, Price], base_url: str | None = None
) -> Price | None:
    """The price of a model that need not be opened, such as one to compare with; None if unknown."""
    tariff = tariff_of(name, base_url, own)
    return tariff.price if tariff else None


IN_BATCHES = " in batches"
"""The end of the name under which the user's own price of a model's batches stands."""


def batch_price_of(name: ModelName, own: Mapping[str, Price]) -> Price | None:
    """The user's own price of a model in batches."""
    return own.get(f"{name}{IN_BATCHES}") or own.get(f"{name.name}{IN_BATCHES}")


def could_spend(models: Iterable[str], prices: Mapping[str, tuple[float, float]]) -> bool:
    """Whether settings from another person could spend the user's money.

    They could where a model is hosted, or a price (US dollars a million tokens: in, out) is below the published one.
    """
    asked = (parse_model_name(name) for name in models)
    hosted = (provider_of(each.provider).price(each.name) != FREE for each in asked)
    return any(hosted) or any(_is_understated(*price) for price in prices.items())


def _is_understated(name: str, price: tuple[float, float]) -> bool:
    """Whether a price is below the published one, so that the user's cap would allow more than it says."""
    model, in_batches = name.removesuffix(IN_BATCHES), name.endswith(IN_BATCHES)
    names = [
        parse_model_name(each)
        for each in (model, *(f"{provider}/{model}" for provider in PROVIDERS))
    ]
    published = [found for found in (price_of(each, {}) for each in names) if found]
    part = 0.5 if in_batches else 1.0
    return any(price[0] < part * each.input or price[1] < part * each.output for each in published)


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

    # 0.2 s, so only where a model may cost something
    from genai_prices.data_snapshot import get_snapshot

    snapshot = get_snapshot()
    for listing in _listings(name, base_url):
        try:
            provider, model = snapshot.find_provider_model(
                listing.model, None, listing.provider, listing.address
            )
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
    if not base_url or base_url == provider_of(name.provider).address:
        yield _Listing(name.name, name.provider)
        return
    yield _Listing(name.name, address=base_url)
    if _OPEN_WEIGHTS.fullmatch(name.name):
        return
    elsewhere = "as its provider publishes it, although another address is asked"
    yield _Listing(name.name, name.provider, origin=elsewhere)
    hosted = _HOSTED_ONLY.fullmatch(name.name)
    yield _Listing(
        hosted[1] if hosted else name.name.rpartition("/")[2], origin=elsewhere, exact=not hosted
    )


def _tiers(*prices: object) -> tuple[Tier, ...]:
    """The tiers of listed prices for input and output, each of which may have its own."""
    starts = {tier.start for price in prices for tier in getattr(price, "tiers", ())}
    return tuple(
        Tier(start, *(_listed(price, start) for price in prices)) for start in sorted(starts)
    )


def _listed(price: object, start: int = 0) -> float:
    """The listed price above a number of tokens of context."""
    found: Any = getattr(price, "base", price)
    for tier in getattr(price, "tiers", ()):  # the lowest first
        if tier.start <= start:
            found = tier.price
    return float(found)
