"""Reads `sinks` of a pipeline's file into the model."""

import re
from pathlib import Path

from yaml.nodes import MappingNode, Node, ScalarNode

from millstream.pipeline.document import Document, LocatedText, Section, describe, position_of
from millstream.pipeline.model import (
    TOMBSTONE,
    ConsoleSink,
    Delivery,
    Envelope,
    Format,
    OutputMode,
    Sink,
    TableFormat,
    TableMode,
    TableSink,
    TopicSink,
    Upsert,
)
from millstream.pipeline.parts import (
    SINK_NAME,
    ParsedPart,
    check_sql,
    named_parts,
    one_kind,
    read_columns,
    read_expectations,
    read_path,
    read_topic,
    read_trigger,
)

_COMMON_KEYS = ("from", "mode", "trigger", "expect", "options")
_KEYS = {
    "topic": ("topic", "format", "key", "headers", "timestamp", "delivery", "subject", "schema"),
    "table": (
        "table",
        "format",
        "partition_by",
        "keys",
        "sequence_by",
        "delete_when",
        "history",
        "envelope",
    ),
    "console": ("console",),
}
_KINDS = tuple(_KEYS)
_SINK_FORMATS = [Format.RAW, Format.STRING, Format.JSON, Format.AVRO, Format.PROTOBUF]
_SINK_TABLES = [TableFormat.DELTA, TableFormat.ICEBERG]
_PARTITION = re.compile(r"(?:(day|hour|month)s?\(\s*)?([A-Za-z_][A-Za-z0-9_]*)(?(1)\s*\))")


def read_sinks(document: Document, node: Node | None, directory: Path, *, has_registry: bool) -> list[ParsedPart[Sink]]:
    found: list[ParsedPart[Sink]] = []
    for name, value in named_parts(document, node, "sink", SINK_NAME):
        present = [str(key.value) for key, _ in value.value] if isinstance(value, MappingNode) else []
        kinds = [kind for kind in _KINDS if kind in present]
        own = (
            _KEYS[kinds[0]] if len(kinds) == 1 else tuple(dict.fromkeys(key for keys in _KEYS.values() for key in keys))
        )
        section = Section(document, value, f"sink {name.text!r}", ("from", *own, *_COMMON_KEYS[1:]))
        section.position = name.position
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
        positions = tuple((key, section.position_of_value(key)) for key in section.values)
        found.append(ParsedPart(sink, name.position, words, positions=positions))
    return found


def _mode(section: Section) -> OutputMode:
    return section.choice("mode", OutputMode) or OutputMode.APPEND


def _read_topic_sink(section: Section, name: LocatedText, reads: str, has_registry: bool) -> TopicSink:
    topic = section.required_text("topic")
    if topic:
        read_topic(section, LocatedText(topic, section.position_of_value("topic")))
    format = section.choice("format", Format, _SINK_FORMATS) or Format.JSON
    if format in (Format.AVRO, Format.PROTOBUF) and not has_registry:
        section.problems.error(
            section.position_of_value("format"),
            f"{format} of {section.what} needs a schema registry; add `registry: http://…` at the top of the file",
        )
    if "schema" in section and format not in (Format.AVRO, Format.PROTOBUF, Format.JSON):
        section.problems.error(
            section.position_of_key("schema"),
            f"{format} of {section.what} has no schema; remove `schema`, or use avro, protobuf or json",
        )
    key = section.text("key")
    if key:
        check_sql(section, "key", LocatedText(key, section.position_of_value("key")))
    return TopicSink(
        name=name.text,
        line=name.position.line,
        reads=reads,
        mode=_mode(section),
        trigger=read_trigger(section),
        expect=read_expectations(section),
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


def _read_table_sink(section: Section, name: LocatedText, reads: str, directory: Path) -> TableSink:
    partition_by = section.names("partition_by")
    for word in partition_by:
        if not _PARTITION.fullmatch(word.text):
            section.problems.error(
                word.position,
                f"`partition_by` has {word.text!r}; use a column, or day(…), hour(…) or month(…) of a column",
            )
    return TableSink(
        name=name.text,
        line=name.position.line,
        reads=reads,
        mode=OutputMode.APPEND,
        trigger=read_trigger(section),
        expect=read_expectations(section),
        options=section.texts("options"),
        format=section.choice("format", TableFormat, _SINK_TABLES) or TableFormat.DELTA,
        path=read_path(section, "table", directory),
        partition_by=tuple(_lake_partition(word.text) for word in partition_by),
        upsert=_read_upsert(section),
    )


_OF_UPSERTS = ("keys", "sequence_by", "delete_when", "history", "envelope")


def _read_upsert(section: Section) -> Upsert | None:
    keys = section.names("keys")
    if section.choice("mode", TableMode) is not TableMode.UPSERT:
        for key in _OF_UPSERTS:
            if key in section:
                section.problems.error(
                    section.position_of_key(key), f"`{key}` of {section.what} needs `mode: upsert`; add it"
                )
        return None
    if not keys:
        section.missing("keys", ": the columns that identify a row")
    delete_when = section.text("delete_when")
    if delete_when and delete_when != TOMBSTONE:
        check_sql(section, "delete_when", LocatedText(delete_when, section.position_of_value("delete_when")))
    envelope = section.choice("envelope", Envelope)
    if envelope is not None and delete_when:
        section.problems.error(
            section.position_of_key("delete_when"),
            f"{section.what} has deletions in its envelope; remove `delete_when`, or `envelope: {envelope}`",
        )
    return Upsert(
        keys=tuple(word.text for word in keys),
        sequence_by=section.text("sequence_by"),
        delete_when=delete_when,
        history=section.flag("history") or False,
        envelope=envelope,
    )


def _lake_partition(text: str) -> str:
    match = _PARTITION.fullmatch(text)
    return f"{match[1]}s({match[2]})" if match and match[1] else text


def _read_console(section: Section, name: LocatedText, reads: str) -> ConsoleSink:
    node = section.values["console"]
    if isinstance(node, ScalarNode) and node.value in ("", "true", "~", "null"):
        inner = Section(section.document, None, "console", ())
    elif isinstance(node, MappingNode):
        inner = section.section("console", f"console of {section.what}", ("rows", "truncate"))
    else:
        section.problems.error(
            position_of(node), f"`console` must be {{}} or {{rows: 20, truncate: false}}; this is {describe(node)}"
        )
        inner = Section(section.document, None, "console", ())
    truncate = inner.flag("truncate")
    return ConsoleSink(
        name=name.text,
        line=name.position.line,
        reads=reads,
        mode=_mode(section),
        trigger=read_trigger(section),
        expect=read_expectations(section),
        options=section.texts("options"),
        rows=inner.count("rows") or 20,
        truncate=True if truncate is None else truncate,
    )
