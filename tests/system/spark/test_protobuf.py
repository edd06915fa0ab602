"""Protobuf through sink and source in Spark: typed columns there and back by a registry, and what is no Protobuf."""

from pathlib import Path
from uuid import uuid4

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from millstream.raw_client import Cluster
from millstream.testing import EmbeddedBroker
from tests.system.spark.streams import run_stream
from tests.unit.schemas.tiny_registry import running
from tests.waiting import TIMEOUT_SECONDS

ORDER = """
syntax = "proto3";
message Order {
  message Line { string item = 1; int32 count = 2; }
  enum State { OPEN = 0; PAID = 1; }
  string id = 1;
  double amount = 2;
  repeated Line lines = 3;
  State state = 4;
  map<string, int64> marks = 5;
}
"""
ROWS = """
    SELECT concat('k', id) AS key, concat('o', id) AS id, id + 0.5D AS amount,
           array(named_struct('item', 'book', 'count', cast(id AS int))) AS lines,
           if(id % 2 = 0, 'PAID', 'OPEN') AS state, map('n', id) AS marks
    FROM range(6)
"""


def test_there_and_back_by_the_registry(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    bootstrap = broker.bootstrap_servers
    with Cluster(bootstrap) as cluster:
        cluster.create_topic("proto-orders", 2, 1, {})
        cluster.create_topic("proto-bad", 1, 1, {})
    with running() as registry:
        registry.register("proto-orders-value", {"schema": ORDER, "schemaType": "PROTOBUF"})
        given = {"kafka.bootstrap.servers": bootstrap, "schema.registry.url": registry.url, "valueFormat": "protobuf"}
        writer = spark.sql(ROWS).write.format("millstream").mode("append").options(**given)
        writer.option("topic", "proto-orders").save()
        producer = Producer({"bootstrap.servers": bootstrap})
        producer.produce("proto-orders", b"not protobuf")
        assert producer.flush(TIMEOUT_SECONDS) == 0

        reader = spark.read.format("millstream").options(**given).option("subscribe", "proto-orders")
        rows = reader.load().select("key", "value.*", "_error").collect()
        good = {row.id: row for row in rows if row.id is not None}
        assert sorted(good) == [f"o{number}" for number in range(6)]
        third = good["o3"]
        assert (bytes(third.key), third.amount, third.state, third.marks) == (b"k3", 3.5, "OPEN", {"n": 3})
        assert [(line.item, line["count"]) for line in third.lines] == [("book", 3)]
        (bad,) = [row for row in rows if row.id is None]
        assert bad._error.startswith("value: ")

        stream = spark.readStream.format("millstream").options(**given, subscribe="proto-orders")
        orders = (
            stream.option("startingOffsets", "earliest")
            .option("badRecords", "deadLetterTopic")
            .option("deadLetterTopic", "proto-bad")
            .load()
            .select("value.id")
            .writeStream.format("memory")
            .queryName("proto_orders")
            .trigger(availableNow=True)
        )
        # A table in memory cannot be filled from a checkpoint that was used before.
        run_stream(lambda: orders.option("checkpointLocation", str(tmp_path / uuid4().hex)).start())
        found = [row.id for row in spark.sql("SELECT id FROM proto_orders").collect()]
        assert sorted(found) == sorted(good)
        letters = spark.read.format("millstream").option("kafka.bootstrap.servers", bootstrap)
        (letter,) = letters.option("subscribe", "proto-bad").load().collect()
        assert bytes(letter.value) == b"not protobuf"
