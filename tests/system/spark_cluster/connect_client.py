"""A client of Spark Connect, as a program: `copy` doubles the numbers of a topic into another, `rows` prints a table.

A process has one kind of Spark session, so the test's own cannot be a client.
"""

import sys

from pyspark.sql import SparkSession

from tests.system.spark_cluster.strikes import INPUT, OUTPUT


def copy(spark: SparkSession, bootstrap: str) -> None:
    """A batch query in many tasks. The same `txnVersion` again is the same write."""
    numbers = (
        spark.read.format("millstream")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", INPUT)
        .option("valueFormat", "json")
        .option("valueSchema", "number LONG")
        .option("maxRecordsPerPartition", 100)
        .load()
    )
    doubled = numbers.selectExpr(
        "CAST(value.number AS STRING) AS key",
        "to_json(named_struct('number', value.number, 'twice', 2 * value.number)) AS value",
    )
    (
        doubled.write.format("millstream")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", OUTPUT)
        .option("delivery", "exactly-once")
        .option("txnAppId", "doubling")
        .option("txnVersion", 0)
        .mode("append")
        .save()
    )


def rows(spark: SparkSession, table: str) -> None:
    for (number,) in spark.read.table(table).select("number").collect():
        print(number)


def main() -> None:
    remote, what, argument = sys.argv[1:]
    spark = SparkSession.builder.remote(remote).getOrCreate()
    {"copy": copy, "rows": rows}[what](spark, argument)
    spark.stop()


if __name__ == "__main__":
    main()
