"""How the records of a decision are cut into batches of the metadata log, each of which is in force as a whole."""

from collections.abc import Iterable, Iterator, Sequence

from millstream.node.metadata.records import ConfigRecord, MetadataRecord, PartitionRecord, TopicRecord

MAX_BATCH_RECORDS = 10_000
MAX_BATCH_BYTES = 8 << 20
"""Kafka's bounds: followers fetch whole batches."""
_FIXED_BYTES = 128
_BYTES_PER_REPLICA = 32


def cut_into_batches(records: Sequence[MetadataRecord]) -> Iterator[Sequence[MetadataRecord]]:
    """A topic stays in one batch with its partitions and settings, whatever its size: half a topic must never be."""
    if len(records) <= MAX_BATCH_RECORDS and _size(records) <= MAX_BATCH_BYTES:
        yield records
        return
    batch: list[MetadataRecord] = []
    size = 0
    for group in _groups(records):
        more = _size(group)
        if batch and (len(batch) + len(group) > MAX_BATCH_RECORDS or size + more > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch += group
        size += more
    if batch:
        yield batch


def _groups(records: Iterable[MetadataRecord]) -> Iterator[list[MetadataRecord]]:
    group: list[MetadataRecord] = []
    for record in records:
        belongs = group and isinstance(group[0], TopicRecord) and isinstance(record, PartitionRecord | ConfigRecord)
        if group and not belongs:
            yield group
            group = []
        group.append(record)
    if group:
        yield group


def _size(records: Iterable[MetadataRecord]) -> int:
    """About how many bytes they take."""
    total = 0
    for record in records:
        total += _FIXED_BYTES
        if isinstance(record, PartitionRecord):
            total += _BYTES_PER_REPLICA * len(record.replicas)
        elif isinstance(record, ConfigRecord):
            total += len(record.resource_name) + len(record.name) + 3 * len(record.value or "")
    return total
