"""From ranges to the rows that Spark asked for: records, typed columns where formats say so, and the exact schema."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from millstream.columnar import ArrowDecoder
from millstream.spark.options import ReadOptions
from millstream.spark.range_reader import RangeReader
from millstream.spark.ranges import Range
from millstream.spark.schema import spark_schema


class Rows:
    """What a query's rows look like, and how tasks make them."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self.spark_schema: StructType = spark_schema(options, {})

    @property
    def arrow_schema(self) -> pa.Schema:
        """Exactly what Spark wants of a record batch."""
        return to_arrow_schema(self.spark_schema, timezone="UTC")

    def read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        expected = self.arrow_schema
        for batch in RangeReader(self._options, wanted).batches(ArrowDecoder(self._options.columns)):
            yield batch if batch.schema == expected else pa.RecordBatch.from_arrays(batch.columns, schema=expected)
