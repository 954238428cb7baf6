"""A provider of models that say the same whatever they are asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from koderz.models import ModelName, Price, Provider, Service
from koderz.settings.options import option
from koderz.types import Completion, Message, Sampling


@dataclass(frozen=True, slots=True)
class ToyModelOptions:
    """The options of the provider `toy`."""

    toy_reply: str = option("nothing", "What the models reply.", "TEXT")


@dataclass(frozen=True, slots=True)
class ToyModel:
    """A model, ready to be asked."""

    name: ModelName
    reply: str

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        return Completion(f"{self.name.name} says {self.reply}", tokens_in=1, tokens_out=1)

    async def check(self) -> dict[str, str]:
        return {}

    def price(self) -> Price | None:
        return None

    async def aclose(self) -> None:
        pass


class Toy(Provider):
    """Models that are asked nowhere."""

    needs_key = False
    options = ToyModelOptions

    def open(self, name: ModelName, service: Service) -> ToyModel:
        return ToyModel(name, service.options.toy_reply)
