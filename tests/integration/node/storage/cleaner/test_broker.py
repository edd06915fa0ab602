"""The cleaner in a broker: throttled, stopped and killed in the middle of a pass, and let go while it works."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from millstream.testing import EmbeddedBroker
from tests.waiting import TIMEOUT_SECONDS

TOPIC = "compacted"
KEYS = 40
RECORDS = 1200
SETTINGS = {
    "log.cleaner.backoff.ms": 100,
    "log.cleaner.io.max.bytes.per.second": 200_000,
    "log.cleaner.io.buffer.size": 32768,
}


def eventually(condition: Callable[[], bool], seconds: float = TIMEOUT_SECONDS) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def fill(broker: EmbeddedBroker) -> dict[bytes | None, bytes | None]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    config = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
    for future in admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)]).values():
        future.result()
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 20_000})
    latest: dict[bytes | None, bytes | None] = {}
    for number in range(RECORDS):
        key, value = b"%d" % (number % KEYS), b"%d " % number * 800
        producer.produce(TOPIC, value, key)
        latest[key] = value
    assert producer.flush(TIMEOUT_SECONDS) == 0
    return latest


def read(broker: EmbeddedBroker) -> dict[bytes | None, bytes | None]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader"})
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=TIMEOUT_SECONDS)
        assert end == RECORDS
        latest: dict[bytes | None, bytes | None] = {}
        while True:
            message = consumer.poll(TIMEOUT_SECONDS)
            assert message is not None
            assert message.error() is None
            latest[message.key()] = message.value()
            if message.offset() == end - 1:
                return latest
    finally:
        consumer.close()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_pass_of_the_cleaner_survives_its_interruption(end: str, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    partition = data_dir / f"{TOPIC}-0"
    with EmbeddedBroker(SETTINGS, data_dir=data_dir) as broker:
        latest = fill(broker)
        assert eventually(lambda: any(partition.glob("*.cleaned")))
        assert read(broker) == latest
        broker.kill() if end == "kill" else broker.stop()
        broker.start()
        assert read(broker) == latest
        # Without the throttle it gets on; the setting counts at once.
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        entry = ConfigEntry("log.cleaner.io.max.bytes.per.second", "1e9", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result()
        checkpoint = data_dir / "cleaner-offset-checkpoint"
        assert eventually(lambda: checkpoint.exists() and f"{TOPIC} 0 " in checkpoint.read_text())
        assert eventually(lambda: not any(partition.glob("*.cleaned")))
        assert read(broker) == latest
    assert sum(path.stat().st_size for path in partition.glob("*.log")) < RECORDS * 3200 // 2
