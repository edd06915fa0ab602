"""`millstream log dump`: look into segments, indexes, aborted transactions, snapshots and checkpoints."""

import json as json_codec
import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli import exit_codes
from millstream.cli.options import Json
from millstream.cli.terminal import CommandFailedError, complain, progress

if TYPE_CHECKING:
    from millstream.cli.log_reading import Entry

app = typer.Typer(help="Look into the files of a log.", no_args_is_help=True)


@app.callback()
def log() -> None:
    """Look into the files of a log."""


@app.command()
def dump(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...", help="Files, partition directories, or a data directory.", show_default=False
        ),
    ],
    records: Annotated[bool, typer.Option("--records", "-r", help="Also the records inside the batches.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Print problems only, and one line per file.")] = False,
    json: Json = False,
) -> None:
    """Print what is in the files and check it: checksums of batches, indexes against their segments.

    Works on files of Apache Kafka too, and on a broker that runs. Ends with exit code 7 if something is damaged.

    \b
    Examples:
      millstream log dump millstream-data/orders-0
      millstream log dump millstream-data/orders-0/00000000000000000000.log --records
      millstream log dump millstream-data --check
    """
    from millstream.cli.log_reading import files_of, read_file

    for path in paths:
        if not os.path.exists(path):
            raise CommandFailedError(f"{path}: there is no such file or directory", exit_codes.NOT_FOUND)
    files = [file for path in paths for file in files_of(path)]
    problems = 0
    with progress(wanted=check or not sys.stdout.isatty(), bytes_shown=True) as display:
        task = display.add_task("reading", total=sum(map(_size, files)), info="") if display else None
        done = 0
        for path in files:
            entries = wrong = 0
            size = _size(path)
            if not json and not check:
                print(f"{path} ({size:,} bytes)")

            def advance(position: int, done: int = done) -> None:
                if display is not None and task is not None:
                    display.update(task, completed=done + position)

            for entry in read_file(path, records=records, progress=advance):
                is_problem = entry["kind"] == "problem"
                entries += not is_problem
                wrong += is_problem
                if json and (is_problem or not check):
                    print(json_codec.dumps({"file": path, **entry}, ensure_ascii=False))
                elif not json and (is_problem or not check):
                    print(f"  {_line(entry)}" if not check else f"{path}: {_line(entry)}")
            if check and not json:
                print(f"{path}: {entries} entries, {wrong or 'no'} problems")
            problems += wrong
            done += size
            advance(0, done)
    if not files:
        complain("no files of a log found there")
    if problems:
        complain(f"{problems} problems found")
        raise typer.Exit(exit_codes.DAMAGED)


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0


def _line(entry: "Entry") -> str:
    match entry["kind"]:
        case "problem":
            where = f" at position {entry['position']}" if "position" in entry else ""
            return f"PROBLEM{where}: {entry['text']}"
        case "batch":
            return _batch_line(entry)
        case "record":
            return (
                f"  {entry['offset']:>10}  {_time(entry['timestamp'])}  key {_shown(entry['key'])}  "
                f"value {_shown(entry['value'])}" + (f"  headers {entry['headers']}" if entry["headers"] else "")
            )
        case "index entry":
            return f"offset {entry['offset']:<12} position {entry['position']}"
        case "time index entry":
            return f"{_time(entry['timestamp'])}  offset {entry['offset']}"
        case "aborted transaction":
            return (
                f"producer {entry['producer_id']} aborted offsets {entry['first_offset']} to {entry['last_offset']}"
                f"  last stable offset then {entry['last_stable_offset']}"
            )
        case "producer":
            return _producer_line(entry)
        case kind:
            return f"{kind}: " + "  ".join(f"{name} {value}" for name, value in entry.items() if name != "kind")


def _batch_line(entry: "Entry") -> str:
    producer = (
        f"  producer {entry['producer_id']} epoch {entry['producer_epoch']} sequence {entry['base_sequence']}"
        if entry["producer_id"] >= 0
        else ""
    )
    flags = "".join(f"  {flag}" for flag in ("transactional", "control") if entry[flag])
    if "marker" in entry:
        flags += f": {entry['marker']} (coordinator epoch {entry['coordinator_epoch']})"
    append_time = " (append time)" if entry["timestamp_type"] == "LogAppendTime" else ""
    return (
        f"offsets {entry['base_offset']} to {entry['last_offset']}  count {entry['count']}"
        f"  position {entry['position']}  size {entry['size']}  {entry['codec']}"
        f"  {_time(entry['max_timestamp'])}{append_time}  leader epoch {entry['leader_epoch']}"
        f"{producer}{flags}  crc {'ok' if entry['valid'] else 'WRONG'}"
    )


def _producer_line(entry: "Entry") -> str:
    start = entry["transaction_start"]
    return (
        f"producer {entry['producer_id']} epoch {entry['producer_epoch']}"
        f"  last sequence {entry['last_sequence']} at offset {entry['last_offset']}"
        f"  {_time(entry['last_timestamp'])}  coordinator epoch {entry['coordinator_epoch']}"
        + (f"  transaction open since offset {start}" if start >= 0 else "")
    )


def _time(timestamp: int) -> str:
    if timestamp < 0:
        return "no time"
    try:
        return datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp} ms"


def _shown(text: str | None) -> str:
    return "-" if text is None else repr(text)
