"""The settings of a topic. Each takes its value from the topic, else from the broker settings named as its synonyms."""

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
    "What happens to old records: `delete` by age and size, `compact` by key, or both.",
    allowed=some_of("compact", "delete"),
    synonyms=_from(log.LOG_CLEANUP_POLICY),
)
COMPRESSION_TYPE = string(
    "compression.type",
    "producer",
    "The codec batches are kept in; `producer` keeps each as it was sent.",
    allowed=log.CODECS,
    synonyms=_from(log.COMPRESSION_TYPE),
)
COMPRESSION_GZIP_LEVEL = integer(
    "compression.gzip.level",
    -1,
    "The level, where `compression.type` is gzip.",
    allowed=log.GZIP_LEVELS,
    synonyms=_from(log.COMPRESSION_GZIP_LEVEL),
)
COMPRESSION_LZ4_LEVEL = integer(
    "compression.lz4.level",
    9,
    "The level, where `compression.type` is lz4.",
    allowed=between(1, 17),
    synonyms=_from(log.COMPRESSION_LZ4_LEVEL),
)
COMPRESSION_ZSTD_LEVEL = integer(
    "compression.zstd.level",
    3,
    "The level, where `compression.type` is zstd.",
    allowed=between(-131072, 22),
    synonyms=_from(log.COMPRESSION_ZSTD_LEVEL),
)
DELETE_RETENTION_MS = long(
    "delete.retention.ms",
    _DAY_MS,
    "How long a compacted topic keeps the marker of a deleted key.",
    unit="ms",
    allowed=at_least(0),
    synonyms=_from(log.LOG_CLEANER_DELETE_RETENTION_MS),
)
FILE_DELETE_DELAY_MS = long(
    "file.delete.delay.ms",
    60_000,
    "How long the files of a deleted segment stay, for readers still at them.",
    unit="ms",
    allowed=at_least(0),
    synonyms=_from(log.LOG_SEGMENT_DELETE_DELAY_MS),
    without_effect=log.NO_DELAY,
)
FLUSH_BEFORE_ACK = boolean(
    "flush.before.ack",
    False,
    "Group commit: an acknowledgement waits until its records are on disk, and one fsync serves all that wait. "
    "Millstream's own.",
    synonyms=_from(log.LOG_FLUSH_BEFORE_ACK),
)
FLUSH_MESSAGES = long(
    "flush.messages",
    LONG_MAX,
    "After how many records a partition is forced to disk.",
    allowed=at_least(1),
    synonyms=_from(log.LOG_FLUSH_INTERVAL_MESSAGES),
)
FLUSH_MS = long(
    "flush.ms",
    LONG_MAX,
    "After how long unflushed records are forced to disk.",
    unit="ms",
    allowed=at_least(0),
    synonyms=_from(log.LOG_FLUSH_INTERVAL_MS, log.LOG_FLUSH_SCHEDULER_INTERVAL_MS),
)
FOLLOWER_REPLICATION_THROTTLED_REPLICAS = listed(
    "follower.replication.throttled.replicas",
    (),
    "The replicas whose copying is throttled on the follower, by `follower.replication.throttled.rate` of its broker.",
    allowed=_THROTTLED,
)
INDEX_INTERVAL_BYTES = integer(
    "index.interval.bytes",
    4096,
    "How many bytes of log lie between two entries of the offset index.",
    unit="bytes",
    allowed=at_least(0),
    synonyms=_from(log.LOG_INDEX_INTERVAL_BYTES),
)
INTERNAL_SEGMENT_BYTES = optional_integer(
    "internal.segment.bytes",
    "Wins over `segment.bytes` and may be smaller: for tests that want many segments.",
    unit="bytes",
    allowed=Allowed("at least 1024", lambda size: size is None or size >= 1024),
)
LEADER_REPLICATION_THROTTLED_REPLICAS = listed(
    "leader.replication.throttled.replicas",
    (),
    "The replicas whose copying is throttled on the leader, by `leader.replication.throttled.rate` of its broker.",
    allowed=_THROTTLED,
)
LOCAL_RETENTION_BYTES = long(
    "local.retention.bytes",
    -2,
    "How much of a tiered topic stays on the local disk.",
    unit="bytes",
    only_default=log.NO_TIERS,
    synonyms=_from(log.LOG_LOCAL_RETENTION_BYTES),
)
LOCAL_RETENTION_MS = long(
    "local.retention.ms",
    -2,
    "How long a tiered topic stays on the local disk.",
    unit="ms",
    only_default=log.NO_TIERS,
    synonyms=_from(log.LOG_LOCAL_RETENTION_MS),
)
MAX_COMPACTION_LAG_MS = long(
    "max.compaction.lag.ms",
    LONG_MAX,
    "After how long a record must have been looked at by compaction.",
    unit="ms",
    allowed=at_least(1),
    synonyms=_from(log.LOG_CLEANER_MAX_COMPACTION_LAG_MS),
)
MAX_MESSAGE_BYTES = integer(
    "max.message.bytes",
    (1 << 20) + 12,
    "The largest record batch that is accepted, as it is on the wire.",
    unit="bytes",
    allowed=at_least(0),
    synonyms=_from(log.MESSAGE_MAX_BYTES),
)
MESSAGE_TIMESTAMP_AFTER_MAX_MS = long(
    "message.timestamp.after.max.ms",
    _HOUR_MS,
    "How far in the future a record's time may lie.",
    unit="ms",
    allowed=at_least(0),
    synonyms=_from(log.LOG_MESSAGE_TIMESTAMP_AFTER_MAX_MS),
)
MESSAGE_TIMESTAMP_BEFORE_MAX_MS = long(
    "message.timestamp.before.max.ms",
    LONG_MAX,
    "How far in the past a record's time may lie.",
    unit="ms",
    allowed=at_least(0),
    synonyms=_from(log.LOG_MESSAGE_TIMESTAMP_BEFORE_MAX_MS),
)
MESSAGE_TIMESTAMP_TYPE = string(
    "message.timestamp.type",
    "CreateTime",
    "Whether records keep the producer's time or get the broker's.",
    allowed=one_of("CreateTime", "LogAppendTime"),
    synonyms=_from(log.LOG_MESSAGE_TIMESTAMP_TYPE),
)
MIN_CLEANABLE_DIRTY_RATIO = double(
    "min.cleanable.dirty.ratio",
    0.5,
    "Which share of a log must be uncompacted before it is compacted.",
    allowed=between(0, 1),
    synonyms=_from(log.LOG_CLEANER_MIN_CLEANABLE_RATIO),
)
MIN_COMPACTION_LAG_MS = long(
    "min.compaction.lag.ms",
    0,
    "How long a record stays as it is before it may be compacted away.",
    unit="ms",
    allowed=at_least(0),
    synonyms=_from(log.LOG_CLEANER_MIN_COMPACTION_LAG_MS),
)
MIN_INSYNC_REPLICAS = integer(
    "min.insync.replicas",
    1,
    "How many replicas must have a record before `acks=all` is answered.",
    allowed=at_least(1),
    synonyms=_from(log.MIN_INSYNC_REPLICAS),
)
PREALLOCATE = boolean(
    "preallocate",
    False,
    "Whether a segment's file is allocated in full when it is begun.",
    only_default=log.NOT_PREALLOCATED,
    synonyms=_from(log.LOG_PREALLOCATE),
)
REMOTE_LOG_COPY_DISABLE = boolean(
    "remote.log.copy.disable",
    False,
    "Whether a tiered topic stops copying to the second tier.",
    only_default=log.NO_TIERS,
)
REMOTE_LOG_DELETE_ON_DISABLE = boolean(
    "remote.log.delete.on.disable",
    False,
    "Whether the second tier is emptied when tiering is switched off.",
    only_default=log.NO_TIERS,
)
REMOTE_STORAGE_ENABLE = boolean(
    "remote.storage.enable", False, "Whether old segments move to a second tier.", only_default=log.NO_TIERS
)
RETENTION_BYTES = long(
    "retention.bytes",
    -1,
    "How large a partition may grow before its oldest segments go; -1 means without limit.",
    unit="bytes",
    synonyms=_from(log.LOG_RETENTION_BYTES),
)
RETENTION_MS = long(
    "retention.ms",
    7 * _DAY_MS,
    "How long records are kept at least; -1 means forever.",
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
    "The size at which a segment is closed and a new one begun.",
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
    "How much earlier, at random, a segment may be closed.",
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
    "Whether share groups may use this topic for their dead letters (KIP-1191).",
)
MILLSTREAM_DELIVERY_DELAY_MS = long(
    "millstream.delivery.delay.ms",
    -1,
    "How long after its timestamp a record is handed to share groups. A record's own header `millstream-deliver-at` "
    "(milliseconds since 1970, as text) comes before it. With -1 nothing is delayed and headers are not looked at. "
    "Other consumers get every record at once. Millstream's own.",
    unit="ms",
    allowed=at_least(-1),
)
HOT_KEYS_ENABLE = boolean(
    "millstream.hot.keys.enable",
    True,
    "Whether records of the topic are sampled to find its hottest keys, for `millstream topic hot`. Millstream's own.",
    synonyms=_from(log.HOT_KEYS_ENABLE),
)
KEY_SCHEMA_VALIDATION = boolean(
    "millstream.key.schema.validation",
    False,
    "Whether the topic takes only records whose key begins with the id of a schema that is registered under "
    "`TOPIC-key`, as serializers of the schema registry write it; other batches are refused with INVALID_RECORD. "
    "A record without a key passes. Batches of such a topic are opened, which costs. Millstream's own.",
)
VALUE_SCHEMA_VALIDATION = boolean(
    "millstream.value.schema.validation",
    False,
    "Whether the topic takes only records whose value begins with the id of a schema that is registered under "
    "`TOPIC-value`, as serializers of the schema registry write it; other batches are refused with INVALID_RECORD. "
    "A null value passes. Batches of such a topic are opened, which costs. Millstream's own.",
)
UNCLEAN_LEADER_ELECTION_ENABLE = boolean(
    "unclean.leader.election.enable",
    False,
    "Whether a replica that is behind may lead when no other is left, at the price of lost records.",
    synonyms=_from(log.UNCLEAN_LEADER_ELECTION_ENABLE),
)

SETTINGS = declared(globals())
