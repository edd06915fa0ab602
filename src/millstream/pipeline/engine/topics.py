"""What a pipeline needs of the brokers before it starts: they answer, and its topics are there."""

from collections.abc import Iterable
from dataclasses import dataclass

from millstream.pipeline.engine.failures import Part, PartFailedError, PipelineFailedError
from millstream.pipeline.model import Pipeline, TopicSink, TopicSource
from millstream.pipeline.problems import nearest
from millstream.raw_client import Cluster, ErrorCode, RefusedError, WireError

_ANSWER_WITHIN_S = 15.0


class NoBrokerError(PipelineFailedError):
    """Nobody answers at the pipeline's bootstrap address, or those who do refuse us."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class TopicsReady:
    """What was made on the way."""

    created: tuple[str, ...]


def prepare_topics(pipeline: Pipeline, *, bootstrap: str | None = None) -> TopicsReady:
    """Topics that are read must be there; those that are written to are made, with the brokers' defaults."""
    where = bootstrap or pipeline.bootstrap
    try:
        with Cluster(
            where, pipeline.connection, client_id=f"pipeline-{pipeline.name}", timeout_s=_ANSWER_WITHIN_S
        ) as cluster:
            there = set(cluster.topics())
            _check_sources(pipeline, there, where)
            return TopicsReady(tuple(_create_missing(cluster, pipeline, there)))
    except WireError as error:
        raise NoBrokerError(f"the brokers at {where}: {error}") from error


def _check_sources(pipeline: Pipeline, there: set[str], where: str) -> None:
    for source in pipeline.sources:
        if not isinstance(source, TopicSource):
            continue
        for topic in source.topics:
            if topic not in there:
                raise PartFailedError(
                    Part("source", source.name, source.line),
                    f"there is no topic {topic!r} at {where}; {nearest(topic, there, noun='there are')} "
                    f"(`millstream topic create {topic}` makes it)",
                )


def written_topics(pipeline: Pipeline) -> Iterable[str]:
    yield from (sink.topic for sink in pipeline.sinks if isinstance(sink, TopicSink))
    yield pipeline.dead_letters.topic


def _create_missing(cluster: Cluster, pipeline: Pipeline, there: set[str]) -> Iterable[str]:
    for topic in dict.fromkeys(written_topics(pipeline)):
        if topic in there:
            continue
        try:
            cluster.create_topic(topic, -1, -1, {})
        except RefusedError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        yield topic
