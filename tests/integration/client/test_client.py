"""The verbs, against the real broker."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millstream
from millstream.client import (
    Client,
    DamagedRecordsError,
    DeliveryError,
    EncodingError,
    Message,
    MillstreamError,
    NoBrokerError,
    OffsetOutOfRangeError,
    RefusedError,
    TopicExistsError,
    TopicNotFoundError,
)
from millstream.testing import EmbeddedBroker
from tests.integration.node.broker.unreadable import unreadable
from tests.waiting import TIMEOUT_SECONDS, until
from tests.wire import Wire

HOUR_MS = 3_600_000


def test_the_example_of_the_readme_runs(millstream_broker: EmbeddedBroker) -> None:
    with millstream.connect(millstream_broker.bootstrap_servers) as client:
        client.create_topic("readme-orders", partitions=1)
        stored = client.publish("readme-orders", {"id": 1, "item": "flour"}, key="customer-7")
        client.publish_many("readme-orders", ({"id": number} for number in range(2, 100)))
        orders = [(record.offset, record.key, record.json()["id"]) for record in client.consume("readme-orders")]
        tail = [record.json()["id"] for record in client.consume("readme-orders", start=-2)]
        client.delete_topic("readme-orders")
    assert (stored.partition, stored.offset) == (0, 0)
    assert orders[0] == (0, b"customer-7", 1)
    assert [order for _, _, order in orders] == list(range(1, 100))
    assert tail == [98, 99]


class TestTopics:
    def test_create_list_describe_alter_delete(self, client: Client) -> None:
        assert client.create_topic("verbs", 2, config={"retention.ms": HOUR_MS}) is True
        assert "verbs" in client.list_topics()
        topic = client.describe_topic("verbs")
        assert [part.id for part in topic.partitions] == [0, 1]
        assert all(part.leader is not None and part.leader in part.in_sync for part in topic.partitions)
        assert topic.config == {"retention.ms": str(HOUR_MS)}
        assert topic.records == 0

        client.alter_topic("verbs", partitions=3, config={"retention.ms": None, "max.message.bytes": 5000})
        topic = client.describe_topic("verbs")
        assert len(topic.partitions) == 3
        assert topic.config == {"max.message.bytes": "5000"}

        assert client.delete_topic("verbs") is True
        assert "verbs" not in client.list_topics()

    def test_a_topic_that_exists(self, client: Client, millstream_topic: str) -> None:
        with pytest.raises(TopicExistsError, match="exists already"):
            client.create_topic(millstream_topic)
        assert client.create_topic(millstream_topic, exist_ok=True) is False

    def test_a_topic_that_does_not_exist(self, client: Client) -> None:
        for attempt in (client.describe_topic, client.delete_topic, client.consume):
            with pytest.raises(TopicNotFoundError, match="topic create missing"):
                attempt("missing")
        assert client.delete_topic("missing", missing_ok=True) is False
        assert "missing" not in client.list_topics()

    @pytest.mark.parametrize(
        "create",
        [
            lambda client: client.create_topic("bad name"),
            lambda client: client.create_topic("none", 0),
            lambda client: client.create_topic("unknown", config={"no.such.setting": "1"}),
            lambda client: client.create_topic("wrong", config={"retention.ms": "soon"}),
            lambda client: client.create_topic("copies", replication=3),
        ],
    )
    def test_an_error_of_the_broker_has_its_code(self, client: Client, create: Callable[[Client], Any]) -> None:
        with pytest.raises(RefusedError) as caught:
            create(client)
        assert caught.value.code

    def test_deleted_records_cannot_be_read(self, client: Client, millstream_topic: str) -> None:
        client.publish_many(millstream_topic, [b"%d" % number for number in range(10)])
        assert client.delete_records(millstream_topic, {0: 4}) == {0: 4}
        assert [record.offset for record in client.consume(millstream_topic)] == [4, 5, 6, 7, 8, 9]
        with pytest.raises(OffsetOutOfRangeError, match="4 to 9"):
            client.consume(millstream_topic, 2)


class TestPublish:
    def test_everything_a_record_has(self, client: Client, millstream_topic: str) -> None:
        moment = datetime.now(UTC).replace(microsecond=250_000)
        stored = client.publish(
            millstream_topic, "text", key=b"\0key", headers=[("a", "1"), ("b", b"\xff"), ("a", None)], timestamp=moment
        )
        assert stored == (millstream_topic, 0, 0, int(moment.timestamp() * 1000))
        (record,) = client.consume(millstream_topic)
        assert (record.topic, record.partition, record.offset) == (millstream_topic, 0, 0)
        assert (record.key, record.value, record.raw) == (b"\0key", b"text", b"text")
        assert record.headers == [("a", b"1"), ("b", b"\xff"), ("a", None)]
        assert record.header("b") == b"\xff"
        assert record.header("c") is None
        assert record.time == moment

    def test_values_of_each_kind(self, client: Client, millstream_topic: str) -> None:
        values: list[Any] = [{"a": [1, None]}, [1, 2], "Mühle", b"\x00\xff", "", b"", None]
        offsets = [client.publish(millstream_topic, value).offset for value in values]
        assert offsets == list(range(len(values)))
        raw = [record.raw for record in client.consume(millstream_topic)]
        assert raw == [b'{"a":[1,null]}', b"[1,2]", "Mühle".encode(), b"\x00\xff", b"", b"", None]

    def test_a_key_stays_in_its_partition(self, client: Client) -> None:
        client.create_topic("by-key", 4, exist_ok=True)
        partitions = {client.publish("by-key", "x", key=f"key-{number % 3}").partition for number in range(12)}
        assert len(partitions) <= 3
        assert client.publish("by-key", "x", partition=2).partition == 2
        with pytest.raises(TopicNotFoundError, match="no such partition"):
            client.publish("by-key", "x", partition=9)

    def test_messages_of_every_kind_are_published(self, client: Client, millstream_topic: str) -> None:
        items: list[Any] = [b"bytes", "text", {"json": 1}, ("key", "pair"), Message("message", "k", {"h": "v"}), None]
        assert client.publish_many(millstream_topic, items) == 6
        records = list(client.consume(millstream_topic))
        assert [record.raw for record in records] == [b"bytes", b"text", b'{"json":1}', b"pair", b"message", None]
        assert [record.key for record in records] == [None, None, None, b"key", b"k", None]
        assert records[4].headers == [("h", b"v")]

    def test_many_more_than_fit_in_one_batch(self, client: Client, millstream_topic: str) -> None:
        assert client.publish_many(millstream_topic, (b"%d" % number for number in range(30_000))) == 30_000
        assert [int(record.raw or b"") for record in client.consume(millstream_topic)] == list(range(30_000))

    def test_publishing_no_messages_returns_zero(self, client: Client, millstream_topic: str) -> None:
        assert client.publish_many(millstream_topic, []) == 0

    def test_a_value_that_cannot_be_sent(self, client: Client, millstream_topic: str) -> None:
        with pytest.raises(EncodingError):
            client.publish(millstream_topic, 5)  # type: ignore[arg-type]
        with pytest.raises(EncodingError):
            client.publish_many(millstream_topic, [b"fine", 5])  # type: ignore[list-item]
        with pytest.raises(MillstreamError, match="key, value"):
            client.publish_many(millstream_topic, [(1, 2, 3)])  # type: ignore[list-item]

    def test_delivery_errors_are_raised(self, client: Client) -> None:
        client.create_topic("small", 1, config={"max.message.bytes": 500}, exist_ok=True)
        with pytest.raises(RefusedError, match=r"max\.message\.bytes"):
            client.publish("small", b"x" * 2000)
        with pytest.raises(DeliveryError, match="1 of 1 records") as caught:
            client.publish_many("small", [b"x" * 2000])
        assert caught.value.failed == 1

    @pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
    def test_records_of_every_codec_are_read_back(
        self, millstream_broker: EmbeddedBroker, millstream_topic: str, codec: str
    ) -> None:
        settings = {"compression.type": codec}
        with millstream.connect(millstream_broker.bootstrap_servers, settings=settings) as client:
            client.publish_many(millstream_topic, [b"abc" * 100] * 500)
            assert [record.raw for record in client.consume(millstream_topic)] == [b"abc" * 100] * 500

    @pytest.mark.parametrize("acks", ["0", "1", "all"])
    def test_every_acks_setting_stores_the_record(
        self, millstream_broker: EmbeddedBroker, millstream_topic: str, acks: str
    ) -> None:
        with millstream.connect(millstream_broker.bootstrap_servers, settings={"acks": acks}) as client:
            client.publish(millstream_topic, acks)
            # Without acks no one says when the record is stored, so wait for it.
            (record,) = client.consume(millstream_topic, follow=True, limit=1, timeout=TIMEOUT_SECONDS)
        assert record.text() == acks

    def test_several_threads_publish_with_one_client(self, client: Client, millstream_topic: str) -> None:
        offsets: list[int] = []

        def publish() -> None:
            offsets.extend(client.publish(millstream_topic, "x").offset for _ in range(20))

        threads = [threading.Thread(target=publish) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(offsets) == list(range(80))


class TestConsume:
    @pytest.fixture
    def numbers(self, client: Client, millstream_topic: str) -> str:
        """The numbers 0 to 99, one per second from the start of 2026; kept for ever, since retention goes by that."""
        client.alter_topic(millstream_topic, config={"retention.ms": -1})
        start = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
        client.publish_many(
            millstream_topic, (Message(str(number), timestamp=start + number * 1000) for number in range(100))
        )
        return millstream_topic

    @pytest.mark.parametrize(
        ("start", "expected"),
        [
            ("earliest", range(100)),
            (0, range(100)),
            (42, range(42, 100)),
            (99, [99]),
            (100, []),
            (-3, [97, 98, 99]),
            (-1000, range(100)),
            (datetime(2026, 1, 1, 0, 1, tzinfo=UTC), range(60, 100)),
            (datetime(2026, 1, 1, 0, 1, 0, 500_000, tzinfo=UTC), range(61, 100)),
            (datetime(2020, 1, 1, tzinfo=UTC), range(100)),
            (datetime(2100, 1, 1, tzinfo=UTC), []),
            (timedelta(seconds=1), []),
            ({0: 98}, [98, 99]),
        ],
    )
    def test_consume_begins_at_the_given_position(
        self, client: Client, numbers: str, start: Any, expected: Any
    ) -> None:
        assert [int(record.text() or "") for record in client.consume(numbers, start)] == list(expected)

    def test_start_that_is_not_there(self, client: Client, numbers: str) -> None:
        with pytest.raises(OffsetOutOfRangeError, match="0 to 99, not 101"):
            client.consume(numbers, 101)
        with pytest.raises(TopicNotFoundError, match="partitions 0 to 0, not 3"):
            client.consume(numbers, partition=3)
        with pytest.raises(MillstreamError, match="start is"):
            client.consume(numbers, "yesterday")  # type: ignore[call-overload]
        with pytest.raises(MillstreamError, match="not in both"):
            client.consume(numbers, {0: 1}, partition=0)

    def test_consume_ends_at_its_limit(self, client: Client, numbers: str) -> None:
        assert [record.offset for record in client.consume(numbers, 10, limit=5)] == [10, 11, 12, 13, 14]
        assert list(client.consume(numbers, limit=0)) == []

    def test_values_are_decoded_as_chosen(self, client: Client, numbers: str) -> None:
        assert [record.value for record in client.consume(numbers, -2, decode="text")] == ["98", "99"]
        assert [record.value for record in client.consume(numbers, -2, decode="json")] == [98, 99]
        assert [record.value for record in client.consume(numbers, -2, decode=int)] == [98, 99]

    def test_a_value_that_does_not_decode_is_an_error(self, client: Client, millstream_topic: str) -> None:
        client.publish(millstream_topic, "{")
        with pytest.raises(EncodingError, match="not JSON"):
            list(client.consume(millstream_topic, decode="json"))

    def test_consume_reads_several_partitions(self, client: Client) -> None:
        client.create_topic("three", 3)
        for partition, count in ((0, 5), (1, 0), (2, 8)):
            client.publish_many("three", [Message(str(number), partition=partition) for number in range(count)])

        def read(*arguments: Any, **options: Any) -> set[tuple[int, int]]:
            return {(record.partition, record.offset) for record in client.consume("three", *arguments, **options)}

        everything = {(0, number) for number in range(5)} | {(2, number) for number in range(8)}
        assert read() == everything
        assert read(partition=2) == {pair for pair in everything if pair[0] == 2}
        assert read(partition=[0, 1]) == {pair for pair in everything if pair[0] == 0}
        assert read({0: 4, 2: -1}) == {(0, 4), (2, 7)}
        assert read(-1) == {(0, 4), (2, 7)}
        # One number for all: it must suit at least one of them.
        assert read(6) == {(2, 6), (2, 7)}
        with pytest.raises(OffsetOutOfRangeError):
            client.consume("three", 9)
        with pytest.raises(OffsetOutOfRangeError):
            client.consume("three", 6, partition=0)

    def test_follow_sees_what_comes_later(self, client: Client, numbers: str) -> None:
        def later() -> None:
            for number in (100, 101):
                time.sleep(0.1)
                client.publish(numbers, str(number))

        thread = threading.Thread(target=later)
        with client.consume(numbers, 99, follow=True, limit=3, timeout=TIMEOUT_SECONDS) as stream:
            thread.start()
            assert [record.text() for record in stream] == ["99", "100", "101"]
        thread.join()

    def test_latest_follows_and_a_timeout_ends_it(self, client: Client, numbers: str) -> None:
        assert list(client.consume(numbers, "latest", timeout=0.3)) == []
        assert list(client.consume(numbers, "latest", follow=False)) == []

    def test_the_end_is_the_end_as_it_was(self, client: Client, numbers: str) -> None:
        stream = client.consume(numbers)
        client.publish_many(numbers, [b"later"] * 50)
        assert len(list(stream)) == 100

    def test_a_closed_stream_is_finished(self, client: Client, numbers: str) -> None:
        with client.consume(numbers) as stream:
            assert next(stream).offset == 0
        assert stream.finished

    def test_a_stream_yields_batches_until_it_is_finished(self, client: Client, numbers: str) -> None:
        stream = client.consume(numbers)
        read: list[int] = []
        while not stream.finished:
            read += [record.offset for record in stream.next_batch()]
        assert read == list(range(100))
        assert stream.next_batch() == []


def test_records_that_cannot_be_read_are_reported(millstream_broker: EmbeddedBroker, client: Client) -> None:
    """librdkafka drops such a batch, and fetches it again, until the broker says what is wrong."""
    client.create_topic("unreadable", 1)
    client.publish("unreadable", "before")
    with Wire(millstream_broker.bootstrap_servers) as wire:
        assert wire.produce("unreadable", unreadable()).error_code == 0
    client.publish("unreadable", "behind")
    values = []
    with pytest.raises(DamagedRecordsError, match=r"'unreadable', partition 0, cannot be read .*offset 1"):
        for record in client.consume("unreadable", timeout=60):
            values.append(record.text())
    assert values == ["before"]
    assert [record.text() for record in client.consume("unreadable", start=4)] == ["behind"]


def test_damage_on_the_brokers_disk_is_reported_not_served() -> None:
    with EmbeddedBroker() as broker:
        with millstream.connect(broker.bootstrap_servers) as client:
            client.create_topic("damaged", 1)
            for value in ("whole", "damaged", "behind"):
                client.publish("damaged", value)
        broker.stop()
        segment = broker.data_dir / "damaged-0" / f"{0:020d}.log"
        segment.write_bytes(segment.read_bytes().replace(b"damaged", b"dAmaged"))
        broker.start()
        with millstream.connect(broker.bootstrap_servers, timeout=TIMEOUT_SECONDS) as client:
            assert [record.text() for record in client.consume("damaged", limit=1)] == ["whole"]
            with pytest.raises(DamagedRecordsError, match="log dump --check"):
                list(client.consume("damaged"))
            assert [record.text() for record in client.consume("damaged", 2)] == ["behind"]


class TestABrokerThatGoesAway:
    @pytest.fixture
    def mortal(self) -> Iterator[EmbeddedBroker]:
        with EmbeddedBroker() as broker:
            yield broker

    def test_every_verb_says_so(self, mortal: EmbeddedBroker) -> None:
        with millstream.connect(mortal.bootstrap_servers, timeout=TIMEOUT_SECONDS) as lasting:
            lasting.create_topic("gone", 1)
        with millstream.connect(mortal.bootstrap_servers, timeout=1.5) as client:

            def is_published() -> bool:
                """On a busy machine not at the first attempt."""
                try:
                    return bool(client.publish("gone", "x"))
                except NoBrokerError:
                    return False

            until(is_published)
            mortal.kill()
            for attempt in (
                lambda: client.publish("gone", "y"),
                lambda: client.list_topics(),
                lambda: client.consume("gone"),
            ):
                with pytest.raises(NoBrokerError, match="millstream serve"):
                    attempt()

    def test_a_client_works_again_after_the_restart(self, mortal: EmbeddedBroker) -> None:
        with millstream.connect(mortal.bootstrap_servers, timeout=TIMEOUT_SECONDS) as client:
            client.create_topic("back", 1)
            client.publish("back", "before")
            mortal.restart()
            assert client.publish("back", "after").offset == 1
            assert [record.text() for record in client.consume("back")] == ["before", "after"]
