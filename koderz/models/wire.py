"""Wire formats: how a call is encoded for a server, and how its answer is decoded."""

from __future__ import annotations

import json
import math
import re
import secrets
from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import orjson

from koderz.models.faults import Response, Retryable, clean, outcome_of, problem_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from koderz.models.transport import Http
    from koderz.types import Message, Sampling

T = TypeVar("T")
B = TypeVar("B", bound="Body")

_MOST_REPAIRS = 2  # how often a server is asked again whose answer is none: it rarely learns
_MOST_SHOWN = 5  # names of models that a server offers instead
_MOST_TOKENS = 100_000_000  # of one call; a server that counts more is not believed
_LONGEST_NUMBER = 300  # digits
# One JSON escape: a surrogate pair, half of one, or another.
_ESCAPE = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F]..)|\\.", re.DOTALL)


class WireReply(NamedTuple):
    """A reply decoded from a wire format. Token counts are None if the server reports no believable ones."""

    text: str
    reasoning: str = ""
    finish_reason: str = "stop"
    model: str = ""
    tokens_in: int | None = None
    tokens_out: int | None = None
    cache_read: int = 0
    cache_write: int = 0
    tokens_reasoning: int | None = None  # of `tokens_out`
    cost: Any = None  # US dollars, if the server tells; not checked yet
    tool_calls: tuple[dict[str, Any], ...] = ()  # as chat completions have them
    items: tuple[dict[str, Any], ...] = ()  # that later turns have to bring along


class Body(msgspec.Struct, kw_only=True):
    """The JSON of an answer, in which gateways send an error with status 200.

    What a wire format's published reference requires of an answer is a field without a default, but for what bears
    on nothing (`id`, `object`, `created`, `index`, `role`, …) or is known to be missing where all else is there
    (`usage`).
    """

    error: Any = None


class Part(msgspec.Struct):
    """A part of a message's content."""

    type: str
    text: str | None = None
    thinking: list[Part] | str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None

    def __post_init__(self) -> None:
        if self.type == "text" and self.text is None:
            raise ValueError("a part of type `text` has no text")


class Wire(ABC):
    """One wire format."""

    client = ""  # see koderz.models.clients; empty where no agent speaks it
    path: str  # below the base URL
    parameters: tuple[str, ...] = ()  # the keys of a request that a model may refuse
    # what such a key is called for other models
    other_names: Mapping[str, str] = MappingProxyType({})
    lacking: tuple[str, ...] = ()  # the keys of a request that the format has no place for
    # by what refusals call it: the key that says how much to think
    reasoning: Mapping[str, str] = MappingProxyType({})
    # whether a turn of the model may be sent as the `items` that it came as
    takes_items: bool = False

    def __init__(self, api_key: str) -> None:
        # never shown, never recorded
        self.headers = {"authorization": f"Bearer {api_key}"} if api_key else {}

    @abstractmethod
    def request(
        self, model: str, messages: Sequence[Message], sampling: Sampling
    ) -> dict[str, Any]:
        """The JSON of a call."""

    def settled(self, sampling: Sampling) -> tuple[Sampling, tuple[str, ...]]:
        """The sampling without what the format has no place for, and the names of what was left out."""
        return sampling, ()

    async def look_at_efforts(self, _http: Http, _model: str, /) -> None:
        """Finds out how much the model can be told to think, where the server would not refuse another word.

        Raises as `look` does.
        """
        return

    @abstractmethod
    def read(self, body: bytes) -> WireReply:
        """The reply in the body of a successful response. Raises Retryable if the body has none."""

    @abstractmethod
    async def look(self, http: Http, model: str, say: Callable[[str], None], /) -> dict[str, str]:
        """Facts about the model that can be found out for free; empty if the server offers none.

        Raises Retryable where nothing answers; FatalFault or Unreachable where no call can succeed.
        """


def encode(request: Mapping[str, Any]) -> bytes:
    """A request as JSON. Half a surrogate pair, which JSON can't carry, becomes a question mark."""
    try:
        # Without the room to grow that it comes with, of which calls that wait by the thousand have no use.
        return bytes(memoryview(orjson.dumps(request)))
    except TypeError:
        return json.dumps(request, ensure_ascii=False).encode("utf-8", "replace")


def decode(body: bytes, kind: type[T]) -> T:
    """A server's JSON as a type. Raises Retryable if it doesn't fit; often it is cut short."""
    try:
        return _decoded(body, kind)
    except msgspec.ValidationError as error:
        raise Retryable(
            f"the server's answer is not of its format: {clean(str(error))}",
            most_retries=_MOST_REPAIRS,
        ) from error
    except (ValueError, RecursionError) as error:
        start = clean(body[:60].decode("utf-8", "replace")) or "nothing"
        raise Retryable(f"the server's answer is not JSON: {start}") from error


def decode_reply(body: bytes, kind: type[B]) -> B:
    """Decodes a reply as `decode` does. If it holds an error instead, raises that error."""
    try:
        reply = decode(body, kind)
    except Retryable:
        if error := decode(body, Body).error:
            raise inner_error(error) from None
        raise
    if reply.error:
        raise inner_error(reply.error)
    return reply


def inner_error(error: object) -> Exception:
    """The problem in a response of status 200 that holds an error, as gateways send it."""
    code = error.get("code") if isinstance(error, dict) else None
    status = code if isinstance(code, int) and 400 <= code < 600 else 502
    return problem_of(Response(status, encode({"error": error})))


def no_answer(why: str) -> Retryable:
    """The problem of an answer without a reply, by which no model can be judged."""
    return Retryable(f"the server's answer is none: {why}", most_retries=_MOST_REPAIRS)


def text_and_reasoning(content: str | list[Part] | None) -> tuple[str, str]:
    """The text and the reasoning of a message's content, which is a string or a list of parts."""
    if not isinstance(content, list):
        return content or "", ""
    text = "".join(part.text or "" for part in content if part.type != "thinking")
    return text, "".join("".join(text_and_reasoning(part.thinking)) for part in content)


def finish(word: str | None, text: str, *, calls: object = None) -> str:
    """The reason for which a reply ended: "stop", "length", "refusal", or else the provider's own word.

    `calls` are the tools that it calls. A reply without text is one where it calls some, or the server says why it
    ended; otherwise there is no answer. LocalAI and KoboldCpp are known to give no reason with a text that is whole.
    """
    word = clean(word or "")
    outcome = outcome_of(word)
    if outcome == "broken":
        raise no_answer(f"it ended by {word!r}")
    if not (text or word or calls):
        raise no_answer("it has neither a text nor a reason why it ended")
    return (word if outcome in (None, "call", "own") else outcome) or "stop"


def called(found: Sequence[Any], text: str) -> tuple[dict[str, Any], ...]:
    """The tool calls of a reply, as in chat completions; entries without a name are dropped.

    Raises Retryable where that leaves a reply that has neither calls nor a text.
    """
    calls = []
    for number, call in enumerate(found):
        function = call.get("function") if isinstance(call, dict) else None
        name, given = (
            (function.get("name"), function.get("arguments"))
            if isinstance(function, dict)
            else ("", "")
        )
        if not isinstance(given, str):
            given = encode(given if isinstance(given, dict) else {}).decode()
        if isinstance(name, str) and name:
            own = call.get("id")
            known = own if isinstance(own, str) and own else f"call_{number}_{secrets.token_hex(6)}"
            calls.append(
                {"id": known, "type": "function", "function": {"name": name, "arguments": given}}
            )
    if found and not (calls or text):
        raise no_answer("it calls a tool without a name")
    return tuple(calls)


def count(usage: Any, *path: str) -> int | None:
    """The token count at a path of an answer's usage; None if there is none or it can't be one.

    A count bears on no text, so nothing of it makes an answer unreadable that is paid for.
    """
    for name in path:
        usage = usage.get(name) if isinstance(usage, dict) else None
    whole = isinstance(usage, int) and not isinstance(usage, bool)
    if (
        not (whole or (isinstance(usage, float) and usage.is_integer()))
        or not 0 <= usage <= _MOST_TOKENS
    ):
        return None
    return int(usage)


def told_cost(usage: Any) -> Any:
    """The cost of a call as an answer's usage states it in OpenRouter's way; None if it states none.

    With a key of the user's own at the provider (`is_byok`), the provider's bill comes on top of what is charged.
    """
    if not isinstance(usage, dict) or usage.get("cost") is None:
        return None
    cost, details = usage["cost"], usage.get("cost_details")
    upstream = details.get("upstream_inference_cost") if isinstance(details, dict) else None
    if not usage.get("is_byok") or upstream is None:
        return cost
    return cost + upstream if is_amount(cost) and is_amount(upstream) else math.nan


def is_amount(value: Any) -> bool:
    """Whether a value can be an amount of money: a finite number that isn't negative."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def words(value: Any) -> str:
    """An optional text of an answer; empty if it isn't text."""
    return value if isinstance(value, str) else ""


def instead_of(model: str, offered: Sequence[str]) -> str:
    """A hint at models that a server offers instead of one that it lacks: the nearest, and some of all."""
    from difflib import get_close_matches

    if not offered:
        return "it has none"
    near = get_close_matches(model, offered, n=1)
    some = ", ".join(offered[:_MOST_SHOWN]) + ", …" * (len(offered) > _MOST_SHOWN)
    return clean(f"did you mean {near[0]}? It has {some}" if near else f"it has {some}")


async def fetched(
    http: Http, path: str, headers: Mapping[str, str], kind: type[T], *, must_exist: bool = False
) -> T | None:
    """The resource at a path of a server; None if there is nothing readable.

    Raises FatalFault where it refuses the key, or has nothing although it must exist.
    """
    response = await http.get(path, headers)
    if response.status == 401 or (response.status == 404 and must_exist):
        raise problem_of(response)
    if not 200 <= response.status < 300:
        return None
    try:
        return decode(response.body, kind)
    except Retryable:
        return None


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except ValueError:
        # Python's reader also knows NaN and Infinity, as servers in Python write them
        return msgspec.convert(json.loads(_repaired(body), parse_int=_integer), type=kind)


def _integer(digits: str) -> float:
    """A number of any length; infinite if it is too long to be a count."""
    return int(digits) if len(digits) <= _LONGEST_NUMBER else math.inf


def _repaired(body: bytes) -> str:
    """JSON with a replacement character in place of broken UTF-8 and halves of surrogate pairs.

    Servers that cut replies between two tokens of one character send these.
    """
    text = body.decode("utf-8", "replace")
    return _ESCAPE.sub(lambda escape: r"\ufffd" if escape[1] else escape[0], text)
