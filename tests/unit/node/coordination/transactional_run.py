"""A group shard whose log has transactions: real batches, read back as the runtime does, and what a cleaner leaves."""

from dataclasses import dataclass, field
from typing import Any

from millstream.formats.model.identifiers import ProducerIdentity
from millstream.formats.records.batch import (
    CONTROL_BIT,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_V2,
    TRANSACTIONAL_BIT,
    seal,
)
from millstream.formats.records.record import Record, build_batch
from millstream.node.coordination.core.state_machine import CoordinatorRecord, CoordinatorResult
from millstream.node.coordination.replay import replay_batches
from tests.unit.node.coordination.consumer_run import ConsumerRun
from tests.unit.node.coordination.replaying import finished
from tests.unit.node.coordination.shard_run import message


@dataclass
class Logged:
    """One batch: records with their offsets, or the marker of a transaction."""

    first_offset: int
    last_offset: int
    records: list[tuple[int, CoordinatorRecord]] = field(default_factory=list)
    producer: ProducerIdentity | None = None
    marker: bool | None = None

    def encoded(self) -> bytearray:
        options: dict[str, Any] = {}
        if self.producer is not None:
            options = {
                "producer_id": self.producer.producer_id,
                "producer_epoch": self.producer.epoch,
                "transactional": True,
            }
        if self.marker is not None:
            rows = [Record(key=bytes((0, 0, 0, self.marker)), value=bytes(6), timestamp=0)]
            return build_batch(rows, base_offset=self.first_offset, control=True, **options)
        if not self.records:
            return self._without_records()
        rows = [Record(key=key, value=value, timestamp=0, offset=at) for at, (key, value) in self.records]
        return build_batch(rows, base_offset=self.first_offset, **options)

    def _without_records(self) -> bytearray:
        """What the cleaner keeps of a batch for its sequence or offset alone."""
        batch = bytearray(HEADER_SIZE)
        attributes, producer = 0, ProducerIdentity(-1, -1)
        if self.producer is not None:
            attributes, producer = TRANSACTIONAL_BIT | (CONTROL_BIT if self.marker is not None else 0), self.producer
        HEADER.pack_into(
            batch, 0, self.first_offset, HEADER_SIZE - LOG_OVERHEAD, 0, MAGIC_V2, 0, attributes,
            self.last_offset - self.first_offset, 0, 0, producer.producer_id, producer.epoch, -1, 0,
        )  # fmt: skip
        seal(batch, 0, HEADER_SIZE)
        return batch


class TransactionalRun(ConsumerRun):
    def __init__(self, seed: int = 1, **settings: Any) -> None:
        self.batches: list[Logged] = []
        self.end = 0
        super().__init__(seed, **settings)

    def _write(self, outcome: CoordinatorResult[Any]) -> None:
        producer = outcome.producer
        if producer is None:
            super()._write(outcome)
            self._log(outcome, None)
            return
        self._log(outcome, producer)
        for key, value in outcome.records:
            self.shard.replay_pending(producer.producer_id, producer.epoch, key, value)

    def _log(self, outcome: CoordinatorResult[Any], producer: ProducerIdentity | None) -> None:
        if outcome.records:
            records = list(enumerate(outcome.records, self.end))
            self.batches.append(Logged(self.end, self.end + len(records) - 1, records, producer))
            self.end += len(records)

    def commit_in_transaction(
        self,
        producer_id: int,
        offsets: dict[tuple[str, int], int],
        *,
        epoch: int = 0,
        group: str = "g",
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
        metadata: str | None = "",
    ) -> dict[tuple[str, int], int]:
        """The error code of each partition."""
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, partition), offset in offsets.items():
            row = {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
            topics.setdefault(topic, []).append(row)
        request = message(
            "txn_offset_commit",
            transactional_id="t",
            group_id=group,
            producer_id=producer_id,
            producer_epoch=epoch,
            member_id=member,
            generation_id=generation,
            group_instance_id=instance,
            topics=[{"name": name, "partitions": rows} for name, rows in topics.items()],
        )
        response = self.run(lambda shard, now_ms: shard.offsets.commit_in_transaction(request, now_ms))
        return {
            (topic["name"], row["partition_index"]): row["error_code"]
            for topic in response["topics"]
            for row in topic["partitions"]
        }

    def end_transaction(self, producer_id: int, committed: bool, epoch: int = 0) -> None:
        self.batches.append(Logged(self.end, self.end, [], ProducerIdentity(producer_id, epoch), committed))
        self.end += 1
        self.shard.end_transaction(producer_id, committed)

    def delete_offset(self, topic: str, partition: int, group: str = "g") -> int:
        rows = [{"name": topic, "partitions": [{"partition_index": partition}]}]
        request = message("offset_delete", group_id=group, topics=rows)
        response = self.run(lambda shard, now_ms: shard.offsets.delete(request, now_ms))
        return int(response["topics"][0]["partitions"][0]["error_code"])

    def stable(self, group: str, *wanted: tuple[str, int]) -> dict[tuple[str, int], tuple[int, int]]:
        """Error code and offset of each, as a consumer sees them who does not want to see what may change."""
        topics = [{"name": topic, "partition_indexes": [index]} for topic, index in wanted]
        request = message("offset_fetch", group_id=group, topics=topics)
        response = self.shard.offsets.fetch(request, 7, require_stable=True)
        return {
            (topic["name"], row["partition_index"]): (row["error_code"], row["committed_offset"])
            for topic in response["topics"]
            for row in topic["partitions"]
        }

    def restart(self) -> None:
        self.shard = self._new_shard()
        data = b"".join(batch.encoded() for batch in self.batches)
        assert finished(replay_batches(data, 0, self.shard, self.shard)) == (
            self.batches[-1].last_offset + 1 if data else 0
        )
        self.shard.replayed()
        self.shard.loaded(self.now_ms)

    # The cleaner

    def clean(self, *, keeps_empty_batches: bool, keeps_markers: bool, keeps_tombstones: bool) -> None:
        """Compacts what is before the first open transaction, as much as a cleaner may."""
        outcomes = self._outcomes()
        stable_end = min((batch.first_offset for batch in self._open(outcomes)), default=self.end)
        last: dict[bytes, int] = {}
        for batch in self.batches:
            if batch.first_offset < stable_end and outcomes.get(id(batch), True):
                last.update((record.key, at) for at, record in batch.records)
        remaining: list[Logged] = []
        for batch in self.batches:
            if batch.first_offset < stable_end and batch.marker is None:
                batch.records = [
                    (at, record)
                    for at, record in batch.records
                    if last.get(record.key) == at
                    and outcomes.get(id(batch), True)
                    and (keeps_tombstones or record.value is not None)
                ]
                if not batch.records and not keeps_empty_batches:
                    continue
            remaining.append(batch)
        self.batches = remaining
        if not keeps_markers:
            self.batches = [batch for batch in remaining if batch.marker is None or self._has_records(batch)]

    def _transactions(self) -> list[tuple[list[Logged], Logged | None]]:
        """The data batches of each transaction, and its marker unless it is open."""
        found: list[tuple[list[Logged], Logged | None]] = []
        open_ones: dict[int, list[Logged]] = {}
        for batch in self.batches:
            if batch.producer is None:
                continue
            if batch.marker is None:
                open_ones.setdefault(batch.producer.producer_id, []).append(batch)
            else:
                found.append((open_ones.pop(batch.producer.producer_id, []), batch))
        return [*found, *((batches, None) for batches in open_ones.values())]

    def _outcomes(self) -> dict[int, bool]:
        return {
            id(batch): bool(marker is not None and marker.marker)
            for batches, marker in self._transactions()
            for batch in batches
        }

    def _open(self, outcomes: dict[int, bool]) -> list[Logged]:
        return [batch for batches, marker in self._transactions() if marker is None for batch in batches]

    def _has_records(self, marker: Logged) -> bool:
        return any(found is marker and any(each.records for each in batches) for batches, found in self._transactions())
