"""Who answers: a model is opened by its name and asked for one completion at a time.

A provider is one module and one line in `WIRE_FORMATS`. A package of someone else's adds one by an entry
point of the group `koderz.models`, whose name is the provider and which names an `Opener`; these are
looked for only where a name isn't in the registry.

Nothing heavy is imported here. `koderz.models.pool.ModelPool` opens the models of a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from koderz.models.endpoints import Endpoint, endpoint_for
from koderz.models.names import ENTRY_POINTS, WIRE_FORMATS, ModelName, parse_model_name
from koderz.models.prices import Price
from tracker.registry import find

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koderz.models.pool import Service
    from koderz.types import Completion, Message, Sampling

__all__ = [
    "WIRE_FORMATS",
    "Endpoint",
    "Model",
    "ModelName",
    "Opener",
    "Price",
    "endpoint_for",
    "opener_of",
    "parse_model_name",
]


class Model(Protocol):
    """One model, ready to be asked. Any number of calls may be in flight."""

    @property
    def name(self) -> ModelName: ...

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """One paid answer. Raises Fault, or FatalFault where every further call would end the same way."""

    async def check(self) -> dict[str, str]:
        """A look before the run that costs nothing; returns what to record, such as Ollama's `digest`.

        Raises Unreachable or FatalFault, saying what to do, where no call can succeed.
        """

    def price(self) -> Price | None:
        """What its tokens cost; None where nobody knows."""

    async def aclose(self) -> None:
        """Lets go of what this model alone holds."""


class Opener(Protocol):
    """Opens a model on what it shares with the others of its provider and address.

    A provider's options are a dataclass (see `koderz.settings.options`) that is the attribute `options` of its opener;
    `service.options` has them as the run does.
    """

    def __call__(self, name: ModelName, service: Service, /) -> Model: ...


def opener_of(provider: str) -> Opener:
    """What opens the models of a provider. Raises KoderzError where nothing does."""
    return cast("Opener", find("model provider", provider, WIRE_FORMATS, ENTRY_POINTS))
