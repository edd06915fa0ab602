"""Found by Spark on its own: `format("millstream-table")`."""

from millstream.lake.spark_source import MillstreamTableSource


class DefaultSource(MillstreamTableSource):
    """What Spark looks for in a package of this name."""


__all__ = ["DefaultSource"]
