"""A program of its own for tests: a Spark session that has both connectors writes and reads with each of them.

    python -m tests.system.spark.crosswise BOOTSTRAP DIRECTORY JARS

Its session needs jars from its start, which the one that tests share does not have. What was read is a JSON document on
the last line of stdout; `test_connectors.py` prepares the topics and says what must be in it.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from millstream.spark.session.session import start_session
from tests.system.spark.conftest import SETTINGS
from tests.system.spark.streams import run_stream

CONNECTORS = ("millstream", "kafka")
COMPRESSION = {"batch": "lz4", "stream": "zstd"}

# Everything a record can be: keys and values that are null or empty, any bytes, headers that repeat or have no value.
RECORDS = """
SELECT * FROM VALUES
  (cast('k1' AS BINARY), cast('v1' AS BINARY), 0,
   array(named_struct('key', 'h', 'value', X'00ff'), named_struct('key', 'h', 'value', cast(null AS BINARY)),
         named_struct('key', 'é', 'value', X''))),
  (null, cast('no key' AS BINARY), 1, null),
  (cast('tombstone' AS BINARY), null, 2, array()),
  (X'', X'', 0, null),
  (X'00017f80feff', X'fffe807f0100', 1, null),
  (null, null, 2, null)
AS records(key, value, partition, headers)
UNION ALL
SELECT cast(concat('key-', id) AS BINARY), cast(concat('value ', id) AS BINARY), null, null FROM range(0, 60, 1, 1)
"""


class Crosswise:
    def __init__(self, spark: SparkSession, bootstrap: str, directory: Path) -> None:
        self._spark, self._bootstrap, self._directory = spark, bootstrap, directory
        self._names = 0

    def read(self, connector: str, topic: str, **more: str) -> list[list[Any]]:
        given = {"kafka.bootstrap.servers": self._bootstrap, "subscribe": topic, "includeHeaders": "true"} | more
        return _plain(self._spark.read.format(connector).options(**given).load())

    def stream(self, connector: str, topic: str, **more: str) -> DataFrame:
        given = {"kafka.bootstrap.servers": self._bootstrap, "subscribe": topic, "includeHeaders": "true"}
        given |= {"startingOffsets": "earliest"} | more
        return self._spark.readStream.format(connector).options(**given).load()

    def read_stream(self, connector: str, topic: str, name: str | None = None, **more: str) -> list[list[Any]]:
        """What a run over all there is brings; with what runs of the same name before it brought."""
        name = name or f"read-{self._next()}"
        writer = (
            self.stream(connector, topic, **more)
            .writeStream.format("parquet")
            .option("path", str(self._directory / name))
            .option("checkpointLocation", str(self._directory / f"{name}.checkpoint"))
        )
        run_stream(writer.trigger(availableNow=True).start)
        written = self._directory / name
        return _plain(self._spark.read.parquet(str(written))) if list(written.glob("*.parquet")) else []

    def write(self, connector: str, topic: str) -> None:
        given = {"kafka.bootstrap.servers": self._bootstrap, "topic": topic}
        given["kafka.compression.type"] = COMPRESSION["batch"]
        self._spark.sql(RECORDS).write.format(connector).mode("append").options(**given).save()

    def copy(self, reader: str, source: str, writer: str, target: str) -> None:
        """A streaming query from one topic to another."""
        given = {"kafka.bootstrap.servers": self._bootstrap, "topic": target}
        given["kafka.compression.type"] = COMPRESSION["stream"]
        to_topic = (
            self.stream(reader, source, maxOffsetsPerTrigger="40")
            .select("key", "value", "headers", "partition")
            .writeStream.format(writer)
            .options(**given)
            .option("checkpointLocation", str(self._directory / f"copy-{self._next()}"))
        )
        run_stream(to_topic.trigger(availableNow=True).start)

    def _next(self) -> int:
        self._names += 1
        return self._names


def _plain(rows: DataFrame) -> list[list[Any]]:
    """All columns, as JSON can have them, in the order of offsets."""
    exact = rows.selectExpr("*", "unix_micros(timestamp) AS micros").orderBy("topic", "partition", "offset")
    return [_plain_row(row) for row in exact.collect()]


def _plain_row(row: Row) -> list[Any]:
    headers = None if row.headers is None else [[each.key, _hex(each.value)] for each in row.headers]
    where = [row.topic, row.partition, row.offset, row.micros, row.timestampType]
    return [_hex(row.key), _hex(row.value), *where, headers]


def _hex(value: bytearray | None) -> str | None:
    return None if value is None else bytes(value).hex()


def both(read: Any, *arguments: Any, **options: str) -> dict[str, Any]:
    return {connector: read(connector, *arguments, **options) for connector in CONNECTORS}


def main(bootstrap: str, directory: Path, jars: str) -> None:
    settings = SETTINGS | {"spark.jars": jars, "spark.local.dir": str(directory / "local")}
    spark = start_session("crosswise", master="local[2]", checkpoints=str(directory), settings=settings)
    told: dict[str, Any] = {}
    try:
        cross = Crosswise(spark, bootstrap, directory)
        for writer, other in zip(CONNECTORS, reversed(CONNECTORS), strict=True):
            cross.write(writer, f"{writer}-batch")
            cross.copy(other, f"{writer}-batch", writer, f"{writer}-stream")
            for kind in ("batch", "stream"):
                topic = f"{writer}-{kind}"
                committed = {"kafka.isolation.level": "read_committed"}
                told[f"{topic} read as batch"] = both(cross.read, topic, **committed)
                told[f"{topic} read as stream"] = both(cross.read_stream, topic, **committed)
        for level in ("read_committed", "read_uncommitted"):
            isolation = {"kafka.isolation.level": level}
            told[f"{level} as batch"] = both(cross.read, "transactions", **isolation)
            told[f"{level} as stream"] = both(cross.read_stream, "transactions", **isolation)
        told["broker's time"] = both(cross.read, "stamped")
        places = json.dumps({"kafka-batch": {"0": 1, "1": -2, "2": 0}})
        ends = json.dumps({"kafka-batch": {"0": 3, "1": 4, "2": 0}})
        told["from offsets"] = both(cross.read, "kafka-batch", startingOffsets=places, endingOffsets=ends)
        told["from a time"] = both(cross.read, "timed", startingTimestamp="3000", endingTimestamp="5000")
        # A query of Spark's connector goes on as one of ours, with its checkpoint.
        told["moved"] = [cross.read_stream("kafka", "moved", "moving")]
        cross.write("kafka", "moved")
        told["moved"].append(cross.read_stream("millstream", "moved", "moving"))
    finally:
        spark.stop()
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
