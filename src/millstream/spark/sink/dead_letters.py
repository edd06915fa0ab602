"""Bad records, sent to a topic as they came, with headers that say from where and why; at least once.

They are written by the task that read them, before it ends. A task that is run again writes them again, with the same
headers, so a reader that cares can tell (`millstream.topic`, `millstream.partition`, `millstream.offset`).
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millstream.columnar.schema import HEADERS_TYPE
from millstream.spark.options import ReadOptions
from millstream.spark.sink.options import WriteOptions, parse_write_options
from millstream.spark.sink.task import write_at_least_once

NEEDED_COLUMNS = ("key", "value", "headers", "timestamp", "partition", "offset")
_FLUSH_BYTES = 8 << 20
REASON, TOPIC, PARTITION, OFFSET = (f"millstream.{each}" for each in ("reason", "topic", "partition", "offset"))


class DeadLetters:
    """Gathers bad records of one task, and writes them when there are many, or at the end."""

    def __init__(self, options: ReadOptions, topic: str) -> None:
        self._options = options
        self._topic = topic
        self._gathered: list[pa.RecordBatch] = []
        self._size = 0

    def add(self, records: pa.RecordBatch, reasons: pa.Array) -> None:
        """`records` as they were read; a reason for each."""
        letters = pa.RecordBatch.from_arrays(
            [
                records.column("key"),
                records.column("value"),
                self._headers(records, reasons),
                records.column("timestamp"),
            ],
            names=["key", "value", "headers", "timestamp"],
        )
        self._gathered.append(letters)
        self._size += letters.nbytes
        if self._size >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Returns when all of them are written."""
        if self._gathered:
            write_at_least_once(_write_options(self._options), lambda rows: rows, iter(self._gathered))
            self._gathered, self._size = [], 0

    def _headers(self, records: pa.RecordBatch, reasons: pa.Array) -> pa.Array:
        constant = [{"key": key, "value": value.encode()} for key, value in self._options.dead_letter_headers]
        made: list[list[dict[str, Any]]] = []
        places = zip(
            records.column("headers").to_pylist(),
            records.column("partition").to_pylist(),
            records.column("offset").to_pylist(),
            pc.cast(reasons, pa.string()).to_pylist(),
            strict=True,
        )
        for before, partition, offset, reason in places:
            told = {REASON: reason, TOPIC: self._topic, PARTITION: str(partition), OFFSET: str(offset)}
            own = [{"key": key, "value": value.encode()} for key, value in told.items()]
            made.append([*(before or []), *own, *constant])
        return pa.array(made, HEADERS_TYPE)


def _write_options(options: ReadOptions) -> WriteOptions:
    assert options.dead_letter_topic is not None
    given = {"kafka.bootstrap.servers": options.connection.bootstrap, "topic": options.dead_letter_topic}
    passed_on = {f"kafka.{name}": value for name, value in options.connection.settings}
    return parse_write_options(given | passed_on, streaming=False)
