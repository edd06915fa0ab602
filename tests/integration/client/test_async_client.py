"""The same verbs under asyncio."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import millstream
from millstream.client import AsyncClient, EncodingError, MillstreamError, NoBrokerError, TopicNotFoundError
from millstream.testing import EmbeddedBroker
from tests.waiting import TIMEOUT_SECONDS

Scenario = Callable[[AsyncClient], Awaitable[None]]
Play = Callable[[Scenario], None]


@pytest.fixture
def play(millstream_broker: EmbeddedBroker) -> Play:
    """Run a coroutine function with a connected client."""

    def run(scenario: Scenario) -> None:
        async def connected() -> None:
            async with millstream.connect_async(millstream_broker.bootstrap_servers, timeout=TIMEOUT_SECONDS) as client:
                await asyncio.wait_for(scenario(client), 60)

        asyncio.run(connected())

    return run


def test_every_verb_works_asynchronously(play: Play) -> None:
    async def scenario(client: AsyncClient) -> None:
        assert await client.create_topic("async-verbs", 2, config={"retention.ms": 1000_000})
        assert "async-verbs" in await client.list_topics()
        await client.alter_topic("async-verbs", partitions=3)
        assert len((await client.describe_topic("async-verbs")).partitions) == 3
        stored = await client.publish("async-verbs", {"a": 1}, key="k", headers={"h": "v"}, partition=1)
        assert (stored.partition, stored.offset) == (1, 0)
        (record,) = [record async for record in client.consume("async-verbs", decode="json")]
        assert (record.value, record.key, record.headers) == ({"a": 1}, b"k", [("h", b"v")])
        assert await client.delete_records("async-verbs", {1: 1}) == {1: 1}
        assert await client.delete_topic("async-verbs")

    play(scenario)


def test_many_publishes_in_flight(play: Play, millstream_topic: str) -> None:
    async def scenario(client: AsyncClient) -> None:
        stored = await asyncio.gather(*(client.publish(millstream_topic, str(number)) for number in range(2000)))
        assert [one.offset for one in stored] == list(range(2000))
        read = [record.text() async for record in client.consume(millstream_topic)]
        assert read == [str(number) for number in range(2000)]

    play(scenario)


def test_publish_many_takes_both_kinds_of_iterables(play: Play, millstream_topic: str) -> None:
    async def scenario(client: AsyncClient) -> None:
        async def items() -> AsyncIterator[str]:
            for number in range(12_000):
                yield str(number)

        assert await client.publish_many(millstream_topic, items()) == 12_000
        assert await client.publish_many(millstream_topic, ["a", ("k", {"b": 1})]) == 2
        assert len([record async for record in client.consume(millstream_topic)]) == 12_002

    play(scenario)


def test_following_does_not_block_the_loop(play: Play, millstream_topic: str) -> None:
    async def scenario(client: AsyncClient) -> None:
        async def first(start: str) -> str | None:
            async for record in client.consume(millstream_topic, start):  # type: ignore[arg-type]
                return record.text()
            return None

        waiting = [asyncio.create_task(first("latest")) for _ in range(6)]
        # Streams find their start when they begin; publish until all of them have seen something.
        while not all(task.done() for task in waiting):
            await client.publish(millstream_topic, "tick")
            await asyncio.sleep(0.05)
        assert [task.result() for task in waiting] == ["tick"] * 6

    play(scenario)


def test_a_stream_can_be_cancelled(play: Play, millstream_topic: str) -> None:
    async def scenario(client: AsyncClient) -> None:
        async def forever() -> None:
            async with client.consume(millstream_topic, "latest") as stream:
                async for _ in stream:
                    pass

        task = asyncio.create_task(forever())
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await client.publish(millstream_topic, "still alive")

    play(scenario)


def test_errors_are_raised_in_coroutines(play: Play, millstream_topic: str) -> None:
    async def scenario(client: AsyncClient) -> None:
        with pytest.raises(TopicNotFoundError):
            _ = [record async for record in client.consume("missing")]
        with pytest.raises(EncodingError):
            await client.publish(millstream_topic, 5)  # type: ignore[arg-type]
        with pytest.raises(TopicNotFoundError):
            await client.publish(millstream_topic, "x", partition=7)

    play(scenario)


def test_connecting_where_no_one_listens_is_an_error() -> None:
    async def scenario() -> None:
        async with millstream.connect_async("127.0.0.1:1"):
            pass

    with pytest.raises(NoBrokerError):
        asyncio.run(scenario())


def test_it_must_be_entered() -> None:
    async def scenario() -> None:
        await millstream.connect_async("127.0.0.1:1").list_topics()

    with pytest.raises(MillstreamError, match="async with"):
        asyncio.run(scenario())
