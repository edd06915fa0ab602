"""One Spark session for all tests of a run, started once and small; and one broker beside it."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from millstream.spark.session.java import quick_spark_home
from millstream.testing import EmbeddedBroker

# Two cores and many neighbours: no UI, no second compiler, one collector thread. Unix sockets save 40 ms per task, and
# the plain checkpoint manager saves some twenty forked processes per micro-batch.
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "700m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dlog4j2.level=ERROR",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.log.level": "ERROR",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """`local[2]`, in UTC; workers run this very interpreter."""
    home: Path = tmp_path_factory.mktemp("spark")
    # Workers that take pyspark from a directory start in a third of the time that its zip takes.
    os.environ["SPARK_HOME"] = str(quick_spark_home(Path(pyspark.__file__).parent))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("millstream-tests")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = (
        builder.config("spark.sql.session.timeZone", "UTC")
        .config("spark.local.dir", str(home / "local"))
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    """A broker of one node that all tests of a run share; topics have names of their own."""
    with EmbeddedBroker() as running:
        yield running
