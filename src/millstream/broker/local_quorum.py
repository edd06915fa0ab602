"""A quorum of one around the metadata log: appends, waits for the disk, applies, tells."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from millstream.broker.metadata_log import MetadataLog
from millstream.environment import Environment
from millstream.metadata.application import apply
from millstream.metadata.image import MetadataDelta, MetadataImage
from millstream.metadata.records import MetadataRecord
from millstream.model.errors import KafkaError


class LocalQuorum:
    def __init__(self, log: MetadataLog, image: MetadataImage, environment: Environment, node_id: int) -> None:
        self._log = log
        self._environment = environment
        self.image = image
        self.leader_id = node_id
        self.is_leader = True
        self._subscribers: list[Callable[[MetadataDelta], None]] = []
        self._unflushed: deque[tuple[int, Sequence[MetadataRecord]]] = deque()
        self._flushing: asyncio.Task[None] | None = None
        self.on_failed: Callable[[], None] = lambda: None

    @property
    def epoch(self) -> int:
        return self._log.epoch

    @property
    def log_end_offset(self) -> int:
        return self._log.next_offset

    def leader_address(self) -> tuple[str, int] | None:
        return None

    def subscribe(self, on_change: Callable[[MetadataDelta], None]) -> None:
        self._subscribers.append(on_change)

    def append(self, records: Sequence[MetadataRecord]) -> int:
        offset = self._log.append_unflushed(records, self._environment.clock.now_ms())
        self._unflushed.append((offset, records))
        if self._flushing is None:
            self._flushing = self._environment.loop.create_task(self._flush())
        return offset

    async def _flush(self) -> None:
        while self._unflushed:
            count = len(self._unflushed)
            try:
                await self._log.flush(self._environment)
            except KafkaError:
                self._flushing = None
                self.is_leader = False
                self.on_failed()
                return
            for _ in range(count):
                offset, records = self._unflushed.popleft()
                self.image, delta = apply(self.image, records, offset=offset, epoch=self._log.epoch)
                for on_change in self._subscribers:
                    on_change(delta)
        self._flushing = None
