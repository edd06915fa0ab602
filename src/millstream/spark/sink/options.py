"""The options of `.write` and `.writeStream` with `format("millstream")`: one table, parsing and checks."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millstream.formats.records.compression import Codec
from millstream.spark.connections import Connection
from millstream.spark.errors import OptionError
from millstream.spark.option_table import Option, OptionTable, choice, count, count_or_zero, flag, text
from millstream.spark.options import Registry, Typing
from millstream.spark.read_options import FORMATS

_log = logging.getLogger("millstream.spark")

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
_CODECS = tuple(each.name.lower() for each in Codec)

_APP_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")


def app_id(option: str, given: str) -> str:
    """It is a part of transactional ids, where a dot separates."""
    if not _APP_ID.fullmatch(given):
        raise OptionError(f"{option}: {given!r} must have 1 to 100 letters, digits, `_` or `-`")
    return given


WRITE_OPTIONS = OptionTable(
    [
        Option("kafka.bootstrap.servers", "host:port,…", "", "both", "Bootstrap servers. Required.", text),
        Option(
            "topic", "name", "", "both", "Topic for all rows. Without it, the column `topic` of each row is used.", text
        ),
        Option(
            "delivery",
            f"{EXACTLY_ONCE} or {AT_LEAST_ONCE}",
            f"{EXACTLY_ONCE} (stream), {AT_LEAST_ONCE} (batch)",
            "both",
            f"{EXACTLY_ONCE}: readers of committed records see each row once, whatever fails. {AT_LEAST_ONCE}: rows "
            f"may "
            "repeat after a failure; it costs a little less.",
            choice(EXACTLY_ONCE, AT_LEAST_ONCE),
        ),
        Option(
            "kafka.compression.type",
            ", ".join(_CODECS),
            "none",
            "both",
            "Compression of batches.",
            choice(*_CODECS),
        ),
        Option("kafka.compression.gzip.level", "1 to 9", "codec's own", "both", "Compression level of gzip.", count),
        Option("kafka.compression.zstd.level", "1 to 22", "codec's own", "both", "Compression level of zstd.", count),
        Option("kafka.compression.lz4.level", "1 to 17", "codec's own", "both", "Compression level of lz4.", count),
        Option(
            "kafka.acks",
            "all or 1",
            "all",
            "both",
            f"Required acknowledgements: all in-sync replicas, or the leader alone ({AT_LEAST_ONCE} only).",
            choice("all", "-1", "1", "0"),
        ),
        Option(
            "kafka.enable.idempotence",
            "true or false",
            "true",
            "both",
            f"Whether brokers drop batches that are sent again; false works with {AT_LEAST_ONCE} only.",
            flag,
        ),
        Option(
            "kafka.max.request.size",
            "bytes",
            "1048576",
            "both",
            "Largest batch; `max.message.bytes` of the topic is a limit too.",
            count,
        ),
        Option(
            "kafka.delivery.timeout.ms",
            "milliseconds",
            "120000",
            "both",
            "How long a task retries to write a batch, through elections and restarts of brokers.",
            count,
        ),
        Option(
            "kafka.transaction.timeout.ms",
            "milliseconds",
            "the brokers' transaction.max.timeout.ms",
            "both",
            "Longest time from the first row of a micro-batch to its commit. There is no such timeout where brokers "
            "allow two-phase commits (transaction.two.phase.commit.enable).",
            count,
        ),
        Option(
            "valueFormat",
            ", ".join(FORMATS),
            "raw",
            "both",
            "Format of values. All but `raw`: the value is a struct of all columns except topic, key, headers, "
            "partition "
            "and timestamp (or the column `value`, if that is a struct), encoded with the schema of the registry.",
            choice(*FORMATS),
        ),
        Option("keyFormat", ", ".join(FORMATS), "raw", "both", "Format of the column `key`.", choice(*FORMATS)),
        Option("valueSchema", "schema", "", "both", "Schema of values, instead of one derived from the columns.", text),
        Option("keySchema", "schema", "", "both", "The same for keys.", text),
        Option("valueMessage", "name", "the first", "both", "Protobuf: the message type of values.", text),
        Option("keyMessage", "name", "the first", "both", "The same for keys.", text),
        Option("valueSubject", "name", "<topic>-value", "both", "The registry's subject for values.", text),
        Option("keySubject", "name", "<topic>-key", "both", "The same for keys.", text),
        Option("schema.registry.url", "URL", "", "both", "Address of the schema registry (Confluent's API).", text),
        Option("schema.registry.basic.auth.user.info", "user:password", "", "both", "User and password.", text),
        Option("schema.registry.bearer.auth.token", "token", "", "both", "Bearer token.", text),
        Option("schema.registry.ssl.ca.location", "path", "", "both", "CA certificate file (PEM).", text),
        Option(
            "checkReplays",
            "true or false",
            "true",
            "both",
            "Exactly once: whether a repeated batch must have the same input as before. false: the batch id is enough, "
            "and other rows with the same id are dropped; for queries whose rows differ in each run.",
            flag,
        ),
        Option(
            "txnAppId",
            "name",
            "",
            "batch",
            "With txnVersion: identifies a write, so that it can be repeated and counts once (`write_batch` sets it).",
            app_id,
        ),
        Option(
            "txnVersion", "count", "", "batch", "The number of this write under txnAppId; it must grow.", count_or_zero
        ),
        Option("includeHeaders", "true or false", "", "both", "No effect: a column `headers` is always written.", flag),
        Option(
            "checkpointLocation",
            "path",
            "",
            "both",
            "Spark's own: the checkpoint identifies the query. Batch, with txnAppId: the checkpoint of the query whose "
            "batch `txnVersion` is; a repeated batch is then known by its offsets instead of its rows.",
            text,
        ),
        Option("queryName", "name", "", "stream", "Spark's own: the name of the query.", text),
    ],
    page="docs/spark-sink.md",
)

_REFUSED = {
    "kafka.key.serializer": "keys are bytes or strings, or encoded by keyFormat",
    "kafka.value.serializer": "values are bytes or strings, or encoded by valueFormat",
    "kafka.transactional.id": f"the sink names its transactions itself; set delivery to {EXACTLY_ONCE}",
    "kafka.partitioner.class": "add a column `partition` to choose partitions",
    "kafka.interceptor.classes": "interceptors are not run here; leave it out",
    "subscribe": "it is for reading; set topic to write to a topic",
    "path": "save() and start() take no path; set topic",
}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where rows go and how: checked, and the same on the driver and on executors."""

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
    app_id: str | None = None
    version: int | None = field(default=None, compare=False)
    """Not compared: what a process keeps for these options serves all writes."""

    @property
    def typed(self) -> bool:
        return self.value.format != "raw" or self.key.format != "raw"


def parse_write_options(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Parses and checks the options of a query. OptionError says what is wrong, and what to write instead."""
    own, passed_on = _split_options(options)
    values = WRITE_OPTIONS.parse(own)
    if "kafka.bootstrap.servers" not in values:
        raise OptionError("kafka.bootstrap.servers is missing; set it to HOST:PORT of a broker")
    named = _named_write(values, streaming)
    delivery = values.get("delivery", EXACTLY_ONCE if streaming or named else AT_LEAST_ONCE)
    if named and delivery != EXACTLY_ONCE:
        raise OptionError(f"txnAppId does not work with delivery {delivery}; remove one of the two")
    acks, idempotent = values.get("kafka.acks", "all"), values.get("kafka.enable.idempotence", True)
    if acks == "0":
        raise OptionError("kafka.acks=0 cannot detect lost records; use 1 or all")
    if delivery == EXACTLY_ONCE and (acks == "1" or not idempotent):
        given = "kafka.acks=1" if acks == "1" else "kafka.enable.idempotence=false"
        raise OptionError(f"{given} does not work with exactly-once; remove it, or set delivery to {AT_LEAST_ONCE}")
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
        app_id=values.get("txnAppId"),
        version=values.get("txnVersion"),
    )
    _check_typing(made)
    return made


def _named_write(values: Mapping[str, Any], streaming: bool) -> bool:
    """Whether the write has an identity of its own. A stream has that of its checkpoint."""
    given = [name for name in ("txnAppId", "txnVersion") if name in values]
    if streaming and given:
        raise OptionError(f"{given[0]} is for batch writes; the checkpoint identifies the batches of a stream")
    if len(given) == 1:
        raise OptionError("txnAppId and txnVersion belong together; set both")
    return bool(given)


def _split_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Options of this sink, and of the connection."""
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
                raise OptionError(
                    f"{side}{part} has no effect without {side}Format; set that to json, avro or protobuf"
                )
        if typing.format == "raw":
            continue
        if options.registry.url is None:
            if typing.schema is None and typing.format != "json":  # JSON needs only the types of the columns
                raise OptionError(
                    f"{side}Format {typing.format} needs a schema; set schema.registry.url or {side}Schema"
                )
        elif options.topic is None and typing.subject is None:
            raise OptionError(f"{side}Format with a registry needs a subject; set the option topic or {side}Subject")
