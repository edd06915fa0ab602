"""Upserts by Spark's own `MERGE INTO`, in tables of Iceberg's or Delta's connector for Spark.

For clusters that have the connector's jars, and tables in a catalog of the session. Tasks of the cluster merge, so a
batch is not limited by the memory of the driver. `upserts.py` needs no jars, and knows histories too.

The rules are those of `upserts.py`: the sequence of a change decides, not its arrival, and deletions are known to late
changes. So a batch that is written again changes nothing: a killed driver repeats its batch, and each change counts
once. Deletions are in a table of their own beside the table, and are written before the rows are merged: a driver that
is killed between the two repeats both. Only one query may write a table at a time.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from millstream.lake.errors import LakeOptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DELETES: Final = "__deletes"
"""What the name of the table with deletions ends with."""
_NOTED_AT: Final = "_noted_at"
_RANK: Final = "_millstream_rank"


def merge_batch(
    changes: "DataFrame",
    *,
    table: str,
    keys: Sequence[str],
    sequence_by: str,
    delete_column: str | None = None,
    table_format: str = "iceberg",
    keep_deletes: str = "7 days",
) -> None:
    """Merges the changes of a batch into a table, for `foreachBatch`.

    changes        rows of the table, with the columns of the other arguments
    table          name in a catalog of the session, such as `lake.shop.customers`; made if it does not exist
    keys           columns that identify a row
    sequence_by    a column that grows with each change of a key: late, older changes have no effect
    delete_column  a boolean column; true deletes the row. It is not in the table
    table_format   of a table that is made: `iceberg` or `delta`
    keep_deletes   how long a deletion is known to late changes, as an interval of Spark's
    """
    _check_columns(changes.columns, keys, sequence_by, delete_column)
    spark = changes.sparkSession
    columns = [name for name in changes.columns if name != delete_column]
    rows = changes.select(*map(_quoted, columns))
    if not spark.catalog.tableExists(table):
        rows.limit(0).writeTo(table).using(table_format).create()
    newest = _newest(changes, keys, sequence_by).persist()
    try:
        if delete_column is None:
            _run(newest, merge_statement(table, columns, keys, sequence_by, None))
            return
        deletes = deletes_of(table)
        if not spark.catalog.tableExists(deletes):
            noted = newest.selectExpr(*map(_quoted, (*keys, sequence_by)), f"current_timestamp() AS {_NOTED_AT}")
            noted.limit(0).writeTo(deletes).using(table_format).create()
        gone = newest.where(_quoted(delete_column))
        if not gone.isEmpty():
            _run(gone, deletes_statement(deletes, keys, sequence_by))
        known = _not_deleted_later(newest, deletes, keys, sequence_by)
        _run(known, merge_statement(table, columns, keys, sequence_by, delete_column))
        old = f"{_NOTED_AT} < current_timestamp() - INTERVAL {keep_deletes}"
        if not spark.table(deletes).where(old).isEmpty():
            spark.sql(f"DELETE FROM {deletes} WHERE {old}")
    finally:
        newest.unpersist()


def deletes_of(table: str) -> str:
    """The name of the table with the deletions of a table."""
    if table.endswith("`"):
        return f"{table[:-1]}{DELETES}`"
    return f"{table}{DELETES}"


# Pure


def merge_statement(
    table: str, columns: Sequence[str], keys: Sequence[str], sequence_by: str, delete_column: str | None
) -> str:
    """The rows of a table, after the changes in {changes}: one for each key."""
    later = f"c.{_quoted(sequence_by)} > t.{_quoted(sequence_by)}"
    updates = ", ".join(f"t.{_quoted(name)} = c.{_quoted(name)}" for name in columns if name not in keys)
    names = ", ".join(map(_quoted, columns))
    values = ", ".join(f"c.{_quoted(name)}" for name in columns)
    lines = [f"MERGE INTO {table} t USING {{changes}} c ON {_same_keys(keys, 't', 'c')}"]
    if delete_column is not None:
        lines.append(f"WHEN MATCHED AND {later} AND c.{_quoted(delete_column)} THEN DELETE")
    lines.append(f"WHEN MATCHED AND {later} THEN UPDATE SET {updates}")
    wanted = "" if delete_column is None else f" AND NOT c.{_quoted(delete_column)}"
    lines.append(f"WHEN NOT MATCHED{wanted} THEN INSERT ({names}) VALUES ({values})")
    return "\n".join(lines)


def deletes_statement(table: str, keys: Sequence[str], sequence_by: str) -> str:
    sequence = _quoted(sequence_by)
    names = ", ".join(map(_quoted, (*keys, sequence_by)))
    values = ", ".join(f"c.{_quoted(name)}" for name in (*keys, sequence_by))
    return "\n".join(
        [
            f"MERGE INTO {table} t USING {{changes}} c ON {_same_keys(keys, 't', 'c')}",
            f"WHEN MATCHED AND c.{sequence} > t.{sequence} THEN UPDATE SET "
            f"t.{sequence} = c.{sequence}, t.{_NOTED_AT} = current_timestamp()",
            f"WHEN NOT MATCHED THEN INSERT ({names}, {_NOTED_AT}) VALUES ({values}, current_timestamp())",
        ]
    )


def _same_keys(keys: Sequence[str], one: str, other: str) -> str:
    return " AND ".join(f"{one}.{_quoted(name)} = {other}.{_quoted(name)}" for name in keys)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _check_columns(columns: Sequence[str], keys: Sequence[str], sequence_by: str, delete_column: str | None) -> None:
    if not keys:
        raise LakeOptionError("keys is empty; name the columns that identify a row")
    for name in (*keys, sequence_by, *((delete_column,) if delete_column else ())):
        if name not in columns:
            raise LakeOptionError(f"the rows have no column {name}; columns are {', '.join(columns)}")


# With Spark


def _newest(changes: "DataFrame", keys: Sequence[str], sequence_by: str) -> "DataFrame":
    """The newest change of each key. A null in a key or the sequence ends the query: `=` would never find the row."""
    from pyspark.sql import Window
    from pyspark.sql.functions import col, row_number

    missing = " OR ".join(f"{_quoted(name)} IS NULL" for name in (*keys, sequence_by))
    advice = "a change has null in a key or the sequence; filter such rows out"
    checked = changes.where(f"IF({missing}, CAST(raise_error('{advice}') AS BOOLEAN), true)")
    order = Window.partitionBy(*map(_quoted, keys)).orderBy(col(_quoted(sequence_by)).desc())
    return checked.withColumn(_RANK, row_number().over(order)).where(f"{_RANK} = 1").drop(_RANK)


def _not_deleted_later(newest: "DataFrame", deletes: str, keys: Sequence[str], sequence_by: str) -> "DataFrame":
    from pyspark.sql.functions import expr

    known = newest.sparkSession.table(deletes).alias("d")
    later = f"{_same_keys(keys, 'c', 'd')} AND d.{_quoted(sequence_by)} > c.{_quoted(sequence_by)}"
    return newest.alias("c").join(known, expr(later), "left_anti")


def _run(changes: "DataFrame", statement: str) -> None:
    changes.sparkSession.sql(statement, changes=changes)
