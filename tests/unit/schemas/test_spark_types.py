"""Column types in Spark's two spellings."""

import json

import pyarrow as pa
import pytest

from millstream.schemas import SchemaError
from millstream.schemas.spark_types import parse_struct


def test_ddl_and_json_say_the_same() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    pandas_types = pytest.importorskip("pyspark.sql.pandas.types")
    spark = types.StructType(
        [
            types.StructField("id", types.LongType()),
            types.StructField("odd name", types.StringType()),
            types.StructField("price", types.DecimalType(12, 3)),
            types.StructField("flags", types.MapType(types.StringType(), types.BooleanType())),
            types.StructField(
                "items",
                types.ArrayType(
                    types.StructType(
                        [types.StructField("n", types.ShortType()), types.StructField("d", types.DateType())]
                    )
                ),
            ),
            types.StructField("at", types.TimestampType()),
            types.StructField("local", types.TimestampNTZType()),
            types.StructField("raw", types.BinaryType()),
            types.StructField("f", types.FloatType()),
        ]
    )
    ddl = (
        "id BIGINT NOT NULL COMMENT 'it''s', `odd name` string, price decimal(12, 3), flags map<string,boolean>, "
        "items array<struct<n:smallint, d: date>>, at timestamp, local timestamp_ntz, raw binary, f float"
    ).replace("it''s", "its")
    wanted = pa.struct(list(pandas_types.to_arrow_schema(spark, timezone="UTC")))
    assert parse_struct(ddl) == wanted
    assert parse_struct(spark.json()) == wanted
    assert parse_struct(json.dumps(spark.jsonValue())) == wanted


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("id BIGNIT", "there is no type 'BIGNIT'; did you mean 'bigint'"),
        ("id", "the type of the column 'id' is missing at the end"),
        ("id int,", "a column's name is missing at the end"),
        ("id int name string", "'name' is not expected after the column 'id'"),
        ("id array<int", "the `<` after ARRAY is not closed"),
        ("id map<int>", "MAP has two types"),
        ("id decimal(40)", "is not possible: the precision is 1 to 38"),
        ("id decimal(x)", "is not expected after the column"),
        ("id int, id string", "the column 'id' is there twice"),
        (", int", "a column's name is missing before"),
        ("id int not x", "'not' is not expected after the column 'id'"),
        ("id int ;", "';' is not expected"),
        ("", "a column's name is missing"),
        ("id interval day to second", "cannot be of type INTERVAL"),
        ("{", "not JSON"),
        ('{"type": "struct", "fields": []}', "no columns"),
        ('{"type": "strukt"}', "is not a Spark type"),
        ('{"type": "struct", "fields": [{"name": "a", "type": "lonk"}]}', "did you mean 'long'"),
    ],
)
def test_mistakes_are_shown(text: str, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        parse_struct(text)
