"""The node's copy of the committed metadata: an image that follows the quorum.

Subscribers are called with each change after the image was replaced, in the order of their subscription. From time to
time the image is written as a snapshot, so that the log can be shortened and need not be read from its beginning.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from millstream.node.consensus.quorum.metadata_quorum import MetadataQuorum
from millstream.node.environment import Environment
from millstream.node.metadata.image import MetadataDelta, MetadataImage, apply, replay
from millstream.node.metadata.records import MetadataRecord
from millstream.node.metadata.snapshot import difference

_log = logging.getLogger("millstream.quorum")


class MetadataLoader:
    """Follows the quorum as one of its listeners (`QuorumListener`); subscribe it before the controller."""

    def __init__(
        self,
        quorum: MetadataQuorum,
        environment: Environment,
        *,
        max_bytes_between_snapshots: int,
        max_snapshot_interval_ms: int,
    ) -> None:
        """With an interval of 0, snapshots depend only on the size of the log."""
        self._quorum = quorum
        self._environment = environment
        self._max_bytes = max_bytes_between_snapshots
        self._interval_ms = max_snapshot_interval_ms
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[bool] | None = None
        self._subscribers: list[Callable[[MetadataDelta], None]] = []
        self.image = MetadataImage()
        quorum.subscribe(self)

    def subscribe(self, on_change: Callable[[MetadataDelta], None]) -> None:
        self._subscribers.append(on_change)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            self._writing.cancel()

    # Calls of the quorum

    def committed(self, records: Sequence[MetadataRecord], *, offset: int, epoch: int) -> None:
        self.image, delta = apply(self.image, records, offset=offset, epoch=epoch)
        self._notify(delta)
        self._consider_snapshot()

    def reset(self, image_records: Sequence[MetadataRecord], *, offset: int, epoch: int) -> None:
        before = self.image
        self.image = replay(MetadataImage(), [(offset, epoch, image_records)])
        self._notify(difference(before, self.image))

    def leader_changed(self, leader_id: int | None, epoch: int) -> None:
        return

    def leading(self, epoch: int) -> None:
        return

    def no_longer_leading(self) -> None:
        return

    def _notify(self, delta: MetadataDelta) -> None:
        for on_change in self._subscribers:
            try:
                on_change(delta)
            except Exception:
                # If one subscriber fails, the others must still be called.
                _log.exception("change_not_followed offset=%d subscriber=%s", self.image.offset, on_change)

    # Snapshots

    def _consider_snapshot(self) -> None:
        if self._quorum.bytes_since_snapshot >= self._max_bytes:
            self._write()
        elif self._timer is None and self._interval_ms > 0:
            self._timer = self._environment.loop.call_later(self._interval_ms / 1000, self._write)

    def _write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is None:
            self._writing = asyncio.ensure_future(self.write_snapshot())
            self._writing.add_done_callback(self._written)

    def _written(self, done: "asyncio.Future[bool]") -> None:
        self._writing = None
        if not done.cancelled() and (error := done.exception()) is not None:
            _log.error("snapshot_not_written", exc_info=error)

    async def write_snapshot(self) -> bool:
        """Writes the image as a snapshot now; False if it has no changes, or could not be written."""
        return await self._quorum.write_snapshot(self.image)
