"""Background tasks are referenced until they end, and cancelled together."""

import asyncio
import gc

from millstream.common.background_tasks import BackgroundTasks


def test_a_task_is_referenced_until_it_ends() -> None:
    async def scenario() -> None:
        tasks = BackgroundTasks()
        go_on = asyncio.Event()
        tasks.start(_wait(go_on))
        gc.collect()
        assert len(tasks) == 1
        go_on.set()
        await tasks.wait()
        await asyncio.sleep(0)
        assert len(tasks) == 0

    asyncio.run(scenario())


def test_cancel_ends_all_tasks_in_the_order_of_their_start() -> None:
    async def scenario() -> None:
        tasks, ended = BackgroundTasks(), []

        async def run(number: int) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(number)

        for number in range(20):
            tasks.start(run(number))
        await asyncio.sleep(0)
        tasks.cancel()
        await tasks.wait(1.0)
        assert ended == list(range(20))

    asyncio.run(scenario())


def test_the_exception_of_a_task_goes_to_the_callback_and_a_cancellation_does_not() -> None:
    async def scenario() -> None:
        failures: list[BaseException] = []
        tasks = BackgroundTasks(failures.append)

        async def fail() -> None:
            raise ValueError("broken")

        tasks.start(fail())
        tasks.start(_wait(asyncio.Event())).cancel()
        await tasks.wait(1.0)
        await asyncio.sleep(0)
        assert [str(failure) for failure in failures] == ["broken"]

    asyncio.run(scenario())


def test_waiting_ends_at_the_timeout() -> None:
    async def scenario() -> None:
        tasks = BackgroundTasks()
        tasks.start(_wait(asyncio.Event()))
        await tasks.wait(0.01)
        assert len(tasks) == 1
        tasks.cancel()

    asyncio.run(scenario())


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
