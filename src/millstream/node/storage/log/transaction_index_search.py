"""Which segments must have a transaction index, in a directory without a list of them.

The list (`transaction-index-checkpoint`) is Millstream's own: a directory that Apache Kafka or an older version wrote
has none. A lost index looks like a segment in which nothing was aborted, so the segments themselves are searched for
abort markers, once. That reads a header of every batch, so it is done only where a producer snapshot names a producer
that has ended or begun a transaction.
"""

import logging
from collections.abc import Iterable

from millstream.formats.model.identifiers import TopicPartition
from millstream.node.storage.checkpoint import DamagedFileError
from millstream.node.storage.disk import Disk
from millstream.node.storage.file_names import LOG_SUFFIX, SNAPSHOT_SUFFIX, TRANSACTION_INDEX_SUFFIX, offset_file
from millstream.node.storage.log.batch_scan import walk_headers
from millstream.node.storage.log.log_files import LogFiles, scan_files
from millstream.node.storage.log.producer_snapshot import decode_snapshot
from millstream.node.storage.log.producer_state import NO_EPOCH, NO_TRANSACTION
from millstream.node.storage.log.transaction_marker import read_marker

logger = logging.getLogger("millstream.storage")


def find_transaction_indexes(
    disk: Disk, root: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, list[int]] | None:
    """For each partition the segments that have a transaction index or must have one; None if a log cannot be read."""
    found: dict[TopicPartition, list[int]] = {}
    for partition in sorted(partitions):
        try:
            files = scan_files(disk, f"{root}/{partition}")
            bases = _with_index(disk, files)
        except OSError as error:
            logger.error("transaction_indexes_not_listed partition=%s error=%s", partition, error)
            return None
        if bases:
            found[partition] = bases
    return found


def _with_index(disk: Disk, files: LogFiles) -> list[int]:
    has_transactions = any(_names_transactions(disk, files.directory, offset) for offset in files.snapshots)
    return [
        base
        for base in files.bases
        if files.has(base, TRANSACTION_INDEX_SUFFIX)
        or (has_transactions and _has_abort(disk, offset_file(files.directory, base, LOG_SUFFIX)))
    ]


def _names_transactions(disk: Disk, directory: str, offset: int) -> bool:
    """Whether a snapshot names a producer that has ended or begun a transaction. One that is damaged may have."""
    try:
        entries = decode_snapshot(disk.read_bytes(offset_file(directory, offset, SNAPSHOT_SUFFIX)))
    except DamagedFileError:
        return True
    return any(each.coordinator_epoch != NO_EPOCH or each.transaction_start != NO_TRANSACTION for each in entries)


def _has_abort(disk: Disk, path: str) -> bool:
    file = disk.open(path)
    for position, header in walk_headers(file, 0, file.size()):
        if header.is_control:
            marker = read_marker(file.read_at(position, header.size))
            if marker is not None and not marker.committed:
                return True
    return False
