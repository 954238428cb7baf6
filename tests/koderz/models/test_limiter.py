from __future__ import annotations

import asyncio

import pytest

from koderz.models.faults import Retryable
from koderz.models.limiter import Limiter, RateAccount
from koderz.models.names import Rates
from koderz.models.rates import RateLimit

from .conftest import Clock


async def fail(limiter: Limiter, problem: Retryable) -> None:
    with pytest.raises(Retryable):
        async with limiter.turn():
            raise problem


async def hold(limiter: Limiter, until: asyncio.Event, entered: list[int], number: int) -> None:
    async with limiter.turn():
        entered.append(number)
        await until.wait()


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_limiter_bounds_calls_in_flight_first_come_first_served() -> None:
    limiter, until, entered = Limiter(2), asyncio.Event(), list[int]()
    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(hold(limiter, until, entered, number))
        await settle()
        assert entered == [0, 1]
        until.set()
    assert entered == list(range(6))
    assert limiter.throttle("x").in_flight == 0


async def test_limiter_lowers_its_limit_once_for_calls_in_flight() -> None:
    limiter = Limiter(64)
    until = asyncio.Event()

    async def call() -> None:
        async with limiter.turn():
            await until.wait()
            raise Retryable("429", throttled=True)

    calls = [asyncio.create_task(call()) for _ in range(20)]
    await settle()
    until.set()
    await asyncio.gather(*calls, return_exceptions=True)
    assert limiter.throttle("x").limit == 14


async def test_successes_raise_the_limit_again_up_to_what_is_allowed() -> None:
    limiter = Limiter(8)
    for _ in range(10):
        await fail(limiter, Retryable("429", throttled=True))
    assert limiter.throttle("x").limit == 1
    for _ in range(100):
        async with limiter.turn():
            pass
    assert limiter.throttle("x").limit == 8


async def test_limiter_ignores_other_failures() -> None:
    limiter = Limiter(8)
    await fail(limiter, Retryable("500"))
    assert limiter.throttle("x").limit == 8


async def test_limiter_wait_asked_by_the_server_holds_everyone(clock: Clock) -> None:
    limiter = Limiter(8, sleep=clock.sleep, now=clock.now)
    await fail(limiter, Retryable("429", throttled=True, retry_after=30.0))
    assert limiter.throttle("x").pause == 30.0
    async with asyncio.TaskGroup() as group:
        for number in range(5):
            until = asyncio.Event()
            until.set()
            group.create_task(hold(limiter, until, [], number))
    assert clock.slept == [30.0]


async def test_limiter_forgets_a_call_that_gives_up_in_line() -> None:
    limiter, until, entered = Limiter(1), asyncio.Event(), list[int]()
    first = asyncio.create_task(hold(limiter, until, entered, 0))
    await settle()
    line = [asyncio.create_task(hold(limiter, until, entered, number)) for number in (1, 2, 3)]
    await settle()
    for given_up in (line[0], line[1]):  # the head of the line, and one behind it
        given_up.cancel()
    await asyncio.gather(line[0], line[1], return_exceptions=True)
    until.set()
    await asyncio.gather(first, line[2])
    assert entered == [0, 3]
    assert limiter.throttle("x").in_flight == 0


async def test_limiter_frees_the_place_of_a_cut_off_call() -> None:
    limiter, entered = Limiter(1), list[int]()
    first = asyncio.create_task(hold(limiter, asyncio.Event(), entered, 0))
    await settle()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    async with limiter.turn():
        assert limiter.throttle("x").in_flight == 1


async def test_limiter_pause_holds_those_who_wait_for_room(clock: Clock) -> None:
    limiter, until, entered = Limiter(1, sleep=clock.sleep, now=clock.now), asyncio.Event(), list[int]()

    async def refused() -> None:
        async with limiter.turn():
            await until.wait()
            raise Retryable("429", throttled=True, retry_after=9.0)

    first = asyncio.create_task(refused())
    await settle()
    second = asyncio.create_task(hold(limiter, until, entered, 1))
    await settle()
    until.set()
    await asyncio.gather(first, second, return_exceptions=True)
    assert (entered, clock.slept) == ([1], [9.0])


async def test_limiter_lets_eight_calls_of_a_model_go_until_it_has_answered() -> None:
    limiter, until, entered = Limiter(64), asyncio.Event(), list[int]()

    async def call(number: int) -> None:
        async with limiter.turn("m") as booking:
            entered.append(number)
            await until.wait()
            booking.is_answered = True

    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(call(number))
        await settle()
        assert len(entered) == 8
        async with limiter.turn("other"):  # whose first call isn't held by theirs
            assert len(entered) == 8
        until.set()
    assert len(entered) == 20


async def test_limiter_waits_a_minute_at_most_for_a_limit_that_a_header_tells(clock: Clock) -> None:
    limiter = Limiter(8, sleep=clock.sleep, now=clock.now)
    for _ in range(3):  # a limit of a day, which is used up
        async with limiter.turn("m", (1.0, 0.0, 0.0, 0.0)) as booking:
            booking.is_answered, booking.limits = True, {0: RateLimit(10, 0, 86_400)}
    assert clock.slept == [60.0, 60.0]
    assert limiter.throttle("x").wait == 0


async def test_limiter_holds_calls_to_the_user_limit_however_long(clock: Clock) -> None:
    account = RateAccount(Rates(rpm=1))
    limiter, begun = Limiter(8, account=account, sleep=clock.sleep, now=clock.now), clock.now()
    for _ in range(4):
        async with limiter.turn("m", (1.0, 0.0, 0.0, 0.0)):
            pass
    assert clock.now() - begun == pytest.approx(180.0)
    assert max(clock.slept) <= 60.0
