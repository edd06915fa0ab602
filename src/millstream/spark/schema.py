"""The columns of the source as Spark sees them: the row of spark-sql-kafka, with typed columns where formats say so."""

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millstream.spark.errors import OptionError
from millstream.spark.options import ERROR_COLUMN, ReadOptions

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
    ERROR_COLUMN: StringType(),
}


def spark_schema(options: ReadOptions, typed: dict[str, DataType]) -> StructType:
    """`typed`: the types of `key` and `value` where they are not bytes."""
    return StructType([StructField(name, typed.get(name, _TYPES[name])) for name in options.columns])


def must_match(given: StructType, options: ReadOptions) -> None:
    """A schema of the user's own cannot be had; what Spark got from this source fits, whatever typed columns are."""
    sides = {"key": options.key, "value": options.value}
    typed = {side: given[side].dataType for side, each in sides.items() if each.format != "raw" and side in given.names}
    own = spark_schema(options, typed)
    if given.simpleString() != own.simpleString():
        raise OptionError(
            f"the source has a schema of its own, {own.simpleString()}, and cannot take {given.simpleString()}; leave "
            ".schema(…) out, and use the option columns, or valueFormat and valueSchema"
        )
