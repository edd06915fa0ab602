"""A driver to be killed: copies a topic into a table until someone ends it, or (`once`) until all is there.

The mode `upsert` or `history`: records are changes in JSON.
"""

import os
import sys

from pyspark.sql import SparkSession

from millstream.spark import start_query
from tests.system.spark.conftest import SETTINGS

CHANGE = "id BIGINT, shop STRING, text STRING, at BIGINT, gone BOOLEAN"


def main(bootstrap: str, topic: str, path: str, table_format: str, how: str, mode: str = "append") -> None:
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
    if mode != "append":
        rows = rows.selectExpr(f"from_json(CAST(value AS STRING), '{CHANGE}') AS change").select("change.*")
    writer = (
        rows.writeStream.format("millstream-table")
        .option("tableFormat", table_format)
        .option("partitionBy", "partition" if mode == "append" else "shop")
        .option("checkpointLocation", f"{path}-checkpoint")
    )
    if mode != "append":
        writer = writer.option("keys", "id").option("sequenceBy", "at").option("deleteColumn", "gone")
        writer = writer.option("history", str(mode == "history").lower())
    writer = writer.trigger(availableNow=True) if how == "once" else writer.trigger(processingTime="0 seconds")
    query = start_query(lambda: writer.start(path))
    print("running", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
