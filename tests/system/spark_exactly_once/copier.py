"""The driver under test, a program of its own: topic `in` to topic `out`, each value with a mark, exactly once.

    python -m tests.system.spark_exactly_once.copier BOOTSTRAP DIRECTORY MASTER [POINT]

Runs until there is a file `stop` in the directory, finishes what is there to read, and ends with 0; with 1 if the query
failed. With POINT (see `dying.py`) it kills itself there, once; with `foreach-batch:POINT` it writes by `write_batch`.
"""

import os
import sys
import time
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession

from millstream.spark import start_query, write_batch
from millstream.spark.session.java import quick_spark_home
from millstream.spark.sink import sink as sink_module
from tests.system.spark.conftest import SETTINGS
from tests.system.spark_exactly_once import dying

ROWS_PER_BATCH = 400


def session(directory: Path, master: str) -> SparkSession:
    builder = SparkSession.builder.master(master).appName("copier")
    settings = SETTINGS | {
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.executor.memory": "600m",
        "spark.task.maxFailures": "4",
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def spark_home(directory: Path) -> Path:
    """One whose `work` is in the directory: there a `local-cluster` puts what its executors write."""
    home = directory / "spark-home"
    home.mkdir(exist_ok=True)
    for each in quick_spark_home(Path(pyspark.__file__).parent).iterdir():
        if not (home / each.name).exists() and each.name != "work":
            (home / each.name).symlink_to(each)
    return home


def main(bootstrap: str, directory: Path, master: str, point: str | None) -> int:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_HOME"] = str(spark_home(directory))
    spark = session(directory, master)
    sink = "millstream"
    in_foreach_batch = point is not None and point.startswith(dying.FOREACH_BATCH)
    if point is not None and point.removeprefix(dying.FOREACH_BATCH):
        spark.dataSource.register(dying.DyingSink)
        sink = dying.DyingSink.name()
    where = {"kafka.bootstrap.servers": bootstrap, "kafka.default.api.timeout.ms": "60000"}
    rows = (
        spark.readStream.format("millstream")
        .options(**where)
        .option("subscribe", "in")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS_PER_BATCH)
        .load()
    )
    writer = (
        rows.selectExpr("key", "concat(cast(value as string), '!') as value")
        .repartition(3)
        .writeStream.format(sink)
        .options(**where)
        .option("topic", "out")
        .option("checkpointLocation", str(directory / "checkpoint"))
    )
    if in_foreach_batch:
        sink_module._FORMAT = sink

        def copy(batch: DataFrame, batch_id: int) -> None:
            write_batch(batch, batch_id, app_id="copier", topic="out", **where)

        writer = writer.foreachBatch(copy)
    query = start_query(writer.start)
    print("running", flush=True)
    while query.isActive and not (directory / "stop").exists():
        time.sleep(0.1)
    if query.isActive:
        query.processAllAvailable()
        query.stop()
    failure = query.exception()
    print(f"ended: {failure}", flush=True)
    return 1 if failure else 0


if __name__ == "__main__":
    given = sys.argv[4] if len(sys.argv) > 4 else None
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], given))
