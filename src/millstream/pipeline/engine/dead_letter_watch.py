"""Counts the dead letters of a running pipeline, by reading their topic: whoever sent them, source or query.

Records of the pipeline are known by their headers. A watch that cannot read (no permission, a broker away) is silent
and tries again: it must never be the reason for which a pipeline ends.
"""

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

from millstream.columnar import ArrowDecoder, CorruptBatchError
from millstream.pipeline.model import Pipeline
from millstream.raw_client import LATEST, Cluster, TopicPartition, WireError

_EVERY_S = 1.0
_FETCH_BYTES = 1 << 20


class DeadLetterWatch:
    """Follows the dead-letter topic from where it ends when the watch begins."""

    def __init__(self, pipeline: Pipeline, bootstrap: str | None = None) -> None:
        self._pipeline = pipeline.name
        self._topic = pipeline.dead_letters.topic
        self._cluster = Cluster(bootstrap or pipeline.bootstrap, pipeline.connection, timeout_s=10.0)
        self._positions: dict[TopicPartition, int] = {}
        self._by_step: Counter[str] = Counter()
        self._last_reason: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dead-letter-watch", daemon=True)

    def start(self) -> None:
        """Notes where the topic ends now, so that nothing that comes is missed; then follows in a thread."""
        try:
            self._note_ends()
        except WireError:
            pass
        self._thread.start()

    def close(self) -> None:
        """Takes a last look, so that the final numbers are right."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=15.0)
        self._cluster.close()

    @property
    def by_step(self) -> Mapping[str, int]:
        return dict(self._by_step)

    @property
    def total(self) -> int:
        return sum(self._by_step.values())

    @property
    def last_reason(self) -> str | None:
        return self._last_reason

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self._look_quietly()
        self._look_quietly()

    def _look_quietly(self) -> None:
        try:
            if not self._positions:
                self._note_ends()
            for partition in list(self._positions):
                self._look(partition)
        except (WireError, CorruptBatchError):
            pass

    def _note_ends(self) -> None:
        info = self._cluster.topics([self._topic]).get(self._topic)
        if info is None:
            return
        partitions = {TopicPartition(self._topic, each.index): LATEST for each in info.partitions}
        self._positions = {each: found.offset for each, found in self._cluster.offsets(partitions).items()}

    def _look(self, partition: TopicPartition) -> None:
        decoder = ArrowDecoder(["headers"])
        while True:
            position = self._positions[partition]
            fetched = self._cluster.fetch(partition, position, max_bytes=_FETCH_BYTES, max_wait_ms=1)
            if not fetched.data:
                return
            batches, following = decoder.decode(
                fetched.data,
                topic=self._topic,
                partition=partition.partition,
                start=position,
                stop=fetched.last_stable_offset,
                aborted=fetched.aborted,
            )
            for batch in batches:
                for headers in batch.column("headers").to_pylist():
                    self._take(headers)
            if following <= position:
                return
            self._positions[partition] = following

    def _take(self, headers: list[dict[str, Any]] | None) -> None:
        told = {each["key"]: each["value"] for each in headers or []}
        if told.get("millstream.pipeline") != self._pipeline.encode():
            return
        self._by_step[(told.get("millstream.step") or b"").decode(errors="replace")] += 1
        reason = told.get("millstream.reason")
        if reason:
            self._last_reason = reason.decode(errors="replace")
