"""`latency: realtime`: Spark's real-time mode, in which a record is processed when it arrives, not with its batch.

That mode takes no Python sources and sinks, so Spark's own Kafka connector reads and writes, on the same brokers. It
writes at least once: after a failure, records since the last checkpoint are written again. Its jar is not part of
PySpark; a file names it in `spark`. What a file may have is checked in `pipeline/definition.py`.
"""

from typing import TYPE_CHECKING

from millstream.pipeline.engine.decoding import ERROR, KEY, OFFSET, PARTITION, TIMESTAMP, TOPIC, good_rows
from millstream.pipeline.engine.failures import PipelineFailedError
from millstream.pipeline.engine.sources import starting_options, subscription_options, with_watermark
from millstream.pipeline.model import Format, Pipeline, TopicSink, TopicSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

CHECKPOINT_EVERY = "10 seconds"
"""The length of a batch: how often offsets are written, and how much is written again after a failure."""
NOTE = "latency: realtime writes at least once: after a failure, the records of some seconds are written again"
_LOGIN = {"PLAIN": "plain.PlainLoginModule", "SCRAM": "scram.ScramLoginModule"}


def topic_stream(session: "SparkSession", pipeline: Pipeline, source: TopicSource) -> "DataFrame":
    from pyspark.errors import PySparkException

    options = {**connection_options(pipeline), **subscription_options(source), **starting_options(source.starting)}
    try:
        raw = session.readStream.format("kafka").options(**options, **source.options).load()
    except PySparkException as error:
        if "kafka" in str(error).lower() and "data source" in str(error).lower():
            raise PipelineFailedError(
                "latency: realtime needs Spark's own Kafka connector; name its jars in the file: "
                "`spark: {spark.jars: …}`, or `spark: {spark.jars.packages: "
                "org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION}` (docs/pipelines.md)"
            ) from error
        raise
    return with_watermark(good_rows(_decoded(raw, source), source), source)


def _decoded(raw: "DataFrame", source: TopicSource) -> "DataFrame":
    if source.format is Format.RAW:
        return raw
    from pyspark.sql.functions import col, from_json, lit, when

    key = "CAST(key AS STRING)" if source.key_format is Format.STRING else "key"
    record = [f"{key} AS {KEY}", f"topic AS {TOPIC}", f"partition AS {PARTITION}", f"offset AS {OFFSET}"]
    record += [f"timestamp AS {TIMESTAMP}", *(["headers AS _headers"] if source.headers else [])]
    if source.format is Format.STRING:
        return raw.selectExpr("CAST(value AS STRING) AS value", *record)
    parsed = raw.withColumn(
        "__parsed", from_json(col("value").cast("string"), f"{source.schema}, __corrupt STRING", _PERMISSIVE)
    )
    reason = lit("the value is not JSON with the columns of the schema")
    bad = col("value").isNotNull() & (col("__parsed").isNull() | col("__parsed.__corrupt").isNotNull())
    return parsed.withColumn(ERROR, when(bad, reason)).selectExpr("__parsed.*", *record, ERROR).drop("__corrupt")


_PERMISSIVE = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "__corrupt"}


def topic_writer(pipeline: Pipeline, sink: TopicSink, rows: "DataFrame") -> "DataStreamWriter":
    options = {**connection_options(pipeline), "topic": sink.topic, **sink.options}
    return rows.writeStream.format("kafka").options(**options)


def connection_options(pipeline: Pipeline) -> dict[str, str]:
    """The connection in the names of Java's client: user and password as a login module."""
    given = dict(pipeline.connection)
    user, password = given.pop("sasl.username", None), given.pop("sasl.password", None)
    if user is not None and "sasl.jaas.config" not in given:
        module = _LOGIN["SCRAM" if given.get("sasl.mechanism", "").startswith("SCRAM") else "PLAIN"]
        quoted = [text.replace("\\", "\\\\").replace('"', '\\"') for text in (user, password or "")]
        given["sasl.jaas.config"] = (
            f'org.apache.kafka.common.security.{module} required username="{quoted[0]}" password="{quoted[1]}";'
        )
    return {
        "kafka.bootstrap.servers": pipeline.bootstrap,
        **{f"kafka.{name}": value for name, value in given.items()},
    }
