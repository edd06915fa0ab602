"""What a task does: fetches a stretch of a partition, a step ahead of Spark, and yields it as Arrow record batches.

A thread fetches the next stretch while this one is decoded and Spark works on it; a few fetches are held at most,
however long the stretch is. Leader changes and broker restarts are waited for (by the wire room, and here for a leader
whose high watermark lags behind); what is lost is judged here again, since it may be lost since it was planned.
"""

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa

from millstream.columnar import ArrowDecoder
from millstream.raw_client import Cluster, Fetched, OffsetOutOfRangeError, RefusedError, TopicPartition, WireError
from millstream.spark.connections import GONE, cluster_of, may_pass
from millstream.spark.errors import SourceError
from millstream.spark.options import ReadOptions
from millstream.spark.source.limits import Range, frames
from millstream.spark.source.log_view import Losses, overtaken

_AHEAD = 2
"""Fetches that wait to be decoded; one more is on its way, and one is being decoded."""
_MAX_WAIT_MS = 500


@dataclass(frozen=True, slots=True)
class _Stretch:
    start: int
    fetched: Fetched


class RangeReader:
    """Reads one range."""

    def __init__(self, options: ReadOptions, wanted: Range, cluster: Cluster | None = None) -> None:
        self._options = options
        self._wanted = wanted
        self._cluster = cluster or cluster_of(options.connection)
        self._partition = TopicPartition(wanted.topic, wanted.partition)
        self._topic_id = UUID(wanted.topic_id) if wanted.topic_id else None

    def batches(self, decoder: ArrowDecoder) -> Iterator[pa.RecordBatch]:
        """All records of the range, in order."""
        wanted = self._wanted
        for stretch in self._ahead():
            yield from decoder.pieces(
                stretch.fetched.data,
                topic=wanted.topic,
                partition=wanted.partition,
                start=stretch.start,
                stop=wanted.stop,
                aborted=stretch.fetched.aborted,
            )

    def _ahead(self) -> Iterator[_Stretch]:
        """What `_stretches` gives, fetched by a thread that is ahead of whoever iterates."""
        ready: queue.Queue[_Stretch | BaseException | None] = queue.Queue(_AHEAD)
        ended = threading.Event()

        def run() -> None:
            last: BaseException | None = None
            try:
                for stretch in self._stretches():
                    ready.put(stretch)
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
            while not ready.empty():  # a put that waits must not wait forever
                ready.get_nowait()

    def _stretches(self) -> Iterator[_Stretch]:
        offset, stop = self._wanted.start, self._wanted.stop
        patience = _Patience(self._options.wait_s)
        while offset < stop:
            try:
                fetched = self._cluster.fetch(
                    self._partition,
                    offset,
                    max_bytes=self._options.fetch_bytes,
                    max_wait_ms=_MAX_WAIT_MS,
                    read_committed=self._options.read_committed,
                    topic_id=self._topic_id,
                )
            except OffsetOutOfRangeError as error:
                offset = self._after_loss(offset, error, patience)
                continue
            except WireError as error:
                if isinstance(error, RefusedError) and error.code in GONE:
                    self._settle(f"{self._partition} from {offset} to {stop - 1} is gone: the topic was deleted")
                    return
                if not may_pass(error) or not patience.left():
                    raise
                patience.wait(str(error))
                continue
            following = _following(fetched)
            if following is not None:
                patience.progressed()
                yield _Stretch(offset, fetched)
                offset = max(offset, following)
                continue
            if fetched.data:
                yield _Stretch(offset, fetched)  # damaged, which the decoder tells, or cut off
            patience.wait(f"{self._wanted}: no whole batch came at offset {offset}", fetched)

    def _after_loss(self, offset: int, error: OffsetOutOfRangeError, patience: "_Patience") -> int:
        """Where to go on if retention was faster. A log that ends too early may grow again after an election."""
        if offset < error.log_start:
            self._settle(overtaken(self._partition, offset, error.log_start, self._wanted.stop))
            return error.log_start
        if patience.left():
            patience.wait(f"{self._wanted}: the log ends at {error.log_end}")
            return offset
        self._settle(f"{self._partition} ends at {error.log_end} now, before offset {offset}")
        return self._wanted.stop

    def _settle(self, loss: str) -> None:
        losses = Losses()
        losses.add(loss)
        losses.settle(fail=self._options.fail_on_data_loss)


def _following(fetched: Fetched) -> int | None:
    """Where the next fetch begins, behind the last whole batch; None if there is none."""
    left, following = len(fetched.data), None
    for frame in frames(fetched.data):
        left -= frame.size
        if left < 0:
            break
        following = frame.last_offset + 1
    return following


class _Patience:
    """How long to wait for records that must be there."""

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
                f" (the log begins at {fetched.log_start_offset}, its last stable offset is "
                f"{fetched.last_stable_offset}, its high watermark {fetched.high_watermark})"
                if fetched is not None
                else ""
            )
            raise SourceError(
                f"{what} in {self._wait_s:.0f} s{state}. Are all replicas in sync, and is a transaction left open "
                "(millstream txn list)? A longer wait: kafkaConsumer.pollTimeoutMs"
            )
        time.sleep(0.05)
