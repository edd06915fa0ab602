"""Rows of a small micro-batch travel with the plan: the driver reads them, so no task needs a Python process to read.

Spark's Python sources cost a task two exchanges with a Python process, whatever the task reads. For a source of its
"simple" kind Spark takes rows with the plan instead and keeps them as a block, which tasks read in the JVM. This module
uses that way for batches up to `smallBatchBytes`; larger ones are ordinary ranges, one task each.

The way is private to PySpark: `partitions_func` takes rows from a reader that is a `_SimpleStreamReaderWrapper`. So it
is used with the versions that were tested, and not with others (ADR 38). If the driver cannot read the rows quickly,
or not at all, the batch becomes ordinary ranges too: the task reports the error.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import datasource_internal
from pyspark.sql.datasource import InputPartition

from millstream.columnar import ArrowDecoder
from millstream.raw_client import TopicPartition
from millstream.spark.options import ReadOptions
from millstream.spark.source.limits import Range
from millstream.spark.source.log_view import Looked
from millstream.spark.source.range_reader import RangeReader

_log = logging.getLogger("millstream.spark")

_TESTED_VERSIONS = ("4.3.",)
_MOST_RANGES = 64
_MOST_OFFSETS = 20_000
"""More offsets are hardly less than a megabyte; the driver does not try to read them."""
_WAIT_SECONDS = 1.0
"""How long the driver waits for records that must exist. A task waits longer, and reports why there are none."""
_FETCHES_AT_ONCE = 8

WRAPPER: type[Any] | None = (
    getattr(datasource_internal, "_SimpleStreamReaderWrapper", None)
    if pyspark.__version__.startswith(_TESTED_VERSIONS)
    else None
)
"""The class by which Spark recognises readers that have rows for the plan; None with versions that were not tested."""


@dataclass(frozen=True)
class SmallBatch(InputPartition):
    """The ranges of a batch whose rows are in the plan. A task reads them only if the rows were lost."""

    ranges: tuple[Range, ...]


class _TooLargeError(Exception):
    """The rows exceed the limit."""


class SmallBatches:
    """Reads small batches on the driver. `convert`: from the batches of a decoder to rows with the query's columns."""

    def __init__(
        self,
        options: ReadOptions,
        columns: Sequence[str],
        convert: Callable[[Iterator[pa.RecordBatch], str], Iterator[pa.RecordBatch]],
    ) -> None:
        self._options = replace(
            options, wait_s=min(_WAIT_SECONDS, options.wait_s), fetch_bytes=options.small_batch_bytes
        )
        self._columns = columns
        self._convert = convert
        self._bytes_per_offset = 0.0
        self._pool: ThreadPoolExecutor | None = None
        self._looked: Mapping[TopicPartition, Looked] = {}

    def read(
        self, ranges: Sequence[Range], looked: Mapping[TopicPartition, Looked] | None = None
    ) -> list[pa.RecordBatch] | None:
        """The rows of these ranges; None if they are large, or cannot be read now. `looked`: what was fetched."""
        self._looked = looked or {}
        if WRAPPER is None or not self._may_be_small(ranges):
            return None
        try:
            found = self._raw(ranges)
            rows = [
                row for each, raw in zip(ranges, found, strict=True) for row in self._convert(iter(raw), each.topic)
            ]
        except _TooLargeError:
            return None
        except Exception as error:  # the same happens in a task, which reports it as Spark's users know it
            _log.debug("the driver did not read %s: %s", ", ".join(map(str, ranges)), error)
            return None
        return rows if sum(each.nbytes for each in rows) <= self._options.small_batch_bytes else None

    def _may_be_small(self, ranges: Sequence[Range]) -> bool:
        offsets = sum(each.size for each in ranges)
        return (
            0 < len(ranges) <= _MOST_RANGES
            and offsets <= min(_MOST_OFFSETS, self._options.max_records_per_partition or _MOST_OFFSETS)
            and offsets * self._bytes_per_offset <= self._options.small_batch_bytes
            and self._options.min_partitions is None
        )

    def _raw(self, ranges: Sequence[Range]) -> list[list[pa.RecordBatch]]:
        if len(ranges) == 1:
            return [self._read_range(ranges[0])]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_FETCHES_AT_ONCE, thread_name_prefix="small-batch")
        found = list(self._pool.map(self._read_range, ranges))
        if sum(row.nbytes for each in found for row in each) > self._options.small_batch_bytes:
            raise _TooLargeError
        return found

    def _read_range(self, wanted: Range) -> list[pa.RecordBatch]:
        found: list[pa.RecordBatch] = []
        size = read = 0
        looked = self._looked.get(TopicPartition(wanted.topic, wanted.partition))
        reader = RangeReader(self._options, wanted, looked=looked)
        for batch in reader.batches_one_by_one(ArrowDecoder(self._columns)):
            found.append(batch)
            size, read = size + batch.nbytes, read + batch.num_rows
            if size > self._options.small_batch_bytes:
                self._bytes_per_offset = size / read
                raise _TooLargeError
        self._bytes_per_offset = size / wanted.size
        return found
