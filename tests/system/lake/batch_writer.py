"""A writer to be killed: batches of ten rows, each repeated until it is noted as done, as Spark does; without a JVM."""

import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import LongType, StructType

from millstream.lake.options import parse_options
from millstream.lake.spark_source import StreamTableWriter


def main(path: str, table_format: str, last: str) -> None:
    done = Path(f"{path}.done")
    options = parse_options({"path": path, "tableFormat": table_format, "txnAppId": "query"})
    schema = StructType().add("id", LongType())
    batch = int(done.read_text()) + 1 if done.exists() and done.read_text() else 0
    print("running", flush=True)
    while batch <= int(last):
        writer = StreamTableWriter(options, schema, replace=False)
        halves = [range(batch * 10, batch * 10 + 5), range(batch * 10 + 5, batch * 10 + 10)]
        messages = [writer.write(iter([pa.record_batch({"id": pa.array(half, pa.int64())})])) for half in halves]
        writer.commit(list(messages), batch)
        Path(f"{path}.next").write_text(str(batch))
        Path(f"{path}.next").replace(done)
        batch += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
