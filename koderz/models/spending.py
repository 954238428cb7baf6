"""Whether settings of somebody else's could spend the user's money: by hosted models, or by prices that are too low."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koderz.models.names import WIRE_FORMATS, parse_model_name


def could_spend(models: Iterable[str], prices: Mapping[str, tuple[float, float]]) -> bool:
    """Whether a model is hosted, or a price (US dollars a million tokens: in, out) is below the published one."""
    return any(map(_is_hosted, models)) or any(_is_understated(*price) for price in prices.items())


def _is_hosted(name: str) -> bool:
    return parse_model_name(name).provider not in ("ollama", "simulated")


def _is_understated(name: str, price: tuple[float, float]) -> bool:
    """Whether the user's cap would come to more than it says."""
    from koderz.models.prices import price_of

    names = [parse_model_name(each) for each in (name, *(f"{provider}/{name}" for provider in WIRE_FORMATS))]
    published = [found for found in (price_of(each, {}) for each in names) if found]
    return any(price[0] < each.input or price[1] < each.output for each in published)
