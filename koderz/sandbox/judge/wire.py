"""The values that pass between judge and candidate in frames: plain data as tagged JSON.

The judge never unpickles or unmarshals what a candidate sends. A value arrives as JSON, so it can
only be built-in data: no `__eq__`, no `__hash__`, no code of the candidate's comes with it.
What JSON has no form for is an object with one key, its tag: see `_KINDS`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import marshal
import numbers
import operator
from array import array
from collections import Counter, abc, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from types import NoneType
from typing import Any, NoReturn, cast

FRAME_LIMIT = 16 << 20  # bytes of a payload
ITERATOR_LIMIT = 100_000  # items drawn from an iterator
DEPTH_LIMIT = 200
_PIECE = 1 << 16  # items of a large list that are digested at once
INTEGER_BITS = 1 << 22  # a longer integer could hold the judge for hours in one operation
FRACTION_BITS = 1 << 16  # which are reduced to lowest terms
# items; of more, it is looked at whether they share hashes, and whether there is room for them
FEW = 1000
COMPARISONS = 1 << 24  # of items that share a hash, in one set or dict
DECIMAL_EXPONENT = 100_000

# How the payload of a frame of the judge's is written, by its kind
MARSHALLED = b"M"
TAGGED = b"J"

# What a frame of the candidate's is, by its kind
UNLOADED = b"L"  # the program can't be loaded: a cause and a report
VALUE = b"V"  # what a call returned
RAISED = b"E"  # a report of what it raised
UNPLAIN = b"N"  # it returned what isn't data: a description
PRINTED = b"O"  # it printed more than it may, and has ended
REFUSED = b"R"  # no answer: it tried what containment refuses

REPORTED = b"\0koderz: raised\0"
"""Between the output of a program that ran as a process, and a report of the exception that ended it."""

LOSSES = (UNLOADED, UNPLAIN, PRINTED)
"""After which the candidate answers no more."""


class NotPlainError(ValueError):
    """A value that isn't plain data, or is too much of it."""


class ForeignError(NotPlainError):
    """An object of a type that has no place here. No value that came over the wire ever raises this."""


class Opaque:
    """Stands for a candidate's object that isn't data, such as a match of `re`.

    It is true or false as that was, for tests that ask no more, and equal to nothing but itself.
    """

    __slots__ = ("_is_true", "_kind")

    def __init__(self, kind: str, is_true: bool) -> None:
        self._kind, self._is_true = str(kind)[:80], is_true is True

    def __bool__(self) -> bool:
        return self._is_true

    def __repr__(self) -> str:
        return f"<an object of type {self._kind}, which isn't plain data>"


class Oversized:
    """Stands for a result that is too large to be sent: it can be compared, and nothing else.

    It is equal to what has the same digest: the same items of the same types in the same order. Who doesn't know the
    right result can't tell its digest either.
    """

    __slots__ = ("_digest",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, digest: str) -> None:
        self._digest = digest

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Oversized):
            return self._digest == other._digest
        try:
            return isinstance(other, (list, tuple)) and self._digest == _digest(other)
        except ValueError:
            return False

    def __repr__(self) -> str:
        return f"<a result of more than {FRAME_LIMIT >> 20} MB>"


def dumps(value: object) -> bytes:
    """A value as tagged JSON. NotPlainError for what isn't data; subclasses are flattened to their base."""
    kind = type(value)
    if kind is bool:
        return b"true" if value else b"false"
    if kind is int and -_SMALL < value < _SMALL:  # type: ignore[operator]
        return repr(value).encode()
    try:
        return _encode(_tagged(value, 0)).encode()
    except RecursionError as error:
        raise NotPlainError("nested too deep") from error


def dumps_result(value: object) -> bytes:
    """As `dumps`, and what can be told of a value that isn't data, or for which a frame has no room."""
    try:
        if type(value) not in (list, tuple) or len(value) < FEW:  # type: ignore[arg-type]
            return dumps(value)
        return _dumps_many(cast("Sequence[Any]", value))
    except ForeignError:
        try:
            # This runs code of the value's own.
            is_true = bool(value)
        except Exception:  # noqa: BLE001 - an array of several numbers, say
            is_true = True
        return _encode({"o": [type(value).__name__, is_true]}).encode()


def _dumps_many(items: Sequence[Any]) -> bytes:
    """A writer of lists and tuples that puts an `Oversized` in place of one that exceeds a frame."""
    if not _is_oversized(items):
        data = dumps(items)
        if len(data) < FRAME_LIMIT:
            return data
    try:
        return _encode({"h": _digest(items)}).encode()
    except ValueError as error:
        raise NotPlainError("more than can be taken") from error


def _is_oversized(items: Sequence[Any]) -> bool:
    """Whether lists or tuples have more items than a frame could hold, told without looking at each."""
    brackets: Mapping[type, int] = {list: len("[],"), tuple: len('{"t":[]},')}
    return (
        sum(brackets[type(each)] + 2 * len(each) for each in items if type(each) in brackets)
        > FRAME_LIMIT
    )


def _digest(items: Sequence[Any]) -> str:
    """32 hex digits; ValueError for what isn't plain data."""
    digest = hashlib.blake2b(digest_size=16)
    for start in range(0, len(items), _PIECE):
        digest.update(to_untrusted(items[start : start + _PIECE]))
    return digest.hexdigest()


def loads(payload: bytes) -> Any:
    """The value in a payload from an untrusted side. NotPlainError for anything amiss."""
    try:
        return _decode(payload.decode("ascii"))
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        raise NotPlainError(f"not a value: {type(error).__name__}") from error


def from_trusted(payload: bytes) -> Any:
    """Values that the trusted side marshalled. Never use it for bytes that a candidate sent."""
    return marshal.loads(payload)  # noqa: S302 - as said


def to_untrusted(value: Any) -> bytes:
    """Equal values are equal bytes, and share nothing: version 2 of marshal knows no references.

    ValueError for what isn't plain data.
    """
    return marshal.dumps(value, 2)


def _refuse(value: object) -> NoReturn:
    raise ForeignError(f"an object of type {type(value).__name__}")


_encode = json.JSONEncoder(check_circular=False, separators=(",", ":"), default=_refuse).encode

_SCALARS = frozenset({str, bool, NoneType, float})
_SMALL = 1 << 63
_SMALL_INTEGERS = range(1 - _SMALL, _SMALL)


def _tagged(value: Any, depth: int) -> Any:
    """The same value in lists, strings, numbers and tags."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is int:
        return value if -_SMALL < value < _SMALL else {"i": _hex(value)}
    if depth > DEPTH_LIMIT:
        raise NotPlainError("nested too deep")
    if kind is list:
        return _list(value, depth + 1)
    if kind in _TAGGERS:
        tag, stand_in = _TAGGERS[kind]
        return {tag: stand_in(value, depth + 1)}
    return _tagged_kin(value, depth)


def _hex(value: int) -> str:
    if value.bit_length() > INTEGER_BITS:
        raise NotPlainError(f"an integer of {value.bit_length()} bits")
    return hex(value)


def _items(values: Iterable[Any], depth: int) -> list[Any]:
    return [_tagged(value, depth) for value in values]


def _list(values: list[Any], depth: int) -> list[Any]:
    kinds = set(map(type, values))
    if kinds <= _SCALARS or (kinds == {int} and all(map(_SMALL_INTEGERS.__contains__, values))):
        return values
    return _items(values, depth)


def _pair_items(value: Mapping[Any, Any], depth: int) -> list[list[Any]]:
    return [[_tagged(key, depth), _tagged(item, depth)] for key, item in value.items()]


def _stood_for(value: Opaque | Oversized, _: int) -> NoReturn:
    raise NotPlainError(repr(value))  # no ForeignError: it is the candidate's own


_BASES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (int, int.__int__),
    (float, float.__float__),
    (str, str.__str__),
    (dict, lambda value: dict(dict.items(value))),
    (list, lambda value: [*list.__iter__(value)]),
    (tuple, lambda value: (*tuple.__iter__(value),)),
    (set, lambda value: {*set.__iter__(value)}),
    (frozenset, lambda value: frozenset(frozenset.__iter__(value))),
    (numbers.Integral, int),  # numpy's numbers are registered as these
    (numbers.Real, float),
)


def _tagged_kin(value: Any, depth: int) -> Any:
    """A subclass of a built-in type as its base (a namedtuple is a tuple), an iterator as its items."""
    kind = type(value)
    for base, flattened in _BASES:
        if issubclass(kind, base):
            return _tagged(flattened(value), depth + 1)
    if hasattr(kind, "__next__"):
        drawn = list(itertools.islice(value, ITERATOR_LIMIT + 1))
        return {"G" if len(drawn) > ITERATOR_LIMIT else "g": _items(drawn, depth + 1)}
    if issubclass(kind, abc.Mapping):
        return {"d": _pair_items(value, depth + 1)}
    if issubclass(kind, abc.Sequence):
        return _items(value, depth + 1)
    return _refuse(value)


def _untagged(pair: list[tuple[str, Any]]) -> Any:
    ((tag, value),) = pair
    return _UNTAGGERS[tag](value)


def _integer(text: str) -> int:
    if len(text) > INTEGER_BITS // 4 + 4:
        raise ValueError("integer too long")
    return int(text, 16)


def _decimal(text: str) -> Decimal:
    value = Decimal(text[:DECIMAL_EXPONENT])
    if value.is_finite() and value and abs(value.adjusted()) > DECIMAL_EXPONENT:
        raise ValueError("exponent too large")
    return value


def _fraction(parts: list[int]) -> Fraction:
    numerator, denominator = map(operator.index, parts)
    if max(numerator.bit_length(), denominator.bit_length()) > FRACTION_BITS:
        raise ValueError("fraction too long")
    return Fraction(numerator, denominator)


def _parted(items: list[Any]) -> list[Any]:
    """The same items, to be put into a set. ValueError where so many share a hash that this would take too long."""
    if len(items) > FEW and sum(
        often**2 for often in Counter(map(hash, items)).values()
    ) > COMPARISONS + len(items):
        raise ValueError("too many items of the same hash")
    return items


def _pairs(pairs: list[Any]) -> dict[Any, Any]:
    """The same as a dict."""
    _parted([key for key, _ in pairs])
    return dict(pairs)


def _unfinished(items: list[Any]) -> Iterator[Any]:
    yield from items
    raise OverflowError(f"an iterator of more than {ITERATOR_LIMIT} items")


def _moment(parts: tuple[str, Any]) -> Any:
    kind, told = parts
    return timedelta(*told) if kind == "timedelta" else _MOMENTS[kind].fromisoformat(told)


_MOMENTS: Mapping[str, type[date] | type[time]] = {"date": date, "datetime": datetime, "time": time}

_KINDS: tuple[
    tuple[str, tuple[type, ...], Callable[[Any, int], Any], Callable[[Any], Any]], ...
] = (
    # tag, types, what stands for such a value, the value again
    ("t", (tuple,), _items, tuple),
    ("d", (dict,), _pair_items, _pairs),
    ("s", (set,), _items, lambda items: set(_parted(items))),
    ("f", (frozenset,), _items, lambda items: frozenset(_parted(items))),
    ("k", (type({}.keys()),), _items, lambda items: dict.fromkeys(_parted(items)).keys()),
    (
        "m",
        (type({}.items()),),
        lambda v, depth: [_items(pair, depth) for pair in v],
        lambda it: _pairs(it).items(),
    ),
    ("v", (type({}.values()),), _items, lambda items: dict(enumerate(items)).values()),
    ("C", (Counter,), _pair_items, lambda pairs: Counter(_pairs(pairs))),
    (
        "q",
        (deque,),
        lambda value, depth: [_items(value, depth), value.maxlen],
        lambda parts: deque(*parts),
    ),
    (
        "a",
        (array,),
        lambda value, depth: [value.typecode, _items(value, depth)],
        lambda parts: array(*parts),
    ),
    ("b", (bytes, bytearray, memoryview), lambda value, _: bytes(value).hex(), bytes.fromhex),
    ("c", (complex,), lambda value, _: [value.real, value.imag], lambda parts: complex(*parts)),
    (
        "r",
        (range,),
        lambda v, depth: _items((v.start, v.stop, v.step), depth),
        lambda parts: range(*parts),
    ),
    ("D", (Decimal,), lambda value, _: str(value), _decimal),
    (
        "F",
        (Fraction,),
        lambda value, depth: _items((value.numerator, value.denominator), depth),
        _fraction,
    ),
    (
        "T",
        (date, datetime, time),
        lambda value, _: [type(value).__name__, value.isoformat()],
        _moment,
    ),
    (
        "T",
        (timedelta,),
        lambda value, _: ["timedelta", [value.days, value.seconds, value.microseconds]],
        _moment,
    ),
    # of an object's type and truth, by `dumps_result`
    ("o", (Opaque,), _stood_for, lambda parts: Opaque(*parts)),
    ("h", (Oversized,), _stood_for, Oversized),  # of a digest, likewise
)
_TAGGERS = {kind: (tag, stand_in) for tag, kinds, stand_in, _ in _KINDS for kind in kinds}
_UNTAGGERS: Mapping[str, Callable[[Any], Any]] = {
    **{tag: read for tag, _, _, read in _KINDS},
    "i": _integer,  # beyond 64 bits, in hex
    "g": iter,  # any iterator, drawn out
    "G": _unfinished,  # the beginning of one that goes on
}

_decode = json.JSONDecoder(object_pairs_hook=_untagged).decode
