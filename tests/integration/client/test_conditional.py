"""`expected_offset`: event sourcing with the friendly client, without a second database."""

import asyncio
import itertools
import threading

import pytest

import millstream
from millstream.client import Client, RefusedError, TopicNotFoundError, UnexpectedEndError
from millstream.testing import EmbeddedBroker

_numbers = itertools.count()


def new_topic(client: Client) -> str:
    name = f"conditional-{next(_numbers)}"
    client.create_topic(name, 1)
    return name


def test_a_record_is_written_only_at_the_expected_end(client: Client) -> None:
    topic = new_topic(client)
    assert client.publish(topic, {"n": 1}, key="a", partition=0, expected_offset=0).offset == 0
    with pytest.raises(UnexpectedEndError, match="its end is 1, not 0") as refused:
        client.publish(topic, {"n": 2}, partition=0, expected_offset=0)
    assert (refused.value.expected, refused.value.end_offset) == (0, 1)
    assert client.publish(topic, "x", partition=0, headers={"h": "1"}, expected_offset=1).offset == 1
    records = list(client.consume(topic, follow=False))
    assert [(record.key, record.value, dict(record.headers)) for record in records] == [
        (b"a", b'{"n":1}', {}),
        (None, b"x", {"h": b"1"}),
    ]


def test_wrong_conditional_publishes_are_refused(client: Client) -> None:
    with pytest.raises(RefusedError, match="needs a partition"):
        client.publish(new_topic(client), "x", expected_offset=0)
    with pytest.raises(TopicNotFoundError):
        client.publish("there-is-no-such-topic", "x", partition=0, expected_offset=0)


def test_conditional_publish_works_asynchronously(client: Client, millstream_broker: EmbeddedBroker) -> None:
    topic = new_topic(client)

    async def write() -> None:
        async with millstream.connect_async(millstream_broker.bootstrap_servers) as connected:
            assert (await connected.publish(topic, "x", partition=0, expected_offset=0)).offset == 0
            with pytest.raises(UnexpectedEndError):
                await connected.publish(topic, "x", partition=0, expected_offset=0)

    asyncio.run(write())


def test_two_accounts_are_never_overdrawn(client: Client, millstream_broker: EmbeddedBroker) -> None:
    """Each writer reads all events, decides, and writes where it stopped reading: the balance is never negative."""
    topic = new_topic(client)
    client.publish(topic, "50", partition=0, expected_offset=0)

    def withdraw() -> None:
        with millstream.connect(millstream_broker.bootstrap_servers) as mine:
            while True:
                events = [int(record.value or b"0") for record in mine.consume(topic, follow=False)]
                if sum(events) < 7:
                    return
                try:
                    mine.publish(topic, "-7", partition=0, expected_offset=len(events))
                except UnexpectedEndError:
                    continue

    threads = [threading.Thread(target=withdraw) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(int(record.value or b"0") for record in client.consume(topic, follow=False)) == 1
