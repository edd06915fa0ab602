"""The metadata of large clusters, in virtual time with measured costs: `python -m benchmarks.scaling.large_clusters`.

The controller's decisions are the real ones (`node/metadata`), on the metadata of clusters up to hundreds of brokers.
Their CPU time is measured on this machine. What it has no machines for is computed: the records go to each broker over
the controller's link, and a commit is one fsync and one round trip (`LINK_BYTES_PER_SECOND` and others below). So it
says what grows, and which limit comes first. It is no measurement of a cluster.

The cluster has three replicas of each partition, ten partitions of each topic, two brokers on each machine, and about
167 partitions for each broker: 10,000 of them with 60 brokers.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar
from uuid import UUID

from millstream.admin.balance import BrokerSlot, PartitionLoad, plan_balance
from millstream.config.loading import load_broker_config
from millstream.formats.model.identifiers import BrokerId
from millstream.node.metadata.brokers import (
    Heartbeat,
    RegistrationRequest,
    fence_broker,
    process_heartbeat,
    register_broker,
    unfence_broker,
)
from millstream.node.metadata.features import missing_features
from millstream.node.metadata.image import MetadataImage, apply
from millstream.node.metadata.records import Endpoint, MetadataRecord, encode_record
from millstream.node.metadata.snapshot import snapshot_records
from millstream.node.metadata.topics import NewTopic, create_topics

LINK_BYTES_PER_SECOND = 125e6
ROUND_TRIP_SECONDS = 0.0005
FSYNC_SECONDS = 0.002
REQUEST_SECONDS = 60e-6
"""CPU of a small request, as the benchmark of small requests measures it."""
HEARTBEATS_PER_SECOND = 2.0
METADATA_FETCHES_PER_SECOND = 2.0
"""An idle broker fetches the metadata log twice a second."""
PARTITIONS_PER_BROKER = 10_000 / 60
PARTITIONS_PER_TOPIC = 10
PROCESSES = 2
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One size of a cluster. Times are in milliseconds."""

    brokers: int
    partitions: int
    snapshot_bytes: int
    create_ms: float
    """One topic: decision, commit, and its records at all brokers."""
    death_records: int
    death_ms: float
    """A machine dies, all its partitions have other leaders, and every broker knows it; without its detection."""
    death_traffic_bytes: int
    idle_share: float
    """Share of a core that the controller needs for heartbeats and metadata fetches."""
    balance_s: float
    """CPU of the plan after a machine was added."""
    balance_moves: int


def timed(call: Callable[[], T]) -> tuple[T, float]:
    begun = time.process_time()
    result = call()
    return result, time.process_time() - begun


class Model:
    def __init__(self, brokers: int) -> None:
        self.config = load_broker_config(overrides=["default.replication.factor=3", "min.insync.replicas=2"])
        self.image = MetadataImage(cluster_id="4L6g3nShT-eMCtK--X86sw")
        self.offset = 0
        self.brokers = brokers
        self.write(missing_features(self.image))
        for number in range(brokers):
            self.add(number)

    def add(self, number: int) -> None:
        machine, process = number // PROCESSES, number % PROCESSES
        request = RegistrationRequest(
            broker_id=BrokerId(1 + machine + 1000 * process),
            incarnation_id=UUID(int=10_000 + number),
            cluster_id=self.image.cluster_id,
            end_points=(Endpoint(name="PLAINTEXT", host=f"machine{machine}.example", port=9092 + process),),
            log_dirs=(UUID(int=20_000 + number),),
            machine_id=f"machine-{1 + machine}",
        )
        self.write(register_broker(self.image, request, self.config, next_offset=self.offset).records)
        self.write(unfence_broker(self.image, request.broker_id, self.config).records)

    def write(self, records: Sequence[MetadataRecord]) -> int:
        """Applies the records; returns their bytes."""
        self.offset += len(records)
        self.image, _ = apply(self.image, records, offset=self.offset - 1, epoch=1)
        return sum(len(encode_record(record)) for record in records)

    def create(self, name: str, random: Random) -> Sequence[MetadataRecord]:
        topic = NewTopic(name=name, partition_count=PARTITIONS_PER_TOPIC)
        return create_topics(self.image, [topic], self.config, random).records

    def spread_s(self, size: int) -> float:
        """The time until a commit of so many bytes is at all brokers."""
        return FSYNC_SECONDS + ROUND_TRIP_SECONDS + size * self.brokers / LINK_BYTES_PER_SECOND


def measure(brokers: int) -> Row:
    model, random = Model(brokers), Random(1)
    topics = round(brokers * PARTITIONS_PER_BROKER / PARTITIONS_PER_TOPIC)
    for number in range(topics):
        model.write(model.create(f"topic-{number}", random))
    records, decided_s = timed(lambda: model.create("one-more", random))
    size, applied_s = timed(lambda: model.write(records))
    create_s = decided_s + applied_s + model.spread_s(size)
    snapshot = sum(len(encode_record(record)) for record in snapshot_records(model.image))
    beat = Heartbeat(
        broker_id=BrokerId(1),
        broker_epoch=model.image.brokers[BrokerId(1)].epoch,
        current_metadata_offset=model.offset - 1,
    )
    _, beats_s = timed(
        lambda: [process_heartbeat(model.image, beat, model.config, others_caught_up=True) for _ in range(200)]
    )
    idle = brokers * (
        HEARTBEATS_PER_SECOND * (REQUEST_SECONDS + beats_s / 200) + METADATA_FETCHES_PER_SECOND * REQUEST_SECONDS
    )
    model.add(brokers)
    model.add(brokers + 1)
    slots = [BrokerSlot(id=each.id, machine=each.machine) for each in model.image.brokers.values()]
    loads = [
        PartitionLoad(topic=topic.name, partition=number, replicas=state.replicas, size_bytes=1 << 30)
        for topic in model.image.topics.values()
        for number, state in enumerate(topic.partitions)
    ]
    plan, balance_s = timed(lambda: plan_balance(slots, loads))
    death_records, death_s, death_bytes = 0, 0.0, 0
    for process in range(PROCESSES):
        dying = BrokerId(1 + 1000 * process)
        decision, decided_s = timed(lambda dying=dying: fence_broker(model.image, dying, model.config))  # type: ignore[misc]
        size, applied_s = timed(lambda decision=decision: model.write(decision.records))  # type: ignore[misc]
        death_records += len(decision.records)
        death_bytes += size * brokers
        death_s += decided_s + applied_s + model.spread_s(size)
    return Row(
        brokers=brokers,
        partitions=len(loads),
        snapshot_bytes=snapshot,
        create_ms=create_s * 1000,
        death_records=death_records,
        death_ms=death_s * 1000,
        death_traffic_bytes=death_bytes,
        idle_share=idle,
        balance_s=balance_s,
        balance_moves=len(plan),
    )


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    lines = [
        "| brokers | partitions | snapshot | new topic | machine dies: records | all know it after | traffic of that |"
        " controller when idle | plan of a balance | its moves |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.brokers} | {row.partitions:,} | {row.snapshot_bytes / 1e6:.1f} MB | {row.create_ms:.1f} ms |"
            f" {row.death_records:,} | {row.death_ms:.0f} ms | {row.death_traffic_bytes / 1e6:.1f} MB |"
            f" {row.idle_share:.1%} of a core | {row.balance_s:.1f} s | {row.balance_moves:,} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="The metadata of large clusters, in virtual time.")
    parser.add_argument("brokers", nargs="*", type=int, help="numbers of brokers [default: 6 20 60 200]")
    chosen: list[int] = parser.parse_args().brokers or [6, 20, 60, 200]
    rows = []
    for brokers in chosen:
        if brokers < 6 or brokers % PROCESSES:
            parser.error(f"{brokers}: write even numbers from 6 on; each machine has {PROCESSES} brokers")
        rows.append(measure(brokers))
    print(table(rows))


if __name__ == "__main__":
    main()
