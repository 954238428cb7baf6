"""A model behind a server: one call from messages to completion, for any wire format."""

from __future__ import annotations

import time
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from koderz.errors import FatalFault, Fault, Unreachable
from koderz.models.adaptation import Adaptation
from koderz.models.clients import NotSpokenError, headers_of, unpacked, wire_of
from koderz.models.faults import Refused, Retryable, clean, problem_of, without
from koderz.models.limiter import retrying
from koderz.models.names import is_another
from koderz.models.prices import tariff_of
from koderz.models.reasoning import part
from koderz.models.tariffs import Price, Tariff, Usage
from koderz.models.wire import encode, no_answer
from koderz.types import REJECTED, Completion
from tracker.messages import text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koderz.models.names import ModelName
    from koderz.models.providers import Service
    from koderz.models.wire import Wire, WireReply
    from koderz.types import Message, Sampling

_NOT_SPOKEN = (404, 405, 501)  # what a server says of a path that it hasn't got
_LETTERS_A_TOKEN = 4  # of English and of code, about; only where a server doesn't count


class _Answer(NamedTuple):
    """The answer to a request."""

    reply: WireReply
    body: bytes
    latency: float  # seconds, without the wait for its turn


class _Way(NamedTuple):
    """A way to send a request: the wire format, headers, and whether it may offer tools."""

    wire: Wire
    headers: Mapping[str, str]
    tools: bool  # whether it may offer some


class RemoteModel:
    """One model of a service. Any number of calls may be in flight."""

    def __init__(self, name: ModelName, wire: Wire, service: Service, *others: Wire) -> None:
        """`others` are wire formats used only to pass on requests of clients that speak them, if the server does."""
        self.name = name
        self._wire = wire
        self._service = service
        self._adaptation = Adaptation(wire)
        # by the wires of `koderz.models.clients` on which it is sent what a client asks as it is
        self.clients = {each.client: each for each in (*others, wire) if each.client}

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """One completion, see Model. A refused request of a client, or one with tools, is answered as `rejected`."""
        client = wire_of(messages)
        wire = self.clients[client] if client else self._wire
        request = (
            {**unpacked(messages), "model": self.name.name, "stream": False}
            if client
            else wire.request(self.name.name, messages, sampling)
        )
        way = _Way(wire, {**wire.headers, **headers_of(messages)}, tools=bool(client or request.get("tools")))
        try:
            answer, retries, adapted = await self._exchange(way, request)
        except Refused as refused:
            if way.tools:
                return Completion(str(refused), finish_reason=REJECTED, model=self.name.name)
            raise Fault(self._told(refused), cause="rejected") from None
        except NotSpokenError:
            self.clients.pop(client, None)
            raise
        for lacking in self._wire.lacking:
            if lacking in request:
                self._service.say(f"{lacking} dropped for {self.name}: its provider takes none")
        reply = answer.reply
        usage, estimated = self._usage(reply, messages)
        answered_by = clean(reply.model) or self.name.name
        parted = part(reply.text, complete=reply.finish_reason != "length")
        return Completion(
            text=parted.text,
            reasoning="\n\n".join(filter(None, (reply.reasoning, parted.reasoning))),
            tokens_in=usage.tokens_in,
            tokens_out=usage.tokens_out,
            cost=self._tariff.cost(usage) if self._tariff else 0.0,
            cost_known=self._tariff is not None,
            latency=answer.latency,
            finish_reason=reply.finish_reason,
            model=answered_by,
            retries=retries,
            adapted=(*adapted, *estimated, *self._another(answered_by)),
            raw=reply.text if parted.cut else None,
            tool_calls=reply.tool_calls,
            body=answer.body.decode("utf-8", "replace") if client else "",
        )

    async def check(self) -> dict[str, str]:
        """The check before a run, see Model; returns what the wire format finds out."""
        service = self._service
        look = partial(self._wire.look, service.http, self.name.name, service.say)
        try:
            found, _ = await retrying(look, service.limiter, service.endpoint.backoff, 1)
        except Fault as error:
            raise FatalFault(self._told(error), cause=error.cause) from None
        except Retryable as error:
            raise Unreachable(f"{self._told(error)}; {service.provider.remedy}") from None
        return found

    def price(self) -> Price | None:
        """The price of tokens; None if unknown."""
        return self._tariff.price if self._tariff else None

    async def aclose(self) -> None:
        """Does nothing, since the connections belong to the service."""

    @cached_property
    def _tariff(self) -> Tariff | None:
        service = self._service
        tariff = tariff_of(self.name, service.endpoint.base_url, service.prices)
        if tariff is None:
            service.say(f"no price is known for {self.name}: its calls count as $0; give one in koderz.toml")
        elif tariff.assumed:
            service.say(f"{self.name} is reckoned {tariff}; another price can stand in koderz.toml")
        return tariff

    async def _exchange(self, way: _Way, wanted: dict[str, Any]) -> tuple[_Answer, int, tuple[str, ...]]:
        """The answer to a request adapted to the model, the number of retries, and the adaptations.

        Raises Refused where the model takes it in no form.
        """
        while True:
            request, adapted = self._adaptation.fit(wanted)
            attempt = partial(self._attempt, way, encode(request))
            limiter, endpoint = self._service.limiter, self._service.endpoint
            try:
                return *await retrying(attempt, limiter, endpoint.backoff, endpoint.max_retries), adapted
            except Refused as refused:
                if learnt := self._adaptation.learn(refused, request):
                    self._service.say(f"{learnt} for {self.name}: the server said {refused}")
            except Retryable as error:
                raise Fault(self._told(error), cause="unreachable") from None
            except Fault as error:
                raise type(error)(self._told(error), cause=error.cause) from None

    async def _attempt(self, way: _Way, body: bytes) -> _Answer:
        async with self._service.limiter.turn():
            sent = time.perf_counter()
            response = await self._service.http.post(way.wire.path, body, way.headers)
            if response.status in _NOT_SPOKEN and way.wire is not self._wire:
                raise NotSpokenError(way.wire.client)
            if not 200 <= response.status < 300:
                raise problem_of(response)
            reply = way.wire.read(response.body)
            if reply.tool_calls and not (reply.text or way.tools):
                raise no_answer("it calls a tool, and none was offered")
            return _Answer(reply, response.body, time.perf_counter() - sent)

    def _usage(self, reply: WireReply, messages: Sequence[Message]) -> tuple[Usage, tuple[str, ...]]:
        """The tokens of a call, and a note if the server didn't report them and they were estimated."""
        tokens_in, tokens_out = reply.tokens_in, reply.tokens_out
        estimated = tokens_in is None or tokens_out is None
        if tokens_in is None:
            tokens_in = sum(_estimate(text_of(message)) for message in messages)
        if tokens_out is None:
            tokens_out = _estimate(reply.text) + _estimate(reply.reasoning)
        if estimated:
            self._service.say(f"the server of {self.name} doesn't count tokens: they are estimated")
        usage = Usage(tokens_in, tokens_out, reply.cache_read, reply.cache_write)
        return usage, ("tokens estimated",) if estimated else ()

    def _another(self, answered_by: str) -> tuple[str, ...]:
        """The note on a call for which the server reports that another model answered."""
        if not is_another(self.name.name, answered_by):
            return ()
        self._service.say(f"{self.name} was asked, and the server says that {answered_by} answered")
        return (f"answered by {answered_by}",)

    def _told(self, error: Exception) -> str:
        http = self._service.http
        return f"{self.name} at {http.address}: {without(str(error), *http.hidden)}"


def _estimate(text: str) -> int:
    """An estimated number of tokens. A character of several bytes in UTF-8 counts as nearly one token."""
    more = 0 if text.isascii() else len(text.encode("utf-8", "surrogatepass")) - len(text)
    return -(-(len(text) + 3 * more // 2) // _LETTERS_A_TOKEN)
