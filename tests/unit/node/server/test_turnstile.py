"""Long work takes one slice of a turn of the loop, however many there are of it."""

import asyncio
from collections.abc import Generator

from millstream.node.server.long_requests import Turnstile


def test_slices_of_several_take_turns_one_in_each_turn_of_the_loop() -> None:
    events: list[str] = []

    def work(name: str) -> Generator[None, None, str]:
        for _ in range(3):
            events.append(name)
            yield
        return name.upper()

    async def others() -> None:
        for _ in range(12):
            events.append(".")
            await asyncio.sleep(0)

    async def scene() -> list[str]:
        turnstile = Turnstile()
        works = [asyncio.ensure_future(turnstile.through(work(name))) for name in "ab"]
        await asyncio.gather(*works, others())
        return [each.result() for each in works]

    assert asyncio.run(scene()) == ["A", "B"]
    assert "".join(each for each in events if each != ".") == "ababab"
    after_start = "".join(events[3:])
    assert "ab" not in after_start and "ba" not in after_start, events  # between two slices others had their turn


def test_one_that_was_given_up_does_not_hold_up_the_next() -> None:
    async def scene() -> None:
        turnstile = Turnstile()
        first = asyncio.ensure_future(turnstile.next_turn())
        second = asyncio.ensure_future(turnstile.next_turn())
        await asyncio.sleep(0)
        first.cancel()
        await second

    asyncio.run(asyncio.wait_for(scene(), 10))
