"""Micro-batches of a stream, planned on the driver: where it begins, what is new, how much of it, and who reads what.

Lives in the one process that Spark keeps per source of a running query. Every answer is a function of the offsets in
the checkpoint and of what the cluster has; what is kept here only saves questions.

One read between two sets of offsets, planned on the driver: both are resolved once, so every task agrees on them.
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
    Losses,
    overtaken,
    resume,
    unsubscribed_topics,
    was_recreated,
)
from millstream.spark.source.offsets import HistoryNote, HistoryPart, HistoryPlanner, StreamOffset
from millstream.spark.source.positions import AllPartitions, FromTable

_log = logging.getLogger("millstream.spark")

IDLE_CACHE_S = 0.05
"""How long "nothing new" is true without asking: Spark asks a hundred times a second while nothing comes."""

Document = dict[str, Any]
T = TypeVar("T")


class StreamPlanner:
    """`now` is a clock, for tests; `history` plans what comes from a table, if anything does."""

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
        self._idle_result: tuple[Document, float] | None = None
        self._last_batch_at: float | None = None
        self._is_checked = False

    # Where it begins

    def initial(self) -> Document:
        """The offsets of a query that has no checkpoint yet."""
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
                    f"{partition.topic}-{partition.partition} ends at {written[partition]}, before the offset {offset} "
                    f"that {self._options.starting_option} asks for"
                )
                offsets[partition] = written[partition]
        losses.settle(fail=self._options.fail_on_data_loss)
        # All of them are noted as the batch's beginning, too: `latest` is another place when a batch is run again.
        return self._offset(offsets, topics.ids, begin=offsets, history=note).to_json()

    def prepare_available_now(self) -> None:
        """What is there now is all that this run reads."""
        self._target = self._view.latest(self._view.topics(fresh=True).partitions)

    # What is new

    def latest(self, start: Document, *, limited: bool) -> Document:
        """Where the next micro-batch ends; `start` itself if there is nothing to do.

        Spark asks only when all before `start` has been processed and recorded, so this is also when a group may be
        told of it.
        """
        now = self._now()
        if self._idle_result is not None and self._idle_result[0] == start and now < self._idle_result[1]:
            return start
        before = StreamOffset.from_json(start)
        if not self._is_checked:
            self._with_retries(lambda: self._check_checkpoint(before))
            self._is_checked = True
        self._with_retries(lambda: self._commit(before))
        end = self._with_retries(lambda: self._next_end(before, limited=limited))
        if end is None:
            self._idle_result = (start, self._now() + IDLE_CACHE_S)
            return start
        self._idle_result = None
        self._last_batch_at = now
        document = end.to_json()
        self._planned = (start, document)
        return document

    def _with_retries(self, ask: Callable[[], T]) -> T:
        """A query that runs outlives a cluster that does not answer for a while."""
        began = time.monotonic()
        while True:
            try:
                return ask()
            except WireError as error:
                if not is_retriable(error) or time.monotonic() - began > self._options.wait_s:
                    raise
                _log.warning("the cluster does not answer, and is asked again: %s", error)

    def finished(self, end: Document) -> None:
        """Spark says that a batch is done, a little earlier than `latest` would."""
        self._with_retries(lambda: self._commit(StreamOffset.from_json(end)))

    def _commit(self, done: StreamOffset) -> None:
        """Tells the group, of what there still is: a group knows topics by name only."""
        if self._progress is None:
            return
        topics = self._view.topics()
        anew = {topic for topic, known in done.topic_ids.items() if was_recreated(known, topics.ids.get(topic))}
        positions = done.positions.items()
        self._progress.commit(
            {each: at for each, at in positions if each in topics.partitions and each.topic not in anew}
        )

    def report_latest(self) -> Document | None:
        """All there was when it was last asked, for the progress report."""
        return self._latest.to_json() if self._latest is not None else None

    def _next_end(self, before: StreamOffset, *, limited: bool) -> StreamOffset | None:
        if before.history is not None and not before.history.is_done:
            rows, size = (self._options.max_offsets, self._options.max_bytes) if limited else (None, None)
            return replace(before, history=self._table().advance(before.history, rows, size))
        ends = self._ends()
        if self._unchanged(before, ends):
            self._latest = self._offset(ends, self._view.topics().ids)
            return None
        continuation, ends = self._continue(before)
        continuation.losses.settle(fail=self._options.fail_on_data_loss)
        topics = self._view.topics()
        if forgotten := unsubscribed_topics(before, topics, self._options.subscription.wants):
            _log.warning("the query does not ask for %s any more, and forgets how far it was", ", ".join(forgotten))
        starts = continuation.starts
        ends = {each: max(end, starts[each]) for each, end in ends.items() if each in starts}
        self._latest = self._offset(ends, topics.ids)
        # A first batch of a query begins where its start says; all others only note what is new.
        begin = dict(continuation.begin)
        if before.begin == before.positions:
            begin = {each: begin.get(each, offset) for each, offset in starts.items()}
        if limited:
            if not continuation.losses.found and not self._enough(starts, ends):
                return None
            ends = self._limit(starts, ends)
        # What exists but could not be asked about now keeps its place.
        kept = {each: at for each, at in before.positions.items() if each in topics.partitions and each not in ends}
        made = self._offset(ends | kept, topics.ids, begin)
        changed = made.positions != before.positions or made.topic_ids != before.topic_ids
        return made if changed or has_new_begin(begin, before) else None

    def _ends(self) -> dict[TopicPartition, int]:
        """Where each partition ends for this query now."""
        partitions = self._view.topics().partitions
        if self._target is None:
            return self._view.latest(partitions)
        return {each: end for each, end in self._target.items() if each in partitions}

    def _unchanged(self, before: StreamOffset, ends: Mapping[TopicPartition, int]) -> bool:
        if before.positions != ends:
            return False
        ids = self._view.topics().ids
        return not any(was_recreated(known, ids.get(topic)) for topic, known in before.topic_ids.items())

    def _continue(self, before: StreamOffset) -> tuple[Continuation, dict[TopicPartition, int]]:
        """Where to go on; asked again, with pauses, before a loss is believed."""
        for attempt in range(self._options.retries + 1):
            topics = self._view.topics(fresh=attempt > 0 or not self._options.retries)
            ends = self._ends()
            written = self._written(before, ends)
            earliest = self._view.earliest(ends.keys())
            found = resume(before, topics, earliest, written, self._options.subscription.wants)
            if not found.losses.found or attempt == self._options.retries:
                break
            if attempt:
                time.sleep(self._options.retry_interval_s)
        return found, ends

    def _written(self, before: StreamOffset, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The ends by which truncation is judged: a query may be ahead of what open transactions let it read."""
        ahead = {each for each, end in ends.items() if before.positions.get(each, 0) > end}
        return dict(ends) | (self._view.written(ahead) if ahead else {})

    def _enough(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> bool:
        """Whether as many offsets wait as a batch should have, or have waited long enough."""
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

    # Who reads what

    def parts(self, start: Document, end: Document) -> list[HistoryPart] | list[Range]:
        """The tasks of the batch between two offsets; the same for the same offsets."""
        if start == end:
            return []
        after = StreamOffset.from_json(end)
        if after.history is None:
            return self.ranges(start, end)
        return self._table().parts(after.history)

    def ranges(self, start: Document, end: Document) -> list[Range]:
        """What the batch reads from the brokers."""
        before, after = StreamOffset.from_json(start), StreamOffset.from_json(end)
        begins = {**before.positions, **after.begin}
        # Only spark-sql-kafka leaves out where a new partition begins: it means the earliest offset.
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
        """A batch that was planned before a restart: what it was to read may be gone."""
        topics = self._view.topics(fresh=True)
        losses = Losses()
        left: dict[TopicPartition, int] = {}
        pending = {each for each, begin in begins.items() if begin < after.positions[each]}
        earliest = self._view.earliest(pending & topics.partitions)
        for partition in sorted(pending):
            stop = after.positions[partition]
            unread = f"{partition.topic}-{partition.partition} from {begins[partition]} to {stop - 1}"
            if partition not in earliest:
                losses.add(f"{unread} was deleted")
            elif was_recreated(after.topic_ids.get(partition.topic), topics.ids.get(partition.topic)):
                losses.add(f"{unread} is gone: topic {partition.topic!r} was deleted and created anew")
            elif (low := earliest[partition]) > begins[partition]:
                losses.add(overtaken(partition, begins[partition], low, stop))
                left[partition] = min(low, stop)
            else:
                left[partition] = begins[partition]
        losses.settle(fail=self._options.fail_on_data_loss)
        return left

    # Helpers

    def _table(self) -> HistoryPlanner:
        if self._history is None:
            raise CheckpointError(
                "the query has not read all of the table that it began with: keep startingOffsets=table:… as it was, "
                "or give it a new checkpointLocation"
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
        """Once per run: whether a checkpoint fits to what is asked for, and all that is new to it exists."""
        topics = sorted({each.topic for each in before.positions})
        if topics and not any(self._options.subscription.wants(topic) for topic in topics):
            raise CheckpointError(
                f"the checkpoint is of a query that reads {', '.join(topics[:5])}; this one reads "
                f"{self._options.subscription}. Give it a checkpointLocation of its own"
            )
        if not set(self._view.topics().missing) <= set(topics):
            self._view.existing()


def has_new_begin(begin: Mapping[TopicPartition, int], before: StreamOffset) -> bool:
    """Whether where partitions begin differs from where the query was, though no offset moved."""
    return any(before.positions.get(each) != offset for each, offset in begin.items())


def plan_with_history(
    options: ReadOptions, history: HistoryPlanner, cluster: Cluster | None = None
) -> list[HistoryPart | Range]:
    """All of a table, and what the brokers have after it."""
    note, seam = history.begin(LogView(options, cluster or cluster_of(options.connection)).existing().ids)
    return [*history.parts(history.advance(note, None, None)), *plan_batch(options, cluster, seam)]


def plan_batch(
    options: ReadOptions, cluster: Cluster | None = None, seam: Mapping[tuple[str, int], int] | None = None
) -> list[Range]:
    """The ranges to read; `latest` is the last stable offset, unless transactions are to be read uncommitted."""
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
            losses.add(
                f"{name} ends at {written[partition]}, before the offset {stop} that {options.ending_option} asks for"
            )
            stop = written[partition]
        if start < earliest[partition] and start < stop:
            losses.add(overtaken(partition, start, earliest[partition], stop))
            start = earliest[partition]
        ranges.append(Range(partition.topic, partition.partition, start, stop, topics.ids[partition.topic]))
    losses.settle(fail=options.fail_on_data_loss)
    return split_ranges(ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition)
