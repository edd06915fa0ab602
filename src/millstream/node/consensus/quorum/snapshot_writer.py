"""Writing the committed image down as a snapshot, and shortening the log behind the snapshots that need not be kept."""

import logging
from dataclasses import dataclass

from millstream.node.consensus.quorum.metadata_log import MetadataLog
from millstream.node.consensus.quorum.snapshots import SnapshotContent
from millstream.node.consensus.raft.messages import LogPosition
from millstream.node.consensus.raft.voter_set import VoterSet
from millstream.node.environment import Environment
from millstream.node.metadata.image import MetadataImage
from millstream.node.metadata.snapshot import snapshot_records

_log = logging.getLogger("millstream.quorum")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How much of the past is kept behind the newest snapshot; -1 is no limit."""

    bytes: int = 100 << 20
    ms: int = 7 * 24 * 60 * 60 * 1000


class SnapshotWriter:
    def __init__(self, log: MetadataLog, retention: Retention, environment: Environment) -> None:
        self._metadata_log = log
        self._retention = retention
        self._environment = environment
        self._under_way = False

    async def write(
        self, image: MetadataImage, last_record_ms: int, kraft_version: int, voters: VoterSet | None
    ) -> bool:
        """False if there is nothing new in the image, or it could not be written."""
        log = self._metadata_log
        snapshot = LogPosition(image.offset + 1, image.epoch)
        latest = log.latest_snapshot
        if self._under_way or image.offset < 0 or (latest is not None and latest.offset >= snapshot.offset):
            return False
        now_ms = self._environment.clock.now_ms()

        def write() -> int:
            content = SnapshotContent(last_record_ms, kraft_version, voters, tuple(snapshot_records(image)))
            return log.snapshots.write(snapshot, content, now_ms)

        self._under_way = True
        try:
            size = await self._environment.offload(write)
        except OSError as error:
            # The log is as it was, only longer than it need be.
            _log.error("snapshot_not_written snapshot=%s error=%s", snapshot, error)
            return False
        finally:
            self._under_way = False
        if snapshot.offset < log.start.offset:
            log.snapshots.discard(snapshot)  # a newer one was fetched meanwhile
            return False
        log.snapshots.add(snapshot)
        _log.info("snapshot_written snapshot=%s bytes=%d", snapshot, size)
        return True

    def trim(self) -> bool:
        """Lets the log begin at the next snapshot while there is more than may be kept, or it is too old; whether it
        begins elsewhere now."""
        log, limits = self._metadata_log, self._retention
        begin = log.start
        while len(log.snapshots.ids) > 1:
            oldest, following = log.snapshots.ids[:2]
            kept_bytes = log.partition.size_bytes + sum(map(log.snapshots.size, log.snapshots.ids))
            age_ms = self._environment.clock.now_ms() - log.snapshots.last_contained_ms(oldest)
            if not (0 <= limits.bytes < kept_bytes or 0 <= limits.ms < age_ms):
                break
            if following.offset > (log.partition.high_watermark or 0):
                break  # not all of what it holds is on this disk as a log
            log.begin_at(following)
        return log.start != begin
