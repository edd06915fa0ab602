"""A driver to be killed: copies a topic into a table until somebody ends it, or (`once`) until all is there.

The mode `upsert`, `history` or `merge`: records are changes in JSON. `merge` is `MERGE INTO` of Iceberg's connector.
"""

import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from millstream.lake.spark_merge import merge_batch
from millstream.spark import start_query
from tests.system.spark.conftest import SETTINGS
from tools import lake_connectors

MERGED = "lake.shop.customers"
CHANGE = "id BIGINT, shop STRING, text STRING, at BIGINT, gone BOOLEAN"


def main(bootstrap: str, topic: str, path: str, table_format: str, how: str, mode: str = "append") -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    for name, value in (SETTINGS | (_iceberg(path) if mode == "merge" else {})).items():
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
    writer = _merging(rows) if mode == "merge" else _embedded(rows, path, table_format, mode)
    writer = writer.option("checkpointLocation", f"{path}-checkpoint")
    writer = writer.trigger(availableNow=True) if how == "once" else writer.trigger(processingTime="0 seconds")
    query = start_query(writer.start)
    print("running", flush=True)
    query.awaitTermination()


def _embedded(rows: DataFrame, path: str, table_format: str, mode: str) -> DataStreamWriter:
    writer = rows.writeStream.format("millstream-table").option("tableFormat", table_format).option("path", path)
    if mode == "append":
        return writer.option("partitionBy", "partition")
    writer = writer.option("keys", "id").option("sequenceBy", "at").option("deleteColumn", "gone")
    return writer.option("partitionBy", "shop").option("history", str(mode == "history").lower())


def _merging(rows: DataFrame) -> DataStreamWriter:
    def merge(batch: DataFrame, number: int) -> None:
        merge_batch(batch, table=MERGED, keys=["id"], sequence_by="at", delete_column="gone")

    return rows.writeStream.foreachBatch(merge)


def _iceberg(warehouse: str) -> dict[str, str]:
    return {
        "spark.jars": ",".join(map(str, lake_connectors.iceberg())),
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": warehouse,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
