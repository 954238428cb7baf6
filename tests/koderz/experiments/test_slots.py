"""Places: who has one, who waits for one, and who comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from koderz.experiments.slots import Place, Room


async def begun(*waits: Awaitable[None]) -> list[asyncio.Task[None]]:
    """Tasks that have come to where they wait."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.sleep(0)
    return tasks


async def used(place: Place, note: Callable[[], None]) -> None:
    async with place.in_use():
        note()


def test_whoever_is_under_way_comes_before_whoever_is_new_and_each_in_turn() -> None:
    async def go() -> list[str]:
        room, came = Room(1), list[str]()

        async def enter(name: str, *, new: bool) -> None:
            await room.enter(new=new)
            came.append(name)
            room.leave()

        await room.enter(new=True)
        tasks = await begun(
            enter("new", new=True),
            enter("first", new=False),
            enter("newer", new=True),
            enter("second", new=False),
        )
        room.leave()
        await asyncio.gather(*tasks)
        return came

    assert asyncio.run(go()) == ["first", "second", "new", "newer"]


def test_whoever_no_longer_waits_keeps_nobody_from_a_place() -> None:
    async def go() -> None:
        room = Room(1)
        await room.enter(new=True)
        gone, handed, last = await begun(room.enter(new=False), room.enter(new=False), room.enter(new=True))
        gone.cancel()
        await asyncio.sleep(0)
        room.leave()
        handed.cancel()  # at the moment that its turn comes
        await asyncio.wait_for(last, 10)
        room.leave()
        await asyncio.wait_for(room.enter(new=True), 10)

    asyncio.run(go())


def test_a_place_is_given_up_when_its_last_use_has_ended() -> None:
    async def go() -> None:
        room, noted = Room(1), list[str]()
        await room.enter(new=True)
        mine = Place(room)
        async with mine.in_use():
            async with mine.in_use():
                (other,) = await begun(room.enter(new=True))
            mine.give_up()
            await asyncio.sleep(0)
            assert not other.done()
        await asyncio.wait_for(other, 10)
        again = await begun(used(mine, lambda: noted.append("again")), used(mine, lambda: noted.append("and again")))
        assert noted == []
        room.leave()
        await asyncio.wait_for(asyncio.gather(*again), 10)
        assert sorted(noted) == ["again", "and again"]

    asyncio.run(go())


def test_a_use_that_fails_keeps_the_place() -> None:
    async def go() -> None:
        room = Room(1)
        await room.enter(new=True)
        place = Place(room)
        try:
            async with place.in_use():
                raise ValueError
        except ValueError:
            pass
        (other,) = await begun(room.enter(new=True))
        assert not other.done()
        place.give_up()
        await asyncio.wait_for(other, 10)

    asyncio.run(go())
