"""Every option of `.write/.writeStream.format("millstream")`, in one table, and what they mean together."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millstream.formats.records.compression import Codec
from millstream.spark.connections import Connection
from millstream.spark.errors import OptionError
from millstream.spark.option_table import Option, OptionTable, choice, count, flag, text
from millstream.spark.options import FORMATS, Registry, Typing

log = logging.getLogger("millstream.spark")

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
_CODECS = tuple(each.name.lower() for each in Codec)

WRITE_OPTIONS = OptionTable(
    [
        Option("kafka.bootstrap.servers", "host:port,…", "", "both", "Brokers to ask first; required.", text),
        Option("topic", "name", "", "both", "Where all rows go; without it, each row's column `topic` says so.", text),
        Option(
            "delivery",
            f"{EXACTLY_ONCE} or {AT_LEAST_ONCE}",
            f"{EXACTLY_ONCE} (stream), {AT_LEAST_ONCE} (batch)",
            "both",
            "Whether readers of committed records see each row exactly once, whatever fails; or at least once, at a "
            "little less cost.",
            choice(EXACTLY_ONCE, AT_LEAST_ONCE),
        ),
        Option(
            "kafka.compression.type",
            ", ".join(_CODECS),
            "none",
            "both",
            "How batches are compressed.",
            choice(*_CODECS),
        ),
        Option("kafka.compression.gzip.level", "1 to 9", "codec's own", "both", "The level for gzip.", count),
        Option("kafka.compression.zstd.level", "1 to 22", "codec's own", "both", "The level for zstd.", count),
        Option("kafka.compression.lz4.level", "1 to 17", "codec's own", "both", "The level for lz4.", count),
        Option(
            "kafka.acks",
            "all or 1",
            "all",
            "both",
            "Who must have a batch before it counts as written: all in-sync replicas, or the leader alone "
            f"({AT_LEAST_ONCE} only).",
            choice("all", "-1", "1", "0"),
        ),
        Option(
            "kafka.enable.idempotence",
            "true or false",
            "true",
            "both",
            f"Whether brokers recognise what is sent again; false is for {AT_LEAST_ONCE} only.",
            flag,
        ),
        Option(
            "kafka.max.request.size",
            "bytes",
            "1048576",
            "both",
            "The largest batch to make; the topic's `max.message.bytes` bounds it as well.",
            count,
        ),
        Option(
            "kafka.delivery.timeout.ms",
            "milliseconds",
            "120000",
            "both",
            "How long a task tries to write a batch, through elections and restarts of brokers.",
            count,
        ),
        Option(
            "kafka.transaction.timeout.ms",
            "milliseconds",
            "the brokers' transaction.max.timeout.ms",
            "both",
            "How long a micro-batch may take from its first row to its commit, where brokers do not allow two-phase "
            "commits (transaction.two.phase.commit.enable); where they do, there is no time-out.",
            count,
        ),
        Option(
            "valueFormat",
            ", ".join(FORMATS),
            "raw",
            "both",
            "Anything but `raw`: the value is a struct of all columns that are not topic, key, headers, partition or "
            "timestamp (or of the column `value` if that is a struct), encoded with the registry's schema.",
            choice(*FORMATS),
        ),
        Option("keyFormat", ", ".join(FORMATS), "raw", "both", "How the column `key` is encoded.", choice(*FORMATS)),
        Option("valueSchema", "schema", "", "both", "The schema of values, instead of one made of the columns.", text),
        Option("keySchema", "schema", "", "both", "The same for keys.", text),
        Option("valueMessage", "name", "the first", "both", "Protobuf: which message of the schema it is.", text),
        Option("keyMessage", "name", "the first", "both", "The same for keys.", text),
        Option("valueSubject", "name", "<topic>-value", "both", "The registry's subject for values.", text),
        Option("keySubject", "name", "<topic>-key", "both", "The same for keys.", text),
        Option("schema.registry.url", "URL", "", "both", "Where the schema registry is (Confluent's API).", text),
        Option("schema.registry.basic.auth.user.info", "user:password", "", "both", "Who asks it.", text),
        Option("schema.registry.bearer.auth.token", "token", "", "both", "Who asks it, by token.", text),
        Option("schema.registry.ssl.ca.location", "path", "", "both", "PEM file of certificates to trust.", text),
        Option(
            "checkReplays",
            "true or false",
            "true",
            "stream",
            "Exactly once: whether a batch that comes again must have the input it was written with. false: its id is "
            "enough, and other rows under it are dropped; for queries that give other rows when they are run again.",
            flag,
        ),
        Option("includeHeaders", "true or false", "", "both", "No effect: a column `headers` is always written.", flag),
        Option("checkpointLocation", "path", "", "stream", "Spark's own: what makes a query the same one again.", text),
        Option("queryName", "name", "", "stream", "Spark's own: what the query is called.", text),
    ]
)

_REFUSED = {
    "kafka.key.serializer": "keys are bytes or strings, or what keyFormat says",
    "kafka.value.serializer": "values are bytes or strings, or what valueFormat says",
    "kafka.transactional.id": f"the sink names its transactions itself; set delivery to {EXACTLY_ONCE}",
    "kafka.partitioner.class": "give a column `partition` to place rows yourself",
    "kafka.interceptor.classes": "interceptors could change records on the way, and none are run here",
    "subscribe": "that is for reading; set topic to write to a topic",
    "path": "save() and start() take no path; set topic",
}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where rows go and how; checked, and the same on driver and executors."""

    connection: Connection
    topic: str | None
    exactly_once: bool
    codec: Codec
    level: int | None
    acks: int
    idempotent: bool
    max_request_bytes: int
    delivery_timeout_s: float
    transaction_timeout_ms: int | None
    check_replays: bool
    value: Typing
    key: Typing
    registry: Registry

    @property
    def typed(self) -> bool:
        return self.value.format != "raw" or self.key.format != "raw"


def parse_write_options(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """What a user gave, checked as a whole; OptionError says what is wrong and what would be right."""
    own, passed_on = _sort_out(options)
    values = WRITE_OPTIONS.parse(own)
    if "kafka.bootstrap.servers" not in values:
        raise OptionError("kafka.bootstrap.servers is missing: give HOST:PORT of a broker")
    delivery = values.get("delivery", EXACTLY_ONCE if streaming else AT_LEAST_ONCE)
    acks, idempotent = values.get("kafka.acks", "all"), values.get("kafka.enable.idempotence", True)
    if acks == "0":
        raise OptionError("kafka.acks=0 would not notice loss; the least is 1")
    if delivery == EXACTLY_ONCE and (acks == "1" or not idempotent):
        given = "kafka.acks=1" if acks == "1" else "kafka.enable.idempotence=false"
        raise OptionError(f"{given} cannot be exactly-once: drop it, or set delivery to {AT_LEAST_ONCE}")
    codec = Codec[values.get("kafka.compression.type", "none").upper()]
    made = WriteOptions(
        connection=Connection(values["kafka.bootstrap.servers"], tuple(sorted(passed_on.items()))),
        topic=values.get("topic"),
        exactly_once=delivery == EXACTLY_ONCE,
        codec=codec,
        level=values.get(f"kafka.compression.{codec.name.lower()}.level"),
        acks=1 if acks == "1" else -1,
        idempotent=idempotent and acks != "1",
        max_request_bytes=values.get("kafka.max.request.size", 1 << 20),
        delivery_timeout_s=values.get("kafka.delivery.timeout.ms", 120_000) / 1000,
        transaction_timeout_ms=values.get("kafka.transaction.timeout.ms"),
        check_replays=values.get("checkReplays", True),
        value=_typing(values, "value"),
        key=_typing(values, "key"),
        registry=Registry(
            values.get("schema.registry.url"),
            values.get("schema.registry.basic.auth.user.info"),
            values.get("schema.registry.bearer.auth.token"),
            values.get("schema.registry.ssl.ca.location"),
        ),
    )
    _check_typing(made)
    return made


def _sort_out(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """What this table knows, and what goes on to the connection."""
    known = {each.name.lower() for each in WRITE_OPTIONS.options}
    own, passed_on = {}, {}
    for name, value in options.items():
        lower = name.lower()
        if lower in _REFUSED:
            raise OptionError(f"option {name!r} is not supported: {_REFUSED[lower]}")
        if lower.startswith("kafka.") and lower not in known:
            passed_on[lower.removeprefix("kafka.")] = value
        else:
            own[name] = value
    return own, passed_on


def _typing(values: Mapping[str, Any], side: str) -> Typing:
    given = [values.get(f"{side}{part}") for part in ("Schema", "Subject", "Message")]
    return Typing(values.get(f"{side}Format", "raw"), *given)


def _check_typing(options: WriteOptions) -> None:
    for side, typing in (("value", options.value), ("key", options.key)):
        for part, given in (("Schema", typing.schema), ("Subject", typing.subject), ("Message", typing.message)):
            if given is not None and typing.format == "raw":
                raise OptionError(f"{side}{part} needs {side}Format: json, avro or protobuf")
        if typing.format == "raw":
            continue
        if options.registry.url is None:
            if typing.schema is None and typing.format != "json":  # JSON can be written by the columns' own types
                raise OptionError(f"{side}Format {typing.format} needs schema.registry.url or {side}Schema")
        elif options.topic is None and typing.subject is None:
            raise OptionError(
                f"{side}Format with a registry needs the option topic or {side}Subject: which schema is it?"
            )
