"""Making the log of a branch: a log that begins with the records of another log, the parent, up to an offset.

Closed segments never change, so both logs have the same files under two names (hard links): nothing is copied, and each
log may delete its name. Only the segment in which the offset lies is copied up to there, unless it can be closed first.
A log that has to change a shared file copies it before (`files.own`), and never appends to one.

First, in one turn of the event loop, all names are made in a folder `<partition>.<topic id>-branch`. From then on it
does not matter what happens to the parent, not even its deletion. Then a thread copies the part of a segment and brings
everything to stable storage. At last the folder gets the name of the partition. What a crash leaves:
- without the file `.branch`: the parent is as it was. The folder is removed, and everything is made again.
- with it: the folder has all names, and the rest is done again.
"""

import logging
from typing import NamedTuple
from uuid import UUID

from millstream.formats.model.identifiers import TopicPartition
from millstream.node.storage.disk import Disk, Job
from millstream.node.storage.file_formats import (
    BRANCH,
    BRANCH_DIRECTORY_SUFFIX,
    LEADER_EPOCHS,
    LOG_SUFFIX,
    PARTITION_METADATA,
    SNAPSHOT_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    BranchFile,
    encode_branch,
    encode_epochs,
    encode_topic_id,
    offset_file,
    retired_directory,
)
from millstream.node.storage.index.time_index import IndexBuilder
from millstream.node.storage.index.transaction_index import write_index
from millstream.node.storage.log.batch_scan import walk_headers
from millstream.node.storage.log.earlier_batches import EARLIER_BATCHES, encode_batches, tiered_up_to
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.node.storage.log.producer_snapshots import encode_snapshot
from millstream.node.storage.log.segment import Segment

_log = logging.getLogger("millstream.storage")

_PART_SUFFIX = ".part"
"""Of the second name of the segment that is copied."""


class LogBranch(NamedTuple):
    """The log of a branch that is being made, in a folder of its own."""

    folder: str
    file: BranchFile
    cleaned_offset: int = 0
    transaction_indexes: tuple[int, ...] = ()

    @property
    def partition(self) -> TopicPartition:
        return self.file.partition

    def finish(self, disk: Disk) -> Job:
        """Copy the part of a segment, and bring everything to stable storage."""
        return Job(f"make_branch partition={self.partition}", lambda: self._finish(disk))

    def _finish(self, disk: Disk) -> None:
        if self.file.part_base >= 0:
            path = offset_file(self.folder, self.file.part_base, LOG_SUFFIX)
            if disk.exists(path + _PART_SUFFIX):
                disk.copy(path + _PART_SUFFIX, path, self.file.part_bytes)
                builder = IndexBuilder(self.file.part_base)
                for position, header in walk_headers(disk.open(path), 0, self.file.part_bytes):
                    builder.add(position, header)
                builder.write(disk, self.folder)
                disk.remove(path + _PART_SUFFIX)
        for name in (PARTITION_METADATA, LEADER_EPOCHS, BRANCH):
            disk.open(f"{self.folder}/{name}").sync()
        disk.sync_directory(self.folder)
        disk.sync_directory(self.folder.rpartition("/")[0])


def branch_folder(root: str, partition: TopicPartition, topic_id: UUID) -> str:
    return f"{root}/{retired_directory(partition, topic_id.hex, BRANCH_DIRECTORY_SUFFIX)}"


def begin_branch(
    parent: PartitionLog, root: str, partition: TopicPartition, topic_id: UUID, offset: int, now_ms: int
) -> LogBranch:
    """Make all names of the log of a branch, in a folder of the log directory `root`, which has the parent too.

    If the parent's log ends before `offset`, because it is a follower's that is behind, the branch ends there too. An
    OSError or KafkaError leaves a folder that counts for nothing.
    """
    disk = parent.disk
    folder = branch_folder(root, partition, topic_id)
    end = min(offset, parent.log_end_offset)
    start = min(parent.log_start_offset, end)
    disk.remove_directory(folder)
    disk.make_directory(folder)
    if parent.segments.active.base_offset < end:
        parent.roll(now_ms)  # so that all its records before are in closed segments
    part: tuple[int, int] | None = None
    bases: list[int] = []
    aborted: list[int] = []
    for slot, segment in enumerate(parent.segments):
        if segment.base_offset >= end:
            break
        is_cut = parent.segments.end_of(slot, parent.log_end_offset) > end
        position = segment.find(end) if is_cut else None
        if position == 0:
            break
        bases.append(segment.base_offset)
        if position is None:
            _link_segment(disk, segment, folder)
            has_aborted = bool(segment.aborted)
        else:
            has_aborted = _link_part(disk, segment, folder, end)
            part = segment.base_offset, position
        if has_aborted:
            aborted.append(segment.base_offset)
    for each in parent.snapshots.offsets:
        if each in bases or (each == end < offset):
            _link(disk, parent.directory, folder, f"{each:020d}{SNAPSHOT_SUFFIX}")
    if end == offset:  # a branch knows no producers of its parent
        disk.write_bytes(offset_file(folder, end, SNAPSHOT_SUFFIX), encode_snapshot(()))
    if tiered := tiered_up_to(disk, parent.directory):
        disk.write_bytes(f"{folder}/{EARLIER_BATCHES}", encode_batches((), min(tiered, end)))
    epochs = [(epoch, begin) for epoch, begin in parent.epochs.entries() if begin < end]
    disk.write_bytes(f"{folder}/{LEADER_EPOCHS}", encode_epochs(epochs))
    disk.write_bytes(f"{folder}/{PARTITION_METADATA}", encode_topic_id(topic_id))
    disk.create(offset_file(folder, end, LOG_SUFFIX))
    file = BranchFile(partition, offset, start, min(parent.recovery_point, end), *(part or ()))
    disk.write_atomically(f"{folder}/{BRANCH}", encode_branch(file), durable=False)
    _log.info(
        "branch_begun partition=%s parent=%s offset=%d end=%d segments=%d copied_bytes=%d",
        partition, parent.topic_partition, offset, end, len(bases), part[1] if part is not None else 0,
    )  # fmt: skip
    return LogBranch(folder, file, min(parent.cleaned_offset, end), tuple(aborted))


def begin_empty(log: PartitionLog, offset: int, now_ms: int, *, leads: bool) -> None:
    """Begin the empty log of a branch on a node without the parent's. A follower copies the leader from the beginning.
    A leader continues at the end of the shared part: its records are lost, and their offsets must not be used again."""
    file = BranchFile(log.topic_partition, offset, 0)
    log.disk.write_atomically(f"{log.directory}/{BRANCH}", encode_branch(file), durable=False)
    log.producers.begins_at = offset
    if leads and not log.config.remote_storage_enable and offset:  # else the tier may have the records
        _log.error(
            "branch_without_parent partition=%s offset=%d: the leader has no log of the parent, so the branch has no "
            "records before this offset", log.topic_partition, offset,
        )  # fmt: skip
        log.restart_at(offset, now_ms)


def _link_segment(disk: Disk, segment: Segment, folder: str) -> None:
    for path in segment.files():
        disk.link(path, f"{folder}/{path.rpartition('/')[2]}")


def _link_part(disk: Disk, segment: Segment, folder: str, end: int) -> bool:
    """Keep the bytes of a segment, of which a part is copied later, and write the entries of its aborted transactions;
    whether there are any. Its other indexes are made with the copy."""
    disk.link(segment.log.path, offset_file(folder, segment.base_offset, LOG_SUFFIX) + _PART_SUFFIX)
    entries = [each for each in segment.aborted if each.last_offset < end]
    if entries:
        write_index(disk, offset_file(folder, segment.base_offset, TRANSACTION_INDEX_SUFFIX), entries)
    return bool(entries)


def _link(disk: Disk, source: str, folder: str, name: str) -> None:
    try:
        disk.link(f"{source}/{name}", f"{folder}/{name}")
    except FileNotFoundError:
        pass  # a snapshot that could not be written
