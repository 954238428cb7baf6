"""A simulated model whose replies a suite makes up, for tasks that aren't code."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence

from koderz.errors import Fault
from koderz.models.names import ModelName
from koderz.models.prices import Price
from koderz.types import Completion, Message, Sampling
from tracker.messages import text_of

_CHARS_A_TOKEN = 4


class SimulatedReplies:
    """Says what `simulate(messages, sampling)` makes up, after `latency` seconds; a share of calls raises Fault."""

    def __init__(
        self,
        simulate: Callable[[Sequence[Message], Sampling], str],
        *,
        latency: float = 0.0,
        fault_rate: float = 0.0,
    ) -> None:
        self.name = ModelName(provider="simulated", name="simulated")
        self._simulate, self._latency, self._fault_rate = simulate, latency, fault_rate

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        await asyncio.sleep(self._latency)
        if secrets.randbits(32) < self._fault_rate * 2**32:
            raise Fault("simulated fault: the simulated model was told to fail now and then; retry the call")
        text = self._simulate(messages, sampling)
        return Completion(
            text,
            tokens_in=sum(len(text_of(message)) for message in messages) // _CHARS_A_TOKEN,
            tokens_out=-(-len(text) // _CHARS_A_TOKEN),
            latency=self._latency,
            model="simulated",
        )

    async def check(self) -> dict[str, str]:
        return {}

    def price(self) -> Price:
        """US dollars a million tokens: nothing."""
        return Price(input=0.0, output=0.0)

    async def aclose(self) -> None:
        return
