"""Which of a record's columns a pipeline has a use for: each one that is not read makes the source faster.

Spark cannot leave out columns of a Python source by itself, and `value` alone is read twice as fast as all of them.
Where rows go to code or tables, whose use of them cannot be seen in the file, all are kept.
"""

import re
from collections.abc import Iterator

from millstream.pipeline.engine.record_columns import HEADERS, KEY, OFFSET, PARTITION, TIMESTAMP, TOPIC
from millstream.pipeline.model import (
    REST_DEAD_LETTERS,
    Dedup,
    Format,
    Join,
    Latest,
    Pipeline,
    Python,
    Route,
    Sql,
    Stateful,
    TopicSink,
    TopicSource,
    Window,
)

_OF_RECORD = {
    KEY: "key",
    TOPIC: "topic",
    PARTITION: "partition",
    OFFSET: "offset",
    TIMESTAMP: "timestamp",
    HEADERS: "headers",
}


def columns_to_read(pipeline: Pipeline, source: TopicSource) -> list[str]:
    """For the source's option `columns`; those of a raw source are the user's business."""
    used = _used(pipeline)
    possible = {name: column for name, column in _OF_RECORD.items() if name != HEADERS or source.headers}
    return ["value", *(column for name, column in possible.items() if used is None or name in used)]


def _used(pipeline: Pipeline) -> set[str] | None:
    """The record's columns that the file names; None if all may be used."""
    if any(isinstance(step, Python | Stateful) for step in pipeline.steps):
        return None
    if any(isinstance(step, Route) and step.rest == REST_DEAD_LETTERS for step in pipeline.steps):
        return None  # dead letters are the whole row
    topic_sinks = [sink for sink in pipeline.sinks if isinstance(sink, TopicSink)]
    if len(topic_sinks) < len(pipeline.sinks) or any(sink.format is Format.RAW for sink in topic_sinks):
        return None
    words = {word for text in _texts(pipeline) for word in re.findall(r"\w+", text)}
    if any(sink.key is None for sink in topic_sinks):
        words.add(KEY)
    return words & set(_OF_RECORD)


def _texts(pipeline: Pipeline) -> Iterator[str]:
    for part in (*pipeline.sources, *pipeline.steps):
        if part.watermark is not None:
            yield part.watermark.column
    for step in pipeline.steps:
        match step:
            case Sql():
                yield step.query
            case Window():
                yield step.time
                yield from (column.expression for column in (*step.group_by, *step.aggregate))
            case Join():
                yield from (name for key in step.on for name in (key.left, key.right))
                if step.within is not None:
                    yield from (step.within.left_time, step.within.right_time)
            case Dedup() | Latest():
                yield from step.key
            case Route():
                yield from (branch.condition for branch in step.branches)
            case Python() | Stateful():
                pass
    for sink in pipeline.sinks:
        if isinstance(sink, TopicSink):
            yield from (text for text in (sink.key, sink.timestamp) if text is not None)
            yield from (header.expression for header in sink.headers)
