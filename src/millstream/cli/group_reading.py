"""Reading as a member of a consumer group, for `consume --group`.

Offsets are stored only after the records were written out, and committed once a second and at the end: what is printed
may be printed again after a crash, and nothing is passed over. The group's protocol is librdkafka's choice
(`-X group.protocol=consumer` for KIP-848).
"""

import time
from typing import TYPE_CHECKING, Any

from millstream.cli.terminal import note

if TYPE_CHECKING:
    from millstream.client import Record
    from millstream.client.connection import Connection

BATCH = 1000
_CHUNK_S = 0.25


class GroupReader:
    """Records of the partitions that the group gives us: `next_batch`, then `done` when they are dealt with."""

    def __init__(
        self,
        connection: "Connection",
        group: str,
        topic: str,
        *,
        start: str,
        follow: bool,
        idle: float | None,
        limit: int | None,
    ) -> None:
        from confluent_kafka import Consumer

        self._connection = connection
        self._topic = topic
        self._follow = follow
        self._idle = idle
        self._left = limit
        self._at_end: set[int] = set()
        self._assigned: set[int] = set()
        self._pending: list[Any] = []
        self._quiet_since = time.monotonic()
        self.finished = limit == 0
        self._consumer: Any = Consumer(
            connection.librdkafka(
                group_id=group,
                enable_auto_commit=True,
                auto_commit_interval_ms=1000,
                enable_auto_offset_store=False,
                enable_partition_eof=True,
                auto_offset_reset=start,
                queued_max_messages_kbytes=32_768,
            )
        )
        self._consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def __enter__(self) -> "GroupReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def next_batch(self) -> "list[Record[Any]]":
        """The records that are there, or come within a moment; empty if none did."""
        from confluent_kafka import KafkaException

        try:
            first = self._consumer.poll(_CHUNK_S)
            wanted = BATCH if self._left is None else min(BATCH, self._left)
            messages = [] if first is None else [first, *self._consumer.consume(wanted - 1, 0)]
        except KafkaException as error:
            raise self._connection.error(error, self._topic) from error
        records = self._take(messages)
        now = time.monotonic()
        if records:
            self._quiet_since = now
        self.finished = self._is_finished(now)
        return records

    def done(self) -> None:
        """What was handed out last is dealt with: its offsets may be committed."""
        from confluent_kafka import KafkaException

        for message in self._pending:
            try:
                self._consumer.store_offsets(message)
            except KafkaException:
                continue  # the partition went to another member meanwhile, who will read this again
        self._pending = []

    def _is_finished(self, now: float) -> bool:
        if self._left == 0:
            return True
        quiet_s = now - self._quiet_since
        if not self._assigned:
            # Joining takes a moment, and so does taking over from a member that left; neither is silence.
            if quiet_s < self._connection.timeout:
                return False
            self._connection.probe()
            self._quiet_since = now
            note("the group gave this member no partitions: others have them all")
            return not self._follow or self._idle is not None
        if self._follow:
            return self._idle is not None and quiet_s >= self._idle
        return self._assigned <= self._at_end or quiet_s >= self._connection.timeout

    def _take(self, messages: list[Any]) -> "list[Record[Any]]":
        from confluent_kafka import KafkaError

        from millstream.client import Record

        records: list[Record[Any]] = []
        for message in messages:
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    self._at_end.add(message.partition())
                    continue
                raise self._connection.reading_error(message, self._topic)
            self._at_end.discard(message.partition())
            if self._left is not None:
                if self._left == 0:
                    continue
                self._left -= 1
            raw = message.value()
            self._pending.append(message)
            records.append(
                Record(
                    self._topic,
                    message.partition(),
                    message.offset(),
                    message.key(),
                    raw,
                    raw,
                    message.timestamp()[1],
                    message.headers() or [],
                )
            )
        return records

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        self._assigned.update(place.partition for place in partitions)
        self._quiet_since = time.monotonic()

    def _on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        gone = {place.partition for place in partitions}
        self._assigned -= gone
        self._at_end -= gone
