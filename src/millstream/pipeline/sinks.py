"""`sinks` of a pipeline's file, read into the model."""

import re
from pathlib import Path

from yaml.nodes import MappingNode, Node, ScalarNode

from millstream.pipeline.document import Document, Section, Word, describe, place_of
from millstream.pipeline.model import (
    ConsoleSink,
    Delivery,
    Format,
    OutputMode,
    Sink,
    TableFormat,
    TableSink,
    TopicSink,
)
from millstream.pipeline.parts import (
    SINK_NAME,
    Drafted,
    check_sql,
    named_parts,
    one_kind,
    read_columns,
    read_path,
    read_topic,
    read_trigger,
)

_COMMON_KEYS = ("from", "mode", "trigger", "options")
_KEYS = {
    "topic": ("topic", "format", "key", "headers", "timestamp", "delivery", "subject", "schema"),
    "table": ("table", "format", "partition_by"),
    "console": ("console",),
}
_KINDS = tuple(_KEYS)
_SINK_FORMATS = [Format.RAW, Format.STRING, Format.JSON, Format.AVRO, Format.PROTOBUF]
_SINK_TABLES = [TableFormat.PARQUET, TableFormat.DELTA, TableFormat.ICEBERG]
_PARTITION = re.compile(r"(?:(day|hour|month)s?\(\s*)?([A-Za-z_][A-Za-z0-9_]*)(?(1)\s*\))")


def read_sinks(document: Document, node: Node | None, directory: Path, *, has_registry: bool) -> list[Drafted[Sink]]:
    found: list[Drafted[Sink]] = []
    for name, value in named_parts(document, node, "sink", SINK_NAME):
        present = [str(key.value) for key, _ in value.value] if isinstance(value, MappingNode) else []
        kinds = [kind for kind in _KINDS if kind in present]
        own = (
            _KEYS[kinds[0]] if len(kinds) == 1 else tuple(dict.fromkeys(key for keys in _KEYS.values() for key in keys))
        )
        section = Section(document, value, f"sink {name.text!r}", ("from", *own, *_COMMON_KEYS[1:]))
        section.place = name.place
        kind = one_kind(section, _KINDS, "sink")
        words = section.names("from")[:1]
        if "from" not in section:
            section.missing("from", ": the name of a source, step or branch")
        if kind is None:
            continue
        reads = words[0].text if words else ""
        if kind == "topic":
            sink: Sink = _read_topic_sink(section, name, reads, has_registry)
        elif kind == "table":
            sink = _read_table_sink(section, name, reads, directory)
        else:
            sink = _read_console(section, name, reads)
        places = tuple((key, section.place_of_value(key)) for key in section.values)
        found.append(Drafted(sink, name.place, words, places=places))
    return found


def _mode(section: Section) -> OutputMode:
    return section.choice("mode", OutputMode) or OutputMode.APPEND


def _read_topic_sink(section: Section, name: Word, reads: str, has_registry: bool) -> TopicSink:
    topic = section.required_text("topic")
    if topic:
        read_topic(section, Word(topic, section.place_of_value("topic")))
    format = section.choice("format", Format, _SINK_FORMATS) or Format.JSON
    if format in (Format.AVRO, Format.PROTOBUF) and not has_registry:
        section.problems.error(
            section.place_of_value("format"),
            f"{format} of {section.what} needs a schema registry; say `registry: http://…` at the top of the file",
        )
    if "schema" in section and format not in (Format.AVRO, Format.PROTOBUF, Format.JSON):
        section.problems.error(section.place_of_key("schema"), f"{format} of {section.what} has no schema to register")
    key = section.text("key")
    if key:
        check_sql(section, "key", Word(key, section.place_of_value("key")))
    return TopicSink(
        name=name.text,
        line=name.place.line,
        reads=reads,
        mode=_mode(section),
        trigger=read_trigger(section),
        options=section.texts("options"),
        topic=topic,
        format=format,
        key=key,
        headers=read_columns(section, "headers", names_needed=True),
        timestamp=section.text("timestamp"),
        delivery=section.choice("delivery", Delivery) or Delivery.EXACTLY_ONCE,
        subject=section.text("subject"),
        schema=section.text("schema"),
    )


def _read_table_sink(section: Section, name: Word, reads: str, directory: Path) -> TableSink:
    partition_by = section.names("partition_by")
    for word in partition_by:
        if not _PARTITION.fullmatch(word.text):
            section.problems.error(
                word.place, f"`partition_by` takes columns, and day, hour or month of one, not {word.text!r}"
            )
    mode = _mode(section)
    if mode is not OutputMode.APPEND:
        section.problems.error(
            section.place_of_value("mode"), f"a table is appended to; {section.what} cannot have the mode {mode}"
        )
    return TableSink(
        name=name.text,
        line=name.place.line,
        reads=reads,
        mode=mode,
        trigger=read_trigger(section),
        options=section.texts("options"),
        format=section.choice("format", TableFormat, _SINK_TABLES) or TableFormat.DELTA,
        path=read_path(section, "table", directory),
        partition_by=tuple(_as_the_lake_says(word.text) for word in partition_by),
    )


def _as_the_lake_says(text: str) -> str:
    match = _PARTITION.fullmatch(text)
    return f"{match[1]}s({match[2]})" if match and match[1] else text


def _read_console(section: Section, name: Word, reads: str) -> ConsoleSink:
    node = section.values["console"]
    if isinstance(node, ScalarNode) and node.value in ("", "true", "~", "null"):
        inner = Section(section.document, None, "console", ())
    elif isinstance(node, MappingNode):
        inner = section.section("console", f"console of {section.what}", ("rows", "truncate"))
    else:
        section.problems.error(
            place_of(node), f"`console` is {{}} or {{rows: 20, truncate: false}}, not {describe(node)}"
        )
        inner = Section(section.document, None, "console", ())
    truncate = inner.flag("truncate")
    return ConsoleSink(
        name=name.text,
        line=name.place.line,
        reads=reads,
        mode=_mode(section),
        trigger=read_trigger(section),
        options=section.texts("options"),
        rows=inner.count("rows") or 20,
        truncate=True if truncate is None else truncate,
    )
