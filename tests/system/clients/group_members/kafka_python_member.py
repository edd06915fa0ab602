"""kafka-python as a member of a group; see README.md."""

from __future__ import annotations

from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.errors import KafkaError
from member_protocol import BOOTSTRAP, GROUP, OPTIONS, STOPPED, TOPIC, tell_assigned, tell_record

ASSIGNORS = {"range": [RangePartitionAssignor], "roundrobin": [RoundRobinPartitionAssignor]}


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def on_partitions_revoked(self, revoked: Any) -> None:
        tell_assigned([])

    def on_partitions_assigned(self, assigned: Any) -> None:
        tell_assigned(each.partition for each in assigned)


def main() -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=BOOTSTRAP,
        group_id=GROUP,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        partition_assignment_strategy=ASSIGNORS[OPTIONS.get("strategy", "range")],
        session_timeout_ms=OPTIONS.get("session_ms", 10_000),
        heartbeat_interval_ms=300,
        reconnect_backoff_max_ms=500,
    )
    consumer.subscribe([TOPIC], listener=Listener())
    while not STOPPED.is_set():
        batches = consumer.poll(timeout_ms=100, max_records=50)
        for partition, records in batches.items():
            for record in records:
                tell_record(partition.partition, record.offset, record.value)
        if batches:
            try:
                consumer.commit()
            except KafkaError:
                pass  # a rebalance or a restart: the next owner of the partition reads these records again
    consumer.close()


main()
