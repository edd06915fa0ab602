"""Files of a log that are missing after a clean stop: they are made again, and readers see what they saw before."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.node.storage.file_formats import TRANSACTION_INDEXES
from millstream.testing import EmbeddedBroker
from tests.waiting import TIMEOUT_SECONDS

TOPIC = "data"
PATTERNS = ["*.txnindex", "*.index", "*.timeindex", "*.snapshot", "leader-epoch-checkpoint", "*.[!l]*"]
"""The last one: everything but the segments' records."""
QUIET = {"log_level": 0}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(data_dir=tmp_path_factory.mktemp("missing") / "data") as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap_servers, **QUIET})
        config = {"segment.bytes": str(1 << 20), "index.interval.bytes": "100", "retention.ms": "-1"}
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(TIMEOUT_SECONDS)
        producer = Producer({"bootstrap.servers": running.bootstrap_servers, "transactional.id": "writer", **QUIET})
        producer.init_transactions(TIMEOUT_SECONDS)
        for number in range(30):
            producer.begin_transaction()
            word = "kept" if number % 2 else "aborted"
            for record in range(4):
                producer.produce(
                    TOPIC, f"{word} {number} {record} " + "x" * 50_000, timestamp=1_700_000_000_000 + number
                )
            producer.flush(TIMEOUT_SECONDS)
            if number % 2:
                producer.commit_transaction(TIMEOUT_SECONDS)
            else:
                producer.abort_transaction(TIMEOUT_SECONDS)
        yield running


def seen(broker: EmbeddedBroker) -> tuple[list[bytes | None], int]:
    """What a reader of committed records gets, and the offset that a time has."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "enable.partition.eof": True, **QUIET}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found = []
    while True:
        message = consumer.poll(TIMEOUT_SECONDS)
        assert message is not None
        if message.error():
            break
        found.append(message.value())
    (at,) = consumer.offsets_for_times([TopicPartition(TOPIC, 0, 1_700_000_000_015)], timeout=TIMEOUT_SECONDS)
    consumer.close()
    return found, at.offset


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_is_missing_is_made_again(broker: EmbeddedBroker, pattern: str) -> None:
    before = seen(broker)
    assert len(before[0]) == 60
    assert all((value or b"").startswith(b"kept") for value in before[0])
    broker.stop()
    directory: Path = broker.data_dir / f"{TOPIC}-0"
    assert len(list(directory.glob("*.log"))) > 3
    removed = [path for path in directory.glob(pattern) if path.name != "partition.metadata"]
    assert removed
    for path in removed:
        path.unlink()
    broker.start()
    assert seen(broker) == before
    # What was made again is there at the next start, too.
    broker.restart()
    assert seen(broker) == before


def test_an_index_that_is_missing_where_no_list_was_written(broker: EmbeddedBroker) -> None:
    """As in a directory of Apache Kafka, or of an older version: the first start finds it."""
    before = seen(broker)
    broker.stop()
    removed = list((broker.data_dir / f"{TOPIC}-0").glob("*.txnindex"))
    assert removed
    for path in (*removed, broker.data_dir / TRANSACTION_INDEXES):
        path.unlink()
    broker.start()
    assert (broker.data_dir / TRANSACTION_INDEXES).exists(), "the search is done once"
    assert seen(broker) == before
    assert all(path.exists() for path in removed)
