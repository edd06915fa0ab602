"""`millstream log compaction`: how far each log of a data directory is cleaned, as its files tell."""

import os
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Annotated

import typer

from millstream.cli import exit_codes
from millstream.cli.options import Json
from millstream.cli.terminal import CommandFailedError, note, print_json, print_table


@dataclass(frozen=True, slots=True)
class Compaction:
    """One partition's log. The last segment is never cleaned, and counts neither as clean nor as dirty."""

    partition: str
    cleaned_to: int | None
    """The offset where the dirty part begins; None if it was never cleaned."""
    sealed_to: int
    clean_bytes: int
    dirty_bytes: int
    dirty_ratio: float
    active_bytes: int
    segments: int
    is_being_cleaned: bool
    """Whether a pass is copying segments."""


def compaction(
    data_dir: Annotated[str, typer.Argument(metavar="DIRECTORY", help="A data directory.", show_default=False)],
    all_: Annotated[
        bool, typer.Option("--all", help="Also logs that were never cleaned, such as those that are not compacted.")
    ] = False,
    json: Json = False,
) -> None:
    """Show how far compacted topics are cleaned: last cleaned offset, dirty bytes and their share.

    Reads files only, so it works while a broker runs, and on a directory of Apache Kafka.

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
        note("no log here has been cleaned yet")
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
    from millstream.node.storage.checkpoint import DamagedFileError, decode_offsets
    from millstream.node.storage.file_names import CLEANED_OFFSETS, parse_directory

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
    from millstream.node.storage.file_names import CLEANED_SUFFIX, LOG_SUFFIX, parse_offset_file

    sizes: dict[int, int] = {}
    is_being_cleaned = False
    for entry in os.scandir(directory):
        is_being_cleaned = is_being_cleaned or entry.name.endswith(CLEANED_SUFFIX)
        parsed = parse_offset_file(entry.name)
        if parsed is not None and parsed[1] == LOG_SUFFIX:
            try:
                sizes[parsed[0]] = entry.stat().st_size
            except FileNotFoundError:
                continue  # retention or the cleaner was quicker
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
