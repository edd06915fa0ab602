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
        ("id BIGNIT", "no column type 'bignit'; did you mean BIGINT"),
        ("id", "more was expected where the end stands"),
        ("id int,", "expected where the end stands"),
        ("id int name string", "a comma between columns was expected where 'name' stands"),
        ("id array<int", "'>' was expected where the end stands"),
        ("id map<int>", "',' was expected where '>' stands"),
        ("id decimal(40)", "has no meaning"),
        ("id decimal(x)", "has no meaning"),
        ("id int, id string", "column 'id' twice"),
        (", int", "a column's name was expected"),
        ("id int not x", "NULL was expected"),
        ("id int ;", "cannot be read at"),
        ("", "more was expected"),
        ("{", "no JSON"),
        ('{"type": "struct", "fields": []}', "no columns"),
        ('{"type": "strukt"}', "no type of Spark's"),
        ('{"type": "struct", "fields": [{"name": "a", "type": "lonk"}]}', "did you mean LONG"),
    ],
)
def test_mistakes_are_shown(text: str, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        parse_struct(text)
