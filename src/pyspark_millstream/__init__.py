"""The package that Spark finds for `format("millstream")`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from millstream.spark.source.source import MillstreamSource

if TYPE_CHECKING:
    from millstream.lake.seam import History
    from millstream.spark.sink.sink import BatchWriter, StreamWriter


class DefaultSource(MillstreamSource):
    """Reads and writes topics. Packages that not every query needs are imported on use."""

    @staticmethod
    def open_history(
        location: str, options: Mapping[str, str], *, version: str | None, topics: frozenset[str]
    ) -> "History":
        from millstream.lake.seam import open_history

        return open_history(location, options, version=version, topics=topics)

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        from millstream.spark.sink.sink import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":  # noqa: N802 - Spark's name
        from millstream.spark.sink.sink import StreamWriter

        return StreamWriter(self.options, schema, overwrite)
