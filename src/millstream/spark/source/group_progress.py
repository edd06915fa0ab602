"""Progress of a query, committed to a consumer group, so that its lag shows in every Kafka tool."""

import logging
from collections.abc import Mapping

from millstream.raw_client import Cluster, TopicPartition, WireError

log = logging.getLogger("millstream.spark")


class GroupProgress:
    """Commits offsets when they changed. The first commit must succeed; later ones are tried again, with a warning."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._committed: dict[TopicPartition, int] | None = None
        self._warned = ""

    def commit(self, finished: Mapping[TopicPartition, int]) -> None:
        """`finished`: up to where (exclusive) all has been processed."""
        if not finished or self._committed == finished:
            return
        changed = {each: offset for each, offset in finished.items() if (self._committed or {}).get(each) != offset}
        try:
            self._cluster.commit_offsets(self._group, changed)
        except WireError as error:
            if self._committed is None:
                raise  # a group that may not be used, or has members: the user wants to know at the start
            if str(error) != self._warned:
                log.warning("progress could not be committed to group %r, and will be later: %s", self._group, error)
            self._warned = str(error)
        else:
            self._committed = dict(finished)
            self._warned = ""
