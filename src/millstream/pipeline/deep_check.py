"""Checks of a pipeline that need other systems: topics, schemas, tables, and Spark's analysis.

Nothing is started or written: topics are looked up, schemas fetched, and Spark analyses the steps on empty tables.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.pipeline.model import Format, Pipeline, TableSource, TopicSink, TopicSource
from millstream.pipeline.problems import Position, Problems, nearest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BROKER_TIMEOUT_SECONDS = 10.0


def check_topics(pipeline: Pipeline, problems: Problems) -> None:
    """Topics of sources must exist; topics of sinks are created at the start of a run."""
    from millstream.raw_client import Cluster, WireError

    try:
        with Cluster(pipeline.bootstrap, pipeline.connection, timeout_s=_BROKER_TIMEOUT_SECONDS) as cluster:
            known = [name for name, topic in cluster.topics().items() if not topic.is_internal]
    except WireError as error:
        problems.error(Position(1, 1), f"the broker at {pipeline.bootstrap} did not respond: {error}")
        return
    for source in pipeline.sources:
        if not isinstance(source, TopicSource):
            continue
        for topic in source.topics:
            if topic not in known:
                problems.error(
                    Position(source.line, 1),
                    f"source {source.name!r}: there is no topic {topic!r} at {pipeline.bootstrap}; "
                    f"{nearest(topic, known, noun='there are')}",
                )
        if source.pattern is not None and not any(re.fullmatch(source.pattern, topic) for topic in known):
            problems.warning(
                Position(source.line, 1), f"source {source.name!r}: no topic matches {source.pattern!r} yet"
            )
    for sink in pipeline.sinks:
        if isinstance(sink, TopicSink) and sink.topic not in known:
            problems.warning(
                Position(sink.line, 1),
                f"sink {sink.name!r}: there is no topic {sink.topic!r} yet; a run creates it with the broker's "
                f"defaults, "
                f"or create it with `millstream topic create {sink.topic}`",
            )


def check_tables(pipeline: Pipeline, problems: Problems) -> None:
    for source in pipeline.sources:
        if isinstance(source, TableSource) and "://" not in source.path and not Path(source.path).exists():
            problems.error(Position(source.line, 1), f"source {source.name!r}: the path {source.path} does not exist")


def check_schemas(pipeline: Pipeline, problems: Problems) -> None:
    """Checks that the registry has the subjects of sources and sinks."""
    if pipeline.registry is None:
        return
    from millstream.schemas import RegistryAuth, RegistryClient, SchemaError

    registry = pipeline.registry
    client = RegistryClient(registry.url, RegistryAuth(registry.username, registry.password or ""))
    wanted: list[tuple[int, str, str]] = []
    for source in pipeline.sources:
        if isinstance(source, TopicSource) and _needs_registry(source.format) and source.schema is None:
            subjects = [source.subject] if source.subject else [f"{topic}-value" for topic in source.topics]
            wanted += [(source.line, f"source {source.name!r}", subject) for subject in subjects]
    for sink in pipeline.sinks:
        # An Avro schema can be derived from the columns; a Protobuf schema cannot, because it numbers its fields.
        if isinstance(sink, TopicSink) and sink.format is Format.PROTOBUF and sink.schema is None:
            wanted.append((sink.line, f"sink {sink.name!r}", sink.subject or f"{sink.topic}-value"))
    for line, what, subject in wanted:
        try:
            client.latest(subject)
        except SchemaError as error:
            problems.error(Position(line, 1), f"{what}: {error}")


def _needs_registry(format: Format) -> bool:
    return format in (Format.AVRO, Format.PROTOBUF, Format.JSON)


def check_with_spark(pipeline: Pipeline, session: "SparkSession", problems: Problems) -> None:
    """Runs Spark's analyser on the steps and sinks, with empty tables of the right columns."""
    from millstream.pipeline.engine.analysis import analyse

    for line, message in analyse(pipeline, session):
        problems.error(Position(line, 1), message)
