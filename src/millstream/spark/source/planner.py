"""Plans what a query reads, on the driver: the start and end of each micro-batch, and the ranges of its tasks.

A stream planner lives in the process that Spark keeps for each source of a running query. Its results depend only on
the offsets in the checkpoint and on the cluster; its caches only save requests. A batch query is planned once: start
and end offsets are resolved when it is planned, so that all tasks agree.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from millstream.raw_client import EARLIEST, LATEST, Cluster, TopicPartition, WireError
from millstream.spark.connections import cluster_of, is_retriable
from millstream.spark.errors import CheckpointError
from millstream.spark.options import ReadOptions
from millstream.spark.progress_listener import GroupProgress
from millstream.spark.source.limits import (
    ByteRates,
    Range,
    at_most_bytes,
    at_most_offsets,
    pending_offsets,
    split_ranges,
)
from millstream.spark.source.log_view import (
    Continuation,
    LogView,
    Looked,
    Losses,
    overtaken,
    resume,
    unsubscribed_topics,
    was_recreated,
)
from millstream.spark.source.offsets import HistoryNote, HistoryPart, HistoryPlanner, StreamOffset
from millstream.spark.source.positions import AllPartitions, FromTable

_log = logging.getLogger("millstream.spark")

IDLE_WAIT_SECONDS = 0.1
"""How long an idle query waits for records in a call. Other sources of the same query wait for it, so it is short."""
IDLE_PAUSE_SECONDS = 0.04
"""Spark calls an idle query again after 10 ms. A longer pause means that a batch ran, or that the trigger has an
interval: then the query must not wait here."""

_MOST_LOOKED_AT = 64
"""Partitions of one look. It may bring `smallBatchBytes` from each leader for nothing, if the batch is larger."""

Document = dict[str, Any]
T = TypeVar("T")


class StreamPlanner:
    """`now`: a clock, for tests. `history`: plans the rows of a table, if the query starts in one."""

    def __init__(
        self,
        options: ReadOptions,
        cluster: Cluster | None = None,
        now: Callable[[], float] = time.monotonic,
        history: HistoryPlanner | None = None,
    ) -> None:
        self._options = options
        self._history = history
        self._cluster = cluster or cluster_of(options.connection)
        self._now = now
        self._view = LogView(options, self._cluster)
        self._rates = ByteRates(self._cluster, read_committed=options.read_committed)
        self._progress = GroupProgress(self._cluster, options.group) if options.group else None
        self._target: dict[TopicPartition, int] | None = None
        self._latest: StreamOffset | None = None
        self._planned: tuple[Document, Document] | None = None
        self._idle: tuple[Document, float] | None = None
        """The start for which there were no records, and when."""
        self._last_batch_at: float | None = None
        self._is_checked = False
        self._may_look = options.small_batch_bytes > 0 and options.min_partitions is None
        self._looks = self._may_look
        """Whether the next batch is probably small, so that one fetch has its ends and its records."""
        self.looked: Mapping[TopicPartition, Looked] = {}
        """The records of the planned batch, if it is small; reading them saves a request for each partition."""

    # The start

    def initial(self) -> Document:
        """The offsets of a query without a checkpoint."""
        topics = self._view.existing()
        position = self._options.starting or AllPartitions(LATEST)
        note: HistoryNote | None = None
        if self._history is not None and isinstance(position, FromTable):
            note, seam = self._history.begin(topics.ids)
            offsets = self._view.resolver().after(seam, topics.partitions)
        else:
            offsets = self._view.resolver().start(self._options.starting_option, position, topics.partitions)
        earliest, written = self._view.earliest(topics.partitions), self._view.written(topics.partitions)
        losses = Losses()
        for partition, offset in sorted(offsets.items()):
            if offset < earliest[partition]:
                losses.add(overtaken(partition, offset, earliest[partition]))
                offsets[partition] = earliest[partition]
            elif offset > written[partition]:
                losses.add(
                    f"{partition.topic}-{partition.partition} ends at {written[partition]}, before offset {offset} "
                    f"of {self._options.starting_option}"
                )
                offsets[partition] = written[partition]
        losses.settle(fail=self._options.fail_on_data_loss, streaming=True)
        # They are also the start of the first batch: `latest` would be another offset when the batch is repeated.
        return self._offset(offsets, topics.ids, begin=offsets, history=note).to_json()

    def prepare_available_now(self) -> None:
        """This run reads only the records that exist now."""
        self._target = self._view.latest(self._view.topics(fresh=True).partitions)

    # The next micro-batch

    def latest(self, start: Document, *, limited: bool) -> Document:
        """The end of the next micro-batch; `start` if there are no new records.

        Spark calls this after all records before `start` are processed and recorded, so `start` is committed to the
        group here.
        """
        now = self._now()
        before = StreamOffset.from_json(start)
        if not self._is_checked:
            self._with_retries(lambda: self._check_checkpoint(before))
            self._is_checked = True
        self._with_retries(lambda: self._commit(before))
        idle = self._is_idle(start, now) and self._latest is not None
        nothing_pending = self._latest is not None and self._latest.positions == before.positions
        wait_s = IDLE_WAIT_SECONDS if idle and nothing_pending else 0.0
        end = self._with_retries(lambda: self._next_end(before, limited=limited, wait_s=wait_s))
        if end is None and idle and self._latest is not None and not (wait_s and self.looked):
            self._view.wait_for_records(self._latest.positions, IDLE_WAIT_SECONDS)
            end = self._with_retries(lambda: self._next_end(before, limited=limited))
        if end is None:
            self._idle = (start, self._now())
            self._looks = self._may_look
            return start
        self._looks = bool(self.looked) and all(
            self.looked[each].has_all_before(stop) for each, stop in end.positions.items()
        )
        if not self._looks:
            self.looked = {}
        self._idle = None
        self._last_batch_at = now
        document = end.to_json()
        self._planned = (start, document)
        return document

    def _is_idle(self, start: Document, now: float) -> bool:
        """Whether Spark does nothing but call: the last call was a moment ago, for the same start."""
        return (
            self._target is None
            and self._idle is not None
            and self._idle[0] == start
            and now - self._idle[1] < IDLE_PAUSE_SECONDS
        )

    def _with_retries(self, request: Callable[[], T]) -> T:
        """Retries while the cluster does not respond, up to kafkaConsumer.pollTimeoutMs."""
        began = time.monotonic()
        while True:
            try:
                return request()
            except WireError as error:
                if not is_retriable(error) or time.monotonic() - began > self._options.wait_s:
                    raise
                _log.warning("the cluster does not respond; retrying: %s", error)

    def finished(self, end: Document) -> None:
        """Spark reports a finished batch, a little earlier than `latest` is called."""
        self._with_retries(lambda: self._commit(StreamOffset.from_json(end)))

    def _commit(self, done: StreamOffset) -> None:
        """Commits to the group, without deleted and recreated topics: a group has topics by name only."""
        if self._progress is None:
            return
        topics = self._view.topics()
        recreated = {topic for topic, known in done.topic_ids.items() if was_recreated(known, topics.ids.get(topic))}
        positions = done.positions.items()
        self._progress.commit(
            {each: at for each, at in positions if each in topics.partitions and each.topic not in recreated}
        )

    def report_latest(self) -> Document | None:
        """The latest offsets of the last call, for the progress report."""
        return self._latest.to_json() if self._latest is not None else None

    def _next_end(self, before: StreamOffset, *, limited: bool, wait_s: float = 0.0) -> StreamOffset | None:
        self.looked = {}
        if before.history is not None and not before.history.is_done:
            rows, size = (self._options.max_offsets, self._options.max_bytes) if limited else (None, None)
            return replace(before, history=self._table().advance(before.history, rows, size))
        self.looked = self._look(before, wait_s)
        ends = self._ends()
        if self._unchanged(before, ends):
            self._latest = self._offset(ends, self._view.topics().ids)
            return None
        continuation, ends = self._continue(before, ends)
        continuation.losses.settle(fail=self._options.fail_on_data_loss, streaming=True)
        topics = self._view.topics()
        if forgotten := unsubscribed_topics(before, topics, self._options.subscription.wants):
            _log.warning(
                "the query does not subscribe to %s any more; its offsets are removed from the checkpoint",
                ", ".join(forgotten),
            )
        starts = continuation.starts
        ends = {each: max(end, starts[each]) for each, end in ends.items() if each in starts}
        self._latest = self._offset(ends, topics.ids)
        # The first batch notes the start of all partitions; later batches only those that are new.
        begin = dict(continuation.begin)
        if before.begin == before.positions:
            begin = {each: begin.get(each, offset) for each, offset in starts.items()}
        if limited:
            if not continuation.losses.found and not self._enough(starts, ends):
                return None
            ends = self._limit(starts, ends)
        # Partitions whose offsets could not be fetched keep their position.
        kept = {each: at for each, at in before.positions.items() if each in topics.partitions and each not in ends}
        made = self._offset(ends | kept, topics.ids, begin)
        changed = made.positions != before.positions or made.topic_ids != before.topic_ids
        return made if changed or has_new_begin(begin, before) else None

    def _look(self, before: StreamOffset, wait_s: float) -> Mapping[TopicPartition, Looked]:
        """All partitions by one fetch; empty if the batch is probably large, or other requests are needed."""
        positions = before.positions
        if not (self._looks or wait_s) or not self._may_look or self._target == positions:
            return {}
        if not 0 < len(positions) <= _MOST_LOOKED_AT or positions.keys() != self._view.topics().partitions:
            return {}
        return self._view.look(positions, wait_s, self._options.small_batch_bytes) or {}

    def _ends(self) -> dict[TopicPartition, int]:
        """The current end offsets for this query."""
        partitions = self._view.topics().partitions
        if self._target is None:
            if self.looked.keys() == partitions:
                return {each: looked.end for each, looked in self.looked.items()}
            return self._view.latest(partitions)
        return {each: end for each, end in self._target.items() if each in partitions}

    def _unchanged(self, before: StreamOffset, ends: Mapping[TopicPartition, int]) -> bool:
        if before.positions != ends:
            return False
        ids = self._view.topics().ids
        return not any(was_recreated(known, ids.get(topic)) for topic, known in before.topic_ids.items())

    def _continue(
        self, before: StreamOffset, ends: dict[TopicPartition, int]
    ) -> tuple[Continuation, dict[TopicPartition, int]]:
        """Where to continue. Data loss is reported only after retries with pauses. `ends`: the current end offsets."""
        for attempt in range(self._options.retries + 1):
            fresh = attempt > 0 or not self._options.retries
            topics = self._view.topics(fresh=fresh)
            if fresh:
                self.looked = {}
                ends = self._ends()
            written = self._written(before, ends)
            if self.looked.keys() >= ends.keys():
                earliest = {each: self.looked[each].fetched.log_start_offset for each in ends}
            else:
                earliest = self._view.earliest(ends.keys())
            found = resume(before, topics, earliest, written, self._options.subscription.wants)
            if not found.losses.found or attempt == self._options.retries:
                break
            if attempt:
                time.sleep(self._options.retry_interval_s)
        return found, ends

    def _written(self, before: StreamOffset, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The end offsets to detect truncation: a query may be ahead of the last stable offset."""
        ahead = {each for each, end in ends.items() if before.positions.get(each, 0) > end}
        return dict(ends) | (self._view.written(ahead) if ahead else {})

    def _enough(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> bool:
        """Whether there are minOffsetsPerTrigger pending offsets, or maxTriggerDelay has passed."""
        least = self._options.min_offsets
        if least <= 1 or self._target is not None or sum(pending_offsets(starts, ends).values()) >= least:
            return True
        return self._last_batch_at is None or self._now() - self._last_batch_at >= self._options.max_delay_s

    def _limit(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        chosen = dict(ends)
        if self._options.max_offsets is not None:
            chosen = at_most_offsets(starts, chosen, self._options.max_offsets)
        if self._options.max_bytes is not None:
            pending = {each: starts[each] for each in pending_offsets(starts, chosen)}
            chosen = at_most_bytes(starts, chosen, self._options.max_bytes, self._rates.at(pending))
        return chosen

    # The tasks

    def parts(self, start: Document, end: Document) -> list[HistoryPart] | list[Range]:
        """The tasks of the batch between two offsets; the same for the same offsets."""
        if start == end:
            return []
        after = StreamOffset.from_json(end)
        if after.history is None:
            return self.ranges(start, end)
        return self._table().parts(after.history)

    def ranges(self, start: Document, end: Document) -> list[Range]:
        """The ranges that the batch reads from the topic."""
        before, after = StreamOffset.from_json(start), StreamOffset.from_json(end)
        begins = {**before.positions, **after.begin}
        # Offsets of spark-sql-kafka do not have the start of a new partition: it is the earliest offset.
        begins |= self._view.earliest(after.positions.keys() - begins.keys())
        begins = {each: begins[each] for each in after.positions if each in begins}
        if self._planned != (start, end):
            begins = self._checked_again(begins, after)
        found = [
            Range(each.topic, each.partition, begins[each], stop, after.topic_ids.get(each.topic, ""))
            for each, stop in sorted(after.positions.items())
            if each in begins and begins[each] < stop
        ]
        return split_ranges(
            found,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
        )

    def _checked_again(self, begins: Mapping[TopicPartition, int], after: StreamOffset) -> dict[TopicPartition, int]:
        """Checks a batch that was planned before a restart: its records may be gone."""
        topics = self._view.topics(fresh=True)
        losses = Losses()
        left: dict[TopicPartition, int] = {}
        pending = {each for each, begin in begins.items() if begin < after.positions[each]}
        earliest = self._view.earliest(pending & topics.partitions)
        for partition in sorted(pending):
            stop = after.positions[partition]
            unread = f"{partition.topic}-{partition.partition} from {begins[partition]} to {stop - 1}"
            if was_recreated(after.topic_ids.get(partition.topic), topics.ids.get(partition.topic)):
                losses.add(f"{unread} is gone: topic {partition.topic!r} was deleted and recreated")
            elif partition not in earliest:
                losses.add(f"{unread} was deleted")
            elif (low := earliest[partition]) > begins[partition]:
                losses.add(overtaken(partition, begins[partition], low, stop))
                left[partition] = min(low, stop)
            else:
                left[partition] = begins[partition]
        losses.settle(fail=self._options.fail_on_data_loss, streaming=True)
        return left

    # Helpers

    def _table(self) -> HistoryPlanner:
        if self._history is None:
            raise CheckpointError(
                "the query has not read its table to the end: set startingOffsets=table:… as before, or set a new "
                "checkpointLocation"
            )
        return self._history

    def _offset(
        self,
        positions: Mapping[TopicPartition, int],
        ids: Mapping[str, str],
        begin: Mapping[TopicPartition, int] | None = None,
        history: HistoryNote | None = None,
    ) -> StreamOffset:
        topics = {each.topic for each in positions}
        known = {topic: topic_id for topic, topic_id in ids.items() if topic in topics and topic_id}
        return StreamOffset(dict(positions), known, dict(begin or {}), self._options.group, history)

    def _check_checkpoint(self, before: StreamOffset) -> None:
        """Once per run: whether the checkpoint belongs to this subscription, and new topics exist."""
        topics = sorted({each.topic for each in before.positions})
        if topics and not any(self._options.subscription.wants(topic) for topic in topics):
            raise CheckpointError(
                f"the checkpoint belongs to a query that reads {', '.join(topics[:5])}; this query reads "
                f"{self._options.subscription}. Set another checkpointLocation"
            )
        if not set(self._view.topics().missing) <= set(topics):
            self._view.existing()


def has_new_begin(begin: Mapping[TopicPartition, int], before: StreamOffset) -> bool:
    """Whether the start of a partition differs from its last offset, although no offset moved."""
    return any(before.positions.get(each) != offset for each, offset in begin.items())


def plan_with_history(
    options: ReadOptions, history: HistoryPlanner, cluster: Cluster | None = None
) -> list[HistoryPart | Range]:
    """The units of a table, and the ranges of the topic after it."""
    note, seam = history.begin(LogView(options, cluster or cluster_of(options.connection)).existing().ids)
    return [*history.parts(history.advance(note, None, None)), *plan_batch(options, cluster, seam)]


def plan_batch(
    options: ReadOptions, cluster: Cluster | None = None, seam: Mapping[tuple[str, int], int] | None = None
) -> list[Range]:
    """The ranges to read; `latest` is the last stable offset, or the high watermark with read_uncommitted."""
    view = LogView(options, cluster or cluster_of(options.connection))
    topics = view.existing()
    resolver = view.resolver()
    if seam is not None:
        starts = resolver.after(seam, topics.partitions)
    else:
        starts = resolver.start(options.starting_option, options.starting or AllPartitions(EARLIEST), topics.partitions)
    stops = resolver.end(options.ending_option, options.ending, topics.partitions)
    earliest, written = view.earliest(topics.partitions), view.written(topics.partitions)
    losses = Losses()
    ranges = []
    for partition in sorted(topics.partitions):
        start, stop = starts[partition], stops[partition]
        name = f"{partition.topic}-{partition.partition}"
        if stop > written[partition]:
            losses.add(f"{name} ends at {written[partition]}, before offset {stop} of {options.ending_option}")
            stop = written[partition]
        if start < earliest[partition] and start < stop:
            losses.add(overtaken(partition, start, earliest[partition], stop))
            start = earliest[partition]
        ranges.append(Range(partition.topic, partition.partition, start, stop, topics.ids[partition.topic]))
    losses.settle(fail=options.fail_on_data_loss, streaming=False)
    return split_ranges(ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition)
