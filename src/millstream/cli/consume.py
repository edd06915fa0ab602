"""`millstream consume`: records of a topic as text, JSON lines or in a format of your own."""

import json as json_codec
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli import exit_codes
from millstream.cli.group_reading import GroupReader
from millstream.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
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


def consume(
    topic: TopicArgument,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            "-o",
            metavar="WHERE",
            help="earliest, latest, an offset, -N, a time, @milliseconds, or an age (5m).",
        ),
    ] = "earliest",
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", metavar="N", help="Only this partition. Repeatable.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-c", metavar="N", help="Stop after N records.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new records instead of stopping at the end.")
    ] = False,
    idle: Annotated[
        float | None,
        typer.Option("--idle", metavar="SECONDS", help="With --follow: stop after this long without records."),
    ] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Show the key before the value.")] = False,
    headers: Annotated[bool, typer.Option("--headers", help="Show the headers before the value.")] = False,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Show the time before the value.")] = False,
    offsets: Annotated[bool, typer.Option("--offsets", help="Show partition and offset before the value.")] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", metavar="GROUP", help="Read as a member of this group, and commit what was printed."
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", "-F", metavar="TEXT", help="Like kcat: %t %p %o %T %k %K %s %S %h, \\n \\t."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line, with everything.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    settings: ClientSettings = None,
) -> None:
    """Print the records of a topic; stops at the end unless told to --follow.

    Reads without a consumer group unless --group names one: then the group decides which partitions this member gets,
    reading goes on where the group stopped, and --from (earliest or latest) counts only where it has no offset yet.

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
        raise CommandFailedError("give either --json or --format", exit_codes.USAGE)
    write = _writer(json, form, keys=keys, headers=headers, timestamps=timestamps, offsets=offsets)
    where = start_of(start)
    if group is not None:
        if partition or where not in ("earliest", "latest"):
            raise CommandFailedError(
                "with --group the group knows where to read: leave out --partition, and give --from earliest or latest;"
                " `millstream group reset-offsets` moves a group",
                exit_codes.USAGE,
            )
        with open_client(bootstrap, timeout, settings) as client:
            client.topics.partitions(topic)  # a topic that is not there is an error at once
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
            note("nothing lies after the latest record: add --follow to wait for new ones")
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
