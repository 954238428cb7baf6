"""What comes from a candidate is plain data, or is refused; never anything else."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koderz.sandbox.judge import wire

hashable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=4),
    max_leaves=10,
)
plain = st.recursive(
    hashable | st.complex_numbers(allow_nan=False) | st.fractions() | st.decimals(allow_nan=False, places=3),
    lambda inner: st.lists(inner) | st.dictionaries(hashable, inner) | st.sets(hashable) | st.tuples(inner),
    max_leaves=20,
)


@pytest.mark.slow
@given(plain)
def test_plain_values_arrive_as_they_left(value: Any) -> None:
    arrived = wire.loads(wire.dumps(value))
    assert arrived == value
    assert type(arrived) is type(value)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("tdsfibcrgDFz") | st.text(), inner, max_size=2),
    max_leaves=25,
)


@given(json_like)
def test_tagged_values_arrive_as_data_or_are_refused(value: Any) -> None:
    try:
        wire.loads(json.dumps(value).encode())
    except wire.NotPlainError:
        return


@given(st.binary())
def test_noise_is_refused_or_data(noise: bytes) -> None:
    try:
        wire.loads(noise)
    except wire.NotPlainError:
        return


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[" * 100_000,
        b"1 2",
        b'{"t":[1],"s":[1]}',
        b'{"i":"0x' + b"f" * 2_000_000 + b'"}',
        b'{"D":"1e999999999"}',
        b'{"F":["1e999999999",1]}',
        b'{"F":[1,0]}',
        b'{"s":[[1]]}',
        b'{"d":[[[],1]]}',
        b'"\xff"',
    ],
)
def test_harmful_values_are_refused(payload: bytes) -> None:
    with pytest.raises(wire.NotPlainError):
        wire.loads(payload)


def test_values_arrive_without_their_code() -> None:
    class Equal(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = str.__hash__

    arrived = wire.loads(wire.dumps([Equal("x"), {Equal("y"): Equal("z")}]))
    assert type(arrived[0]) is str
    assert arrived != ["other", {}]


def test_results_without_room_are_equal_if_they_read_alike() -> None:
    one = wire.Oversized("1f")
    assert one == wire.Oversized("1f")
    assert one != wire.Oversized("2f")
    assert one != "1f"
    assert one != [lambda: 1]


def test_odd_numbers_arrive() -> None:
    values = wire.loads(wire.dumps([math.inf, -math.inf, math.nan, 1 << 100, -(1 << 63), (1 << 63) - 1]))
    assert values[:2] == [math.inf, -math.inf]
    assert math.isnan(values[2])
    assert values[3:] == [1 << 100, -(1 << 63), (1 << 63) - 1]
    assert wire.loads(wire.dumps(Decimal("NaN"))).is_nan()
    assert wire.loads(wire.dumps([Fraction(1, 3)])) == [Fraction(1, 3)]


@pytest.mark.parametrize("value", [object(), len, type, [object()], {1: lambda: 0}, ...])
def test_objects_are_refused_by_the_name_of_their_type(value: object) -> None:
    with pytest.raises(wire.ForeignError, match="of type"):
        wire.dumps(value)


def test_endless_iterator_is_drawn_from_and_never_to_its_end() -> None:
    drawn = wire.loads(wire.dumps(iter(int, 1)))
    assert [next(drawn), next(drawn)] == [0, 0]
    with pytest.raises(OverflowError):
        list(drawn)


def test_values_without_end_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value in (endless, 1 << (wire.INTEGER_BITS + 1)):
        with pytest.raises(wire.NotPlainError):
            wire.dumps(value)


def test_equal_arguments_are_equal_bytes() -> None:
    row = [0, 0]
    assert wire.to_untrusted(([row, row],)) == wire.to_untrusted(([[0, 0], [0, 0]],))
