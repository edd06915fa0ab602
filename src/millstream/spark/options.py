"""Every option of `spark.read/readStream.format("millstream")`, in one table, and the settings they make together.

Names and meanings are those of spark-sql-kafka, so that a query moves here by changing its format. `kafka.*` goes to
the connection, except for what has a meaning of its own here.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millstream.raw_client import EARLIEST, LATEST
from millstream.spark.connections import Connection
from millstream.spark.errors import OptionError, nearest
from millstream.spark.option_table import (
    Option,
    OptionTable,
    choice,
    count,
    count_or_zero,
    duration_s,
    flag,
    names,
    size_bytes,
    text,
)
from millstream.spark.source.positions import (
    AtTime,
    Everywhere,
    FromTable,
    Given,
    Position,
    Subscription,
    parse_headers,
    parse_offsets,
    parse_subscription,
    parse_timestamp,
    parse_timestamps,
)

log = logging.getLogger("millstream.spark")

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
ERROR_COLUMN = "_error"
FORMATS = ("raw", "json", "avro", "protobuf")
BAD_RECORDS = ("column", "deadLetterTopic", "fail")

READ_OPTIONS = OptionTable(
    [
        Option("kafka.bootstrap.servers", "host:port,…", "", "both", "Brokers to ask first; required.", text),
        Option("subscribe", "names", "", "both", "Topics to read, separated by commas.", text),
        Option(
            "subscribePattern", "pattern", "", "both", "Regular expression for whole names of topics to read.", text
        ),
        Option("assign", "JSON", "", "both", 'Partitions to read: `{"orders": [0, 1]}`.', text),
        Option(
            "startingOffsets",
            "earliest, latest, committed, table:path or JSON",
            "latest (stream), earliest (batch)",
            "both",
            "Where a new query begins; a restarted one goes on where it was. JSON has an offset for each partition: "
            '`{"orders": {"0": 23, "1": -2}}`, -2 is the earliest and -1 the latest. `committed`: where `groupId` is. '
            "`table:path`: first what a table has (docs/lake.md), then what the brokers have after it.",
            parse_offsets,
        ),
        Option(
            "startingOffsetsByTimestamp",
            "JSON",
            "",
            "both",
            'The first record at or after a time in ms, for each partition: `{"orders": {"0": 1500000000000}}`. '
            "Goes before `startingOffsets`.",
            parse_timestamps,
        ),
        Option(
            "startingTimestamp",
            "milliseconds",
            "",
            "both",
            "The same with one time for all partitions. Goes before the other two.",
            parse_timestamp,
        ),
        Option(
            "startingOffsetsByTimestampStrategy",
            "error or latest",
            "error",
            "both",
            "What to do if a partition has no record that late.",
            choice("error", "latest"),
        ),
        Option(
            "endingOffsets",
            "latest or JSON",
            "latest",
            "batch",
            "Where a batch ends (exclusive); -1 is the latest. Resolved once, when the batch is planned.",
            parse_offsets,
        ),
        Option(
            "endingOffsetsByTimestamp",
            "JSON",
            "",
            "batch",
            "The batch ends before the first record at or after a time in ms, for each partition; at the latest "
            "offset if there is none. Goes before `endingOffsets`.",
            parse_timestamps,
        ),
        Option(
            "endingTimestamp",
            "milliseconds",
            "",
            "batch",
            "The same with one time for all partitions. Goes before the other two.",
            parse_timestamp,
        ),
        Option(
            "failOnDataLoss",
            "true or false",
            "true",
            "both",
            "Whether a query fails when records are gone that it has not read (retention, a deleted or re-created "
            "topic), or warns and goes on. Gaps from compaction and transactions are not loss.",
            flag,
        ),
        Option(
            "maxOffsetsPerTrigger",
            "count",
            "no limit",
            "stream",
            "At most so many offsets per micro-batch, the first one too; shared out in proportion to what waits.",
            count,
        ),
        Option(
            "maxBytesPerTrigger",
            "size",
            "no limit",
            "stream",
            "About so many bytes per micro-batch, as they are stored (compressed): 64m, 1g.",
            size_bytes,
        ),
        Option(
            "minOffsetsPerTrigger",
            "count",
            "1",
            "stream",
            "A micro-batch waits until so many offsets are there, `maxTriggerDelay` at the longest. AvailableNow does "
            "not wait.",
            count,
        ),
        Option(
            "maxTriggerDelay",
            "duration",
            "15m",
            "stream",
            "How long `minOffsetsPerTrigger` may hold up a micro-batch.",
            duration_s,
        ),
        Option(
            "minPartitions",
            "count",
            "one task per partition",
            "both",
            "At least about so many tasks: large stretches of partitions are split.",
            count,
        ),
        Option(
            "maxRecordsPerPartition",
            "count",
            "no limit",
            "both",
            "At most so many offsets per task: larger stretches are split.",
            count,
        ),
        Option("includeHeaders", "true or false", "false", "both", "Adds the column `headers`.", flag),
        Option(
            "columns",
            "names",
            "all",
            "both",
            "Only these columns, in this order. Spark does not leave out columns of Python sources by itself, so "
            "this saves time: `value` alone is about twice as fast as all.",
            names,
        ),
        Option(
            "groupId",
            "name",
            "",
            "stream",
            "A consumer group to which the progress is committed, so that lag shows in every Kafka tool. The query "
            "does not join the group and does not start from it (see `startingOffsets`).",
            text,
        ),
        Option(
            "kafka.isolation.level",
            "read_committed or read_uncommitted",
            "read_committed",
            "both",
            "Whether records of open and aborted transactions are left out. (spark-sql-kafka: read_uncommitted.)",
            choice("read_committed", "read_uncommitted"),
        ),
        Option(
            "valueFormat",
            ", ".join(FORMATS),
            "raw",
            "both",
            "What values are; anything but `raw` gives typed columns, by the schema registry or `valueSchema`.",
            choice(*FORMATS),
        ),
        Option("keyFormat", ", ".join(FORMATS), "raw", "both", "The same for keys.", choice(*FORMATS)),
        Option(
            "valueSchema",
            "schema",
            "",
            "both",
            "A schema for values instead of the registry's newest: columns as Spark writes them (`id STRING, amount "
            "DOUBLE`, or a StructType's JSON) or JSON Schema for json, Avro, or the text of a .proto file.",
            text,
        ),
        Option("keySchema", "schema", "", "both", "The same for keys.", text),
        Option("valueSubject", "name", "<topic>-value", "both", "The registry's subject for values.", text),
        Option("keySubject", "name", "<topic>-key", "both", "The same for keys.", text),
        Option("valueMessage", "name", "the file's first", "both", "protobuf: the message that values are.", text),
        Option("keyMessage", "name", "the file's first", "both", "The same for keys.", text),
        Option("schema.registry.url", "URL", "", "both", "Where the schema registry is (Confluent's API).", text),
        Option(
            "schema.registry.basic.auth.user.info",
            "user:password",
            "",
            "both",
            "Who asks the schema registry.",
            text,
        ),
        Option("schema.registry.bearer.auth.token", "text", "", "both", "The same by a token.", text),
        Option("schema.registry.ssl.ca.location", "PEM file", "", "both", "Whose certificates to trust there.", text),
        Option(
            "badRecords",
            ", ".join(BAD_RECORDS),
            "column",
            "both",
            "Records that their format cannot read: `column` leaves the typed column null and says why in "
            f"`{ERROR_COLUMN}`; `deadLetterTopic` sends them there; `fail` ends the query.",
            choice(*BAD_RECORDS),
        ),
        Option(
            "deadLetterTopic",
            "name",
            "",
            "both",
            "Where bad records go, as they came, with headers that say from where and why. At least once.",
            text,
        ),
        Option(
            "deadLetterHeaders",
            "JSON",
            "",
            "both",
            'More headers for dead letters: `{"team": "orders"}`.',
            parse_headers,
        ),
        Option(
            "kafka.max.partition.fetch.bytes",
            "size",
            "4m",
            "both",
            "How much one fetch may bring; a task holds about four times that.",
            size_bytes,
        ),
        Option(
            "kafkaConsumer.pollTimeoutMs",
            "milliseconds",
            "120000",
            "both",
            "How long a task waits for records that must be there, through elections and restarts of brokers.",
            count,
        ),
        Option(
            "fetchOffset.numRetries",
            "count",
            "3",
            "both",
            "How often the driver asks again before it believes that offsets or topics are gone.",
            count_or_zero,
        ),
        Option("fetchOffset.retryIntervalMs", "milliseconds", "1000", "both", "How long it waits in between.", count),
        Option(
            "table.*",
            "text",
            "",
            "both",
            "For `startingOffsets=table:path`: options of the table, such as `table.s3.endpoint`.",
            text,
        ),
        Option("kafka.group.id", "name", "", "stream", "Another name for `groupId`.", text),
        Option(
            "groupIdPrefix",
            "name",
            "",
            "both",
            "No effect: spark-sql-kafka names its consumers' groups by it, and there are none here.",
            text,
        ),
    ]
)

_REFUSED = {
    "kafka.auto.offset.reset": "set startingOffsets to earliest or latest: where a query begins is Spark's to know",
    "kafka.key.deserializer": "keys are bytes, or what keyFormat says",
    "kafka.value.deserializer": "values are bytes, or what valueFormat says",
    "kafka.enable.auto.commit": "set groupId to have progress committed after each batch",
    "kafka.interceptor.classes": "interceptors could change records on the way, and none are run here",
    "path": "load() takes no path; set subscribe, subscribePattern or assign",
    "topic": "that is for writing; set subscribe to read a topic",
}
_ENDINGS = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
_TRIGGERS = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "groupId")
_SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
_OWN_KAFKA = frozenset(
    each.name
    for each in READ_OPTIONS.options
    if each.name.startswith("kafka.") and each.name != "kafka.bootstrap.servers"
)


@dataclass(frozen=True, slots=True)
class Typing:
    """How keys or values become typed columns."""

    format: str
    schema: str | None
    subject: str | None
    message: str | None = None

    def settings(self) -> dict[str, str]:
        """As the schemas room calls them."""
        return _given({"schema": self.schema, "subject": self.subject, "message": self.message})


@dataclass(frozen=True, slots=True)
class Registry:
    """Where schemas are registered. Secrets are not shown."""

    url: str | None
    user_info: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None

    def settings(self) -> dict[str, str]:
        """As the schemas room calls them."""
        user, colon, password = (self.user_info or "").partition(":")
        return _given(
            {
                "registry.url": self.url,
                "registry.user": user or None,
                "registry.password": password if colon else None,
                "registry.token": self.token,
                "registry.ca": self.ca_file,
            }
        )


def _given(settings: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What one query reads and how; checked, and the same on driver and executors."""

    connection: Connection
    subscription: Subscription
    subscription_option: str
    starting: Position | None
    starting_option: str
    ending: Position
    ending_option: str
    latest_when_too_late: bool
    fail_on_data_loss: bool
    max_offsets: int | None
    max_bytes: int | None
    min_offsets: int
    max_delay_s: float
    min_partitions: int | None
    max_records_per_partition: int | None
    columns: tuple[str, ...]
    group: str | None
    read_committed: bool
    value: Typing
    key: Typing
    registry: Registry
    bad_records: str
    dead_letter_topic: str | None
    dead_letter_headers: tuple[tuple[str, str], ...]
    fetch_bytes: int
    wait_s: float
    retries: int
    retry_interval_s: float
    table_options: tuple[tuple[str, str], ...]
    given: frozenset[str]

    @property
    def typed(self) -> bool:
        return self.value.format != "raw" or self.key.format != "raw"

    def for_batch(self) -> "ReadOptions":
        """Checked for `spark.read`; options for triggers are told of, as spark-sql-kafka does."""
        for name in _TRIGGERS:
            if name in self.given:
                log.warning("%s has no effect in a batch query", name)
        start = self.starting
        if start == Everywhere(LATEST) or (isinstance(start, Given) and LATEST in start.offsets.values()):
            raise OptionError(
                f"{self.starting_option}: a batch query cannot begin at latest; there is nothing after it"
            )
        end = self.ending
        if isinstance(end, FromTable):
            raise OptionError(f"{self.ending_option}: a table can only be where a query starts")
        if end == Everywhere(EARLIEST) or (isinstance(end, Given) and EARLIEST in end.offsets.values()):
            raise OptionError(f"{self.ending_option}: a batch query cannot end at earliest; there is nothing before it")
        _must_not_cross(self)
        return self

    def for_stream(self) -> "ReadOptions":
        """Checked for `spark.readStream`."""
        for name in _ENDINGS:
            if name in self.given:
                raise OptionError(f"{name} is for spark.read: a stream has no end; use trigger(availableNow=True)")
        return self


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """What a user gave, checked as a whole; OptionError says what is wrong and what would be right."""
    own, passed_on, table_options = _sort_out(options)
    values = READ_OPTIONS.parse(own)
    if "kafka.bootstrap.servers" not in values:
        raise OptionError("kafka.bootstrap.servers is missing: give HOST:PORT of a broker")
    group = values.get("groupId", values.get("kafka.group.id"))
    if group != values.get("kafka.group.id", group):
        raise OptionError("groupId and kafka.group.id differ; one is enough")
    if "groupIdPrefix" in values:
        log.warning("groupIdPrefix has no effect: this source makes no consumer groups")
    starting_option = _first(values, "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
    ending_option = _first(values, "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
    given_subscription = {name: values[name] for name in _SUBSCRIPTIONS if name in values}
    subscription = parse_subscription(given_subscription)
    least, most = values.get("minOffsetsPerTrigger", 1), values.get("maxOffsetsPerTrigger")
    if most is not None and least > most:
        raise OptionError(f"minOffsetsPerTrigger ({least}) is more than maxOffsetsPerTrigger ({most})")
    made = ReadOptions(
        connection=Connection(values["kafka.bootstrap.servers"], tuple(sorted(passed_on.items()))),
        subscription=subscription,
        subscription_option=next(iter(given_subscription)),
        starting=values.get(starting_option),
        starting_option=starting_option,
        ending=values.get(ending_option, Everywhere(LATEST)),
        ending_option=ending_option,
        latest_when_too_late=values.get("startingOffsetsByTimestampStrategy") == "latest",
        fail_on_data_loss=values.get("failOnDataLoss", True),
        max_offsets=most,
        max_bytes=values.get("maxBytesPerTrigger"),
        min_offsets=least,
        max_delay_s=values.get("maxTriggerDelay", 900.0),
        min_partitions=values.get("minPartitions"),
        max_records_per_partition=values.get("maxRecordsPerPartition"),
        columns=_columns(values),
        group=group,
        read_committed=values.get("kafka.isolation.level", "read_committed") == "read_committed",
        value=_typing("value", values),
        key=_typing("key", values),
        registry=Registry(
            values.get("schema.registry.url"),
            values.get("schema.registry.basic.auth.user.info"),
            values.get("schema.registry.bearer.auth.token"),
            values.get("schema.registry.ssl.ca.location"),
        ),
        bad_records=values.get("badRecords", "deadLetterTopic" if "deadLetterTopic" in values else "column"),
        dead_letter_topic=values.get("deadLetterTopic"),
        dead_letter_headers=values.get("deadLetterHeaders", ()),
        fetch_bytes=values.get("kafka.max.partition.fetch.bytes", 4 << 20),
        wait_s=values.get("kafkaConsumer.pollTimeoutMs", 120_000) / 1000,
        retries=values.get("fetchOffset.numRetries", 3),
        retry_interval_s=values.get("fetchOffset.retryIntervalMs", 1000) / 1000,
        table_options=tuple(sorted(table_options.items())),
        given=frozenset(values),
    )
    _check_typing(made)
    if isinstance(made.starting, FromTable) and made.subscription.assigned:
        raise OptionError("startingOffsets=table:… needs subscribe or subscribePattern: a table has all partitions")
    if made.table_options and not isinstance(made.starting, FromTable):
        raise OptionError("options that begin with table. need startingOffsets=table:path")
    return made


def _sort_out(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """What this table knows, what goes on to the connection, and what to the table of `startingOffsets=table:…`."""
    own, passed_on, table_options = {}, {}, {}
    own_kafka = {each.lower() for each in _OWN_KAFKA} | {"kafka.bootstrap.servers"}
    for name, value in options.items():
        lower = name.lower()
        if lower in _REFUSED:
            raise OptionError(f"option {name!r} is not supported: {_REFUSED[lower]}")
        if lower.startswith("kafka.") and lower not in own_kafka:
            passed_on[lower.removeprefix("kafka.")] = value
        elif lower.startswith("table."):
            table_options[lower.removeprefix("table.")] = value
        else:
            own[name] = value
    return own, passed_on, table_options


def _typing(side: str, values: Mapping[str, Any]) -> Typing:
    parts = (values.get(f"{side}{part}") for part in ("Schema", "Subject", "Message"))
    return Typing(values.get(f"{side}Format", "raw"), *parts)


def _first(values: Mapping[str, Any], *options: str) -> str:
    return next((name for name in options if name in values), options[-1])


def _columns(values: Mapping[str, Any]) -> tuple[str, ...]:
    typed = any(values.get(each, "raw") != "raw" for each in ("valueFormat", "keyFormat"))
    bad = values.get("badRecords", "deadLetterTopic" if "deadLetterTopic" in values else "column")
    possible = COLUMNS + ((ERROR_COLUMN,) if typed and bad == "column" else ())
    if "columns" not in values:
        headers = values.get("includeHeaders", False)
        return tuple(each for each in possible if each != "headers" or headers)
    exact = {each.lower(): each for each in possible}
    chosen = []
    for name in values["columns"]:
        if name.lower() not in exact:
            near = nearest(name, possible)
            hint = f"did you mean {near!r}?" if near else f"there are {', '.join(possible)}"
            raise OptionError(f"columns: there is no column {name!r}; {hint}")
        chosen.append(exact[name.lower()])
    if len(set(chosen)) != len(chosen):
        raise OptionError(f"columns: a column is there twice in {', '.join(chosen)}")
    if values.get("includeHeaders") and "headers" not in chosen:
        raise OptionError("includeHeaders is true, but columns leaves headers out; drop one of the two")
    return tuple(chosen)


def _must_not_cross(options: ReadOptions) -> None:
    """A batch that ends before it begins is a mistake to tell of, not an empty table."""
    match options.starting, options.ending:
        case (Given(first), Given(last)) | (AtTime(dict() as first), AtTime(dict() as last)):
            if set(first) != set(last):
                raise OptionError(
                    f"{options.starting_option} and {options.ending_option} must speak of the same partitions"
                )
            for partition in sorted(first):
                if 0 <= last[partition] < first[partition]:
                    raise OptionError(
                        f"{partition.topic}-{partition.partition} ends at {last[partition]} ({options.ending_option}) "
                        f"before it begins at {first[partition]} ({options.starting_option})"
                    )
        case (AtTime(int() as begin), AtTime(int() as end)) if end < begin:
            raise OptionError(f"{options.ending_option} ({end}) is before {options.starting_option} ({begin})")


def _check_typing(options: ReadOptions) -> None:
    for side, typing in (("value", options.value), ("key", options.key)):
        for part, value in (("Schema", typing.schema), ("Subject", typing.subject), ("Message", typing.message)):
            if value is not None and typing.format == "raw":
                raise OptionError(f"{side}{part} needs {side}Format: json, avro or protobuf")
        if typing.format != "raw" and typing.schema is None and options.registry.url is None:
            raise OptionError(f"{side}Format {typing.format} needs schema.registry.url or {side}Schema")
    if options.bad_records == "deadLetterTopic" and options.dead_letter_topic is None:
        raise OptionError("badRecords is deadLetterTopic: name the topic in the option deadLetterTopic")
    if options.dead_letter_topic is not None and options.bad_records != "deadLetterTopic":
        raise OptionError(f"deadLetterTopic is set, but badRecords is {options.bad_records}; drop one of the two")
    if options.dead_letter_topic is None and "deadLetterHeaders" in options.given:
        raise OptionError("deadLetterHeaders needs deadLetterTopic")
    if options.dead_letter_topic is not None and options.subscription.wants(options.dead_letter_topic):
        raise OptionError(f"deadLetterTopic: {options.dead_letter_topic!r} is read by the query itself; choose another")
    if not options.typed and ({"badRecords", "deadLetterTopic"} & options.given):
        raise OptionError("badRecords and deadLetterTopic need valueFormat or keyFormat: raw bytes are never bad")
