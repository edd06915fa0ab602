"""Virtual time: asyncio's own tools on a simulated loop."""

import asyncio

import pytest

from millstream.simulator.loop import Scheduler
from millstream.simulator.machine import Process
from tests.unit.simulator.conftest import World


def test_entries_run_in_order_of_time_and_then_of_making() -> None:
    scheduler = Scheduler()
    seen: list[str] = []
    scheduler.at(2.0, seen.append, "second")
    scheduler.at(1.0, seen.append, "first")
    scheduler.at(2.0, seen.append, "third")
    scheduler.after(5.0, seen.append, "late")
    assert not scheduler.run(until=3.0)
    assert (seen, scheduler.now) == (["first", "second", "third"], 3.0)
    assert scheduler.run(until=10.0, stop=lambda: "late" in seen)
    assert scheduler.now == 5.0


def test_sleeping_takes_virtual_time_only(world: World) -> None:
    woken: list[float] = []

    async def main(process: Process) -> None:
        await asyncio.sleep(3600.0)
        woken.append(world.scheduler.now)

    world.run_on("a", main)
    world.run(7200.0)
    assert woken == [pytest.approx(3600.0, abs=0.001)]


def test_the_tools_of_asyncio_work(world: World) -> None:
    seen: list[str] = []

    async def main(process: Process) -> None:
        assert asyncio.get_running_loop() is process.loop
        event, lock, queue = asyncio.Event(), asyncio.Lock(), asyncio.Queue[int]()

        async def waiter() -> None:
            async with lock:
                await event.wait()
            seen.append(f"got {await queue.get()}")

        task = asyncio.ensure_future(waiter())
        await asyncio.sleep(0)
        assert lock.locked()
        event.set()
        queue.put_nowait(7)
        await task
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.sleep(2.0)
        assert await asyncio.gather(*(asyncio.sleep(0.1, each) for each in range(3))) == [0, 1, 2]
        seen.append("done")

    world.run_on("a", main)
    world.run(10.0)
    assert seen == ["got 7", "done"]


def test_a_paused_loop_catches_up_afterwards(world: World) -> None:
    ticks: list[float] = []

    async def main(process: Process) -> None:
        while True:
            await asyncio.sleep(1.0)
            ticks.append(world.scheduler.now)

    world.run_on("a", main)
    world.run(2.5)
    world.machine("a").pause()
    world.run(5.0)
    assert len(ticks) == 2
    world.machine("a").resume()
    world.run(1.5)
    assert [round(each, 1) for each in ticks] == [1.0, 2.0, 7.5, 8.5]


def test_nothing_of_a_killed_process_happens_any_more(world: World) -> None:
    done: list[str] = []

    async def main(process: Process) -> None:
        process.loop.call_later(2.0, done.append, "timer")
        process.offload(lambda: done.append("job")).add_done_callback(lambda _: done.append("job told"))
        try:
            await asyncio.sleep(2.0)
            done.append("slept")
        finally:
            with pytest.raises(OSError, match="gone"):
                process.disk.write_bytes("/x", b"")

    world.run_on("a", main)
    world.run(0.0)
    world.machine("a").kill()
    world.run(5.0)
    assert done == []


def test_clocks_of_machines_differ(world: World) -> None:
    fast = world.machine("fast")
    fast.clock_rate = 1.02
    fast.clock.offset_ms = 60_000
    times: dict[str, tuple[float, int]] = {}

    async def main(process: Process) -> None:
        begin = process.loop.time()
        await asyncio.sleep(10.2)
        times[process.machine.name] = (process.loop.time() - begin, process.environment.clock.now_ms())
        done_at[process.machine.name] = world.scheduler.now

    done_at: dict[str, float] = {}
    world.run_on("fast", main)
    world.run_on("slow", main)
    world.run(20.0)
    assert done_at["fast"] == pytest.approx(10.0, abs=0.01)
    assert done_at["slow"] == pytest.approx(10.2, abs=0.01)
    assert times["fast"][1] - times["slow"][1] == pytest.approx(60_000 - 200, abs=10)


def test_what_no_one_catches_is_told(world: World) -> None:
    async def main(process: Process) -> None:
        process.loop.call_soon(lambda: 1 // 0)

    world.run_on("a", main)
    world.run(1.0)
    ((where, context),) = world.complaints
    assert (where, type(context["exception"])) == ("a", ZeroDivisionError)
    world.complaints.clear()


def test_jobs_take_as_long_as_the_disk_does_and_few_run_at_once(world: World) -> None:
    ended: list[float] = []

    async def main(process: Process) -> None:
        jobs = [process.offload(lambda: ended.append(world.scheduler.now)) for _ in range(40)]
        await asyncio.gather(*jobs)

    world.machine("a").disk.slowness = 100.0
    world.run_on("a", main)
    world.run(60.0)
    assert len(ended) == 40
    assert ended[-1] > 0.3
    assert ended == sorted(ended)
