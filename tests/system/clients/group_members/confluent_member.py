"""confluent-kafka (librdkafka) as a member of a group; see README.md."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from member_protocol import BOOTSTRAP, GROUP, OPTIONS, STOPPED, TOPIC, tell_assigned, tell_record

held: set[int] = set()


def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
    held.update(each.partition for each in partitions)
    tell_assigned(held)


def revoked(consumer: Consumer, partitions: list[TopicPartition]) -> None:
    held.difference_update(each.partition for each in partitions)
    tell_assigned(held)


def main() -> None:
    settings = {
        "bootstrap.servers": BOOTSTRAP,
        "group.id": GROUP,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": OPTIONS.get("strategy", "range,roundrobin"),
        "session.timeout.ms": OPTIONS.get("session_ms", 45_000),
        "heartbeat.interval.ms": 300,
        "reconnect.backoff.max.ms": 500,
    }
    if "group_protocol" in OPTIONS:
        settings["group.protocol"] = OPTIONS["group_protocol"]
        for name in ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"):
            del settings[name]
    if "instance" in OPTIONS:
        settings["group.instance.id"] = OPTIONS["instance"]
    consumer = Consumer(settings)
    consumer.subscribe([TOPIC], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
    while not STOPPED.is_set():
        messages = consumer.consume(50, timeout=0.1)
        for message in messages:
            error = message.error()
            if error is None:
                tell_record(message.partition(), message.offset(), message.value())
            elif error.fatal():
                raise KafkaException(error)
        if any(message.error() is None for message in messages):
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as failure:
                # A rebalance or a broker that restarts: the next owner of the partition reads these records again.
                if failure.args[0].fatal() or failure.args[0].code() == KafkaError._FATAL:
                    raise
    consumer.close()


main()
