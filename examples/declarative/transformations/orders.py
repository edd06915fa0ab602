"""Orders from a topic as a table, what each shop took, and dear orders into another topic."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, struct, sum, to_json

spark = SparkSession.active()
BOOTSTRAP = os.environ.get("MILLSTREAM_BOOTSTRAP", "localhost:9092")


@dp.table
def orders() -> DataFrame:
    return (
        spark.readStream.format("millstream")
        .option("kafka.bootstrap.servers", BOOTSTRAP)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("valueFormat", "json")
        .option("valueSchema", "order_id STRING, shop STRING, amount DOUBLE, at TIMESTAMP")
        .load()
        .where("_error IS NULL")
        .select("value.*")
    )


@dp.materialized_view
def revenue_by_shop() -> DataFrame:
    return spark.read.table("orders").groupBy("shop").agg(sum("amount").alias("revenue"))


dp.create_sink("dear_orders", "millstream", {"kafka.bootstrap.servers": BOOTSTRAP, "topic": "dear-orders"})


@dp.append_flow(target="dear_orders")
def dear_orders_flow() -> DataFrame:
    dear = spark.readStream.table("orders").where("amount > 100")
    return dear.select(col("shop").alias("key"), to_json(struct("order_id", "shop", "amount")).alias("value"))
