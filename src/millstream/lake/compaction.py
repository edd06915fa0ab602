"""Which small files to rewrite into one, and the rewriting: for the formats whose library has none of its own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from millstream.lake.data_files import FileLayout, WrittenFile, write_files
from millstream.lake.scan import Scan, TableFile

SMALL: Final = 0.75
"""A file below this share of the target size is worth rewriting together with others."""


@dataclass(frozen=True)
class RewriteGroup:
    """Files of one partition that become one file (or a few)."""

    files: tuple[TableFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def plan_rewrites(files: Sequence[TableFile], target_size: int, *, all_files: bool) -> list[RewriteGroup]:
    """Groups of files, each of one partition and of about the target size, in the order in which the files are.

    Files that are large enough stay, unless all are wanted (because they are to be sorted).
    """
    by_partition: dict[tuple[tuple[str, object], ...], list[TableFile]] = {}
    for file in files:
        if all_files or file.size < target_size * SMALL:
            by_partition.setdefault(tuple(sorted(file.partition.items())), []).append(file)
    groups = []
    for members in by_partition.values():
        gathered: list[TableFile] = []
        for file in members:
            if gathered and sum(each.size for each in gathered) + file.size > target_size * 1.25:
                groups.append(RewriteGroup(tuple(gathered)))
                gathered = []
            gathered.append(file)
        groups.append(RewriteGroup(tuple(gathered)))
    return [group for group in groups if all_files or len(group.files) > 1]


def rewrite(scan: Scan, group: RewriteGroup, layout: FileLayout, sort: Sequence[str]) -> list[WrittenFile]:
    """New files with the rows of the group, sorted if wanted; a group is held in memory only to be sorted."""
    batches: Iterator[pa.RecordBatch] = scan.read(group.files)
    if sort:
        rows = pa.Table.from_batches(list(batches), schema=scan.schema)
        batches = iter(rows.sort_by([(column, "ascending") for column in sort]).to_batches(65_536))
    return write_files(batches, layout, "optimized")
