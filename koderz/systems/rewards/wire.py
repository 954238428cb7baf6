"""Bodies of requests and answers of a judge's service: JSON that is read into types, and written whatever it holds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any, TypeVar

import msgspec
import orjson

from koderz.systems.rewards.scores import Item, Score

T = TypeVar("T")

# Each begins with what the search is fast for. Looking behind for backslashes would cost a second for 32 MB.
_ESCAPED_HALF = re.compile(rb"\\u[dD](?:[89aAbB][0-9a-fA-F]{2}(\\u[dD][c-fC-F][0-9a-fA-F]{2})?|[c-fC-F][0-9a-fA-F]{2})")
_PLAIN_HALF = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
_ESCAPED, _PLAIN = rb"\ufffd", "\ufffd".encode()
_MOST_QUOTES = 1_000_000  # of a body that is taken apart by its fields

Step = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]


class BadBodyError(Exception):
    """A body isn't what is asked for."""


class Wanted(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A request for one score; its fields are those of `Item`."""

    task: str
    reply: str
    suite: str | None = None
    graded: bool = False
    deadline: Annotated[float, msgspec.Meta(ge=0, lt=1e9)] | None = None
    step: Step | None = None
    id: Annotated[str, msgspec.Meta(max_length=200)] | None = None

    def item(self) -> Item:
        """The request for a judge."""
        return Item(self.task, self.reply, self.suite or "", self.graded, self.deadline, self.step, self.id or "")


class Batch(msgspec.Struct, forbid_unknown_fields=True):
    """A request for several scores."""

    items: list[Wanted]


class _Part(msgspec.Struct, gc=False):
    type: str
    text: str | None = None


class _Output(msgspec.Struct, gc=False):
    type: str
    content: msgspec.Raw = msgspec.Raw(b"null")


class _Response(msgspec.Struct):
    output: list[_Output]


class _About(msgspec.Struct):
    task_id: str | None = None
    suite: str | None = None
    graded: bool | None = None
    step: Step | None = None


class _Verified(_About, kw_only=True):
    response: _Response
    verifier_metadata: _About | None = None
    reward: msgspec.Raw = msgspec.Raw()
    koderz: msgspec.Raw = msgspec.Raw()


@dataclass(frozen=True, slots=True)
class Verified:
    """NeMo Gym's request for a reward: a task's row with an OpenAI Responses object."""

    body: bytearray
    wanted: Wanted
    has_own: bool  # fields of the names that the answer adds

    @classmethod
    def read(cls, body: bytearray) -> Verified:
        """The request in a body. Raises BadBodyError if it is another, or names no task."""
        found: _Verified = decode(body, _Verified)
        about = {name: getattr(found, name) for name in _About.__struct_fields__}
        if found.verifier_metadata:
            more = msgspec.structs.asdict(found.verifier_metadata)
            about |= {name: value for name, value in more.items() if value is not None}
        if about["task_id"] is None:
            raise BadBodyError("task_id: it is missing, also in verifier_metadata")
        reply = "".join(_texts(found.response.output))
        wanted = Wanted(about["task_id"], reply, about["suite"], bool(about["graded"]), step=about["step"])
        return cls(body, wanted, has_own=bool(bytes(found.reward) or bytes(found.koderz)))

    def answer(self, score: Score) -> bytes:
        """The request's object with the reward and the score, which win over fields of its own by these names.

        Raises BadBodyError if it has such fields, and too many others.
        """
        more = encode({"reward": score.reward, "koderz": score})
        if not self.has_own:  # the rest isn't taken apart, so that it costs no memory, and is repeated as it came
            return b"".join((memoryview(self.body)[: self.body.rindex(b"}")], b",", more[1:]))
        if self.body.count(b'"') > _MOST_QUOTES:
            raise BadBodyError("reward, koderz: they are the answer's, and this request is too long to take them out")
        fields: dict[str, msgspec.Raw] = decode(self.body, dict[str, msgspec.Raw])
        return msgspec.json.encode(fields | decode(more, dict[str, msgspec.Raw]))


def _texts(outputs: Iterable[_Output]) -> Iterator[str]:
    """The texts of a model's messages."""
    for output in outputs:
        if output.type == "message":
            content = decode(output.content, str | list[_Part] | None, "response.output[...].content")
            if isinstance(content, str):
                yield content
            else:
                yield from (part.text or "" for part in content or () if part.type == "output_text")


def decode(body: bytes | bytearray | msgspec.Raw, kind: type[T] | Any, place: str = "") -> T:
    """The body as a value of this type, which ends at the first wrong item.

    Raises BadBodyError, which names the field that is wrong.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        text, _, found = str(error).partition(" - at `$")
        field = place + found.strip("`") if place else found.strip("`.")
        raise BadBodyError(f"{field}: {text}" if field else text) from None
    except (ValueError, RecursionError) as error:
        raise BadBodyError(f"the body is no JSON: {error}") from None


def mend(body: bytearray) -> bytearray:
    """The body, in which U+FFFD has taken the place of each half of a character, whose text no parser agrees on.

    Models that are cut off write such halves. All is done in place, however many there are. Raises BadBodyError for a
    body that isn't UTF-8.
    """
    for half in _PLAIN_HALF.finditer(body):
        body[half.start() : half.end()] = _PLAIN
    for half in _ESCAPED_HALF.finditer(body):
        start = half.start()
        while start and body[start - 1] == ord("\\"):
            start -= 1
        is_escape = (half.start() - start) % 2 == 0  # else a backslash that is escaped, and a u
        other = half[1] is not None
        if is_escape and not other:
            body[half.start() : half.end()] = _ESCAPED
        elif other and not is_escape:
            body[half.start(1) : half.end(1)] = _ESCAPED
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise BadBodyError(f"the body is no JSON: {error}") from None
    return body


def encode(value: Any) -> bytes:
    """JSON of an answer, in which any text can stand."""
    try:
        return orjson.dumps(value)
    except TypeError:  # halves of characters
        return bytes(mend(bytearray(json.dumps(value, default=_plain).encode())))


def _plain(value: object) -> Any:
    if isinstance(value, Score):
        return asdict(value)
    raise TypeError(type(value).__name__)
