"""Loads for steps of a pipeline beside source and sink: typed decoding, a window, a lake table.

With those of `loads.py` they give what a row costs, from which a cluster is sized (`cluster_size.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, from_json, window

from benchmarks.spark.result import Result, alternated, rates, size_name
from benchmarks.spark.stage import FORMATS, OURS, SPARKS, Stage
from millstream.formats.records.compression import Codec

_SCHEMA = "id STRING, shop STRING, amount DOUBLE, at TIMESTAMP, note STRING"
_ROWS = {100: 1_000_000, 1024: 300_000}
_LEAST = 2_000
_SHOPS = 100


def _json_values(first: int, count: int, size: int) -> pa.Array:
    """Orders of about this size, one each millisecond."""
    values = []
    for number in range(first, first + count):
        minutes, rest = divmod(number, 60_000)
        order = {
            "id": f"o{number}",
            "shop": f"s{number % _SHOPS}",
            "amount": number % 1000 / 4,
            "at": f"2026-01-01T{minutes // 60 % 24:02}:{minutes % 60:02}:{rest // 1000:02}.{rest % 1000:03}Z",
            "note": "",
        }
        order["note"] = "n" * max(0, size - len(json.dumps(order, separators=(",", ":"))))
        values.append(json.dumps(order, separators=(",", ":")).encode())
    return pa.array(values, pa.binary())


_OPTIONS = {OURS: {"columns": "value", "valueFormat": "json", "valueSchema": _SCHEMA}, SPARKS: {}}


def _typed(connector: str, frame: DataFrame) -> DataFrame:
    """The columns of the orders, by what each connector has for it."""
    if connector == SPARKS:
        frame = frame.select(from_json(col("value").cast("string"), _SCHEMA).alias("value"))
    return frame.select("value.*")


class TypedDecode:
    """A batch query that reads JSON as columns, into a sink that takes all and keeps nothing."""

    def __init__(self, size: int, scale: float) -> None:
        self.name = f"typed decode {size_name(size)}"
        self._size, self._rows = size, max(_LEAST, int(_ROWS[size] * scale))
        self._topic = ""

    def prepare(self, stage: Stage) -> None:
        self._topic = stage.new_topic("typed")
        stage.fill_with(self._topic, self._rows, Codec.LZ4, lambda first, count: _json_values(first, count, self._size))

    def run(self, stage: Stage, round_: int) -> Iterator[Result]:
        for connector in alternated(FORMATS, round_):
            frame = _typed(connector, stage.read(connector, self._topic, **_OPTIONS[connector]))
            with stage.timed() as took:
                frame.write.format("noop").mode("overwrite").save()
            yield from rates(self.name, connector, self._rows, took)


class Window(TypedDecode):
    """A stream that reads JSON as columns and adds up amounts by shop and minute, in five micro-batches."""

    def __init__(self, size: int, scale: float) -> None:
        super().__init__(size, scale)
        self.name = f"window {size_name(size)}"

    def run(self, stage: Stage, round_: int) -> Iterator[Result]:
        for connector in alternated(FORMATS, round_):
            options = {**_OPTIONS[connector], "maxOffsetsPerTrigger": str(self._rows // 5)}
            frame = _typed(connector, stage.stream(connector, self._topic, **options))
            sums = frame.withWatermark("at", "1 minute").groupBy(window("at", "1 minute"), "shop").sum("amount")
            writer = sums.writeStream.format("noop").outputMode("append").trigger(availableNow=True)
            with stage.timed() as took:
                writer.option("checkpointLocation", stage.checkpoint()).start().awaitTermination()
            yield from rates(self.name, connector, self._rows, took)


class TableAppend:
    """A batch query that makes rows and appends them to a new Delta table. Spark's own connectors have none."""

    def __init__(self, size: int, scale: float) -> None:
        self.name = f"table {size_name(size)}"
        self._size, self._rows = size, max(_LEAST, int(_ROWS[size] * scale))

    def prepare(self, stage: Stage) -> None:
        pass

    def run(self, stage: Stage, round_: int) -> Iterator[Result]:
        # Text that Parquet cannot replace by a dictionary, and that compresses to about a half.
        text = f"substr(repeat(concat(sha2(cast(id as string), 256), ' '), {self._size // 64 + 1}), 1, {self._size})"
        rows = stage.spark.range(0, self._rows, numPartitions=2).selectExpr(
            "cast(id as string) as key", f"{text} as value"
        )
        with stage.timed() as took:
            rows.write.format("millstream-table").mode("append").save(stage.checkpoint())
        yield from rates(self.name, OURS, self._rows, took)
