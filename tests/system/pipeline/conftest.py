"""The Spark session and the broker of the tests of Spark's room, for pipelines too."""

from tests.system.spark.conftest import broker, spark

__all__ = ["broker", "spark"]
