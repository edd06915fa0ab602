"""Dead letters as records: what could not be read or routed, with headers that say of what, from where and why."""

from typing import TYPE_CHECKING

from millstream.pipeline.engine.decoding import RAW_KEY, RAW_VALUE
from millstream.pipeline.engine.record_columns import ERROR, HEADERS, KEY, OFFSET, PARTITION, TOPIC, quoted
from millstream.pipeline.model import Pipeline, Route, TopicSource

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def of_route(pipeline: Pipeline, route: Route, rest: "DataFrame") -> "DataFrame":
    """Rows that no branch took, as JSON."""
    from pyspark.sql.functions import col, lit, struct, to_json

    reason = lit(f"no branch of {route.name!r} takes this row")
    value = to_json(struct(*[col(quoted(name)) for name in rest.columns if name != HEADERS]))
    key = col(KEY).cast("binary") if KEY in rest.columns else lit(None).cast("binary")
    headers = _headers(rest, pipeline.name, route.name, reason)
    return rest.select(key.alias("key"), value.cast("binary").alias("value"), headers.alias("headers"))


def of_source(pipeline: Pipeline, source: TopicSource, decoded: "DataFrame") -> "DataFrame":
    """Records that the source's format could not read, byte for byte as they came."""
    from pyspark.sql.functions import col

    bad = decoded.where(f"{ERROR} IS NOT NULL")
    headers = _headers(bad, pipeline.name, source.name, col(ERROR))
    return bad.select(col(RAW_KEY).alias("key"), col(RAW_VALUE).alias("value"), headers.alias("headers"))


def _headers(frame: "DataFrame", pipeline: str, step: str, reason: "Column") -> "Column":
    from pyspark.sql.functions import array, col, filter, lit, struct

    told: dict[str, Column] = {
        "millstream.pipeline": lit(pipeline),
        "millstream.step": lit(step),
        "millstream.reason": reason,
    }
    where = {"millstream.topic": TOPIC, "millstream.partition": PARTITION, "millstream.offset": OFFSET}
    for name, column in where.items():
        if column in frame.columns:
            told[name] = col(column).cast("string")
    entries = [struct(lit(name).alias("key"), value.cast("binary").alias("value")) for name, value in told.items()]
    return filter(array(*entries), lambda entry: entry["value"].isNotNull())
