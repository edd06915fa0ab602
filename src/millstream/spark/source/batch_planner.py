"""One read between two sets of offsets, planned on the driver: both are resolved once, so every task agrees on them."""

from collections.abc import Mapping

from millstream.raw_client import EARLIEST, Cluster
from millstream.spark.connections import cluster_of
from millstream.spark.options import ReadOptions
from millstream.spark.source.data_loss import Losses, overtaken
from millstream.spark.source.history import HistoryPart, HistoryPlanner
from millstream.spark.source.log_view import LogView
from millstream.spark.source.positions import Everywhere
from millstream.spark.source.ranges import Range, split_ranges


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
        starts = resolver.start(options.starting_option, options.starting or Everywhere(EARLIEST), topics.partitions)
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
