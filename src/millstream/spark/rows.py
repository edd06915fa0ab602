"""From ranges to the rows that Spark asked for: records, typed columns where formats say so, and the exact schema."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from millstream.columnar import ArrowDecoder
from millstream.spark.options import ReadOptions
from millstream.spark.range_reader import RangeReader
from millstream.spark.ranges import Range
from millstream.spark.schema import must_match, spark_schema
from millstream.spark.typed_columns import TypedColumns, formats_of, raw_columns, spark_types


class Rows:
    """What a query's rows look like, and how tasks make them."""

    def __init__(self, options: ReadOptions, given: StructType | None = None) -> None:
        """`given`: the schema that Spark has of this query already."""
        self._options = options
        self._formats = formats_of(options)
        if given is None:
            self.spark_schema: StructType = spark_schema(options, spark_types(self._formats))
        else:
            must_match(given, options)
            self.spark_schema = given

    @property
    def arrow_schema(self) -> pa.Schema:
        """Exactly what Spark wants of a record batch."""
        return to_arrow_schema(self.spark_schema, timezone="UTC")

    def read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        expected = self.arrow_schema
        raw = RangeReader(self._options, wanted).batches(ArrowDecoder(raw_columns(self._options)))
        if self._options.typed:
            yield from TypedColumns(self._options, expected, self._formats).convert(raw, wanted.topic)
            return
        for batch in raw:
            yield batch if batch.schema == expected else pa.RecordBatch.from_arrays(batch.columns, schema=expected)
