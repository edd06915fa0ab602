"""The options of `spark.read` and `spark.readStream` with `format("millstream")`: parsing and checks.

Names and meanings are those of spark-sql-kafka, so a query moves here by changing its format. `kafka.*` options go to
the connection, except those that this source handles itself.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from millstream.common.close_match import close_match
from millstream.raw_client import EARLIEST, LATEST
from millstream.spark.connections import Connection
from millstream.spark.errors import OptionError
from millstream.spark.read_options import COLUMNS, ERROR_COLUMN, READ_OPTIONS
from millstream.spark.source.positions import (
    AllPartitions,
    AtTime,
    FromTable,
    PerPartition,
    Position,
    Subscription,
    parse_subscription,
)

_log = logging.getLogger("millstream.spark")

_REFUSED = {
    "kafka.auto.offset.reset": "set startingOffsets to earliest or latest; Spark keeps the offsets of a query",
    "kafka.key.deserializer": "keys are bytes, or decoded by keyFormat",
    "kafka.value.deserializer": "values are bytes, or decoded by valueFormat",
    "kafka.enable.auto.commit": "set groupId to commit progress after each batch",
    "kafka.interceptor.classes": "interceptors are not run here; leave it out",
    "path": "load() takes no path; set subscribe, subscribePattern or assign",
    "topic": "it is for writing; set subscribe to read a topic",
}
_ENDINGS = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
_TRIGGERS = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "smallBatchBytes",
    "groupId",
)
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
        """Under the names of `millstream.schemas`."""
        return _given({"schema": self.schema, "subject": self.subject, "message": self.message})


@dataclass(frozen=True, slots=True)
class Registry:
    """The schema registry. `repr` leaves secrets out."""

    url: str | None
    user_info: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None

    def settings(self) -> dict[str, str]:
        """Under the names of `millstream.schemas`."""
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
    """What a query reads and how: checked, and the same on the driver and on executors."""

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
    small_batch_bytes: int
    wait_s: float
    retries: int
    retry_interval_s: float
    table_options: tuple[tuple[str, str], ...]
    given: frozenset[str]
    streaming: bool = True

    @property
    def typed(self) -> bool:
        return self.value.format != "raw" or self.key.format != "raw"

    def for_batch(self) -> "ReadOptions":
        """Checks for `spark.read`. Options for triggers have no effect and are logged, as by spark-sql-kafka."""
        for name in _TRIGGERS:
            if name in self.given:
                _log.warning("%s has no effect in a batch query", name)
        start = self.starting
        if start == AllPartitions(LATEST) or (isinstance(start, PerPartition) and LATEST in start.offsets.values()):
            raise OptionError(
                f"{self.starting_option}: a batch query cannot start at latest, it would be empty; set earliest or "
                f"offsets"
            )
        end = self.ending
        if isinstance(end, FromTable):
            raise OptionError(f"{self.ending_option}: table: works in startingOffsets only; set latest or offsets")
        if end == AllPartitions(EARLIEST) or (isinstance(end, PerPartition) and EARLIEST in end.offsets.values()):
            raise OptionError(
                f"{self.ending_option}: a batch query cannot end at earliest, it would be empty; set latest or offsets"
            )
        _check_start_before_end(self)
        return replace(self, streaming=False)

    def for_stream(self) -> "ReadOptions":
        """Checks for `spark.readStream`."""
        for name in _ENDINGS:
            if name in self.given:
                raise OptionError(
                    f"{name} is for spark.read. To read a stream up to its current end, use trigger(availableNow=True)"
                )
        return self


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parses and checks the options of a query. OptionError says what is wrong, and what to write instead."""
    own, passed_on, table_options = _split_options(options)
    values = READ_OPTIONS.parse(own)
    if "kafka.bootstrap.servers" not in values:
        raise OptionError("kafka.bootstrap.servers is missing; set it to HOST:PORT of a broker")
    group = values.get("groupId", values.get("kafka.group.id"))
    if group != values.get("kafka.group.id", group):
        raise OptionError("groupId and kafka.group.id differ; set only one of them")
    if "groupIdPrefix" in values:
        _log.warning("groupIdPrefix has no effect: this source creates no consumer groups")
    starting_option = _first(values, "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
    ending_option = _first(values, "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
    given_subscription = {name: values[name] for name in _SUBSCRIPTIONS if name in values}
    subscription = parse_subscription(given_subscription)
    least, most = values.get("minOffsetsPerTrigger", 1), values.get("maxOffsetsPerTrigger")
    if most is not None and least > most:
        raise OptionError(
            f"minOffsetsPerTrigger ({least}) is larger than maxOffsetsPerTrigger ({most}); lower the first"
        )
    made = ReadOptions(
        connection=Connection(values["kafka.bootstrap.servers"], tuple(sorted(passed_on.items()))),
        subscription=subscription,
        subscription_option=next(iter(given_subscription)),
        starting=values.get(starting_option),
        starting_option=starting_option,
        ending=values.get(ending_option, AllPartitions(LATEST)),
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
        small_batch_bytes=values.get("smallBatchBytes", 1 << 20),
        wait_s=values.get("kafkaConsumer.pollTimeoutMs", 120_000) / 1000,
        retries=values.get("fetchOffset.numRetries", 3),
        retry_interval_s=values.get("fetchOffset.retryIntervalMs", 1000) / 1000,
        table_options=tuple(sorted(table_options.items())),
        given=frozenset(values),
    )
    _check_typing(made)
    if isinstance(made.starting, FromTable) and made.subscription.assigned:
        raise OptionError(
            "startingOffsets=table:… does not work with assign, because a table has all partitions; set subscribe or "
            "subscribePattern"
        )
    if made.table_options and not isinstance(made.starting, FromTable):
        raise OptionError("options that begin with `table.` need startingOffsets=table:path")
    return made


def _split_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Options of this source, of the connection, and of the table in `startingOffsets=table:…`."""
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
            near = close_match(name, possible)
            hint = f"did you mean {near!r}?" if near else f"columns are {', '.join(possible)}"
            raise OptionError(f"columns: there is no column {name!r}; {hint}")
        chosen.append(exact[name.lower()])
    if len(set(chosen)) != len(chosen):
        raise OptionError(f"columns: {', '.join(chosen)} has a column twice; name each column once")
    if values.get("includeHeaders") and "headers" not in chosen:
        raise OptionError(
            "includeHeaders is true, but columns does not have headers; add headers to columns, or remove "
            "includeHeaders"
        )
    return tuple(chosen)


def _check_start_before_end(options: ReadOptions) -> None:
    """A batch query that ends before it starts is an error, not an empty result."""
    match options.starting, options.ending:
        case (PerPartition(first), PerPartition(last)) | (AtTime(dict() as first), AtTime(dict() as last)):
            if set(first) != set(last):
                raise OptionError(
                    f"{options.starting_option} and {options.ending_option} must name the same partitions"
                )
            for partition in sorted(first):
                if 0 <= last[partition] < first[partition]:
                    raise OptionError(
                        f"{partition.topic}-{partition.partition} ends at {last[partition]} ({options.ending_option}) "
                        f"before it starts at {first[partition]} ({options.starting_option}); swap or change them"
                    )
        case (AtTime(int() as begin), AtTime(int() as end)) if end < begin:
            raise OptionError(
                f"{options.ending_option} ({end}) is before {options.starting_option} ({begin}); change one"
            )


def _check_typing(options: ReadOptions) -> None:
    for side, typing in (("value", options.value), ("key", options.key)):
        for part, value in (("Schema", typing.schema), ("Subject", typing.subject), ("Message", typing.message)):
            if value is not None and typing.format == "raw":
                raise OptionError(
                    f"{side}{part} has no effect without {side}Format; set that to json, avro or protobuf"
                )
        if typing.format != "raw" and typing.schema is None and options.registry.url is None:
            raise OptionError(f"{side}Format {typing.format} needs a schema; set schema.registry.url or {side}Schema")
    if options.bad_records == "deadLetterTopic" and options.dead_letter_topic is None:
        raise OptionError(
            "badRecords is deadLetterTopic, but the option deadLetterTopic is missing; set it to the name of a topic"
        )
    if options.dead_letter_topic is not None and options.bad_records != "deadLetterTopic":
        raise OptionError(f"deadLetterTopic is set, but badRecords is {options.bad_records}; remove one of the two")
    if options.dead_letter_topic is None and "deadLetterHeaders" in options.given:
        raise OptionError("deadLetterHeaders has no effect without deadLetterTopic; set deadLetterTopic too")
    if options.dead_letter_topic is not None and options.subscription.wants(options.dead_letter_topic):
        raise OptionError(
            f"deadLetterTopic: the query reads {options.dead_letter_topic!r} itself; choose another topic"
        )
    if not options.typed and ({"badRecords", "deadLetterTopic"} & options.given):
        raise OptionError("badRecords and deadLetterTopic have no effect on raw bytes; set valueFormat or keyFormat")
