"""Looks through the metadata of a data directory before a node changes anything in it.

A node that cannot read its metadata must not start: as the only voter it would elect itself, write behind what it did
not understand, and make it unreadable for the program that wrote it. So everything is looked at first, and nothing is
written here. ConfigError names the file and what to do.

The checksum of a batch does not cover its offset and its epoch. They are checked against the batches around them.
"""

from collections.abc import Iterator

from millstream.formats.model.errors import KafkaError
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.formats.records.batch import HEADER_SIZE, BatchHeader, has_valid_checksum, is_plausible, read_header
from millstream.formats.records.record import iterate_records
from millstream.node.consensus.quorum.control_records import decode_control
from millstream.node.consensus.quorum.metadata_log import unreadable
from millstream.node.consensus.quorum.quorum_state import QuorumStateFile
from millstream.node.consensus.quorum.snapshots import Snapshots
from millstream.node.metadata.records import CorruptMetadataError, check_known
from millstream.node.metadata.topic_names import CLUSTER_METADATA_TOPIC
from millstream.node.storage.checkpoint import DamagedFileError, decode_offsets
from millstream.node.storage.disk import Disk
from millstream.node.storage.file_names import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LOG_SUFFIX,
    offset_file,
    parse_offset_file,
)

_PARTITION = TopicPartition(TopicName(CLUSTER_METADATA_TOPIC), 0)


def inspect_metadata(disk: Disk, root: str) -> None:
    """ConfigError if the metadata in this data directory is damaged, or has records that this version does not know."""
    directory = f"{root}/{_PARTITION}"
    if not disk.exists(directory):
        return
    try:
        _inspect(disk, root, directory)
    except (CorruptMetadataError, OSError) as error:
        raise unreadable(directory, error) from None


def _inspect(disk: Disk, root: str, directory: str) -> None:
    state = QuorumStateFile(disk, directory).read()
    snapshots = Snapshots(disk, directory)
    snapshots.find()
    for snapshot in snapshots.ids:
        snapshots.check(snapshot)
    bases = sorted(
        found[0]
        for name, is_directory in disk.list(directory)
        if not is_directory and (found := parse_offset_file(name)) is not None and found[1] == LOG_SUFFIX
    )
    must_be_whole = disk.exists(f"{root}/{CLEAN_SHUTDOWN}")
    end, epoch = bases[0] if bases else 0, -1
    for base in bases:
        path = offset_file(directory, base, LOG_SUFFIX)
        end, epoch, complaint = _inspect_segment(path, disk.read_bytes(path), base, end, epoch)
        if not complaint:
            continue
        # After a crash the last batches may be cut off or missing: recovery removes them. What is known to have counted
        # must be there, in the log or in a snapshot.
        latest = snapshots.latest
        if must_be_whole or max(end, latest.offset if latest is not None else 0) < _committed(disk, root):
            raise CorruptMetadataError(complaint)
        break
    if state is not None and epoch > state.leader_epoch:
        raise CorruptMetadataError(
            f"its last epoch is {epoch}, but the file quorum-state knows none after {state.leader_epoch}"
        )


def _inspect_segment(path: str, data: bytes, base: int, end: int, epoch: int) -> tuple[int, int, str]:
    """Where the log ends with this segment, its last epoch, and what is wrong, if something is."""
    position = 0
    if base != end and data:
        return end, epoch, f"{path} begins at offset {base}, but the segment before it ends at {end}"
    for position, header, content in _batches(data):
        if header is None:
            return end, epoch, f"{path} has no whole batch at byte {position} (offset {end})"
        if header.base_offset != end:
            return end, epoch, f"{path} has offset {header.base_offset} at byte {position}, where {end} should be"
        if header.leader_epoch < epoch:
            return end, epoch, f"{path} goes back from epoch {epoch} to {header.leader_epoch} at byte {position}"
        if header.leader_epoch > epoch >= 0 and not header.is_control:
            return end, epoch, f"{path} has epoch {header.leader_epoch} at byte {position}, without a leader's record"
        _inspect_records(f"{path} at byte {position}", header, content)
        end, epoch = header.last_offset + 1, header.leader_epoch
    return end, epoch, ""


def _batches(data: bytes) -> Iterator[tuple[int, BatchHeader | None, memoryview]]:
    """(position, header, bytes) of each batch; the last has no header if what is there is no whole, sound batch."""
    position, view = 0, memoryview(data)
    while position < len(data):
        header = read_header(data, position) if len(data) - position >= HEADER_SIZE else None
        if (
            header is None
            or not is_plausible(header)
            or position + header.size > len(data)
            or not has_valid_checksum(data, position, header)
        ):
            yield position, None, view[:0]
            return
        yield position, header, view[position : position + header.size]
        position += header.size


def _inspect_records(where: str, header: BatchHeader, content: memoryview) -> None:
    try:
        for record in iterate_records(header, content):
            if header.is_control:
                decode_control(record)
            else:
                check_known(record.value or b"")
    except KafkaError as error:
        raise CorruptMetadataError(f"{where}: {error.message}") from None
    except CorruptMetadataError as error:
        raise CorruptMetadataError(f"{where}: {error}") from None


def _committed(disk: Disk, root: str) -> int:
    try:
        return decode_offsets(disk.read_bytes(f"{root}/{HIGH_WATERMARKS}")).get(_PARTITION, 0)
    except (FileNotFoundError, DamagedFileError):
        return 0
