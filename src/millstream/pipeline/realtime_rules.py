"""What a pipeline with `latency: realtime` may have: steps without state, and formats that Spark decodes by itself."""

from millstream.pipeline.model import (
    REST_DEAD_LETTERS,
    BadRecords,
    Format,
    OutputMode,
    Pipeline,
    Route,
    Sql,
    TopicSink,
    TopicSource,
    TriggerKind,
)
from millstream.pipeline.problems import Position, Problems

_FORMATS = (Format.RAW, Format.STRING, Format.JSON)
_KEYS = (Format.RAW, Format.STRING)


def check_realtime(pipeline: Pipeline, position: Position, problems: Problems) -> None:
    def error(line: int, text: str) -> None:
        problems.error(Position(line, 1), f"latency: realtime: {text}")

    problems.warning(position, "`latency: realtime` writes at least once; for exactly once remove it")
    if pipeline.trigger.kind is not TriggerKind.AS_SOON_AS_POSSIBLE:
        error(pipeline.trigger.line, "remove `trigger`; records are processed when they arrive")
    for source in pipeline.sources:
        if not isinstance(source, TopicSource):
            error(source.line, f"source {source.name!r} is a table; tables cannot be joined here")
            continue
        if source.format not in _FORMATS or (source.format is Format.JSON and source.schema is None):
            error(source.line, f"source {source.name!r} must be raw, string, or json with a `schema`")
        if source.key_format not in _KEYS:
            error(source.line, f"`key_format` of source {source.name!r} must be raw or string")
        if source.format is Format.JSON and source.bad_records is BadRecords.DEAD_LETTERS:
            error(source.line, f"source {source.name!r} needs `bad_records: drop` or keep; there are no dead letters")
    for step in pipeline.steps:
        if isinstance(step, Route) and step.rest == REST_DEAD_LETTERS:
            error(step.line, f"route {step.name!r} needs `rest: drop`, or the name of a branch")
        elif not isinstance(step, Sql | Route):
            error(step.line, f"{step.kind} step {step.name!r} is not possible; use sql without state, and route")
    for sink in pipeline.sinks:
        if not isinstance(sink, TopicSink) or sink.format not in _FORMATS:
            error(sink.line, f"sink {sink.name!r} must be a topic with format raw, string or json")
        if sink.trigger is not None or sink.mode is not OutputMode.APPEND:
            error(sink.line, f"remove `trigger` and `mode` of sink {sink.name!r}")
    for part in pipeline.parts_with_expectations:
        error(part.line, f"remove `expect` of {part.name!r}; rows are not counted by batch here")
