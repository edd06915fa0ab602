"""Settings of topics. A value comes from the topic, else from the broker settings named as synonyms."""

import re
from typing import Any

from millstream.config.setting import (
    LONG_MAX,
    Allowed,
    Setting,
    Synonym,
    at_least,
    between,
    boolean,
    declared,
    double,
    integer,
    listed,
    long,
    one_of,
    optional_integer,
    optional_string,
    some_of,
    string,
)
from millstream.config.table import log

_DAY_MS = 24 * 60 * 60 * 1000
_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_THROTTLED = Allowed(
    "`partition:broker` each, or `*` for all",
    lambda replicas: all(replica == "*" or re.fullmatch(r"\d+:\d+", replica) for replica in replicas),
)


def _from(*settings: Setting[Any]) -> tuple[Synonym, ...]:
    return tuple(Synonym(setting) for setting in settings)


CLEANUP_POLICY = listed(
    "cleanup.policy",
    ("delete",),
    "`delete` deletes old segments by age and size; `compact` keeps the newest record of each key. Both can be "
    "combined.",
    allowed=some_of("compact", "delete"),
    synonyms=_from(log.LOG_CLEANUP_POLICY),
)
COMPRESSION_TYPE = string(
    "compression.type",
    "producer",
    "The codec of stored batches. `producer` keeps the codec of the producer.",
    allowed=log.CODECS,
    synonyms=_from(log.COMPRESSION_TYPE),
)
COMPRESSION_GZIP_LEVEL = integer(
    "compression.gzip.level",
    -1,
    "The compression level if `compression.type` is gzip.",
    allowed=log.GZIP_LEVELS,
    synonyms=_from(log.COMPRESSION_GZIP_LEVEL),
)
COMPRESSION_LZ4_LEVEL = integer(
    "compression.lz4.level",
    9,
    "The compression level if `compression.type` is lz4.",
    allowed=between(1, 17),
    synonyms=_from(log.COMPRESSION_LZ4_LEVEL),
)
COMPRESSION_ZSTD_LEVEL = integer(
    "compression.zstd.level",
    3,
    "The compression level if `compression.type` is zstd.",
    allowed=between(-131072, 22),
    synonyms=_from(log.COMPRESSION_ZSTD_LEVEL),
)
DELETE_RETENTION_MS = long(
    "delete.retention.ms",
    _DAY_MS,
    "The time for which a compacted topic keeps tombstones.",
    unit="ms",
    allowed=at_least(0),
    synonyms=_from(log.LOG_CLEANER_DELETE_RETENTION_MS),
)
FILE_DELETE_DELAY_MS = long(
    "file.delete.delay.ms",
    60_000,
    "The time for which the files of a deleted segment are kept for requests that still read them.",
    unit="ms",
    allowed=at_least(0),
    synonyms=_from(log.LOG_SEGMENT_DELETE_DELAY_MS),
    without_effect=log.NO_DELAY,
)
FLUSH_BEFORE_ACK = boolean(
    "flush.before.ack",
    False,
    "Group commit: the leader acknowledges records only after they are flushed to disk. One fsync serves all "
    "waiting requests. Millstream only.",
    synonyms=_from(log.LOG_FLUSH_BEFORE_ACK),
)
FLUSH_MESSAGES = long(
    "flush.messages",
    LONG_MAX,
    "The number of records after which a partition is flushed to disk.",
    allowed=at_least(1),
    synonyms=_from(log.LOG_FLUSH_INTERVAL_MESSAGES),
)
FLUSH_MS = long(
    "flush.ms",
    LONG_MAX,
    "The maximum time for which records stay unflushed.",
    unit="ms",
    allowed=at_least(0),
    synonyms=_from(log.LOG_FLUSH_INTERVAL_MS, log.LOG_FLUSH_SCHEDULER_INTERVAL_MS),
)
FOLLOWER_REPLICATION_THROTTLED_REPLICAS = listed(
    "follower.replication.throttled.replicas",
    (),
    "The replicas throttled on the follower, by `follower.replication.throttled.rate` of its broker.",
    allowed=_THROTTLED,
)
INDEX_INTERVAL_BYTES = integer(
    "index.interval.bytes",
    4096,
    "The number of bytes of the log between two entries of the offset index.",
    unit="bytes",
    allowed=at_least(0),
    synonyms=_from(log.LOG_INDEX_INTERVAL_BYTES),
)
INTERNAL_SEGMENT_BYTES = optional_integer(
    "internal.segment.bytes",
    "Takes precedence over `segment.bytes` and allows smaller values, for tests that need many segments.",
    unit="bytes",
    allowed=Allowed("at least 1024", lambda size: size is None or size >= 1024),
)
LEADER_REPLICATION_THROTTLED_REPLICAS = listed(
    "leader.replication.throttled.replicas",
    (),
    "The replicas throttled on the leader, by `leader.replication.throttled.rate` of its broker.",
    allowed=_THROTTLED,
)
LOCAL_RETENTION_BYTES = long(
    "local.retention.bytes",
    -2,
    "The size of a tiered partition on the local disk above which segments that are in the tier are deleted from the "
    "disk. -2 means the value of `retention.bytes`, -1 no limit.",
    unit="bytes",
    allowed=at_least(-2),
    synonyms=_from(log.LOG_LOCAL_RETENTION_BYTES),
)
LOCAL_RETENTION_MS = long(
    "local.retention.ms",
    -2,
    "The time for which segments that are in the tier are also kept on the local disk. -2 means the value of "
    "`retention.ms`, -1 no limit.",
    unit="ms",
    allowed=at_least(-2),
    synonyms=_from(log.LOG_LOCAL_RETENTION_MS),
)
MAX_COMPACTION_LAG_MS = long(
    "max.compaction.lag.ms",
    LONG_MAX,
    "The maximum time before a record is compacted.",
    unit="ms",
    allowed=at_least(1),
    synonyms=_from(log.LOG_CLEANER_MAX_COMPACTION_LAG_MS),
)
MAX_MESSAGE_BYTES = integer(
    "max.message.bytes",
    (1 << 20) + 12,
    "The maximum size of a record batch, as it is sent (compressed).",
    unit="bytes",
    allowed=at_least(0),
    synonyms=_from(log.MESSAGE_MAX_BYTES),
)
MESSAGE_TIMESTAMP_AFTER_MAX_MS = long(
    "message.timestamp.after.max.ms",
    _HOUR_MS,
    "The maximum time by which a record's timestamp may be after the broker's time.",
    unit="ms",
    allowed=at_least(0),
    synonyms=_from(log.LOG_MESSAGE_TIMESTAMP_AFTER_MAX_MS),
)
MESSAGE_TIMESTAMP_BEFORE_MAX_MS = long(
    "message.timestamp.before.max.ms",
    LONG_MAX,
    "The maximum time by which a record's timestamp may be before the broker's time.",
    unit="ms",
    allowed=at_least(0),
    synonyms=_from(log.LOG_MESSAGE_TIMESTAMP_BEFORE_MAX_MS),
)
MESSAGE_TIMESTAMP_TYPE = string(
    "message.timestamp.type",
    "CreateTime",
    "The timestamp of records: `CreateTime` is set by the producer, `LogAppendTime` by the broker.",
    allowed=one_of("CreateTime", "LogAppendTime"),
    synonyms=_from(log.LOG_MESSAGE_TIMESTAMP_TYPE),
)
MIN_CLEANABLE_DIRTY_RATIO = double(
    "min.cleanable.dirty.ratio",
    0.5,
    "The part of a log that must be dirty (not compacted) before the log is compacted.",
    allowed=between(0, 1),
    synonyms=_from(log.LOG_CLEANER_MIN_CLEANABLE_RATIO),
)
MIN_COMPACTION_LAG_MS = long(
    "min.compaction.lag.ms",
    0,
    "The minimum time before a record may be compacted.",
    unit="ms",
    allowed=at_least(0),
    synonyms=_from(log.LOG_CLEANER_MIN_COMPACTION_LAG_MS),
)
MIN_INSYNC_REPLICAS = integer(
    "min.insync.replicas",
    1,
    "The minimum number of in-sync replicas for a produce request with `acks=all`.",
    allowed=at_least(1),
    synonyms=_from(log.MIN_INSYNC_REPLICAS),
)
PREALLOCATE = boolean(
    "preallocate",
    False,
    "Allocates the file of a new segment in full.",
    only_default=log.NOT_PREALLOCATED,
    synonyms=_from(log.LOG_PREALLOCATE),
)
REMOTE_COPY_LAG_BYTES = long(
    "remote.copy.lag.bytes",
    -1,
    "The size of the log after a closed segment at which it is copied to the tier, even if it is not old enough by "
    "`remote.copy.lag.ms`. -1 means the local retention size.",
    unit="bytes",
    allowed=at_least(-1),
    synonyms=_from(log.LOG_REMOTE_COPY_LAG_BYTES),
)
REMOTE_COPY_LAG_MS = long(
    "remote.copy.lag.ms",
    0,
    "The age of its newest record at which a closed segment is copied to the tier. 0 means at once, -1 the local "
    "retention time.",
    unit="ms",
    allowed=at_least(-1),
    synonyms=_from(log.LOG_REMOTE_COPY_LAG_MS),
)
REMOTE_LOG_COPY_DISABLE = boolean(
    "remote.log.copy.disable",
    False,
    "Stops copying a tiered topic to the tier. The tier stays readable.",
)
REMOTE_LOG_DELETE_ON_DISABLE = boolean(
    "remote.log.delete.on.disable",
    False,
    "Deletes the topic's objects in the tier when `remote.storage.enable` is set to false.",
)
REMOTE_STORAGE_ENABLE = boolean(
    "remote.storage.enable",
    False,
    "Tiered storage: copies closed segments to the object store of `millstream.tier.url`.",
)
MILLSTREAM_TIER_RESTORE_FROM = optional_string(
    "millstream.tier.restore.from",
    "The `cluster id/topic id` in the tier whose records a new topic takes over, before its first record is written. "
    "Set by `millstream tier restore`. Millstream only.",
)
RETENTION_BYTES = long(
    "retention.bytes",
    -1,
    "The size of a partition above which its oldest segments are deleted. -1 means no limit.",
    unit="bytes",
    synonyms=_from(log.LOG_RETENTION_BYTES),
)
RETENTION_MS = long(
    "retention.ms",
    7 * _DAY_MS,
    "The minimum time for which records are kept. -1 means no limit.",
    unit="ms",
    allowed=at_least(-1),
    synonyms=(
        Synonym(log.LOG_RETENTION_MS),
        Synonym(log.LOG_RETENTION_MINUTES, _MINUTE_MS),
        Synonym(log.LOG_RETENTION_HOURS, _HOUR_MS),
    ),
)
SEGMENT_BYTES = integer(
    "segment.bytes",
    1 << 30,
    "The size at which a segment is closed and a new segment is created.",
    unit="bytes",
    allowed=at_least(1 << 20),
    synonyms=_from(log.LOG_SEGMENT_BYTES),
)
SEGMENT_INDEX_BYTES = integer(
    "segment.index.bytes",
    10 << 20,
    "The size of an index at which its segment is closed.",
    unit="bytes",
    allowed=at_least(4),
    synonyms=_from(log.LOG_INDEX_SIZE_MAX_BYTES),
)
SEGMENT_JITTER_MS = long(
    "segment.jitter.ms",
    0,
    "The maximum random time by which a segment is closed earlier.",
    unit="ms",
    only_default=log.NO_JITTER,
    synonyms=(Synonym(log.LOG_ROLL_JITTER_MS), Synonym(log.LOG_ROLL_JITTER_HOURS, _HOUR_MS)),
)
SEGMENT_MS = long(
    "segment.ms",
    7 * _DAY_MS,
    "The age at which a segment is closed even if it is not full.",
    unit="ms",
    allowed=at_least(1),
    synonyms=(Synonym(log.LOG_ROLL_MS), Synonym(log.LOG_ROLL_HOURS, _HOUR_MS)),
)
ERRORS_DEADLETTERQUEUE_GROUP_ENABLE = boolean(
    "errors.deadletterqueue.group.enable",
    False,
    "Allows share groups to use this topic as a dead-letter topic (KIP-1191).",
)
MILLSTREAM_DELIVERY_DELAY_MS = long(
    "millstream.delivery.delay.ms",
    -1,
    "The time after its timestamp at which a record is delivered to share groups. The record header "
    "`millstream-deliver-at` (milliseconds since 1970, as text) takes precedence. With -1, records are not "
    "delayed and the header is not read. Other consumers get every record at once. Millstream only.",
    unit="ms",
    allowed=at_least(-1),
)
HOT_KEYS_ENABLE = boolean(
    "millstream.hot.keys.enable",
    True,
    "Samples records of the topic to find its hot keys, for `millstream topic hot`. Millstream only.",
    synonyms=_from(log.HOT_KEYS_ENABLE),
)
KEY_SCHEMA_VALIDATION = boolean(
    "millstream.key.schema.validation",
    False,
    "Accepts only records whose key begins with the id of a schema that is registered under `TOPIC-key`, as the "
    "serializers of the schema registry write it. Other batches are refused with INVALID_RECORD. A record without"
    " a key is accepted. The broker has to open the batches of such a topic, which needs processor time. "
    "Millstream only.",
)
VALUE_SCHEMA_VALIDATION = boolean(
    "millstream.value.schema.validation",
    False,
    "Accepts only records whose value begins with the id of a schema that is registered under `TOPIC-value`, as "
    "the serializers of the schema registry write it. Other batches are refused with INVALID_RECORD. A null value"
    " is accepted. The broker has to open the batches of such a topic, which needs processor time. Millstream "
    "only.",
)
UNCLEAN_LEADER_ELECTION_ENABLE = boolean(
    "unclean.leader.election.enable",
    False,
    "Allows a replica outside the ISR to become leader if no in-sync replica is left. Records can be lost.",
    synonyms=_from(log.UNCLEAN_LEADER_ELECTION_ENABLE),
)
MIRROR_PREFIX = "millstream.mirror."
MIRROR_LINK = string(
    "millstream.mirror.link",
    "",
    "The link that this topic is a mirror of (docs/mirroring.md). Set by `millstream mirror`. Millstream only.",
)
MIRROR_STATE = string(
    "millstream.mirror.state",
    "",
    "The state of a mirror topic. It accepts no writes of clients unless it is `promoted`. Millstream only.",
    allowed=one_of("", "mirroring", "promoting", "failed", "promoted"),
)
MIRROR_REASON = string("millstream.mirror.reason", "", "Why a mirror topic is in the state `failed`. Millstream only.")
MIRROR_SOURCE_TOPIC = string(
    "millstream.mirror.source.topic", "", "The name of a mirror topic at the source. Millstream only."
)
MIRROR_SOURCE_ID = string(
    "millstream.mirror.source.topic.id",
    "",
    "The id of a mirror topic at the source; another id there means that the topic was created again. Millstream only.",
)
MIRROR_LEADER_EPOCH = integer(
    "millstream.mirror.leader.epoch",
    -1,
    "The highest leader epoch of a mirror topic at the source. The controller raises the leader epochs of the "
    "partitions here to it, so that no epoch goes back for a consumer that moves over. Millstream only.",
    allowed=between(-1, 1 << 30),
)
MIRROR_PRODUCER_ID = long(
    "millstream.mirror.producer.id",
    -1,
    "A producer id in the mirrored records that this cluster might give to a producer too. The controller raises the "
    "next id above it. Millstream only.",
    allowed=at_least(-1),
)

TABLE = string(
    "millstream.table",
    "none",
    "Keeps the topic as a lake table of this format: `delta` or `iceberg`. `millstream table serve` writes the table; "
    "without it the setting has no effect (docs/tables.md). With `none` the table is not continued, and stays where "
    "it is. Millstream only.",
    allowed=one_of("none", "delta", "iceberg"),
)
TABLE_LOCATION = string(
    "millstream.table.location",
    "",
    "Where the table of the topic is: a directory or `s3://bucket/prefix`. Empty: the directory with the name of the "
    "topic in the warehouse of `millstream table serve`. Millstream only.",
)
TABLE_COLUMNS = string(
    "millstream.table.columns",
    "auto",
    "The columns of the table. `registry`: the fields of the newest schema of `TOPIC-value`. `raw`: key and value as "
    "bytes. `auto`: `registry` if the subject exists when the table is made, else `raw`. Millstream only.",
    allowed=one_of("auto", "registry", "raw"),
)
TABLE_PARTITION_BY = listed(
    "millstream.table.partition.by",
    (),
    "How a new table is partitioned: columns, or days(column), hours(column), months(column). Millstream only.",
)
TABLE_MODE = string(
    "millstream.table.mode",
    "append",
    "`append`: a row for each record. `upsert`: a record replaces the row with the same keys, and a null value deletes "
    "it. Millstream only.",
    allowed=one_of("append", "upsert"),
)
TABLE_KEYS = listed(
    "millstream.table.keys",
    (),
    "The columns that identify a row with `millstream.table.mode=upsert`. Empty: the key of the record. Millstream "
    "only.",
)

SETTINGS = declared(globals())
