"""Logs and replicas as invariants see them, made up for tests."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID

from millstream.formats.records.record import Record, build_batch
from millstream.simulator.clients.transaction_tracker import NAME_HEADER
from millstream.simulator.invariants.observation import Batch, ObservedReplica, PartitionKey

COMMIT, ABORT = b"\x00\x00\x00\x01", b"\x00\x00\x00\x00"


def stored(data: bytes | bytearray) -> Batch:
    batch = Batch(0, 0, 0, 0, bytes(data))
    header = batch.header
    return Batch(header.base_offset, header.last_offset, header.leader_epoch, header.crc, bytes(data))


def plain(offset: int, key: str | None, value: str | None) -> Batch:
    return stored(build_batch([_record(key, value, "")], base_offset=offset, leader_epoch=1))


def written(
    offset: int, *identities: str, producer_id: int = 7, key: str | None = None, value: str | None = ""
) -> Batch:
    """Records of a transaction; each is known by an identity."""
    records = [_record(key, identity if value == "" else value, identity) for identity in identities]
    return stored(
        build_batch(
            records,
            base_offset=offset,
            leader_epoch=1,
            producer_id=producer_id,
            producer_epoch=1,
            base_sequence=0,
            transactional=True,
        )
    )


def marker(offset: int, kind: bytes, producer_id: int = 7) -> Batch:
    return stored(
        build_batch(
            [Record(kind, b"\x00" * 6)],
            base_offset=offset,
            leader_epoch=1,
            producer_id=producer_id,
            producer_epoch=1,
            transactional=True,
            control=True,
        )
    )


def _record(key: str | None, value: str | None, identity: str) -> Record:
    headers = ((NAME_HEADER, identity.encode()),) if identity else ()
    return Record(
        key.encode() if key is not None else None, value.encode() if value is not None else None, headers, timestamp=5
    )


class StoredLog:
    """A log of these batches."""

    def __init__(self, *batches: Batch) -> None:
        self._batches = batches
        self.start = 0

    @property
    def end(self) -> int:
        return self._batches[-1].last_offset + 1 if self._batches else 0

    @property
    def size(self) -> int:
        return sum(len(batch.data) for batch in self._batches)

    def batches(self, offset: int, below: int) -> Iterable[Batch]:
        return [batch for batch in self._batches if batch.last_offset >= offset and batch.last_offset < below]


def replica(topic: str, log: StoredLog, partition: int = 0, **fields: Any) -> ObservedReplica:
    made = ObservedReplica(
        1,
        1,
        PartitionKey(UUID(int=sum(topic.encode())), partition),
        f"{topic}-{partition}",
        topic,
        leader_epoch=1,
        is_leader=True,
        high_watermark=log.end,
        log=log,
        last_stable_offset=log.end,
    )
    return replace(made, **fields)
