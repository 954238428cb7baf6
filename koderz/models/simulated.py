"""A simulated model with invented replies."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence

from koderz.errors import Fault
from koderz.models.messages import part
from koderz.models.names import ModelName
from koderz.models.tariffs import Price
from koderz.types import Completion, Message, Sampling
from koderz_tracker.messages import text_of

CHARACTERS_PER_TOKEN = 4


class SimulatedReplies:
    """Replies with the result of `simulate(messages, sampling)`; a share of calls raises Fault.

    `latency` is how many seconds a reply takes. Faults are drawn afresh, since one that followed from the messages
    would meet every retry of the call as well.
    """

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
        """One reply. Raises Fault for the share `fault_rate` of calls."""
        latency = self.delay(messages, sampling)
        await asyncio.sleep(latency)
        if secrets.randbits(32) < self._fault_rate * 2**32:
            raise Fault(
                "simulated fault: the simulated model was told to fail now and then; retry the call",
                cause="unreachable",
            )
        reply = self._simulate(messages, sampling)
        for stop in sampling.stop:
            reply = reply.partition(stop)[0]
        limit = None if sampling.max_tokens is None else sampling.max_tokens * CHARACTERS_PER_TOKEN
        if limit is None or len(reply) <= limit:
            sent, finish_reason = reply, "stop"
        else:
            sent, finish_reason = reply[:limit], "length"
        parted = part(sent, complete=finish_reason == "stop")
        return Completion(
            text=parted.text,
            reasoning=parted.reasoning,
            tokens_in=_tokens(sum(len(text_of(message)) for message in messages)),
            tokens_out=_tokens(len(sent)),
            latency=latency,
            finish_reason=finish_reason,
            model="simulated",
            raw=sent if parted.cut else None,
        )

    def delay(self, _messages: Sequence[Message], _sampling: Sampling) -> float:
        """The seconds that the reply takes."""
        return self._latency

    async def check(self) -> dict[str, str]:
        return {}

    def price(self) -> Price:
        """The price of tokens, which is 0."""
        return Price(input=0.0, output=0.0)

    async def aclose(self) -> None:
        """Does nothing, since there is nothing to close."""


def _tokens(characters: int) -> int:
    return max(1, characters // CHARACTERS_PER_TOKEN)
