"""`millstream log`: dumps and checks log files, and shows the progress of compaction, without a broker."""

import json as json_codec
import os
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli import exit_codes
from millstream.cli.options import Json
from millstream.cli.terminal import CommandFailedError, complain, note, print_json, print_table, progress
from millstream.common.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from millstream.cli.log.reading import Entry


app = typer.Typer(help="Dump and check log files; show compaction.", no_args_is_help=True)


@app.callback()
def log() -> None:
    """Dump and check log files; show compaction."""


@app.command()
def dump(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Files, partition directories or data directories.", show_default=False),
    ],
    records: Annotated[bool, typer.Option("--records", "-r", help="Print the records of the batches too.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Print only problems, and one line per file.")] = False,
    json: Json = False,
) -> None:
    """Print segments, indexes, snapshots and checkpoints, and check them: checksums, indexes against their segments.

    Works on files of Apache Kafka too, and while the broker runs. The exit code is 7 if something is damaged.

    \b
    Examples:
      millstream log dump millstream-data/orders-0
      millstream log dump millstream-data/orders-0/00000000000000000000.log --records
      millstream log dump millstream-data --check
    """
    from millstream.cli.log.reading import files_of, read_file

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
        complain("no log files found")
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


@dataclass(frozen=True, slots=True)
class Compaction:
    """The log of one partition. The last segment is never cleaned, and counts neither as clean nor as dirty."""

    partition: str
    cleaned_to: int | None
    """First offset of the dirty part; None if the log was never cleaned."""
    sealed_to: int
    clean_bytes: int
    dirty_bytes: int
    dirty_ratio: float
    active_bytes: int
    segments: int
    is_being_cleaned: bool
    """Whether the cleaner is copying segments."""


@app.command()
def compaction(
    data_dir: Annotated[str, typer.Argument(metavar="DIRECTORY", help="Data directory.", show_default=False)],
    all_: Annotated[bool, typer.Option("--all", help="Include logs that were never cleaned.")] = False,
    json: Json = False,
) -> None:
    """Show the progress of compaction: last cleaned offset, dirty bytes and their share.

    Reads only files, so it works while the broker runs, and on directories of Apache Kafka.

    \b
    Examples:
      millstream log compaction millstream-data
      millstream log compaction /var/lib/millstream --all --json
    """
    rows = read_compaction(data_dir, include_all=all_)
    if json:
        print_json([asdict(row) for row in rows])
        return
    if not rows:
        note("no log has been cleaned yet")
        return
    print_table(
        ("partition", "cleaned to", "sealed to", "clean bytes", "dirty bytes", "dirty", "active bytes", "segments", ""),
        [
            (
                row.partition,
                "never" if row.cleaned_to is None else str(row.cleaned_to),
                row.sealed_to,
                row.clean_bytes,
                row.dirty_bytes,
                f"{row.dirty_ratio:.0%}",
                row.active_bytes,
                row.segments,
                "cleaning" if row.is_being_cleaned else "",
            )
            for row in rows
        ],
    )


def read_compaction(data_dir: str, *, include_all: bool) -> list[Compaction]:
    from millstream.node.storage.file_formats import CLEANED_OFFSETS, DamagedFileError, decode_offsets, parse_directory

    if not os.path.isdir(data_dir):
        raise CommandFailedError(f"{data_dir}: there is no such directory", exit_codes.NOT_FOUND)
    path = os.path.join(data_dir, CLEANED_OFFSETS)
    try:
        with open(path, "rb") as file:
            cleaned = decode_offsets(file.read())
    except FileNotFoundError:
        cleaned = {}
    except DamagedFileError as error:
        raise CommandFailedError(f"{path} is damaged: {error}", exit_codes.DAMAGED) from None
    partitions = [partition for name in os.listdir(data_dir) if (partition := parse_directory(name)) is not None]
    return [
        _read(os.path.join(data_dir, str(partition)), str(partition), cleaned.get(partition))
        for partition in sorted(partitions)
        if include_all or partition in cleaned
    ]


def _read(directory: str, partition: str, cleaned_to: int | None) -> Compaction:
    from millstream.node.storage.file_formats import CLEANED_SUFFIX, LOG_SUFFIX, parse_offset_file

    sizes: dict[int, int] = {}
    is_being_cleaned = False
    for entry in os.scandir(directory):
        is_being_cleaned = is_being_cleaned or entry.name.endswith(CLEANED_SUFFIX)
        parsed = parse_offset_file(entry.name)
        if parsed is not None and parsed[1] == LOG_SUFFIX:
            try:
                sizes[parsed[0]] = entry.stat().st_size
            except FileNotFoundError:
                continue  # deleted by retention or the cleaner in the meantime
    bases = sorted(sizes)
    active = bases[-1] if bases else 0
    dirty_start = cleaned_to or 0
    clean = dirty = 0
    for base, end in pairwise(bases):
        if end <= dirty_start:
            clean += sizes[base]
        else:
            dirty += sizes[base]
    return Compaction(
        partition=partition,
        cleaned_to=cleaned_to,
        sealed_to=active,
        clean_bytes=clean,
        dirty_bytes=dirty,
        dirty_ratio=round(dirty / (clean + dirty), 4) if clean + dirty else 0.0,
        active_bytes=sizes.get(active, 0),
        segments=len(bases),
        is_being_cleaned=is_being_cleaned,
    )
