"""What a task tells the driver when it has written."""

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from millstream.spark.sink.decisions import TaskTransaction
from millstream.spark.sink.row_digest import RowDigest


@dataclass
class TaskWrite(WriterCommitMessage):
    """One task's work. Without rows there is no transaction; nor is there at least once."""

    sink: str
    batch: int
    attempt: str
    rows: int
    transaction: TaskTransaction | None
    digest: RowDigest | None = None
    """Of the rows that Spark gave, where nothing else says which input they are."""
