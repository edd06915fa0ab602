"""`format("millstream-table")`: lake tables for Spark, from pip alone."""

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from millstream.lake.errors import LakeError
from millstream.lake.options import TableOptions, parse_options
from millstream.lake.spark_reader import TableReader, make_reader
from millstream.lake.spark_writer import BatchTableWriter, StreamTableWriter
from millstream.lake.table import open_table


class MillstreamTableSource(DataSource):
    """Reads tables (batch) and writes them (batch, and streams exactly once)."""

    @classmethod
    def name(cls) -> str:
        return "millstream-table"

    def _options(self) -> TableOptions:
        return parse_options(self.options)

    def schema(self) -> StructType:
        options = self._options()
        return from_arrow_schema(open_table(options).project(options.columns))

    def reader(self, schema: StructType) -> TableReader:
        return make_reader(self._options(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        raise LakeError(
            "a table is read with spark.read; to stream a topic with its history from a table, use"
            ' readStream.format("millstream") with startingOffsets=table:PATH'
        )

    def writer(self, schema: StructType, overwrite: bool) -> BatchTableWriter:
        return BatchTableWriter(self._options(), schema, replace=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamTableWriter:  # noqa: N802
        return StreamTableWriter(self._options(), schema, replace=overwrite)
