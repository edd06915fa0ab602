"""What a reader of committed records finds in a topic, read with the wire and decoder rooms alone."""

from millstream.columnar import ArrowDecoder
from millstream.raw_client import EARLIEST, LATEST, Cluster, TopicPartition


def committed_values(cluster: Cluster, topic: str) -> list[str]:
    """All values, in the order of partitions and offsets, up to the last stable offset."""
    values: list[str] = []
    for partition in range(cluster.partitions_of(topic)):
        place = TopicPartition(topic, partition)
        position = cluster.offsets({place: EARLIEST})[place].offset
        end = cluster.offsets({place: LATEST})[place].offset
        decoder = ArrowDecoder(["value"])
        while position < end:
            fetched = cluster.fetch(place, position, max_bytes=8 << 20, max_wait_ms=100)
            batches, position = decoder.decode(
                fetched.data, topic=topic, partition=partition, start=position, stop=end, aborted=fetched.aborted
            )
            values += [value.decode() for batch in batches for value in batch.column("value").to_pylist()]
    return values


def hidden(cluster: Cluster, topic: str) -> int:
    """How many offsets lie behind the last stable one: 0 unless a transaction was left open."""
    places = [TopicPartition(topic, each) for each in range(cluster.partitions_of(topic))]
    stable = cluster.offsets(dict.fromkeys(places, LATEST))
    ends = cluster.offsets(dict.fromkeys(places, LATEST), read_committed=False)
    return sum(ends[place].offset - stable[place].offset for place in places)
