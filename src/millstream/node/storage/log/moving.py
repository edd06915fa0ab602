"""The move of a log to another directory of the node (`AlterReplicaLogDirs`), while it is read and written.

The files are copied as they are, into a folder `<partition>.<id>-future` of the other directory: closed segments once,
the active one piece by piece. Steps in a thread copy and sync; after them `catch_up`, also in a thread, copies what was
appended meanwhile, until little is left. The last bytes are copied in one turn of the event loop, and the folder gets
the name of the partition: this rename is the moment of the move. Then the old files are removed.

What a crash leaves:
- before the rename: the log where it was. The copy is removed at the next start, and the move begins again.
- after it: both logs. The new one has the file `.moved`, so it counts, and the old one is removed. The file has the
  start of the log until a checkpoint of the new directory has it.
A power cut may undo the rename, but no flushed record is lost: the copy is on stable storage up to the recovery point
of the log before it is renamed, and no flush of the log counts before the rename is on stable storage.
"""

from threading import Lock
from typing import NamedTuple

from millstream.node.storage.disk import Disk, File, Job
from millstream.node.storage.file_formats import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    FUTURE_DIRECTORY_SUFFIX,
    INDEX_SUFFIX,
    LEADER_EPOCHS,
    LOG_SUFFIX,
    MOVED,
    PARTITION_METADATA,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    encode_offsets,
    offset_file,
    parse_offset_file,
    retired_directory,
)
from millstream.node.storage.log.directory import LogDirectory
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.node.storage.log.segment import Segment

STEP_BYTES = 8 << 20
"""How much one job copies."""
SMALL_BYTES = 4 << 20
"""A larger active segment is closed before the last turn, which writes and reads its indexes."""
LAST_BYTES = 64 << 10
"""How much may be copied on the event loop in the last turn."""
MOST_CATCH_UPS = 20
"""Each one copies what was appended during the one before. If this does not end, the log is written faster than it is
copied."""
_PIECE_BYTES = 1 << 20
_UNFINISHED = (CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX, TEMPORARY_SUFFIX)


class _Copied(NamedTuple):
    segment: Segment
    size: int
    is_whole: bool
    """Whether the segment was closed when its last byte was copied: then its other files are copied too."""


class _Piece(NamedTuple):
    file: File
    segment: Segment
    start: int
    end: int
    is_sealed: bool


class LogMove:
    """Used on the event loop; its jobs run in a thread, one at a time."""

    def __init__(self, log: PartitionLog, source: LogDirectory, target: LogDirectory, unique: str) -> None:
        self.log, self.source, self.target = log, source, target
        self.folder = f"{target.root}/{retired_directory(log.topic_partition, unique, FUTURE_DIRECTORY_SUFFIX)}"
        self.synced_end = -1
        """The copy has everything before this offset, on stable storage."""
        self.is_at_end = False
        """Whether the last step has copied everything that there was at its begin."""
        self._copied: dict[int, _Copied] = {}
        self._files: dict[int, File] = {}
        self._truncations = -1
        self._cleaned_offset = 0
        self._noted_start = -1
        """The start of the log in the file `.moved` of the copy."""
        self._synced_names: set[str] = set()
        """The files that were on stable storage before the last turn."""
        self._working = Lock()
        self._is_cancelled = False

    @property
    def is_stale(self) -> bool:
        """Whether the log was truncated since the last step began: then the next one copies everything again."""
        return self._truncations != self.log.truncations

    @property
    def copied_bytes(self) -> int:
        return sum(each.size for each in self._copied.values())

    @property
    def offset_lag(self) -> int:
        """How many offsets the copy is behind the log, as far as whole segments tell."""
        log = self.log
        for slot, segment in enumerate(log.segments):
            copied = self._copied.get(segment.base_offset)
            if copied is None or copied.segment is not segment or copied.size < segment.size:
                is_last = slot + 1 == len(log.segments) and copied is not None and copied.size
                start = max(self.synced_end, segment.base_offset) if is_last else segment.base_offset
                return log.log_end_offset - min(start, log.log_end_offset)
        return 0

    # Copying

    def step(self, now_ms: int) -> Job:
        """Copy the next part. When a step has reached the end, `synced_end` is the end of the log at its begin."""
        log, disk = self.log, self.target.disk
        begins = self.is_stale
        if begins:  # bytes that were copied may have been cut, and others written in their place
            self._truncations = log.truncations
            self._cleaned_offset = log.cleaned_offset
            self._copied.clear()
            self._files.clear()
        active = log.segments.active
        if active.size > SMALL_BYTES and self._rest() <= STEP_BYTES:
            log.roll(now_ms)
        pieces, is_end = self._next_pieces()
        end_offset, truncations = log.log_end_offset, log.truncations
        source, folder = log.directory, self.folder
        start_offset = log.log_start_offset
        notes_start = begins or start_offset != self._noted_start

        def run() -> None:
            with self._working:
                if self._is_cancelled:
                    return
                if begins:
                    disk.remove_directory(folder)
                    disk.make_directory(folder)
                    # Newer than the checkpoints of an earlier log of this name, which therefore do not count for it.
                    if _copy_file(disk, f"{source}/{PARTITION_METADATA}", f"{folder}/{PARTITION_METADATA}"):
                        disk.open(f"{folder}/{PARTITION_METADATA}").sync()
                if notes_start:
                    disk.write_atomically(f"{folder}/{MOVED}", encode_offsets({log.topic_partition: start_offset}))
                for piece in pieces:
                    self._copy(disk, source, piece, is_end)
                if is_end:
                    disk.sync_directory(folder)
                    disk.sync_directory(self.target.root)
                    if disk.exists(f"{source}/{MOVED}"):  # of an earlier move: two logs with this file would both count
                        disk.remove(f"{source}/{MOVED}")
                        disk.sync_directory(source)

        def done(failure: OSError | None) -> None:
            self.is_at_end = is_end and failure is None and truncations == log.truncations
            if failure is None and truncations == log.truncations:
                self._noted_start = start_offset
                for piece in pieces:
                    self._copied[piece.segment.base_offset] = _Copied(piece.segment, piece.end, piece.is_sealed)
                if is_end:
                    self.synced_end = end_offset
            elif failure is None:
                self._truncations = -1

        return Job(f"copy_log partition={log.topic_partition}", run, done)

    def _rest(self) -> int:
        total = 0
        for segment in self.log.segments:
            copied = self._copied.get(segment.base_offset)
            total += segment.size - (copied.size if copied is not None and copied.segment is segment else 0)
        return total

    def _next_pieces(self) -> tuple[list[_Piece], bool]:
        """What the next step copies, and whether nothing is left then."""
        pieces: list[_Piece] = []
        budget = STEP_BYTES
        active = self.log.segments.active
        for segment in self.log.segments:
            copied = self._copied.get(segment.base_offset)
            if copied is not None and copied.segment is not segment:
                copied = None  # the cleaner has replaced it
            is_sealed = segment is not active
            start = copied.size if copied is not None else 0
            if copied is not None and start == segment.size and copied.is_whole >= is_sealed:
                continue
            end = min(segment.size, start + budget)
            pieces.append(_Piece(segment.file(), segment, start, end, is_sealed and end == segment.size))
            budget -= end - start
            if end < segment.size or budget <= 0:
                return pieces, end == segment.size and segment is active
        return pieces, True

    def _copy(self, disk: Disk, source: str, piece: _Piece, sync: bool) -> None:
        base = piece.segment.base_offset
        path = offset_file(self.folder, base, LOG_SUFFIX)
        if piece.start == 0:
            self._files[base] = disk.create(path)
        target = self._files[base]
        _copy_bytes(piece.file, target, piece.start, piece.end)
        if piece.is_sealed:
            names = [f"{base:020d}{suffix}" for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)]
            for name in (*names, f"{base:020d}{SNAPSHOT_SUFFIX}"):
                if _copy_file(disk, f"{source}/{name}", f"{self.folder}/{name}"):
                    disk.open(f"{self.folder}/{name}").sync()
        if piece.is_sealed or sync:
            target.sync()
        if piece.is_sealed:
            del self._files[base]

    def catch_up(self) -> Job | None:
        """Copy what was appended since the last step, without a sync. None if so little is left that `finish` may copy
        it, or if another `step` is needed."""
        if not self._needs_only_the_rest():
            return None
        log, active = self.log, self.log.segments.active
        start, end, truncations = self._copied[active.base_offset].size, active.size, log.truncations
        if end - start <= LAST_BYTES:
            return None
        source, target = active.file(), self._files[active.base_offset]

        def run() -> None:
            with self._working:
                if not self._is_cancelled:
                    _copy_bytes(source, target, start, end)

        def done(failure: OSError | None) -> None:
            if failure is None and truncations == log.truncations:
                self._copied[active.base_offset] = _Copied(active, end, is_whole=False)

        return Job(f"copy_rest partition={log.topic_partition}", run, done)

    def _needs_only_the_rest(self) -> bool:
        """Whether the copy lacks nothing but bytes at the end of the active segment, and no flushed record."""
        log = self.log
        if self.is_stale or not 0 <= log.recovery_point <= self.synced_end:
            return False
        if self._noted_start != log.log_start_offset:
            return False
        active = log.segments.active
        for segment in log.segments:
            copied = self._copied.get(segment.base_offset)
            if copied is None or copied.segment is not segment or (segment is not active and not copied.is_whole):
                return False
        return active.size <= STEP_BYTES + SMALL_BYTES

    # The last turn

    def finish(self, now_ms: int) -> bool:
        """Copy the rest and go on in the other directory, at once. False if too much is left: then one more `step` is
        needed. OSError or KafkaError if it failed, and the log is where it was."""
        if not self._needs_only_the_rest():
            return False
        log, disk = self.log, self.target.disk
        active = log.segments.active
        start = self._copied[active.base_offset].size
        if active.size - start > LAST_BYTES:
            return False
        log.close()  # writes the indexes and the producers; the files are opened again where they are needed
        _copy_bytes(active.file(), self._files[active.base_offset], start, active.size)
        self._copy_small_files(disk)
        self.target.take_over(log, self.folder, now_ms, synced_end=self.synced_end, cleaned_offset=self._cleaned_offset)
        self._files.clear()
        self.source.let_go(log.topic_partition)
        return True

    def _copy_small_files(self, disk: Disk) -> None:
        """Copy what is not of a closed segment, and remove what is not in the log any more."""
        log, folder = self.log, self.folder
        own = {name for name, is_directory in disk.list(log.directory) if not is_directory}
        sealed = {f"{base:020d}{suffix}" for base in log.segments.bases[:-1] for suffix in SEGMENT_SUFFIXES}
        self._synced_names = sealed
        active_log = f"{log.segments.active.base_offset:020d}{LOG_SUFFIX}"
        present = {name for name, _ in disk.list(folder)}
        for name in sorted(own):
            is_copied = name in present and name.endswith((SNAPSHOT_SUFFIX, PARTITION_METADATA))
            if name in (active_log, LEADER_EPOCHS, MOVED) or name in sealed or is_copied or name.endswith(_UNFINISHED):
                continue
            _copy_file(disk, f"{log.directory}/{name}", f"{folder}/{name}")
        for name in sorted(present - own):
            if parse_offset_file(name) is not None:
                disk.remove(f"{folder}/{name}")
        disk.write_bytes(f"{folder}/{LEADER_EPOCHS}", log.epochs.to_bytes())

    def settle(self) -> Job:
        """Bring the rename, and the files that the last turn copied, to stable storage. When a checkpoint of the new
        directory is there too, the old log may be removed (`retire`)."""
        disk, target, log, synced = self.target.disk, self.target, self.log, self._synced_names
        directory = log.directory

        def run() -> None:
            for name, is_directory in disk.list(directory):
                if not is_directory and name not in synced:
                    try:
                        disk.open(f"{directory}/{name}").sync()
                    except FileNotFoundError:
                        pass  # retention or the cleaner removed it meanwhile
            disk.sync_directory(directory)
            disk.sync_directory(target.root)

        return Job(f"settle_move partition={log.topic_partition}", run)

    def retire(self) -> Job:
        """Take the old log away; the job removes its files, and the mark that both directories may have the log."""
        disk, source, target, partition = self.source.disk, self.source, self.target, self.log.topic_partition
        is_removed = partition in source.partitions  # the topic was deleted meanwhile, and one of this name was created
        removal = None if is_removed else source.delete(partition)

        def run() -> None:
            disk.sync_directory(source.root)
            target.forget_move(partition)
            if removal is not None and (failure := removal.run()) is not None:
                raise failure

        return Job(f"remove_moved partition={partition}", run)

    def cancel(self) -> Job:
        """Remove the copy, after the step that may run in a thread."""
        disk, folder = self.target.disk, self.folder

        def run() -> None:
            with self._working:
                self._is_cancelled = True
                self._files.clear()
                disk.remove_directory(folder)

        return Job(f"remove_copy folder={folder}", run)


def _copy_bytes(source: File, target: File, start: int, end: int) -> None:
    position = start
    while position < end:
        piece = source.read_at(position, min(_PIECE_BYTES, end - position))
        if not piece:
            raise OSError(f"{source.path} ends at {position}, before {end}")
        target.write_at(position, piece)
        position += len(piece)


def _copy_file(disk: Disk, source: str, target: str) -> bool:
    """Whether the file was there: retention and the cleaner may remove it meanwhile."""
    try:
        content = disk.read_bytes(source)
    except FileNotFoundError:
        return False
    disk.write_bytes(target, content)
    return True
