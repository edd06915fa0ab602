"""Found by Spark on its own: `format("millstream")`."""

from millstream.spark.source import MillstreamSource


class DefaultSource(MillstreamSource):
    """Reads and writes topics."""
