"""Limits read from headers, and the bounds within which a bucket's level is known."""

from __future__ import annotations

from itertools import pairwise

import pytest

from koderz.models.names import Rates
from koderz.models.rates import Booking, Bucket, Forecast, Levels, RateLimit, book, limits_in, settle

REQUESTS, TOKENS = 0, 1


def booking(tokens: float = 100.0, model: str = "m") -> Booking:
    return Booking(model, (1.0, tokens, tokens / 2, tokens / 2))


def limited(most: float, left: float | None, place: int = REQUESTS) -> Levels:
    """Levels of a model whose first answer, at 1000 seconds, told this limit."""
    levels, first = Levels(), booking()
    assert book(levels, Rates(), first, 1000.0) == 0
    first.limits, first.is_answered, first.used = {place: RateLimit(most, left)}, True, first.amounts
    settle(levels, first, 1000.0)
    return levels


# Headers


def test_limits_of_openai_are_those_of_a_minute() -> None:
    headers = {
        "x-ratelimit-limit-requests": "5000",
        "x-ratelimit-remaining-requests": "4999",
        "x-ratelimit-reset-requests": "12ms",
        "x-ratelimit-limit-tokens": "160000",
        "x-ratelimit-remaining-tokens": "159976",
        "x-ratelimit-reset-tokens": "9ms",
    }
    assert limits_in(headers) == {REQUESTS: RateLimit(5000, 4999), TOKENS: RateLimit(160000, 159976)}


@pytest.mark.parametrize(
    ("left", "reset", "period"),
    [("9999", "8.64s", 86_400), ("9990", "1m26.4s", 86_400), ("0", "24h0m0s", 86_400), ("9000", "6m0s", 3600)],
)
def test_limits_of_a_day_or_an_hour_are_told_by_their_reset(left: str, reset: str, period: float) -> None:
    names = ("limit", "remaining", "reset")
    headers = dict(zip((f"x-ratelimit-{name}-requests" for name in names), ("10000", left, reset), strict=True))
    assert limits_in(headers)[REQUESTS].period == period


def test_limits_of_anthropic_are_told_by_kind_without_those_of_subscriptions() -> None:
    told = {"requests": (50, 49), "tokens": (90_000, 89_000), "input-tokens": (50_000, 50_000), "output-tokens": (9, 0)}
    headers = {f"anthropic-ratelimit-{kind}-limit": str(most) for kind, (most, _) in told.items()}
    headers |= {f"anthropic-ratelimit-{kind}-remaining": str(left) for kind, (_, left) in told.items()}
    headers |= {f"anthropic-ratelimit-{kind}-reset": "2026-01-31T23:45:12Z" for kind in told}
    headers |= {"anthropic-ratelimit-unified-limit": "1", "anthropic-ratelimit-unified-remaining": "0"}
    assert limits_in(headers) == {place: RateLimit(*pair) for place, pair in enumerate(told.values())}


@pytest.mark.parametrize("most", ["0", "-5", "nan", "inf", "1e300", "many", ""])
def test_limit_that_can_not_be_is_left_out(most: str) -> None:
    assert limits_in({"x-ratelimit-limit-requests": most, "x-ratelimit-remaining-requests": "3"}) == {}


@pytest.mark.parametrize(("left", "known"), [("-1", None), ("nan", None), ("99", 10.0), ("0", 0.0)])
def test_limit_with_nonsense_left_is_left_out_or_bounded(left: str, known: float | None) -> None:
    found = limits_in({"x-ratelimit-limit-requests": "10", "x-ratelimit-remaining-requests": left})
    assert [limit.left for limit in found.values()] == ([] if known is None else [known])


@pytest.mark.parametrize("reset", ["8760h0m0s", "-1s", "soon", "99999999999999d", "1e9s", "1" * 400 + "s"])
def test_limit_with_a_lying_reset_is_one_of_a_minute(reset: str) -> None:
    headers = {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": reset,
    }
    assert limits_in(headers) == {REQUESTS: RateLimit(60, 0)}


# Buckets


def test_what_is_left_may_go_at_once() -> None:
    levels = limited(60, 5)
    assert [book(levels, Rates(), booking(), 1000.0) for _ in range(6)] == [0, 0, 0, 0, 0, pytest.approx(1.0)]


def test_minute_is_not_sent_at_once_after_a_pause() -> None:
    levels = limited(600, 0)
    waits = [book(levels, Rates(), booking(), 1900.0) for _ in range(20)]
    assert waits.count(0) == 10  # a second's worth


def test_remaining_lifts_the_level_less_what_it_may_not_have_counted() -> None:
    levels = limited(60, 0)
    first, second = booking(), booking()
    assert [book(levels, Rates(), each, 1002.0) for each in (first, second)] == [0.0, pytest.approx(1.0)]
    assert book(levels, Rates(), second, 1003.0) == 0
    first.limits, first.used = {REQUESTS: RateLimit(60, 40)}, first.amounts
    settle(levels, first, 1003.0)
    assert levels.models["m"].buckets[REQUESTS].level == pytest.approx(39)  # the second may not be in the 40


def test_remaining_lowers_the_level_where_others_use_the_key() -> None:
    levels, one = limited(600, 500), booking()
    assert book(levels, Rates(), one, 1000.0) == 0
    one.limits, one.used = {REQUESTS: RateLimit(600, 20)}, one.amounts
    settle(levels, one, 1000.5)
    assert levels.models["m"].buckets[REQUESTS].level == pytest.approx(20 + 1 + 5)  # and half a second's refill


def test_tokens_are_booked_by_estimate_and_corrected() -> None:
    levels, one = limited(6000, 500, TOKENS), booking(400.0)
    assert book(levels, Rates(), one, 1000.0) == 0
    assert book(levels, Rates(), booking(400.0), 1000.0) == pytest.approx(3.0)
    one.used = (1.0, 100.0, 50.0, 50.0)
    settle(levels, one, 1000.0)
    assert book(levels, Rates(), booking(400.0), 1000.0) == 0


def test_call_larger_than_a_limit_waits_until_it_is_whole() -> None:
    levels = limited(60, 0, TOKENS)
    assert book(levels, Rates(), booking(1e9), 1000.0) == pytest.approx(60.0)
    assert book(levels, Rates(), booking(1e9), 1060.0) == 0


def test_models_have_limits_of_their_own() -> None:
    levels = limited(60, 0)
    assert book(levels, Rates(), booking(model="other"), 1000.0) == 0
    assert book(levels, Rates(), booking(), 1000.0) > 0


def test_user_limit_is_spread_over_the_minute_and_holds_all_models() -> None:
    levels, moment, sent = Levels(), 1000.0, list[float]()
    for number in range(20):
        while wait := book(levels, Rates(rpm=60), booking(model="ab"[number % 2]), moment):
            moment += wait
        sent.append(moment)
    assert [b - a for a, b in pairwise(sent)] == [pytest.approx(1.0)] * 19


@pytest.mark.parametrize(("rpm", "wait"), [(30, 2.0), (600, 1.0)])
def test_lower_of_two_limits_holds(rpm: int, wait: float) -> None:
    levels = limited(60, 1)
    assert book(levels, Rates(rpm=rpm), booking(), 1000.0) == 0
    assert book(levels, Rates(rpm=rpm), booking(), 1000.0) == pytest.approx(wait)


def test_limit_that_a_header_tells_lets_a_call_go_that_is_no_longer_held() -> None:
    levels = limited(60, 0)
    assert book(levels, Rates(), booking(), 1000.0, held=False) == 0
    assert book(levels, Rates(rpm=60), booking(), 1000.0, held=False) == 0
    assert book(levels, Rates(rpm=60), booking(), 1000.0, held=False) == pytest.approx(1.0)


def test_level_is_no_higher_for_a_clock_that_was_read_before() -> None:
    levels = limited(60, 0)
    for moment in (1000.9, 1000.1, 1000.9, 1000.1):
        assert book(levels, Rates(), booking(), moment) > 0
    assert book(levels, Rates(), booking(), 1000.95) > 0


def test_forecast_learns_what_calls_take() -> None:
    forecast = Forecast()
    assert forecast.amounts(400, 50) == (1.0, 150.0, 100.0, 50.0)
    for _ in range(100):
        assert forecast.learn(400, 200, 30, 150) == (1.0, 230.0, 50.0, 30.0)
    _, _, tokens_in, tokens_out = forecast.amounts(400, 4096)
    assert tokens_in == pytest.approx(200, rel=0.01)
    assert tokens_out == pytest.approx(30, rel=0.01)
    assert forecast.learn(400, None, 30, 0) is None


@pytest.mark.parametrize(
    ("left", "level", "heard"),
    [
        (4000.0, 3600.0, 3600.0),  # rounded to thousands, so it may be as much
        (4000.0, 3400.0, 3500.0),
        (4000.0, 4600.0, 4501.0),
        (4001.0, 3600.0, 4001.0),  # not rounded
        (4001.0, 5000.0, 4002.0),
        (0.0, 400.0, 1.0),
        (10_000.0, 9600.0, 10_000.0),  # all of it
    ],
)
def test_level_is_corrected_as_far_as_what_is_left_is_known(left: float, level: float, heard: float) -> None:
    bucket = Bucket(10_000.0, 1.0, level, 1000.0)
    bucket.hear(RateLimit(10_000.0, left), underway=0.0, since=1000.0, now=1000.0)
    assert (bucket.level, bucket.confirmed) == (heard, heard)


def test_level_has_risen_when_a_limit_is_told_later() -> None:
    bucket = Bucket(10_000.0, 1.0, 0.0, 1000.0)
    bucket.hear(RateLimit(10_000.0, None, 10_000.0), underway=0.0, since=1000.0, now=1000.5)
    assert (bucket.level, bucket.time) == (0.5, 1000.5)


@pytest.mark.parametrize(("taken", "level", "confirmed"), [(1.5, 3.5, 3.0), (4.5, 0.5, 0.5), (8.0, -3.0, 0.0)])
def test_amount_that_is_taken_is_confirmed_no_more(taken: float, level: float, confirmed: float) -> None:
    bucket = Bucket(10.0, 1.0, 5.0, 1000.0, 3.0)
    bucket.take(taken)
    assert (bucket.level, bucket.confirmed) == (level, confirmed)
