"""A model behind a server: one call from messages to completion, for any wire format."""

from __future__ import annotations

import math
import re
import time
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from koderz.errors import FatalFault, Fault, ReplyTimedOut, Unreachable
from koderz.models.batches import BATCH_APIS
from koderz.models.clients import NotSpokenError, headers_of, unpacked, wire_of
from koderz.models.faults import (
    Filtered,
    NoSuchPath,
    Refused,
    Retryable,
    TimedOut,
    TooLong,
    clean,
    outcome_of,
    problem_of,
    without,
)
from koderz.models.gathering import IN_BATCH
from koderz.models.limiter import retrying
from koderz.models.messages import part
from koderz.models.names import is_another
from koderz.models.prices import batch_price_of, tariff_of
from koderz.models.rates import Forecast, limits_in
from koderz.models.tariffs import Price, Tariff, Usage
from koderz.models.wire import encode, is_amount
from koderz.types import CONTEXT, REJECTED, Completion
from koderz_tracker.messages import text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koderz.models.batches import BatchApi
    from koderz.models.names import ModelName
    from koderz.models.providers import Service
    from koderz.models.wire import Wire, WireReply
    from koderz.types import Message, Sampling


_NOT_SPOKEN = (404, 405, 501)  # what a server says of a path that it hasn't got
_MARKS = 2  # tokens of a reply that is no more than its end
_LETTERS_A_TOKEN = 4  # of English and of code, about; only where a server doesn't count


class _Answer(NamedTuple):
    """The answer to a request."""

    reply: WireReply
    body: bytes
    latency: float  # seconds, without the wait for its turn
    # US dollars that a gateway says in a header; no number if that is none
    header_cost: float | None = None
    batch: dict[str, str] | None = None  # the batch that it came in, with its custom id


class _Way(NamedTuple):
    """A way to send a request: the wire format, headers, and whether it may offer tools."""

    wire: Wire
    headers: Mapping[str, str]
    tools: bool  # whether it may offer some
    is_client: bool = False  # whether it is sent as a client wrote it


class RemoteModel:
    """One model of a service. Any number of calls may be in flight."""

    def __init__(self, name: ModelName, wire: Wire, service: Service, *others: Wire) -> None:
        """`others` are wire formats used only to pass on requests of clients that speak them, if the server does."""
        self.name = name
        self.wire = wire
        self.service = service
        self._adaptations = {each: Adaptation(each) for each in (*others, wire)}
        self._forecast = Forecast()
        # by the wires of `koderz.models.clients` on which it is sent what a client asks as it is
        self.clients = {each.client: each for each in (*others, wire) if each.client}

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """One completion, see Model. A refused request of a client, or one with tools, is answered as `rejected`.

        A prompt that a filter of the provider refuses is a refusal without text, as a reply that it keeps back; a
        client is told of it as of any other refused request. So is whoever offers tools of a prompt that is longer than
        the context; elsewhere the reply to that ends by `context`.
        """
        client = wire_of(messages)
        wire = self.clients[client] if client else self.wire_for(sampling)
        has_tools = bool(client) or any(message["role"] == "tools" for message in messages)
        way = _Way(wire, {**wire.headers, **headers_of(messages)}, has_tools, bool(client))
        said = messages if client or wire.takes_items else [*map(_without_items, messages)]
        try:
            answer, retries, throttled, adapted = await self._exchange(way, said, sampling)
        except Refused as refused:
            if isinstance(refused, Filtered) and not way.is_client:
                self.service.say(f"{self.name}: its provider's filter refused a prompt: {refused}")
                return Completion("", finish_reason="refusal", model=self.name.name)
            if way.tools or isinstance(refused, TooLong):
                reason = REJECTED if way.tools else CONTEXT
                return Completion(str(refused), finish_reason=reason, model=self.name.name)
            raise Fault(self._message(refused), cause="rejected") from None
        except NotSpokenError:
            self.clients.pop(client, None)
            raise
        reply = answer.reply
        if outcome_of(reply.finish_reason) is None:
            self.service.say(
                f"{self.name}: a reply ended by {reply.finish_reason!r}, which koderz doesn't know"
            )
        usage, estimated = self._usage(reply, messages)
        answered_by = clean(reply.model) or self.name.name
        cost, source = self._cost(answer, usage)
        parted = part(reply.text, complete=reply.finish_reason != "length")
        reasoning = "\n\n".join(filter(None, (reply.reasoning, parted.reasoning)))
        if (
            not (parted.text.strip() or reply.tool_calls or way.tools)
            and outcome_of(reply.finish_reason) == "stop"
        ):
            self._tell_empty(reasoning, reply.tokens_out or 0)
        return Completion(
            text=parted.text,
            reasoning=reasoning,
            tokens_in=usage.tokens_in,
            tokens_out=usage.tokens_out,
            tokens_reasoning=reply.tokens_reasoning,
            cost=cost,
            cost_known=source != "unknown",
            cost_source=source,
            latency=answer.latency,
            finish_reason=reply.finish_reason,
            model=answered_by,
            retries=retries,
            throttled=throttled,
            adapted=(*adapted, *estimated, *self._another(answered_by)),
            raw=reply.text if parted.cut else None,
            tool_calls=reply.tool_calls,
            body=answer.body.decode("utf-8", "replace") if client else "",
            items=() if client else reply.items,
            batch=answer.batch,
        )

    def wire_for(self, sampling: Sampling) -> Wire:  # noqa: ARG002 of use to those that speak several
        """The wire format in which koderz' own request is sent."""
        return self.wire

    async def check(self) -> dict[str, str]:
        """The check before a run, see Model; returns what the wire format finds out."""
        service = self.service
        look = partial(self.wire.look, service.http, self.name.name, service.say)
        try:
            found, _ = await retrying(look, service.limiter, service.endpoint.backoff, 1)
        except Fault as error:
            raise FatalFault(self._message(error), cause=error.cause) from None
        except Retryable as error:
            raise Unreachable(f"{self._message(error)}; {service.provider.remedy}") from None
        return found

    def price(self) -> Price | None:
        """The price of tokens; None if unknown."""
        return self._tariff.price if self._tariff else None

    def batch_price(self) -> Price | None:
        """The price of tokens in a batch; None if unknown."""
        return self._batch_tariff.price if self._batch_tariff else None

    @cached_property
    def batches(self) -> BatchApi | None:
        """The batch API of its server, if its wire format has one."""
        api = BATCH_APIS.get(self.wire.client)
        prefix = "" if self.service.endpoint.is_deployment else "/v1"
        return api(self.service.batch_http, self.wire.headers, prefix) if api else None

    async def aclose(self) -> None:
        """Does nothing, since the connections belong to the service."""

    @cached_property
    def _tariff(self) -> Tariff | None:
        service = self.service
        tariff = tariff_of(self.name, service.endpoint.base_url, service.prices)
        if tariff is None:
            service.say(
                f"no price is known for {self.name}: its calls count as $0; give one in koderz.toml"
            )
        elif tariff.assumed:
            service.say(f"{self.name} is reckoned {tariff}; another price can stand in koderz.toml")
        return tariff

    @cached_property
    def _batch_tariff(self) -> Tariff | None:
        return self._tariff and self._tariff.in_batches(
            batch_price_of(self.name, self.service.prices)
        )

    def _cost(self, answer: _Answer, usage: Usage) -> tuple[float, str]:
        """The US dollars that a call costs, and how that is known: what the server says comes before any list."""
        for told in (answer.header_cost, answer.reply.cost):
            if told is not None and is_amount(told):
                return float(told), "server"
            if told is not None:
                self.service.say(
                    f"{self.name}: its server says what a call costs in a way that can't be: it is ignored"
                )
        tariff = self._batch_tariff if answer.batch else self._tariff
        return (tariff.cost(usage), tariff.source) if tariff else (0.0, "unknown")

    async def _exchange(
        self, way: _Way, messages: Sequence[Message], sampling: Sampling
    ) -> tuple[_Answer, int, int, tuple[str, ...]]:
        """The answer to a request adapted to the model, how often it was retried and throttled, and the adaptations.

        Raises Refused where the model takes it in no form.
        """
        call, endpoint = IN_BATCH.get(), self.service.endpoint
        limiter = call or self.service.limiter
        adaptation, extra = self._adaptations[way.wire], sampling.extra_body or {}
        retry = partial(
            retrying, limiter=limiter, backoff=endpoint.backoff, max_retries=endpoint.max_retries
        )
        throttled = 0

        async def attempt(request: Mapping[str, Any]) -> _Answer:
            nonlocal throttled
            try:
                return await self._attempt(way, request, sampling.max_tokens)
            except Retryable as error:
                throttled += error.throttled
                raise

        while True:
            try:
                if sampling.reasons and not wire_of(messages):
                    await retry(
                        partial(way.wire.look_at_efforts, self.service.http, self.name.name)
                    )
                wanted, left_out = self._wanted(way.wire, messages, sampling)
                request, adapted = adaptation.fit(wanted)
                answer, retries = await retry(
                    partial(attempt, {**request, **extra} if extra else request)
                )
            except (Filtered, TooLong):
                raise
            except Refused as refused:
                own = {name: value for name, value in request.items() if name not in extra}
                if learnt := adaptation.learn(refused, own, sampling):
                    self.service.say(f"{learnt} for {self.name}: the server said {refused}")
            except Retryable as error:
                kind = ReplyTimedOut if isinstance(error, TimedOut) else Fault
                if kind is ReplyTimedOut:
                    counts = (
                        f"counts as a {endpoint.timeout_is} (--timeout-is {endpoint.timeout_is})"
                    )
                    self.service.say(
                        f"{self.name}: a reply didn't end within {endpoint.timeout:g} s, which {counts}"
                    )
                raise kind(
                    self._message(error),
                    cause="unreachable",
                    throttled={self.name.provider: throttled},
                ) from None
            except Fault as error:
                raise type(error)(self._message(error), cause=error.cause) from None
            else:
                return answer, retries, throttled, tuple(dict.fromkeys((*left_out, *adapted)))

    def _wanted(
        self, wire: Wire, messages: Sequence[Message], sampling: Sampling
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The request before adaptation, and a description of what its format can't say, which is left out."""
        if wire_of(messages):
            return {**unpacked(messages), "model": self.name.name, "stream": False}, ()
        agreed, refused = self._adaptations[wire].agreed(sampling)
        settled, left_out = wire.settled(agreed)
        for name in left_out:
            beside = " beside its reasoning" if name in ("temperature", "top_p") else ""
            self.service.say(
                f"{name} dropped for {self.name}: its provider takes no such thing{beside}"
            )
        request = wire.request(self.name.name, messages, settled)
        for name in wire.lacking:
            if name in request:
                self.service.say(f"{name} dropped for {self.name}: its provider takes none")
        return request, tuple(f"{name} dropped" for name in (*refused, *left_out))

    async def _attempt(
        self, way: _Way, request: Mapping[str, Any], most_tokens: int | None
    ) -> _Answer:
        if (call := IN_BATCH.get()) and self.batches and not call.is_live:
            answered = await call.answer(self.batches, self.name, way.wire.path, request)
            if answered:
                if answered.status != 200:
                    raise problem_of(answered)
                return _Answer(way.wire.read(answered.body), answered.body, 0.0, batch=call.source)
        body = encode(request)  # not before, since calls in batches wait by the thousand
        amounts = self._forecast.amounts(len(body), most_tokens)
        async with self.service.limiter.turn(self.name.name, amounts) as booking:
            sent = time.perf_counter()
            response = await self.service.http.post(way.wire.path, body, way.headers)
            booking.limits = limits_in(response.headers)
            if response.status in _NOT_SPOKEN and way.wire is not self.wire and way.is_client:
                raise NotSpokenError(way.wire.client)
            if not 200 <= response.status < 300:
                raise problem_of(response)
            booking.is_answered = True
            try:
                reply = way.wire.read(response.body)
            except NoSuchPath:
                if way.wire is not self.wire and way.is_client:
                    raise NotSpokenError(way.wire.client) from None
                raise
            booking.used = self._forecast.learn(
                len(body), reply.tokens_in, reply.tokens_out, reply.cache_read
            )
            return _Answer(
                reply, response.body, time.perf_counter() - sent, _amount_in(response.headers)
            )

    def _usage(
        self, reply: WireReply, messages: Sequence[Message]
    ) -> tuple[Usage, tuple[str, ...]]:
        """The tokens of a call, and a note if the server didn't report them and they were estimated."""
        tokens_in, tokens_out = reply.tokens_in, reply.tokens_out
        estimated = tokens_in is None or tokens_out is None
        if tokens_in is None:
            tokens_in = sum(_estimate(text_of(message)) for message in messages)
        if tokens_out is None:
            tokens_out = _estimate(reply.text) + _estimate(reply.reasoning)
        if estimated:
            self.service.say(f"the server of {self.name} doesn't count tokens: they are estimated")
        usage = Usage(tokens_in, tokens_out, reply.cache_read, reply.cache_write)
        return usage, ("tokens estimated",) if estimated else ()

    def _tell_empty(self, reasoning: str, tokens: int) -> None:
        """Says that a whole reply was empty, where the model wrote more than its end."""
        if reasoning:
            self.service.say(
                f"{self.name}: replies are empty, and reasoning came with them; "
                "if the answers stand in it, give the server the parser for this model's reasoning"
            )
        elif tokens > _MARKS:
            self.service.say(
                f"{self.name}: replies are empty, and their server counted tokens of them; it may lack the parser for "
                "this model's reasoning"
            )

    def _another(self, answered_by: str) -> tuple[str, ...]:
        """The note on a call for which the server reports that another model answered."""
        if not is_another(self.name.name, answered_by):
            return ()
        self.service.say(f"{self.name} was asked, and the server says that {answered_by} answered")
        return (f"answered by {answered_by}",)

    def _message(self, error: Exception) -> str:
        http = self.service.http
        return f"{self.name} at {http.address}: {without(str(error), *http.hidden)}"


def _without_items(message: Message) -> Message:
    """The message without the items that only another wire format has a place for."""
    return (
        {name: value for name, value in message.items() if name != "items"}
        if "items" in message
        else message
    )


def _amount_in(headers: Mapping[str, str]) -> float | None:
    """The US dollars that LiteLLM's proxy states for a call; not a number if they can't be read, None without."""
    told = headers.get("x-litellm-response-cost")
    try:
        return None if told is None else float(told)
    except ValueError:
        return math.nan


def _estimate(text: str) -> int:
    """An estimated number of tokens. A character of several bytes in UTF-8 counts as nearly one token."""
    more = 0 if text.isascii() else len(text.encode("utf-8", "surrogatepass")) - len(text)
    return -(-(len(text) + 3 * more // 2) // _LETTERS_A_TOKEN)


# A value out of its range is the user's to mend: to drop it would be another experiment than was asked for.
_RANGE = re.compile(
    r"invalid value|must be|between|greater|less than|out of range|too (large|small|long|many)|[<>]=?|(max|min)imum",
    re.IGNORECASE,
)
_UNSUPPORTED = re.compile(
    r"unsupported|(not|n't) (support|permit|allow)|deprecated|unknown|unrecogni[sz]ed|only|cannot both|no longer",
    re.IGNORECASE,
)
_MOST_TOKENS = re.compile(
    r"> (\d+), which is the maximum|at most (\d+) completion tokens", re.IGNORECASE
)


_ADAPTIVE = {"type": "adaptive"}


class Change(NamedTuple):
    """One change to a request: a parameter left out, renamed, or lowered."""

    parameter: str
    other_name: str = ""
    most: int | None = None
    value: Any = None  # the only one that it is about; None: any

    def __str__(self) -> str:
        if self.other_name:
            return f"{self.parameter} sent as {self.other_name}"
        return (
            f"{self.parameter} dropped"
            if self.most is None
            else f"{self.parameter} lowered to {self.most}"
        )

    def made(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Applies the change to a request."""
        changed = {name: value for name, value in request.items() if name != self.parameter}
        if self.other_name:
            changed[self.other_name] = request[self.parameter]
        elif self.most is not None:
            changed[self.parameter] = self.most
        return changed

    def concerns(self, request: Mapping[str, Any]) -> bool:
        """Whether the change would affect the request."""
        value = request.get(self.parameter)
        if self.value is not None:
            return bool(value == self.value)
        return value is not None and (self.most is None or value > self.most)


class Adaptation:
    """The changes that one model needs, in the order in which they were found."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        # how much it can't be told to think, by the name in `Sampling`
        self._refused: set[tuple[str, Any]] = set()
        self._changes = [Change(name) for name in wire.lacking]

    def fit(self, request: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The request with all known changes, and a description of those that applied."""
        made: list[str] = []
        for change in self._changes:
            if change.concerns(request):
                request = change.made(request)
                made.append(str(change))
        return request, tuple(made)

    def agreed(self, sampling: Sampling) -> tuple[Sampling, tuple[str, ...]]:
        """The sampling without a level or budget of reasoning that the model refused, and the names of these."""
        names = []
        if ("reasoning_effort", sampling.reasoning_effort) in self._refused:
            sampling = replace(sampling, reasoning_effort=None)
            names.append("reasoning_effort")
        if ("reasoning_tokens", sampling.reasoning_tokens) in self._refused:
            sampling = replace(sampling, reasoning_tokens=None)
            names.append("reasoning_tokens")
        return sampling, tuple(names)

    def learn(self, refused: Refused, sent: Mapping[str, Any], sampling: Sampling) -> str:
        """Learns the change that a refusal asks for and describes it; raises the refusal if no change would help.

        Several calls may be refused for the same reason at once: for all but the first the answer is empty.
        """
        if level := self._level(refused, sent, sampling):
            is_new = level not in self._refused
            self._refused.add(level)
            return f"{level[0]} {level[1]} dropped" if is_new else ""
        change = self._change(refused, sent)
        if change is None:
            raise refused
        if change in self._changes:
            return ""
        self._changes.append(change)
        return str(change)

    def _level(
        self, refused: Refused, sent: Mapping[str, Any], sampling: Sampling
    ) -> tuple[str, Any] | None:
        """The level or budget of reasoning that is refused; None where something else is, or it is out of range.

        A level that a model hasn't got is no value out of its range: it goes, whatever words say so. Where a model
        takes the level, but isn't to choose how long it thinks, there is a change of that alone.
        """
        known = self._wire.reasoning
        words = [word for word, key in known.items() if key in sent]
        named = refused.parameter.partition(".")[0]
        if named not in words:
            said = str(refused)
            places = {word: found.start() for word in words if (found := _named(word).search(said))}
            named = min(places, key=places.__getitem__, default="")
        if not named or (known[named], sent[known[named]]) == ("thinking", _ADAPTIVE):
            return None
        if sampling.reasoning_tokens is None:
            return "reasoning_effort", sampling.reasoning_effort
        if _RANGE.search(str(refused)) and not _UNSUPPORTED.search(str(refused)):
            return None
        return "reasoning_tokens", sampling.reasoning_tokens

    def _change(self, refused: Refused, sent: Mapping[str, Any]) -> Change | None:
        words = str(refused)
        parameter = self._culprit(refused, sent)
        limit = _MOST_TOKENS.search(words)
        if limit and "tokens" in parameter:
            change = Change(parameter, most=int(limit[1] or limit[2]))
            return change if change.concerns(sent) else None
        if not parameter or (_RANGE.search(words) and not _UNSUPPORTED.search(words)):
            return None
        if parameter == "thinking":  # which isn't a budget of another role's
            return Change(parameter, value=sent[parameter])
        renamed = any(change.other_name == parameter for change in self._changes)
        return Change(
            parameter, other_name="" if renamed else self._wire.other_names.get(parameter, "")
        )

    def _culprit(self, refused: Refused, sent: Mapping[str, Any]) -> str:
        """The parameter that a refusal names; empty if it names none."""
        sent_ones = [name for name in self._wire.parameters if name in sent]
        if refused.parameter in sent_ones:
            return refused.parameter
        words = str(refused)
        places = {
            name: found.start() for name in sent_ones if (found := _named(name).search(words))
        }
        if "top_p" in places and "both" in words:
            return "top_p"  # of two that exclude each other, the one that matters less
        return min(places, key=places.__getitem__, default="")


def _named(parameter: str) -> re.Pattern[str]:
    """A pattern for a parameter's name in a message; one that is an English word has to be quoted."""
    return re.compile(r"""['"`]stop['"`]""" if parameter == "stop" else rf"\b{parameter}\b")
