"""One read between two sets of offsets, planned on the driver: both are resolved once, so every task agrees on them."""

import logging

from millstream.spark.connections import cluster_of
from millstream.spark.data_loss import Losses, overtaken
from millstream.spark.log_view import LogView
from millstream.spark.options import ReadOptions
from millstream.spark.positions import Everywhere
from millstream.spark.ranges import Range, split_ranges
from millstream.wire import EARLIEST, Cluster

log = logging.getLogger("millstream.spark")


def plan_batch(options: ReadOptions, cluster: Cluster | None = None) -> list[Range]:
    """The ranges to read; `latest` is the last stable offset, unless transactions are to be read uncommitted."""
    view = LogView(options, cluster or cluster_of(options.connection))
    topics = view.existing()
    resolver = view.resolver()
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
