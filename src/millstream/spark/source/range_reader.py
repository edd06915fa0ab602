"""Reads one range of a partition in a task: fetches ahead of Spark, and yields Arrow record batches.

A thread fetches the next part while this one is decoded and Spark works on it. A few fetches are held at most, however
long the range is. Leader changes and broker restarts are waited for, by the client and here (for a leader whose high
watermark lags). Data loss is checked here again, because records may be deleted after the batch was planned.
"""

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa

from millstream.columnar import ArrowDecoder, CorruptBatchError
from millstream.raw_client import (
    Cluster,
    Fetched,
    OffsetOutOfRangeError,
    RefusedError,
    TopicPartition,
    UnreadableError,
    WireError,
)
from millstream.spark.connections import UNKNOWN_TOPIC_CODES, cluster_of, is_retriable
from millstream.spark.errors import SourceError, UnreadableBatchError
from millstream.spark.options import ReadOptions
from millstream.spark.source.limits import Range
from millstream.spark.source.log_view import Looked, Losses, offset_after, overtaken

_AHEAD = 2
"""Fetches that wait to be decoded; one more is in flight, and one is being decoded."""
_MAX_WAIT_MS = 500


@dataclass(frozen=True, slots=True)
class _FetchedPart:
    start: int
    fetched: Fetched


class RangeReader:
    """Reads one range."""

    def __init__(
        self,
        options: ReadOptions,
        wanted: Range,
        cluster: Cluster | None = None,
        looked: Looked | None = None,
    ) -> None:
        """`looked`: what was fetched of the range already."""
        self._options = options
        self._wanted = wanted
        self._cluster = cluster or cluster_of(options.connection)
        self._partition = TopicPartition(wanted.topic, wanted.partition)
        self._topic_id = UUID(wanted.topic_id) if wanted.topic_id else None
        fits = looked is not None and (looked.start, looked.topic_id) == (wanted.start, wanted.topic_id)
        self._looked = looked.fetched if looked is not None and fits else None

    def batches(self, decoder: ArrowDecoder) -> Iterator[pa.RecordBatch]:
        """All records of the range, in order. A thread fetches ahead."""
        return self._decoded(decoder, self._ahead())

    def batches_one_by_one(self, decoder: ArrowDecoder) -> Iterator[pa.RecordBatch]:
        """The same without a thread: the next fetch is sent when all rows of the last one are taken."""
        return self._decoded(decoder, self._fetch_parts())

    def _decoded(self, decoder: ArrowDecoder, parts: Iterator[_FetchedPart]) -> Iterator[pa.RecordBatch]:
        wanted = self._wanted
        for part in parts:
            try:
                yield from decoder.pieces(
                    part.fetched.data,
                    topic=wanted.topic,
                    partition=wanted.partition,
                    start=part.start,
                    stop=wanted.stop,
                    aborted=part.fetched.aborted,
                )
            except CorruptBatchError as error:
                raise self._unreadable(error, error.last_offset) from None

    def _unreadable(self, error: Exception, last_offset: int | None) -> UnreadableBatchError:
        after = "the offset after it" if last_offset is None else f'"{self._wanted.partition}": {last_offset + 1}'
        return UnreadableBatchError(
            f"{error} The query stops here, because it would lose these records. To continue without them, start it "
            f"with startingOffsets at {after} for topic {self._wanted.topic!r}"
            + (" and a new checkpointLocation" if self._options.streaming else "")
        )

    def _ahead(self) -> Iterator[_FetchedPart]:
        """The parts of `_fetch_parts`, fetched ahead by a thread."""
        ready: queue.Queue[_FetchedPart | BaseException | None] = queue.Queue(_AHEAD)
        ended = threading.Event()

        def run() -> None:
            last: BaseException | None = None
            try:
                for part in self._fetch_parts():
                    ready.put(part)
                    if ended.is_set():
                        return
            except BaseException as error:
                last = error
            ready.put(last)

        thread = threading.Thread(target=run, name=f"fetch {self._wanted}", daemon=True)
        thread.start()
        try:
            while (item := ready.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            ended.set()
            while not ready.empty():  # so that a waiting put returns
                ready.get_nowait()

    def _fetch_parts(self) -> Iterator[_FetchedPart]:
        offset, stop = self._wanted.start, self._wanted.stop
        wait_time = _WaitTime(self._options.wait_s)
        while offset < stop:
            try:
                fetched = self._fetch(offset)
            except OffsetOutOfRangeError as error:
                offset = self._after_loss(offset, error, wait_time)
                continue
            except UnreadableError as error:
                raise self._unreadable(error, None) from None
            except WireError as error:
                if isinstance(error, RefusedError) and error.code in UNKNOWN_TOPIC_CODES:
                    self._settle(f"{self._partition} from {offset} to {stop - 1} is gone: {self._what_happened()}")
                    return
                if not is_retriable(error) or not wait_time.left():
                    raise
                wait_time.wait(str(error))
                continue
            following = offset_after(fetched)
            if following is not None:
                wait_time.progressed()
                yield _FetchedPart(offset, fetched)
                offset = max(offset, following)
                continue
            if fetched.data:
                yield _FetchedPart(offset, fetched)  # damaged, which the decoder reports, or cut off
            wait_time.wait(f"{self._wanted}: no complete batch was received at offset {offset}", fetched)

    def _fetch(self, offset: int) -> Fetched:
        looked, self._looked = self._looked, None
        if looked is not None and len(looked.data):
            return looked
        return self._cluster.fetch(
            self._partition,
            offset,
            max_bytes=self._options.fetch_bytes,
            max_wait_ms=_MAX_WAIT_MS,
            read_committed=self._options.read_committed,
            topic_id=self._topic_id,
        )

    def _after_loss(self, offset: int, error: OffsetOutOfRangeError, wait_time: "_WaitTime") -> int:
        """The offset to continue at after retention. A log that ends too early may grow again after an election."""
        if offset < error.log_start:
            self._settle(overtaken(self._partition, offset, error.log_start, self._wanted.stop))
            return error.log_start
        if wait_time.left():
            wait_time.wait(f"{self._wanted}: the log ends at {error.log_end}")
            return offset
        self._settle(f"{self._partition} ends at {error.log_end} now, before offset {offset}")
        return self._wanted.stop

    def _settle(self, loss: str) -> None:
        losses = Losses()
        losses.add(loss)
        losses.settle(fail=self._options.fail_on_data_loss, streaming=self._options.streaming)

    def _what_happened(self) -> str:
        """Why the broker does not know the topic under its id."""
        try:
            exists = self._wanted.topic in self._cluster.topics([self._wanted.topic])
        except WireError:
            exists = False
        return "the topic was deleted and recreated" if exists and self._topic_id else "the topic was deleted"


class _WaitTime:
    """Limits the time to wait for records that must exist."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._since: float | None = None

    def progressed(self) -> None:
        self._since = None

    def left(self) -> bool:
        return self._since is None or time.monotonic() - self._since < self._wait_s

    def wait(self, what: str, fetched: Fetched | None = None) -> None:
        if self._since is None:
            self._since = time.monotonic()
        if not self.left():
            state = (
                f" (the log starts at {fetched.log_start_offset}, its last stable offset is "
                f"{fetched.last_stable_offset}, its high watermark {fetched.high_watermark})"
                if fetched is not None
                else ""
            )
            raise SourceError(
                f"{what} in {self._wait_s:.0f} s{state}. Check that all replicas are in sync and that no transaction "
                "hangs (millstream txn list), or raise kafkaConsumer.pollTimeoutMs"
            )
        time.sleep(0.05)
