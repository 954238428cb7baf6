"""Values by which calls are charged: token counts, prices by tier, and a model's tariff."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, Provider

_MILLION = 1_000_000


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
    own: bool = False  # whether it is the user's, from koderz.toml
    share: float = 1.0  # of the listed price that is paid

    def in_batches(self, own: Price | None) -> Tariff:
        """The tariff of the same model in batches: the user's own, else half of this one."""
        if own:
            return Tariff(own, "as koderz.toml says", own=True)
        halved = [Tier(above, paid / 2, charged / 2) for above, paid, charged in self.price.tiers]
        price = Price(self.price.input / 2, self.price.output / 2, tuple(halved))
        return self._replace(price=price, share=self.share / 2)

    @property
    def source(self) -> str:
        """How a call's cost is known: "own", "free" or "list"."""
        if self.own:
            return "own"
        is_free = self.price.input == self.price.output == 0 and self.listed is None
        return "free" if is_free else "list"

    def __str__(self) -> str:
        price = self.price
        if price.input == price.output == 0:
            return f"free, {self.origin}"
        dearer = f" (more above {price.tiers[0].above:,} tokens of prompt)" if price.tiers else ""
        return (
            f"${price.input:g} in, ${price.output:g} out, a million tokens{dearer}, {self.origin}"
        )

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
        return self.share * float(model.calc_price(counted, provider).total_price)


FREE = Price(0.0, 0.0)
"""The price of what costs nothing."""
