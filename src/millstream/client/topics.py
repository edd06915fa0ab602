"""Create, list, describe, alter and delete topics, with librdkafka's admin client."""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import confluent_kafka.admin
from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition

from millstream.client.connection import Connection
from millstream.client.errors import DeadlineError, MillstreamError, RefusedError, TopicNotFoundError

T = TypeVar("T")
# The stubs of confluent_kafka do not have these names, so they are untyped.
_admin: Any = confluent_kafka.admin
EARLIEST = _admin.OffsetSpec.earliest()
LATEST = _admin.OffsetSpec.latest()
ADMIN_GRACE_SECONDS = 5.0
"""Wait after librdkafka's own timeout, so that its error is reported."""
VISIBLE_WITHIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition: leader, replicas, and its offsets from `earliest` to `latest` (exclusive)."""

    id: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    earliest: int
    latest: int

    @property
    def records(self) -> int:
        """The number of offsets. After compaction there may be fewer records."""
        return self.latest - self.earliest


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic with its partitions and the settings that were set for it."""

    name: str
    id: str
    internal: bool
    partitions: tuple[Partition, ...]
    config: dict[str, str]

    @property
    def records(self) -> int:
        """The number of offsets in all partitions."""
        return sum(partition.records for partition in self.partitions)


class Topics:
    """Requests about topics."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._admin = _admin.AdminClient(connection.librdkafka())

    def names(self, *, internal: bool = False) -> list[str]:
        """All topic names, sorted; internal ones (`__consumer_offsets`, …) only if wanted."""
        try:
            found = self._admin.list_topics(timeout=self._connection.timeout).topics
        except KafkaException as error:
            raise self._connection.error(error) from error
        return sorted(name for name in found if internal or not name.startswith("__"))

    def create(
        self, name: str, *, partitions: int | None, replication: int | None, config: Mapping[str, Any], exist_ok: bool
    ) -> bool:
        """Creates a topic and waits until it can be used. False if it existed and `exist_ok` is set."""
        new = _admin.NewTopic(
            name,
            num_partitions=-1 if partitions is None else partitions,
            replication_factor=-1 if replication is None else replication,
            config={key: setting_text(value) for key, value in config.items()},
        )
        try:
            self._wait(lambda timeout: self._admin.create_topics([new], request_timeout=timeout)[name], name)
        except MillstreamError as error:
            if exist_ok and error.code == "TOPIC_ALREADY_EXISTS":
                return False
            raise
        self._wait_until_visible(name, 1 if partitions is None else partitions)
        return True

    def delete(self, name: str, *, missing_ok: bool) -> bool:
        """Deletes a topic. False if it did not exist and `missing_ok` is set."""
        try:
            self._wait(lambda timeout: self._admin.delete_topics([name], request_timeout=timeout)[name], name)
        except TopicNotFoundError:
            if missing_ok:
                return False
            raise
        self._wait_until_gone(name)
        return True

    def add_partitions(self, name: str, total: int) -> None:
        """Adds partitions, so that there are `total`, and waits until they can be used."""
        new = _admin.NewPartitions(name, total)
        self._wait(lambda timeout: self._admin.create_partitions([new], request_timeout=timeout)[name], name)
        self._wait_until_visible(name, total)

    def alter_config(self, name: str, config: Mapping[str, Any]) -> None:
        """Changes settings, all or none. None resets one to its default."""
        entries = [
            _admin.ConfigEntry(
                key,
                "" if value is None else setting_text(value),
                incremental_operation=_admin.AlterConfigOpType.DELETE
                if value is None
                else _admin.AlterConfigOpType.SET,
            )
            for key, value in config.items()
        ]
        resource = _admin.ConfigResource(_admin.ResourceType.TOPIC, name, incremental_configs=entries)
        self._wait(
            lambda timeout: self._admin.incremental_alter_configs([resource], request_timeout=timeout)[resource], name
        )

    def config(self, name: str) -> dict[str, Any]:
        """All settings of a topic by name, as librdkafka's ConfigEntry."""
        resource = _admin.ConfigResource(_admin.ResourceType.TOPIC, name)
        found: dict[str, Any] = self._wait(
            lambda timeout: self._admin.describe_configs([resource], request_timeout=timeout)[resource], name
        )
        return found

    def describe(self, name: str) -> Topic:
        """A topic with partitions, offsets and settings."""
        (description,) = self._descriptions([name])
        leaders = {info.id: info.leader.id for info in description.partitions if info.leader and info.leader.id >= 0}
        earliest = self.offsets(name, dict.fromkeys(leaders, EARLIEST))
        latest = self.offsets(name, dict.fromkeys(leaders, LATEST))
        own = _admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return Topic(
            name=description.name,
            id=str(description.topic_id),
            internal=description.is_internal,
            partitions=tuple(
                Partition(
                    id=info.id,
                    leader=leaders.get(info.id),
                    replicas=tuple(node.id for node in info.replicas),
                    in_sync=tuple(node.id for node in info.isr),
                    earliest=earliest.get(info.id, -1),
                    latest=latest.get(info.id, -1),
                )
                for info in description.partitions
            ),
            config={entry.name: entry.value for entry in self.config(name).values() if entry.source in (own, str(own))},
        )

    def summaries(self, names: list[str]) -> list[tuple[str, int, int]]:
        """Name, partitions and replication factor of each topic, in one request."""
        return [
            (found.name, len(found.partitions), max((len(part.replicas) for part in found.partitions), default=0))
            for found in self._descriptions(names)
        ]

    def partitions(self, name: str) -> list[int]:
        """The partitions of a topic. Never creates the topic, whatever the settings of the broker."""
        (description,) = self._descriptions([name])
        return [info.id for info in description.partitions]

    def offsets(self, name: str, wanted: Mapping[int, Any]) -> dict[int, int]:
        """The offset for an OffsetSpec of each partition, in one request; -1 if there is none."""
        request = {TopicPartition(name, partition): spec for partition, spec in wanted.items()}
        deadline = self._connection.timeout
        # The last stable offset is the end for consumers of committed records.
        futures = (
            self._admin.list_offsets(request, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=deadline)
            if request
            else {}
        )
        return {key.partition: self._result(future, name).offset for key, future in futures.items()}

    def delete_records(self, name: str, before: Mapping[int, int]) -> dict[int, int]:
        """Deletes the records before an offset of each partition. Returns the new earliest offsets."""
        request = [TopicPartition(name, partition, offset) for partition, offset in before.items()]
        futures = self._admin.delete_records(request, request_timeout=self._connection.timeout)
        return {key.partition: self._result(future, name).low_watermark for key, future in futures.items()}

    def _descriptions(self, names: Iterable[str]) -> list[Any]:
        wanted = list(names)
        if not wanted:
            return []
        try:
            futures = self._admin.describe_topics(
                TopicCollection(topic_names=wanted), request_timeout=self._connection.timeout
            )
        except (ValueError, TypeError) as error:
            raise RefusedError(f"{', '.join(map(repr, wanted))}: {error}", "TOPIC_EXCEPTION") from error
        return [self._result(futures[name], name) for name in wanted]

    # The controller responds before all brokers know the change: wait until the client sees it.

    def _wait_until_visible(self, name: str, partitions: int) -> None:
        def visible() -> bool:
            try:
                (description,) = self._descriptions([name])
            except TopicNotFoundError:
                return False
            led = sum(info.leader is not None for info in description.partitions)
            return led >= partitions

        self._wait_for(visible, f"topic {name!r} does not have a leader for each partition yet: try again in a moment")

    def _wait_until_gone(self, name: str) -> None:
        self._wait_for(
            lambda: name not in self.names(internal=True),
            f"topic {name!r} is still being deleted: try again in a moment",
        )

    def _wait_for(self, condition: Callable[[], bool], message: str) -> None:
        deadline = time.monotonic() + min(VISIBLE_WITHIN_SECONDS, self._connection.timeout)
        while not condition():
            if time.monotonic() > deadline:
                raise DeadlineError(message)
            time.sleep(0.02)

    def _wait(self, request: Callable[[float], "Future[T]"], topic: str) -> T:
        try:
            future = request(self._connection.timeout)
        except (ValueError, TypeError, KafkaException) as error:
            if isinstance(error, KafkaException):
                raise self._connection.error(error, topic) from error
            raise RefusedError(f"topic {topic!r}: {error}") from error
        return self._result(future, topic)

    def _result(self, future: "Future[T]", topic: str) -> T:
        try:
            return future.result(self._connection.timeout + ADMIN_GRACE_SECONDS)
        except KafkaException as error:
            raise self._connection.error(error, topic) from error
        except TimeoutError as error:
            raise DeadlineError(f"no response from {self._connection.bootstrap} in time") from error


def setting_text(value: Any) -> str:
    """A setting's value as Kafka writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def at_time(timestamp_ms: int) -> Any:
    """The OffsetSpec of the first record at or after a timestamp."""
    return _admin.OffsetSpec.for_timestamp(timestamp_ms)
