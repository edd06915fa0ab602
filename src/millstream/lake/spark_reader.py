"""Reading a table from Spark: files are shared out to tasks, each hands Arrow batches over.

Spark tells a Python source which filters there are only if `spark.sql.python.filterPushdown.enabled` is set, and then
files and row groups that cannot match are skipped. Spark applies the filters itself in any case.
"""

import sys
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from millstream.lake.conditions import Condition, from_spark
from millstream.lake.options import TableOptions
from millstream.lake.scan import Scan, TableFile
from millstream.lake.schema_evolution import conform
from millstream.lake.table import open_table

_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class FileShare(InputPartition):
    """The files that one task reads, and how; so all tasks read the same version."""

    def __init__(self, scan: Scan, files: list[TableFile]) -> None:
        super().__init__(len(files))
        self.scan = scan
        self.files = files


class TableReader(DataSourceReader):
    """Reads one version of a table, the newest when the query is planned."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self._options = options
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._conditions: tuple[Condition, ...] = ()

    def partitions(self) -> list[InputPartition]:
        scan = open_table(self._options).scan(self._schema.names, self._conditions)
        shares = scan.splits(self._options.split_size)
        scan.files = []  # each task gets its own, and none needs the others'
        return [FileShare(scan, share) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, FileShare):  # what Spark makes of no partitions at all
            return
        for batch in partition.scan.read(partition.files):
            yield conform(batch, self._schema)


class PruningTableReader(TableReader):
    """The same where Spark tells filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        table = open_table(self._options)
        self._conditions = from_spark(filters, table.schema)
        return filters  # all of them: Spark applies them again, so skipping may be as coarse as it likes


def make_reader(options: TableOptions, schema: StructType) -> TableReader:
    """A reader with `pushFilters` is an error where the setting is off, and only Spark's worker knows whether it is."""
    kind = PruningTableReader if _PUSHDOWN_WORKER in sys.modules else TableReader
    return kind(options, schema)
