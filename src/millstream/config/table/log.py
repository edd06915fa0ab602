"""Settings of logs: those of the broker, and its defaults for topics (synonyms in `topic.py`)."""

from millstream.config.setting import (
    INT_MAX,
    LONG_MAX,
    Allowed,
    Importance,
    Update,
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
    optional_long,
    some_of,
    string,
)

_DYNAMIC = Update.CLUSTER_WIDE
_HIGH = Importance.HIGH
_DAY_MS = 24 * 60 * 60 * 1000

CODECS = one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
GZIP_LEVELS = Allowed("1 to 9, or -1 for the codec's own default", lambda level: level == -1 or 1 <= level <= 9)
NO_DELAY = "the files of a deleted segment are kept until the last request that reads them has ended"
NOT_PREALLOCATED = "segments are not preallocated"
NO_JITTER = "segments are closed without jitter"

LOG_SEGMENT_BYTES = integer(
    "log.segment.bytes",
    1 << 30,
    "The size at which a segment is closed and a new segment is created.",
    unit="bytes",
    allowed=at_least(1 << 20),
    importance=_HIGH,
    update=_DYNAMIC,
)
LOG_ROLL_MS = optional_long(
    "log.roll.ms",
    "The age at which a segment is closed even if it is not full. It takes precedence over `log.roll.hours`.",
    unit="ms",
    allowed=Allowed("at least 1", lambda ms: ms is None or ms >= 1),
    importance=_HIGH,
    update=_DYNAMIC,
)
LOG_ROLL_HOURS = integer(
    "log.roll.hours",
    168,
    "The age at which a segment is closed even if it is not full.",
    unit="hours",
    allowed=at_least(1),
    importance=_HIGH,
)
LOG_ROLL_JITTER_MS = optional_long(
    "log.roll.jitter.ms",
    "The maximum random time by which a segment is closed earlier.",
    unit="ms",
    importance=_HIGH,
    update=_DYNAMIC,
    only_default=NO_JITTER,
)
LOG_ROLL_JITTER_HOURS = integer(
    "log.roll.jitter.hours",
    0,
    "The maximum random time by which a segment is closed earlier.",
    unit="hours",
    importance=_HIGH,
    only_default=NO_JITTER,
)
LOG_RETENTION_MS = optional_long(
    "log.retention.ms",
    "The minimum time for which records are kept. -1 means no limit. It takes precedence over minutes and hours.",
    unit="ms",
    importance=_HIGH,
    update=_DYNAMIC,
    allowed=Allowed("at least 1, or -1", lambda ms: ms is None or ms == -1 or ms >= 1),
)
LOG_RETENTION_MINUTES = optional_integer(
    "log.retention.minutes",
    "The minimum time for which records are kept, in minutes. It takes precedence over hours.",
    unit="minutes",
    importance=_HIGH,
    allowed=Allowed("at least 1, or -1", lambda minutes: minutes is None or minutes == -1 or minutes >= 1),
)
LOG_RETENTION_HOURS = integer(
    "log.retention.hours",
    168,
    "The minimum time for which records are kept, in hours.",
    unit="hours",
    importance=_HIGH,
    allowed=Allowed("at least 1, or -1", lambda hours: hours == -1 or hours >= 1),
)
LOG_RETENTION_BYTES = long(
    "log.retention.bytes",
    -1,
    "The size of a partition above which its oldest segments are deleted. -1 means no limit.",
    unit="bytes",
    importance=_HIGH,
    update=_DYNAMIC,
)
LOG_RETENTION_CHECK_INTERVAL_MS = long(
    "log.retention.check.interval.ms",
    5 * 60 * 1000,
    "The interval at which segments are checked for retention and for closing by age.",
    unit="ms",
    allowed=at_least(1),
)
LOG_SEGMENT_DELETE_DELAY_MS = long(
    "log.segment.delete.delay.ms",
    60_000,
    "The time for which the files of a deleted segment are kept for requests that still read them.",
    unit="ms",
    allowed=at_least(0),
    importance=_HIGH,
    update=_DYNAMIC,
    without_effect=NO_DELAY,
)
LOG_FLUSH_INTERVAL_MESSAGES = long(
    "log.flush.interval.messages",
    LONG_MAX,
    "The number of records after which a partition is flushed to disk.",
    allowed=at_least(1),
    importance=_HIGH,
    update=_DYNAMIC,
)
LOG_FLUSH_INTERVAL_MS = optional_long(
    "log.flush.interval.ms",
    "The maximum time for which records stay unflushed.",
    unit="ms",
    importance=_HIGH,
    update=_DYNAMIC,
    allowed=Allowed("at least 0", lambda ms: ms is None or ms >= 0),
)
LOG_FLUSH_SCHEDULER_INTERVAL_MS = long(
    "log.flush.scheduler.interval.ms",
    LONG_MAX,
    "The maximum time for which records stay unflushed if `log.flush.interval.ms` is not set.",
    unit="ms",
    importance=_HIGH,
    allowed=at_least(0),
)
LOG_FLUSH_BEFORE_ACK = boolean(
    "log.flush.before.ack",
    False,
    "Group commit: the leader acknowledges records only after they are flushed to disk. One fsync serves all "
    "waiting requests. Millstream only.",
    importance=_HIGH,
    update=_DYNAMIC,
)
LOG_FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS = integer(
    "log.flush.offset.checkpoint.interval.ms",
    60_000,
    "The interval at which the log start offsets and the flushed offsets are written to checkpoint files.",
    unit="ms",
    allowed=at_least(0),
    importance=_HIGH,
)
LOG_INDEX_INTERVAL_BYTES = integer(
    "log.index.interval.bytes",
    4096,
    "The number of bytes of the log between two entries of the offset index.",
    unit="bytes",
    allowed=at_least(0),
    update=_DYNAMIC,
)
LOG_INDEX_SIZE_MAX_BYTES = integer(
    "log.index.size.max.bytes",
    10 << 20,
    "The size of an index at which its segment is closed.",
    unit="bytes",
    allowed=at_least(4),
    update=_DYNAMIC,
)
MESSAGE_MAX_BYTES = integer(
    "message.max.bytes",
    (1 << 20) + 12,
    "The maximum size of a record batch, as it is sent (compressed).",
    unit="bytes",
    allowed=at_least(0),
    importance=_HIGH,
    update=_DYNAMIC,
)
COMPRESSION_TYPE = string(
    "compression.type",
    "producer",
    "The codec of stored batches. `producer` keeps the codec of the producer.",
    allowed=CODECS,
    importance=_HIGH,
    update=_DYNAMIC,
)
COMPRESSION_GZIP_LEVEL = integer(
    "compression.gzip.level",
    -1,
    "The compression level if `compression.type` is gzip.",
    allowed=GZIP_LEVELS,
    update=_DYNAMIC,
)
COMPRESSION_LZ4_LEVEL = integer(
    "compression.lz4.level",
    9,
    "The compression level if `compression.type` is lz4.",
    allowed=between(1, 17),
    update=_DYNAMIC,
)
COMPRESSION_ZSTD_LEVEL = integer(
    "compression.zstd.level",
    3,
    "The compression level if `compression.type` is zstd.",
    allowed=between(-131072, 22),
    update=_DYNAMIC,
)
LOG_MESSAGE_TIMESTAMP_TYPE = string(
    "log.message.timestamp.type",
    "CreateTime",
    "The timestamp of records: `CreateTime` is set by the producer, `LogAppendTime` by the broker.",
    allowed=one_of("CreateTime", "LogAppendTime"),
    update=_DYNAMIC,
)
LOG_MESSAGE_TIMESTAMP_BEFORE_MAX_MS = long(
    "log.message.timestamp.before.max.ms",
    LONG_MAX,
    "The maximum time by which a record's timestamp may be before the broker's time.",
    unit="ms",
    allowed=at_least(0),
    update=_DYNAMIC,
)
LOG_MESSAGE_TIMESTAMP_AFTER_MAX_MS = long(
    "log.message.timestamp.after.max.ms",
    60 * 60 * 1000,
    "The maximum time by which a record's timestamp may be after the broker's time.",
    unit="ms",
    allowed=at_least(0),
    update=_DYNAMIC,
)
LOG_PREALLOCATE = boolean(
    "log.preallocate",
    False,
    "Allocates the file of a new segment in full.",
    update=_DYNAMIC,
    only_default=NOT_PREALLOCATED,
)
LOG_CLEANUP_POLICY = listed(
    "log.cleanup.policy",
    ("delete",),
    "`delete` deletes old segments by age and size; `compact` keeps the newest record of each key.",
    allowed=some_of("compact", "delete"),
    update=_DYNAMIC,
)
LOG_CLEANER_DELETE_RETENTION_MS = long(
    "log.cleaner.delete.retention.ms",
    _DAY_MS,
    "The time for which a compacted log keeps tombstones.",
    unit="ms",
    allowed=at_least(0),
    update=_DYNAMIC,
)
LOG_CLEANER_MIN_COMPACTION_LAG_MS = long(
    "log.cleaner.min.compaction.lag.ms",
    0,
    "The minimum time before a record may be compacted.",
    unit="ms",
    allowed=at_least(0),
    update=_DYNAMIC,
)
LOG_CLEANER_MAX_COMPACTION_LAG_MS = long(
    "log.cleaner.max.compaction.lag.ms",
    LONG_MAX,
    "The maximum time before a record is compacted.",
    unit="ms",
    allowed=at_least(1),
    update=_DYNAMIC,
)
LOG_CLEANER_MIN_CLEANABLE_RATIO = double(
    "log.cleaner.min.cleanable.ratio",
    0.5,
    "The part of a log that must be dirty (not compacted) before the log is compacted.",
    allowed=between(0, 1),
    update=_DYNAMIC,
)
LOG_CLEANER_ENABLE = boolean(
    "log.cleaner.enable",
    True,
    "Enables compaction. Without it, compacted topics keep all records, and internal topics grow without limit.",
)
LOG_CLEANER_THREADS = integer(
    "log.cleaner.threads",
    1,
    "The number of logs that are compacted at the same time.",
    allowed=at_least(1),
    update=_DYNAMIC,
)
LOG_CLEANER_DEDUPE_BUFFER_SIZE = long(
    "log.cleaner.dedupe.buffer.size",
    128 << 20,
    "The memory for key maps, all threads together. Each key in the dirty part of a log needs 120 to 160 bytes. "
    "Keys that do not fit are left to the next pass.",
    unit="bytes",
    allowed=at_least(1 << 20),
    update=_DYNAMIC,
)
LOG_CLEANER_IO_BUFFER_LOAD_FACTOR = double(
    "log.cleaner.io.buffer.load.factor",
    0.9,
    "The part of `log.cleaner.dedupe.buffer.size` that may be filled.",
    allowed=between(0.01, 1),
    update=_DYNAMIC,
)
LOG_CLEANER_IO_BUFFER_SIZE = integer(
    "log.cleaner.io.buffer.size",
    512 << 10,
    "The memory for read and write buffers, all threads together.",
    unit="bytes",
    allowed=at_least(0),
    update=_DYNAMIC,
)
LOG_CLEANER_IO_MAX_BYTES_PER_SECOND = double(
    "log.cleaner.io.max.bytes.per.second",
    1.7976931348623157e308,
    "The maximum rate at which all threads together read and write.",
    unit="bytes",
    allowed=Allowed("more than 0", lambda rate: rate > 0),
    update=_DYNAMIC,
)
LOG_CLEANER_BACKOFF_MS = long(
    "log.cleaner.backoff.ms",
    15_000,
    "The wait before the next check when no log needs compaction.",
    unit="ms",
    allowed=at_least(0),
    update=_DYNAMIC,
)
LOG_LOCAL_RETENTION_MS = long(
    "log.local.retention.ms",
    -2,
    "The time for which segments that are in the tier are also kept on the local disk. -2 means the value of "
    "`log.retention.ms`.",
    unit="ms",
    update=_DYNAMIC,
    allowed=at_least(-2),
)
LOG_LOCAL_RETENTION_BYTES = long(
    "log.local.retention.bytes",
    -2,
    "The size of a tiered log on the local disk. -2 means the value of `log.retention.bytes`.",
    unit="bytes",
    update=_DYNAMIC,
    allowed=at_least(-2),
)
LOG_REMOTE_COPY_LAG_MS = long(
    "log.remote.copy.lag.ms",
    0,
    "The age of its newest record at which a closed segment is copied to the tier. 0: at once. -1: the local retention "
    "time (KIP-1241).",
    unit="ms",
    update=_DYNAMIC,
    allowed=at_least(-1),
)
LOG_REMOTE_COPY_LAG_BYTES = long(
    "log.remote.copy.lag.bytes",
    -1,
    "The size of the log after a closed segment at which it is copied to the tier, even if it is not old enough by "
    "`log.remote.copy.lag.ms`. -1: the local retention size (KIP-1241).",
    unit="bytes",
    update=_DYNAMIC,
    allowed=at_least(-1),
)
MIN_INSYNC_REPLICAS = integer(
    "min.insync.replicas",
    1,
    "The minimum number of in-sync replicas for a produce request with `acks=all`.",
    allowed=at_least(1),
    importance=_HIGH,
    update=_DYNAMIC,
)
UNCLEAN_LEADER_ELECTION_ENABLE = boolean(
    "unclean.leader.election.enable",
    False,
    "Allows a replica outside the ISR to become leader if no in-sync replica is left. Records can be lost.",
    importance=_HIGH,
    update=_DYNAMIC,
)
PRODUCER_ID_EXPIRATION_MS = integer(
    "producer.id.expiration.ms",
    _DAY_MS,
    "The time for which a partition keeps the state of a producer that sends nothing.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.LOW,
    update=_DYNAMIC,
)
METADATA_LOG_SEGMENT_BYTES = integer(
    "metadata.log.segment.bytes",
    1 << 30,
    "The size at which a segment of the metadata log is closed.",
    unit="bytes",
    allowed=at_least(8 << 20),
    importance=_HIGH,
)
METADATA_LOG_SEGMENT_MS = long(
    "metadata.log.segment.ms",
    7 * _DAY_MS,
    "The age at which a segment of the metadata log is closed.",
    unit="ms",
    allowed=at_least(1),
    importance=_HIGH,
)
MAX_OPEN_FILES = integer(
    "millstream.max.open.files",
    1024,
    "The maximum number of open log files. Other files are opened when they are needed. Millstream only.",
    allowed=between(16, INT_MAX),
)
BATCH_MAX_DECOMPRESSED_BYTES = integer(
    "millstream.batch.max.decompressed.bytes",
    128 << 20,
    "The maximum decompressed size of a batch that the broker has to open. The broker opens batches of compacted "
    "topics, of topics with schema validation or a codec of their own, for share groups with key order or "
    "delivery delays, for dead letters, for ListOffsets by time, and for compaction. It does not open other "
    "batches. A larger batch is refused with MESSAGE_TOO_LARGE. If such a batch is in the log already, compaction"
    " keeps it unchanged, and ListOffsets by time finds it as a whole. Millstream only.",
    unit="bytes",
    allowed=between(1 << 20, 256 << 20),
    update=_DYNAMIC,
)
BATCH_MAX_RECORDS = integer(
    "millstream.batch.max.records",
    1_000_000,
    "The maximum number of records of a batch that a client writes. A batch whose header says more is refused with "
    "MESSAGE_TOO_LARGE: a few bytes could claim many millions of records, and consumers allocate memory for them. "
    "Batches of librdkafka have at most this default; Java clients split a batch after the error. Millstream only.",
    allowed=between(1000, INT_MAX),
    update=_DYNAMIC,
)
HOT_KEYS_ENABLE = boolean(
    "millstream.hot.keys.enable",
    True,
    "Samples a few records per second to find the hot keys of each topic, for `millstream topic hot`. The reports"
    " contain these keys and are kept for one hour in `__millstream_hot_keys`. Millstream only.",
    importance=Importance.LOW,
    update=_DYNAMIC,
)
HOT_KEYS_INTERVAL_MS = integer(
    "millstream.hot.keys.interval.ms",
    10_000,
    "The interval between two reports on the hot keys of a topic, while records arrive. Millstream only.",
    unit="ms",
    allowed=at_least(1000),
    importance=Importance.LOW,
    update=_DYNAMIC,
)

SETTINGS = declared(globals())
