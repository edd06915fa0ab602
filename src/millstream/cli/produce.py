"""`millstream produce`: sends records from arguments, stdin or files."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from millstream.cli import exit_codes
from millstream.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_SECONDS,
    Bootstrap,
    ClientSettings,
    Json,
    Timeout,
    TopicArgument,
    assignments,
    open_client,
)
from millstream.cli.record_text import from_json
from millstream.cli.terminal import CommandFailedError, note, print_json, progress

if TYPE_CHECKING:
    from millstream.client import Client, Message

UPDATE_EVERY = 2000


def produce(
    topic: TopicArgument,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VALUE]...", help="Values of the records. [default: the lines of stdin]", show_default=False
        ),
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option("--file", "-f", metavar="FILE", help="File with one record per line. Repeatable."),
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Send each file (or stdin) as one record.")] = False,
    json_lines: Annotated[
        bool, typer.Option("--json-lines", help="Lines are JSON objects with value, key, headers and timestamp.")
    ] = False,
    key: Annotated[str | None, typer.Option("--key", "-k", metavar="TEXT", help="Key of every record.")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", metavar="TEXT", help="Separator of key and value in each line."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header of every record. Repeatable."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", metavar="N", help="Partition. [default: by the key]")
    ] = None,
    acks: Annotated[
        str,
        typer.Option(
            "--acks", metavar="0|1|all", help="Required acknowledgements: none, leader, or all in-sync replicas."
        ),
    ] = "all",
    compression: Annotated[
        str, typer.Option("--compression", "-z", metavar="CODEC", help="Compression: none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Send records, and wait until they are acknowledged.

    \b
    Examples:
      millstream produce orders '{"id": 1}' '{"id": 2}'
      echo 'a:1' | millstream produce orders --key-separator :
      millstream produce orders --file orders.txt --compression zstd
      millstream consume orders --json | millstream produce copy --json-lines
    """
    if acks not in {"0", "1", "all", "-1"}:
        raise CommandFailedError(f"--acks {acks}: write 0, 1 or all", exit_codes.USAGE)
    if compression not in {"none", "gzip", "snappy", "lz4", "zstd"}:
        raise CommandFailedError(
            f"--compression {compression}: write none, gzip, snappy, lz4 or zstd", exit_codes.USAGE
        )
    if json_lines and (key_separator is not None or whole):
        raise CommandFailedError("--json-lines excludes --key-separator and --whole", exit_codes.USAGE)
    shape = _shape(key, key_separator, assignments(header, "--header"), partition, json_lines)
    started = time.perf_counter()
    with open_client(bootstrap, timeout, settings, **{"acks": acks, "compression.type": compression}) as client:
        if values:
            count = client.publish_many(topic, (shape(value.encode(), n) for n, value in enumerate(values, 1)))
        elif not file and not whole and sys.stdin.isatty():
            count = _type_in(client, topic, shape)
        else:
            count = _send_files(client, topic, file or ["-"], shape, whole=whole)
    seconds = time.perf_counter() - started
    if json:
        print_json({"topic": topic, "records": count, "seconds": round(seconds, 3)})
    else:
        note(f"{count:,} records to {topic} in {seconds:.2f} s")


def _shape(
    key: str | None, key_separator: str | None, headers: dict[str, str], partition: int | None, json_lines: bool
) -> "Callable[[bytes, int], Message]":
    """The function that makes a record from a line and its number."""
    from millstream.client import Message

    separator = None if key_separator is None else key_separator.encode()

    def shape(line: bytes, number: int) -> Message:
        if json_lines:
            message = from_json(line, number)
            message.partition = partition
            if headers:
                message.headers = [*(message.headers or ()), *headers.items()]
            if key is not None:
                message.key = key
            return message
        if separator is None:
            return Message(line, key, headers, partition)
        first, found, rest = line.partition(separator)
        if not found:
            raise CommandFailedError(f"line {number} has no key separator {key_separator!r}: {line[:60]!r}")
        return Message(rest, first if key is None else key, headers, partition)

    return shape


def _type_in(client: "Client", topic: str, shape: "Callable[[bytes, int], Message]") -> int:
    note(f"each line is a record of {topic}; Ctrl-D ends the input")
    count = 0
    for line in sys.stdin.buffer:
        message = shape(line.rstrip(b"\r\n"), count + 1)
        stored = client.publish(
            topic,
            message.value,
            key=message.key,
            headers=message.headers,
            partition=message.partition,
            timestamp=message.timestamp,
        )
        count += 1
        note(f"  partition {stored.partition} offset {stored.offset}")
    return count


def _send_files(
    client: "Client", topic: str, names: list[str], shape: "Callable[[bytes, int], Message]", *, whole: bool
) -> int:
    with ExitStack() as stack:
        files = [sys.stdin.buffer if name == "-" else stack.enter_context(open(name, "rb")) for name in names]
        total = sum(os.fstat(file.fileno()).st_size for file in files) if "-" not in names else None
        display = stack.enter_context(progress(wanted=total is not None, bytes_shown=True))
        task = display.add_task(f"to {topic}", total=total, info="") if display is not None else None

        def lines() -> "Iterator[Message]":
            number = size = 0
            for file in files:
                for line in [file.read()] if whole else _lines(file):
                    number += 1
                    size += len(line)
                    yield shape(line if whole else line.rstrip(b"\r\n"), number)
                    if display is not None and task is not None and number % UPDATE_EVERY == 0:
                        display.update(task, completed=size, info=f"{number:,} records")

        return client.publish_many(topic, lines())


def _lines(file: BinaryIO) -> Iterator[bytes]:
    # readline, not iteration: iteration reads ahead, so lines of a slow writer would be delayed.
    return iter(file.readline, b"")
