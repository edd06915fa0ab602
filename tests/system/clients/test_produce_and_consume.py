"""What clients rely on beyond bytes: errors they recognise, resets, seeks, long polls, pipelining, auto-creation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.system.clients import brokers
from tests.system.clients.client_program import ClientFailedError, ClientProgram
from tests.system.clients.conftest import GetClient
from tests.system.clients.corpus import FIRST_TIMESTAMP_MS, assert_same, incompressible, record
from tools import install_test_clients

Create = Callable[..., None]

OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
MESSAGE_TOO_LARGE = 10

# The name by which a user of each client knows the refusal of a record that is too large.
TOO_LARGE = {
    "confluent-kafka": "MSG_SIZE_TOO_LARGE",
    "kafka-python": "MessageSizeTooLargeError",
    "aiokafka": "MessageSizeTooLargeError",
    "kcat": "Message size too large",
    "kafkajs": "MESSAGE_TOO_LARGE",
    "java": "RecordTooLargeException",
    "franz-go": "MESSAGE_TOO_LARGE",
}
# … and an offset that is not in the log when no reset is allowed.
OUT_OF_RANGE = {
    "confluent-kafka": "_AUTO_OFFSET_RESET",
    "kafka-python": "OffsetOutOfRangeError",
    "aiokafka": "OffsetOutOfRangeError",
    "kcat": "Offset out of range",
    "kafkajs": "OFFSET_OUT_OF_RANGE",
    "java": "OffsetOutOfRangeException",
    "franz-go": "OFFSET_OUT_OF_RANGE",
}
# … and a topic that does not exist on a broker that creates none by itself. Where the client retries until its own
# limit, the name is that of a timeout.
UNKNOWN_TOPIC = {
    "confluent-kafka": "UNKNOWN_TOPIC_OR_PART",
    "kafka-python": "KafkaTimeoutError",
    "aiokafka": "UnknownTopicOrPartitionError",
    "kcat": "Unknown topic or partition",
    "kafkajs": "UNKNOWN_TOPIC_OR_PARTITION",
    "java": "TimeoutException",
    "franz-go": "UNKNOWN_TOPIC_OR_PARTITION",
}


@pytest.fixture(scope="module")
def strict_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that creates no topic by itself."""
    data_dir = tmp_path_factory.mktemp("strict") / "data"
    started = brokers.start_broker(data_dir, {"auto.create.topics.enable": "false"})
    yield started.bootstrap_servers
    started.stop()


def test_too_large_record_is_the_clients_own_error(
    client: ClientProgram, bootstrap: str, topic: str, create_topic: Create
) -> None:
    create_topic(client, topic)
    (refused,) = client.produce(bootstrap, topic, [record(b"key", incompressible(1_100_000))])
    assert refused["error"]["type"] == TOO_LARGE[client.name]
    assert refused["error"]["code"] == MESSAGE_TOO_LARGE
    # The refusal cost nothing: the next record is the first.
    small = record(b"key", b"small")
    assert "error" not in client.produce(bootstrap, topic, [small])[0]
    assert_same(client.consume(bootstrap, topic, 0, 1), [small])


def test_topics_own_limit_holds(client: ClientProgram, bootstrap: str, topic: str, create_topic: Create) -> None:
    create_topic(client, topic, max_message_bytes="2000")
    (accepted,) = client.produce(bootstrap, topic, [record(None, incompressible(1500))])
    assert "error" not in accepted
    (refused,) = client.produce(bootstrap, topic, [record(None, incompressible(2500))])
    assert refused["error"]["code"] == MESSAGE_TOO_LARGE


def test_writing_to_unknown_topic_creates_it(client: ClientProgram, bootstrap: str, topic: str) -> None:
    sent = record(b"first", b"of its topic")
    (result,) = client.produce(bootstrap, topic, [sent])
    assert "error" not in result
    assert_same(client.consume(bootstrap, topic, 0, 1), [sent])


def test_writing_to_unknown_topic_fails_where_none_is_created(
    client: ClientProgram, strict_bootstrap: str, topic: str
) -> None:
    try:
        (result,) = client.produce(strict_bootstrap, topic, [record(b"key", b"value")])
        error = result["error"]
    except ClientFailedError as failure:
        error = {"type": failure.type, "code": failure.code}
    assert error["type"] == UNKNOWN_TOPIC[client.name], error
    assert topic not in client.ask("list_topics", strict_bootstrap)["topics"]


def test_offset_out_of_range_resets_to_the_earliest(
    client: ClientProgram, bootstrap: str, topic: str, create_topic: Create
) -> None:
    create_topic(client, topic)
    sent = [record(None, b"%d" % i) for i in range(3)]
    client.produce(bootstrap, topic, sent)
    assert_same(client.consume(bootstrap, topic, 0, 3, start=1_000_000, reset="earliest"), sent)


def test_offset_out_of_range_is_an_error_without_reset(
    client: ClientProgram, bootstrap: str, topic: str, create_topic: Create
) -> None:
    create_topic(client, topic)
    client.produce(bootstrap, topic, [record(None, b"x")])
    with pytest.raises(ClientFailedError) as failure:
        client.consume(bootstrap, topic, 0, 1, start=1_000_000, reset="none", timeout_ms=10_000)
    assert failure.value.type == OUT_OF_RANGE[client.name], failure.value


def test_consumers_begin_at_a_timestamp(
    client: ClientProgram, bootstrap: str, topic: str, create_topic: Create, get_client: GetClient
) -> None:
    create_topic(client, topic)
    sent = [record(None, b"%d" % i, timestamp=FIRST_TIMESTAMP_MS + 1000 * i) for i in range(10)]
    writer = get_client("confluent-kafka") if "timestamp" in client.lacks else client
    writer.produce(bootstrap, topic, sent)
    start = {"timestamp": FIRST_TIMESTAMP_MS + 6500}
    assert_same(client.consume(bootstrap, topic, 0, 3, start=start), sent[7:], first_offset=7)


def test_reading_from_the_middle_of_a_batch(
    client: ClientProgram, bootstrap: str, topic: str, create_topic: Create
) -> None:
    create_topic(client, topic)
    sent = [record(None, b"%d" % i) for i in range(10)]
    client.produce(bootstrap, topic, sent, codec="gzip")
    assert_same(client.consume(bootstrap, topic, 0, 4, start=6), sent[6:], first_offset=6)


@pytest.mark.parametrize("stored", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_broker_recompresses_where_the_topic_asks(
    stored: str, bootstrap: str, topic: str, create_topic: Create, get_client: GetClient
) -> None:
    """The one place where the broker writes compressed data itself: every client must understand it."""
    writer = get_client("confluent-kafka")
    create_topic(writer, topic, compression_type=stored)
    sent = [record(b"%d" % i, b"value " * 50, [("h", b"x")], timestamp=FIRST_TIMESTAMP_MS + i) for i in range(20)]
    writer.produce(bootstrap, topic, sent, codec="none" if stored != "uncompressed" else "gzip")
    for name in install_test_clients.CLIENTS:
        assert_same(get_client(name).consume(bootstrap, topic, 0, len(sent)), sent)


def test_broker_stamps_records_where_the_topic_asks(
    bootstrap: str, topic: str, create_topic: Create, get_client: GetClient
) -> None:
    writer = get_client("confluent-kafka")
    create_topic(writer, topic, message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    records = [record(None, b"%d" % i, timestamp=FIRST_TIMESTAMP_MS) for i in range(3)]
    writer.produce(bootstrap, topic, records, codec="lz4")
    after = int(time.time() * 1000)
    for name in install_test_clients.CLIENTS:
        read = get_client(name).consume(bootstrap, topic, 0, len(records))
        assert len(read) == len(records)
        assert all(before <= each["timestamp"] <= after for each in read), (name, read)
    java = get_client("java")
    assert java.ask("list_offsets", bootstrap, topic=topic, partition=0, at=before)["offset"] == 0


def test_long_poll_wakes_on_new_data(
    client: ClientProgram, bootstrap: str, topic: str, create_topic: Create, get_client: GetClient
) -> None:
    create_topic(client, topic)
    writer = get_client("confluent-kafka" if client.name != "confluent-kafka" else "franz-go")
    writer.produce(bootstrap, topic, [record(None, b"before")])
    # A broker that responds only when the wait is over would let the reader's own limit pass first.
    client.begin_consume(bootstrap, topic, 0, 1, start="latest", max_wait_ms=60_000, timeout_ms=20_000)
    client.wait_for("waiting")
    sent = record(b"key", b"news")
    writer.produce(bootstrap, topic, [sent])
    assert_same(client.finish()["records"], [sent], first_offset=1)


def test_pipelined_batches_are_all_written(
    client: ClientProgram, bootstrap: str, topic: str, create_topic: Create
) -> None:
    create_topic(client, topic)
    count = 1000
    response = client.ask("stream", bootstrap, topic=topic, partition=0, count=count, interval_us=0, announce_after=-1)
    if client.name == "kafkajs":
        # It promises no order between `send`s that were not awaited; each must still be there once.
        assert sorted(response["offsets"]) == list(range(count))
    else:
        assert response["offsets"] == list(range(count))
    expected = [
        record(None, b"record-%06d" % i) for _, i in sorted(zip(response["offsets"], range(count), strict=True))
    ]
    assert_same(client.consume(bootstrap, topic, 0, count), expected)
