"""The partitions of a query as the cluster has them now: which exist, of which topics, where they begin and end."""

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from millstream.raw_client import EARLIEST, LATEST, Cluster, ErrorCode, RefusedError, TopicInfo, TopicPartition
from millstream.spark.errors import MissingTopicError
from millstream.spark.options import ReadOptions
from millstream.spark.source.positions import Resolver

log = logging.getLogger("millstream.spark")

METADATA_AGE_S = 1.0
"""How old the list of topics may be: new partitions are noticed after that time."""


@dataclass(frozen=True, slots=True)
class Topics:
    """What exists of a subscription."""

    partitions: frozenset[TopicPartition]
    ids: Mapping[str, str]
    """By topic; empty where brokers are too old to have ids."""
    missing: tuple[str, ...] = ()
    """Topics that are asked for by name and do not exist."""


class LogView:
    """Answers for one query on the driver; a list of topics is asked for anew after METADATA_AGE_S."""

    def __init__(self, options: ReadOptions, cluster: Cluster) -> None:
        self._options = options
        self._cluster = cluster
        if ignored := cluster.settings.ignored:
            log.warning("these settings have no effect here: %s", ", ".join(f"kafka.{each}" for each in ignored))
        self._topics: Topics | None = None
        self._heard_at = 0.0

    def topics(self, *, fresh: bool = False) -> Topics:
        if fresh or self._topics is None or time.monotonic() - self._heard_at > METADATA_AGE_S:
            self._topics = self._ask()
            self._heard_at = time.monotonic()
        return self._topics

    def existing(self) -> Topics:
        """The topics; MissingTopicError if one that is asked for by name is not there."""
        return self._ask(all_of_them=True)

    def earliest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return self._offsets(partitions, EARLIEST)

    def latest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The end of what may be read: up to the first open transaction, unless options say otherwise."""
        return self._offsets(partitions, LATEST)

    def written(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The end of what is there, open transactions and all."""
        return self._offsets(partitions, LATEST, read_committed=False)

    def resolver(self) -> Resolver:
        options = self._options
        return Resolver(self._cluster, options.read_committed, options.group, options.latest_when_too_late)

    def _ask(self, *, all_of_them: bool = False) -> Topics:
        subscription = self._options.subscription
        found = subscription.find(self._cluster)
        if all_of_them:
            for attempt in range(self._options.retries):
                if not subscription.missing(found):
                    break
                # A topic that was created a moment ago may not be known to every broker yet.
                time.sleep(self._options.retry_interval_s * (attempt + 1) / 4)
                found = subscription.find(self._cluster)
            subscription.must_exist(self._cluster, found, self._options.subscription_option)
            letters = self._options.dead_letter_topic
            if letters is not None and letters not in self._cluster.topics([letters]):
                raise MissingTopicError(f"deadLetterTopic: topic {letters!r} does not exist; create it first")
        ids = {name: _id(info) for name, info in found.items()}
        return Topics(frozenset(subscription.partitions(found)), ids, tuple(subscription.missing(found)))

    def _offsets(
        self, partitions: Collection[TopicPartition], at: int, *, read_committed: bool | None = None
    ) -> dict[TopicPartition, int]:
        """Partitions that were deleted while one asked are left out."""
        committed = self._options.read_committed if read_committed is None else read_committed
        try:
            found = self._cluster.offsets(dict.fromkeys(partitions, at), read_committed=committed) if partitions else {}
        except RefusedError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            rest = self.topics(fresh=True).partitions & set(partitions)
            if len(rest) == len(partitions):
                raise
            return self._offsets(rest, at, read_committed=committed)
        return {partition: answer.offset for partition, answer in found.items()}


def _id(info: TopicInfo) -> str:
    return str(info.topic_id) if info.topic_id.int else ""
