"""`millstream consume`: prints records of a topic as text, as JSON lines or by a template.

With `--group` it reads as a member of a consumer group. Offsets are stored after the records were printed, and
committed once a second and at the end. So after a crash records may be printed twice, but none is skipped. The group
protocol is librdkafka's default (`-X group.protocol=consumer` for KIP-848).
"""

import json as json_codec
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli import exit_codes
from millstream.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_SECONDS,
    Bootstrap,
    ClientSettings,
    Timeout,
    TopicArgument,
    open_client,
)
from millstream.cli.record_text import as_json, header_text, start_of, template
from millstream.cli.terminal import CommandFailedError, note

if TYPE_CHECKING:
    from millstream.client import Record
    from millstream.client.connection import Connection


BATCH = 1000
_CHUNK_SECONDS = 0.25


class GroupReader:
    """Reads the assigned partitions: call `next_batch`, then `done` when its records are printed."""

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
        """The next records; empty if none arrived within a moment."""
        from confluent_kafka import KafkaException

        try:
            first = self._consumer.poll(_CHUNK_SECONDS)
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
        """The records of the last batch are printed: their offsets may be committed."""
        from confluent_kafka import KafkaException

        for message in self._pending:
            try:
                self._consumer.store_offsets(message)
            except KafkaException:
                continue  # the partition was revoked; its new owner reads these records again
        self._pending = []

    def _is_finished(self, now: float) -> bool:
        if self._left == 0:
            return True
        quiet_s = now - self._quiet_since
        if not self._assigned:
            # Joining a group and taking over partitions take time, in which no records arrive.
            if quiet_s < self._connection.timeout:
                return False
            self._connection.probe()
            self._quiet_since = now
            note("no partitions are assigned to this member: the other members have all of them")
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
        self._assigned.update(each.partition for each in partitions)
        self._quiet_since = time.monotonic()

    def _on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        gone = {each.partition for each in partitions}
        self._assigned -= gone
        self._at_end -= gone


def consume(
    topic: TopicArgument,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            "-o",
            metavar="WHERE",
            help="Start: earliest, latest, an offset, -N, a time, @milliseconds, or an age (5m).",
        ),
    ] = "earliest",
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", metavar="N", help="Partition to read. Repeatable. [default: all]"),
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-c", metavar="N", help="Stop after N records.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new records instead of stopping at the end.")
    ] = False,
    idle: Annotated[
        float | None,
        typer.Option("--idle", metavar="SECONDS", help="With --follow: stop after this time without records."),
    ] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Print the key before the value.")] = False,
    headers: Annotated[bool, typer.Option("--headers", help="Print the headers before the value.")] = False,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Print the timestamp before the value.")] = False,
    offsets: Annotated[bool, typer.Option("--offsets", help="Print partition and offset before the value.")] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            help="Consumer group to read in; offsets of printed records are committed.",
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format", "-F", metavar="TEXT", help="Template as in kcat: %t %p %o %T %k %K %s %S %h, \\n \\t."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per record, with all fields.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Print the records of a topic, up to its end or, with --follow, without end.

    Reads without a consumer group by default. With --group the group assigns partitions to this member, reading
    continues at the committed offsets, and --from (earliest or latest) applies to partitions without one.

    \b
    Examples:
      millstream consume orders
      millstream consume orders --from latest --follow --keys --timestamps
      millstream consume orders --from 2026-01-31T12:00 --json
      millstream consume orders --partition 0 --from 41 --count 1
      millstream consume orders --format '%p:%o %k=%s\\n'
      millstream consume orders --group billing --follow
    """
    if json and form is not None:
        raise CommandFailedError("--json and --format exclude each other", exit_codes.USAGE)
    write = _writer(json, form, keys=keys, headers=headers, timestamps=timestamps, offsets=offsets)
    where = start_of(start)
    if group is not None:
        if partition or where not in ("earliest", "latest"):
            raise CommandFailedError(
                "--group excludes --partition, and --from can only be earliest or latest:"
                " `millstream group reset-offsets` changes the offsets of a group",
                exit_codes.USAGE,
            )
        with open_client(bootstrap, timeout, settings) as client:
            client.topics.partitions(topic)  # fails at once if the topic does not exist
            with GroupReader(
                client.connection, group, topic, start=str(where), follow=follow, idle=idle, limit=count
            ) as reader:
                _copy_group(reader, write, topic, group)
        return
    output = sys.stdout.buffer
    read = 0
    with (
        open_client(bootstrap, timeout, settings) as client,
        client.consume(
            topic, where, partition=partition, follow=follow, timeout=idle if follow else timeout, limit=count
        ) as stream,
    ):
        if where == "latest" and not follow:
            note("there are no records after the latest: add --follow to wait for new ones")
        while not stream.finished:
            records = stream.next_batch()
            if records:
                output.write(b"".join(map(write, records)))
                output.flush()
                read += len(records)
    note(f"{read:,} records of {topic}")


def _copy_group(reader: GroupReader, write: "Callable[[Record[Any]], bytes]", topic: str, group: str) -> None:
    output = sys.stdout.buffer
    read = 0
    while not reader.finished:
        records = reader.next_batch()
        if records:
            output.write(b"".join(map(write, records)))
            output.flush()
            read += len(records)
        reader.done()
    note(f"{read:,} records of {topic}, committed for {group}")


def _writer(
    json: bool, form: str | None, *, keys: bool, headers: bool, timestamps: bool, offsets: bool
) -> "Callable[[Record[Any]], bytes]":
    if json:
        return lambda record: json_codec.dumps(as_json(record), ensure_ascii=False).encode() + b"\n"
    if form is not None:
        return template(form)
    if not (keys or headers or timestamps or offsets):
        return lambda record: (record.raw or b"") + b"\n"

    def write(record: "Record[Any]") -> bytes:
        columns = []
        if offsets:
            columns.append(b"%d:%d" % (record.partition, record.offset))
        if timestamps:
            time = record.time
            columns.append(b"-" if time is None else time.isoformat(timespec="milliseconds").encode())
        if keys:
            columns.append(record.key or b"")
        if headers:
            columns.append(header_text(record))
        return b"\t".join([*columns, record.raw or b""]) + b"\n"

    return write
