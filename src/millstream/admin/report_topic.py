"""Reads a whole topic of reports: one partition, compacted, the newest record of each key counts."""

from collections.abc import Iterator
from typing import Final

from millstream.formats.records.batch import LOG_OVERHEAD, iterate_headers
from millstream.formats.records.record import iterate_records
from millstream.raw_client import EARLIEST, LATEST, Cluster, TopicPartition

_FETCH_BYTES: Final = 4 << 20


def read_reports(cluster: Cluster, topic: str) -> Iterator[tuple[str, bytes | None]]:
    """Key and value of all records up to now, in order; none if the topic does not exist."""
    if topic not in cluster.topics([topic]):
        return
    at = TopicPartition(topic, 0)
    end = cluster.offsets({at: LATEST})[at].offset
    offset = cluster.offsets({at: EARLIEST})[at].offset
    while offset < end:
        fetched = cluster.fetch_existing(at, offset, max_bytes=_FETCH_BYTES)
        after = offset
        for place, header in iterate_headers(fetched.data):
            after = header.base_offset + header.last_offset_delta + 1
            for record in iterate_records(header, fetched.data[place : place + LOG_OVERHEAD + header.length]):
                if record.key is not None:
                    yield record.key.decode(errors="replace"), record.value
        if after <= offset:
            return
        offset = after
