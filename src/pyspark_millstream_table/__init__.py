"""The package that Spark finds for `format("millstream-table")`."""

from millstream.lake.spark_source import MillstreamTableSource


class DefaultSource(MillstreamTableSource):
    """The class that Spark looks for."""


__all__ = ["DefaultSource"]
