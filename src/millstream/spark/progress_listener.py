"""Progress of Spark queries, committed to consumer groups.

The source commits when Spark plans the next batch: that is after the next trigger, and never after a query was stopped.
A listener commits as soon as Spark reports a batch, for every query of a session:

    spark.streams.addListener(GroupProgressListener({"kafka.bootstrap.servers": "localhost:9092"}))
"""

import json
import logging
from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from millstream.raw_client import Cluster, TopicPartition, WireError
from millstream.spark.connections import Connection, cluster_of
from millstream.spark.errors import OptionError
from millstream.spark.source.offsets import NOTE, StreamOffset

_log = logging.getLogger("millstream.spark")


class GroupProgress:
    """Commits changed offsets to a group. The first commit must succeed; later ones are retried with a warning."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._committed: dict[TopicPartition, int] | None = None
        self._warned = ""

    def commit(self, finished: Mapping[TopicPartition, int]) -> None:
        """`finished`: for each partition, the offset after the last processed record."""
        if not finished or self._committed == finished:
            return
        changed = {each: offset for each, offset in finished.items() if (self._committed or {}).get(each) != offset}
        try:
            self._cluster.commit_offsets(self._group, changed)
        except WireError as error:
            if self._committed is None:
                raise  # the group has members, or access is denied: fail at the start of the query
            if str(error) != self._warned:
                _log.warning(
                    "progress could not be committed to group %r, and is retried with the next batch: %s",
                    self._group,
                    error,
                )
            self._warned = str(error)
        else:
            self._committed = dict(finished)
            self._warned = ""


class GroupProgressListener(StreamingQueryListener):
    """Commits finished batches of every stream that has a `groupId`.

    `options`: the connection, as for the source: kafka.bootstrap.servers and kafka.*.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        if "kafka.bootstrap.servers" not in given:
            raise OptionError("kafka.bootstrap.servers is missing; set it to HOST:PORT of a broker")
        passed_on = {name.removeprefix("kafka."): value for name, value in given.items() if name.startswith("kafka.")}
        bootstrap = passed_on.pop("bootstrap.servers")
        self._connection = Connection(bootstrap, tuple(sorted(passed_on.items())))
        self._groups: dict[str, GroupProgress] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        for source in event.progress.sources:
            self._commit(source.endOffset)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        pass

    def _commit(self, text: str | None) -> None:
        document = json.loads(text) if text else None
        if not isinstance(document, dict) or NOTE not in document:
            return  # a source of another kind
        offset = StreamOffset.from_json(document)
        if offset.group is None:
            return
        progress = self._groups.setdefault(offset.group, GroupProgress(cluster_of(self._connection), offset.group))
        try:
            progress.commit(offset.positions)
        except WireError as error:
            # Spark ignores errors of a listener, so it is logged.
            _log.warning("progress could not be committed to group %r: %s", offset.group, error)
