"""Data files of tables: written by tasks as Parquet, one open file per partition; and small files rewritten to larger
ones.

Rows are collected to row groups of a useful size, so that small Arrow batches do not become small row groups.
"""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from millstream.lake.errors import SchemaChangeError
from millstream.lake.partitioning import Partitioning, PartitionValue
from millstream.lake.scan import Scan, TableFile
from millstream.lake.schema_evolution import conform
from millstream.lake.storage import Storage

ROW_GROUP_BYTES: Final = 64 << 20
"""Of Arrow memory; some 10 to 30 MB in the file."""
ROW_GROUP_ROWS: Final = 1 << 20
BUFFERED_BYTES: Final = 256 << 20
"""Limit of collected rows of all partitions; the largest partition is then written."""
OPEN_FILES: Final = 100
"""Open files need memory (for footers); with more partitions, the least recently used file is closed."""


@dataclass(frozen=True)
class WrittenFile:
    """A data file that a task has written and that is not committed yet."""

    path: str
    size: int
    partition: tuple[PartitionValue, ...]
    footer: pq.FileMetaData

    @property
    def rows(self) -> int:
        return int(self.footer.num_rows)


@dataclass(frozen=True)
class FileLayout:
    """Columns, partitions and location of the files of a table. Picklable, made on the driver."""

    storage: Storage
    schema: pa.Schema
    """Columns of the rows, before the partition columns are taken out."""
    file_schema: pa.Schema
    """Columns in the files."""
    partitioning: Partitioning
    directory: str = ""
    compression: str = "zstd"
    target_size: int = 128 << 20


class _OpenFile:
    def __init__(self, layout: FileLayout, partition: tuple[PartitionValue, ...], label: str) -> None:
        self.partition = partition
        parts = (layout.directory, layout.partitioning.directory(partition))
        name = f"part-{label}-{uuid.uuid4().hex}.parquet"
        self.path = "/".join(part for part in (*parts, name) if part)
        self._layout = layout
        self._stream: Any = None
        self._writer: Any = None
        self._gathered: list[pa.RecordBatch] = []
        self.gathered_bytes = 0
        self._gathered_rows = 0

    @property
    def written_bytes(self) -> int:
        return 0 if self._stream is None else int(self._stream.tell())

    def add(self, batch: pa.RecordBatch) -> None:
        self._gathered.append(batch)
        self.gathered_bytes += batch.nbytes
        self._gathered_rows += batch.num_rows
        if self.gathered_bytes >= ROW_GROUP_BYTES or self._gathered_rows >= ROW_GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what is gathered as one row group."""
        if not self._gathered:
            return
        if self._writer is None:
            self._stream = self._layout.storage.open_output(self.path)
            self._writer = pq.ParquetWriter(
                self._stream,
                self._layout.file_schema,
                compression=self._layout.compression,
                store_decimal_as_integer=True,
                version="2.6",
            )
        table = pa.Table.from_batches([conform(batch, self._layout.file_schema) for batch in self._gathered])
        for each in self._layout.file_schema:
            if not each.nullable and table.column(each.name).null_count:
                raise SchemaChangeError(
                    f"column {each.name} of the table requires a value, and some rows have null; filter or fill them"
                )
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        self._gathered, self.gathered_bytes, self._gathered_rows = [], 0, 0

    def close(self) -> WrittenFile | None:
        self.flush()
        if self._writer is None:
            return None
        self._writer.close()
        size = int(self._stream.tell())
        self._stream.close()
        return WrittenFile(self.path, size, self.partition, self._writer.writer.metadata)

    def abandon(self) -> None:
        """Deletes the unfinished file."""
        if self._stream is None:
            return
        try:
            self._writer.close()
            self._stream.close()
        finally:
            self._layout.storage.delete(self.path)


def write_files(batches: Iterable[pa.RecordBatch], layout: FileLayout, label: str) -> list[WrittenFile]:
    """Writes rows to new files; `label` is a part of their names."""
    open_files: dict[tuple[PartitionValue, ...], _OpenFile] = {}
    done: list[WrittenFile] = []

    def close(partition: tuple[PartitionValue, ...]) -> None:
        if (written := open_files.pop(partition).close()) is not None:
            done.append(written)

    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            for partition, rows in layout.partitioning.split(conform(batch, layout.schema)):
                file = open_files.pop(partition, None) or _OpenFile(layout, partition, label)
                open_files[partition] = file  # the longest unused one is first
                file.add(rows)
                if file.written_bytes >= layout.target_size:
                    close(partition)
                if len(open_files) > OPEN_FILES:
                    close(next(iter(open_files)))
            if sum(file.gathered_bytes for file in open_files.values()) > BUFFERED_BYTES:
                max(open_files.values(), key=lambda file: file.gathered_bytes).flush()
        for partition in list(open_files):
            close(partition)
    except BaseException:
        for file in open_files.values():
            file.abandon()
        for written in done:
            layout.storage.delete(written.path)
        raise
    return done


SMALL: Final = 0.75
"""A file below this part of the target size is rewritten together with others."""


@dataclass(frozen=True)
class RewriteGroup:
    """Files of one partition that become one file (or a few)."""

    files: tuple[TableFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def plan_rewrites(files: Sequence[TableFile], target_size: int, *, all_files: bool) -> list[RewriteGroup]:
    """Groups of files to rewrite, each of one partition and about the target size, in the order of the files.

    Large files stay, unless `all_files` is set (for sorting).
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
    """Writes the rows of a group to new files, sorted if wanted; only for sorting it is held in memory."""
    batches: Iterator[pa.RecordBatch] = scan.read(group.files)
    if sort:
        rows = pa.Table.from_batches(list(batches), schema=scan.schema)
        batches = iter(rows.sort_by([(column, "ascending") for column in sort]).to_batches(65_536))
    return write_files(batches, layout, "optimized")
