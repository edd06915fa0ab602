"""Reads `sources` of a pipeline's file into the model."""

import re
from pathlib import Path

from yaml.nodes import MappingNode, Node, ScalarNode

from millstream.pipeline.document import Document, LocatedText, Section, entries, parse_timestamp_ms, position_of
from millstream.pipeline.model import BadRecords, Format, Source, Start, TableFormat, TableSource, TopicSource
from millstream.pipeline.parts import (
    TABLE_NAME,
    ParsedPart,
    named_parts,
    one_kind,
    read_expectations,
    read_path,
    read_schema,
    read_topic,
    read_watermark,
)

_KINDS = ("topic", "topics", "pattern", "table")
_TOPIC_KEYS = (
    "topic",
    "topics",
    "pattern",
    "format",
    "key_format",
    "schema",
    "subject",
    "starting_offsets",
    "watermark",
    "max_records_per_trigger",
    "max_bytes_per_trigger",
    "group",
    "bad_records",
    "headers",
    "expect",
    "options",
)
_TABLE_KEYS = ("table", "format", "schema", "options")
_EDGES = {"earliest": -2, "latest": -1}
_KEY_FORMATS = [Format.RAW, Format.STRING, Format.JSON, Format.AVRO, Format.PROTOBUF]


def read_sources(
    document: Document, node: Node | None, directory: Path, *, has_registry: bool
) -> list[ParsedPart[Source]]:
    found: list[ParsedPart[Source]] = []
    for name, value in named_parts(document, node, "source", TABLE_NAME):
        what = f"source {name.text!r}"
        keys = _TABLE_KEYS if _is_table(value) else _TOPIC_KEYS
        section = Section(document, value, what, keys if keys is _TABLE_KEYS else (*_TOPIC_KEYS, "table"))
        section.position = name.position
        kind = one_kind(section, _KINDS, "source")
        if kind == "table":
            found.append(_read_table(section, name, directory))
        elif kind is not None:
            found.append(_read_topic_source(section, name, directory, has_registry=has_registry))
    return found


def _is_table(node: Node) -> bool:
    keys = [key.value for key, _ in node.value] if isinstance(node, MappingNode) else []
    return "table" in keys and not {"topic", "topics", "pattern"} & set(keys)


def _read_table(section: Section, name: LocatedText, directory: Path) -> ParsedPart[Source]:
    format = section.choice("format", TableFormat) or TableFormat.PARQUET
    schema, columns = read_schema(section)
    if format in (TableFormat.CSV, TableFormat.JSON) and schema is None and "schema" not in section:
        section.missing("schema", f": {format} files have no column types; for example `id STRING, amount DOUBLE`")
    table = TableSource(
        name=name.text,
        line=name.position.line,
        path=read_path(section, "table", directory),
        format=format,
        schema=schema,
        options=section.texts("options"),
    )
    return ParsedPart(table, name.position, columns=columns)


def _read_topic_source(
    section: Section, name: LocatedText, directory: Path, *, has_registry: bool
) -> ParsedPart[Source]:
    topics = tuple(
        read_topic(section, word) for key in ("topic", "topics") if key in section for word in section.names(key)
    )
    if "pattern" not in section and not topics:
        section.problems.error(section.position_of_key("topic"), f"{section.what} has no topic; name one")
    chosen = section.choice("format", Format)
    unreadable = chosen is None and "format" in section
    format = chosen or (Format.JSON if unreadable else Format.RAW)
    key_format = section.choice("key_format", Format, _KEY_FORMATS)
    schema, columns = read_schema(section)
    if not unreadable:
        _check_schema(section, format, schema is not None, has_registry)
    if key_format in (Format.AVRO, Format.PROTOBUF) and not has_registry:
        _registry_missing(section, "key_format", key_format)
    source = TopicSource(
        name=name.text,
        line=name.position.line,
        topics=topics,
        pattern=_read_pattern(section),
        format=format,
        key_format=key_format or (Format.RAW if format is Format.RAW else Format.STRING),
        schema=schema,
        subject=section.text("subject"),
        starting=_read_start(section, topics, directory),
        watermark=read_watermark(section),
        max_records_per_trigger=section.count("max_records_per_trigger"),
        max_bytes_per_trigger=section.size("max_bytes_per_trigger"),
        group=section.text("group"),
        bad_records=section.choice("bad_records", BadRecords) or BadRecords.DEAD_LETTERS,
        headers=section.flag("headers") or False,
        expect=read_expectations(section),
        options=section.texts("options"),
    )
    positions = (
        ("watermark", section.position_of_value("watermark")),
        ("group", section.position_of_value("group")),
        ("format", section.position_of_value("format")),
        ("expect", section.position_of_key("expect")),
    )
    return ParsedPart(source, name.position, columns=columns, positions=positions)


def _check_schema(section: Section, format: Format, has_schema: bool, has_registry: bool) -> None:
    """Checks that the columns of a source are known."""
    if format in (Format.AVRO, Format.PROTOBUF):
        if not has_registry:
            _registry_missing(section, "format", format)
        if has_schema:
            section.problems.error(
                section.position_of_key("schema"),
                f"{section.what} is {format}, whose schema comes from the registry; remove `schema`",
            )
    elif format in (Format.RAW, Format.STRING):
        if has_schema:
            section.problems.error(
                section.position_of_key("schema"),
                f"{section.what} is {format}, which has no schema; remove it, or use `format: json` or csv",
            )
        if "bad_records" in section:
            section.problems.warning(
                section.position_of_key("bad_records"),
                f"a {format} source has no bad records; `bad_records` has no effect",
            )
    elif not has_schema and (format is Format.CSV or not has_registry) and "schema" not in section:
        section.missing("schema", f" for {format}: its columns, for example `id STRING, amount DOUBLE`")


def _registry_missing(section: Section, key: str, format: Format) -> None:
    section.problems.error(
        section.position_of_value(key),
        f"{format} of {section.what} needs a schema registry; add `registry: http://…` at the top of the file",
    )


def _read_pattern(section: Section) -> str | None:
    pattern = section.text("pattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            section.problems.error(
                section.position_of_value("pattern"),
                f"`pattern` of {section.what} is not a regular expression: {error}",
            )
    return pattern


def _read_start(section: Section, topics: tuple[str, ...], directory: Path) -> Start:
    node = section.values.get("starting_offsets")
    if isinstance(node, MappingNode):
        return Start(offsets=_read_offsets(section, node, topics))
    text = section.text("starting_offsets") or "earliest"
    if text in _EDGES:
        return Start(position=text)
    if text.startswith("table:"):
        path = text.removeprefix("table:").strip()
        return Start(position="table:" + (path if "://" in path else str((directory / path).absolute())))
    try:
        return Start(timestamp_ms=parse_timestamp_ms(text))
    except ValueError:
        section.problems.error(
            section.position_of_value("starting_offsets"),
            f"`starting_offsets` {text!r} of {section.what} is not known; use earliest, latest, a time such as "
            "2026-01-31T12:00:00Z, table:PATH, or {topic: {partition: offset}}",
        )
        return Start(position="earliest")


def _read_offsets(section: Section, node: MappingNode, topics: tuple[str, ...]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for topic, partitions in entries(section.document, node):
        if topics and topic.value not in topics:
            section.problems.error(
                position_of(topic),
                f"{section.what} does not read the topic {topic.value!r}; it reads {', '.join(topics)}",
            )
        if not isinstance(partitions, MappingNode):
            section.problems.error(
                position_of(partitions), f"offsets of {topic.value!r} must be a mapping {{partition: offset}}"
            )
            continue
        found[str(topic.value)] = offsets = {}
        for partition, offset in entries(section.document, partitions):
            value = section.document.substituted(offset) if isinstance(offset, ScalarNode) else ""
            number = _EDGES.get(value, int(value) if value.isdigit() else None)
            if number is None or not str(partition.value).isdigit():
                section.problems.error(
                    position_of(offset),
                    f"{partition.value}: {value!r} is not `partition: offset`; offsets are numbers, earliest or latest",
                )
                continue
            offsets[int(partition.value)] = number
    return found
