"""What tasks do with the records of a batch: convert them, write data files, and count with checksums.

Spark reads a range of a partition in a task and gives the records to `BatchWriter`. The files are not in the table yet:
the driver commits them, with the ranges of offsets and the sums of all tasks.
"""

import pickle  # nosec B403: messages of our own tasks
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.columnar.schema import HEADERS_TYPE
from millstream.lake.data_files import FileLayout, WrittenFile, write_files
from millstream.lake.ledger import OffsetRange
from millstream.lake.row_crc import MASK, row_sums, total_of
from millstream.lake.schema_evolution import conform
from millstream.tables.conversion import Conversion, record_sums

MESSAGE_SCHEMA = "message BINARY"
LETTERS = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("reason", pa.string()),
    ]
)
_LETTER_BYTES = 32 << 20


@dataclass
class Sums:
    """Numbers of one partition of the topic."""

    rows: int = 0
    dead_letters: int = 0
    record_crc: int = 0
    row_crc: int = 0

    def add(self, rows: int, dead_letters: int, record_crc: int, row_crc: int) -> None:
        self.rows += rows
        self.dead_letters += dead_letters
        self.record_crc = (self.record_crc + record_crc) & MASK
        self.row_crc = (self.row_crc + row_crc) & MASK


@dataclass
class TaskResult:
    """What a task, or all tasks of a batch, have written."""

    files: list[WrittenFile] = field(default_factory=list)
    letters: list[WrittenFile] = field(default_factory=list)
    sums: dict[int, Sums] = field(default_factory=dict)

    def __iadd__(self, other: "TaskResult") -> "TaskResult":
        self.files += other.files
        self.letters += other.letters
        for partition, each in other.sums.items():
            self.of(partition).add(each.rows, each.dead_letters, each.record_crc, each.row_crc)
        return self

    def of(self, partition: int) -> Sums:
        return self.sums.setdefault(partition, Sums())

    def ranges(self, begins: dict[int, int], ends: dict[int, int], lost: dict[int, int]) -> tuple[OffsetRange, ...]:
        """The ranges of the batch with what became of them."""
        found = []
        for partition, begin in sorted(begins.items()):
            end = ends[partition]
            if end > begin:
                each = self.sums.get(partition, Sums())
                found.append(
                    OffsetRange(
                        partition,
                        begin,
                        end,
                        each.rows,
                        each.dead_letters,
                        lost.get(partition, 0),
                        each.record_crc,
                        each.row_crc,
                    )
                )
        return tuple(found)

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.sums.values())

    @property
    def dead_letters(self) -> int:
        return sum(each.dead_letters for each in self.sums.values())

    @staticmethod
    def of_messages(messages: Iterable[bytes]) -> "TaskResult":
        total = TaskResult()
        for message in messages:
            total += pickle.loads(message)  # nosec B301: made by our own tasks
        return total


@dataclass(frozen=True)
class BatchWriter:
    """The function of a task. Pickled."""

    conversion: Conversion
    layout: FileLayout
    """Of data files, or of changes that wait for the merge."""
    letters: FileLayout
    label: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        result = TaskResult()
        waiting: list[pa.RecordBatch] = []
        result.files = write_files(self._rows(batches, result, waiting), self.layout, self.label)
        result.letters += self._written(waiting)
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], names=["message"])

    def _rows(
        self, batches: Iterator[pa.RecordBatch], result: TaskResult, waiting: list[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        for records in batches:
            if not records.num_rows:
                continue
            converted = self.conversion.convert(records)
            rows = conform(converted.rows, self.layout.schema)
            self._count(records, rows, converted.bad, result)
            if converted.bad is not None and converted.reasons is not None:
                waiting.append(_letters(converted.bad, converted.reasons))
                if sum(each.nbytes for each in waiting) > _LETTER_BYTES:
                    result.letters += self._written(waiting)
            if rows.num_rows:
                yield rows

    def _written(self, waiting: list[pa.RecordBatch]) -> list[WrittenFile]:
        found = write_files(waiting, self.letters, f"{self.label}-dead") if waiting else []
        waiting.clear()
        return found

    def _count(
        self, records: pa.RecordBatch, rows: pa.RecordBatch, bad: pa.RecordBatch | None, result: TaskResult
    ) -> None:
        partitions = records.column("partition").to_numpy(zero_copy_only=False)
        of_records = record_sums(records)
        place = self.conversion.place_columns[0]
        of_rows = rows.column(place).to_numpy(zero_copy_only=False)
        sums_of_rows = row_sums(rows)
        for partition in np.unique(partitions):
            mine = partitions == partition
            kept = of_rows == partition
            dead = 0 if bad is None else int(pc.sum(pc.equal(bad.column("partition"), int(partition))).as_py() or 0)
            result.of(int(partition)).add(
                int(kept.sum()), dead, total_of(of_records[mine]), total_of(sums_of_rows[kept])
            )


def _letters(bad: pa.RecordBatch, reasons: pa.Array) -> pa.RecordBatch:
    columns = [bad.column(name).cast(LETTERS.field(name).type) for name in LETTERS.names[:-1]]
    return pa.RecordBatch.from_arrays([*columns, reasons], schema=LETTERS)
