"""Places: who has one, who waits for one, and who comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from koderz.experiments.slots import PrioritySemaphore, Slot


async def begun(*waits: Awaitable[None]) -> list[asyncio.Task[None]]:
    """Tasks that have come to where they wait."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.sleep(0)
    return tasks


async def used(slot: Slot, note: Callable[[], None]) -> None:
    async with slot.in_use():
        note()


def test_whoever_is_under_way_comes_before_whoever_is_new_and_each_in_turn() -> None:
    async def go() -> list[str]:
        slots, came = PrioritySemaphore(1), list[str]()

        async def enter(name: str, *, new: bool) -> None:
            await slots.enter(new=new)
            came.append(name)
            slots.leave()

        await slots.enter(new=True)
        tasks = await begun(
            enter("new", new=True),
            enter("first", new=False),
            enter("newer", new=True),
            enter("second", new=False),
        )
        slots.leave()
        await asyncio.gather(*tasks)
        return came

    assert asyncio.run(go()) == ["first", "second", "new", "newer"]


def test_whoever_no_longer_waits_keeps_nobody_from_a_place() -> None:
    async def go() -> None:
        slots = PrioritySemaphore(1)
        await slots.enter(new=True)
        gone, handed, last = await begun(slots.enter(new=False), slots.enter(new=False), slots.enter(new=True))
        gone.cancel()
        await asyncio.sleep(0)
        slots.leave()
        handed.cancel()  # at the moment that its turn comes
        await asyncio.wait_for(last, 10)
        slots.leave()
        await asyncio.wait_for(slots.enter(new=True), 10)

    asyncio.run(go())


def test_a_place_is_given_up_when_its_last_use_has_ended() -> None:
    async def go() -> None:
        slots, noted = PrioritySemaphore(1), list[str]()
        await slots.enter(new=True)
        mine = Slot(slots)
        async with mine.in_use():
            async with mine.in_use():
                (other,) = await begun(slots.enter(new=True))
            mine.give_up()
            await asyncio.sleep(0)
            assert not other.done()
        await asyncio.wait_for(other, 10)
        again = await begun(used(mine, lambda: noted.append("again")), used(mine, lambda: noted.append("and again")))
        assert noted == []
        slots.leave()
        await asyncio.wait_for(asyncio.gather(*again), 10)
        assert sorted(noted) == ["again", "and again"]

    asyncio.run(go())


def test_a_use_that_fails_keeps_the_place() -> None:
    async def go() -> None:
        slots = PrioritySemaphore(1)
        await slots.enter(new=True)
        slot = Slot(slots)
        try:
            async with slot.in_use():
                raise ValueError
        except ValueError:
            pass
        (other,) = await begun(slots.enter(new=True))
        assert not other.done()
        slot.give_up()
        await asyncio.wait_for(other, 10)

    asyncio.run(go())
