"""Progress committed to consumer groups as soon as Spark reports a batch, whichever query of a session it is of.

The source commits by itself when Spark asks it for the next batch; that is after the next trigger, and never once a
query was stopped. One line closes that gap:

    spark.streams.addListener(GroupProgressListener({"kafka.bootstrap.servers": "localhost:9092"}))

Progress of a query, committed to a consumer group, so that its lag shows in every Kafka tool.
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


class GroupProgressListener(StreamingQueryListener):
    """Commits what batches have finished, for every stream that was given a `groupId`.

    `options` are those of the connection, as for the source: kafka.bootstrap.servers and kafka.*.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        if "kafka.bootstrap.servers" not in given:
            raise OptionError("kafka.bootstrap.servers is missing: give HOST:PORT of a broker")
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
            # A listener that raises stops nothing and tells nobody.
            log.warning("progress could not be committed to group %r: %s", offset.group, error)
