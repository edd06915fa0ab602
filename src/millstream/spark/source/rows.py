"""From ranges to the rows that Spark asked for: records, typed columns where formats say so, and the exact schema."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from millstream.columnar import ArrowDecoder
from millstream.spark.options import ReadOptions
from millstream.spark.schema import must_match, spark_schema
from millstream.spark.source.range_reader import RangeReader
from millstream.spark.source.ranges import Range

if TYPE_CHECKING:
    from millstream.spark.typed_columns import Format


class Rows:
    """What a query's rows look like, and how tasks make them. Tasks get it pickled.

    What typed columns need is imported only by queries that have some: every task's process pays for imports.
    """

    def __init__(self, options: ReadOptions, given: StructType | None = None) -> None:
        """`given`: the schema that Spark has of this query already."""
        self._options = options
        self._formats: dict[str, Format] = {}
        types = {}
        if options.typed:
            from millstream.spark.typed_columns import formats_of, spark_types

            self._formats = formats_of(options)
            types = spark_types(self._formats)
        if given is not None:
            must_match(given, options)
        self.spark_schema: StructType = given or spark_schema(options, types)

    @property
    def arrow_schema(self) -> pa.Schema:
        """Exactly what Spark wants of a record batch."""
        return to_arrow_schema(self.spark_schema, timezone="UTC")

    def read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        """All records of a range that there are."""
        expected = self.arrow_schema
        reader = RangeReader(self._options, wanted)
        if self._options.typed:
            from millstream.spark.typed_columns import TypedColumns, raw_columns

            typed = TypedColumns(self._options, expected, self._formats)
            yield from typed.convert(reader.batches(ArrowDecoder(raw_columns(self._options))), wanted.topic)
            return
        for batch in reader.batches(ArrowDecoder(self._options.columns)):
            yield batch if batch.schema == expected else pa.RecordBatch.from_arrays(batch.columns, schema=expected)
