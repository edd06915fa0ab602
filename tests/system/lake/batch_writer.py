"""A writer to be killed: batches of ten rows, each repeated until it is noted as done, as Spark does; without a JVM.

With `upsert` each batch changes ten of a hundred rows: `id` is the key, `batch` the sequence.
"""

import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import LongType, StructType

from millstream.lake.options import parse_options
from millstream.lake.spark_source import StreamTableWriter

KEYS = 100


def rows(numbers: range, batch: int, mode: str) -> pa.RecordBatch:
    ids = [number % KEYS for number in numbers] if mode == "upsert" else list(numbers)
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "batch": pa.array([batch] * len(ids), pa.int64())})


def main(path: str, table_format: str, last: str, mode: str = "append") -> None:
    done = Path(f"{path}.done")
    given = {"path": path, "tableFormat": table_format, "txnAppId": "query"}
    options = parse_options(given | ({"keys": "id", "sequenceBy": "batch"} if mode == "upsert" else {}))
    schema = StructType().add("id", LongType()).add("batch", LongType())
    batch = int(done.read_text()) + 1 if done.exists() and done.read_text() else 0
    print("running", flush=True)
    while batch <= int(last):
        writer = StreamTableWriter(options, schema, replace=False)
        halves = [range(batch * 10, batch * 10 + 5), range(batch * 10 + 5, batch * 10 + 10)]
        messages = [writer.write(iter([rows(half, batch, mode)])) for half in halves]
        writer.commit(list(messages), batch)
        Path(f"{path}.next").write_text(str(batch))
        Path(f"{path}.next").replace(done)
        batch += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
