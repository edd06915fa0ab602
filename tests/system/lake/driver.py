"""A driver to be killed: copies a topic into a table until somebody ends it, or (`once`) until all is there."""

import os
import sys

from pyspark.sql import SparkSession

from millstream.spark import start_query
from tests.system.spark.conftest import SETTINGS


def main(bootstrap: str, topic: str, path: str, table_format: str, how: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    rows = (
        spark.readStream.format("millstream")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "500")
        .load()
    )
    writer = (
        rows.writeStream.format("millstream-table")
        .option("tableFormat", table_format)
        .option("partitionBy", "partition")
        .option("checkpointLocation", f"{path}-checkpoint")
    )
    writer = writer.trigger(availableNow=True) if how == "once" else writer.trigger(processingTime="0 seconds")
    query = start_query(lambda: writer.start(path))
    print("running", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
