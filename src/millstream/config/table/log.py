"""How logs are kept: the broker's own settings, and its defaults for topics (which `topic.py` names as synonyms)."""

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
NO_DELAY = "the files of a deleted segment stay exactly until their last reader is done"
NOT_PREALLOCATED = "segments are not allocated in advance here"
NO_JITTER = "segments roll exactly on time here, without jitter"
NO_TIERS = "tiered storage is not part of this version"

LOG_SEGMENT_BYTES = integer(
    "log.segment.bytes",
    1 << 30,
    "The size at which a segment is closed and a new one begun.",
    unit="bytes",
    allowed=at_least(1 << 20),
    importance=_HIGH,
    update=_DYNAMIC,
)
LOG_ROLL_MS = optional_long(
    "log.roll.ms",
    "The age at which a segment is closed even if it is not full. Wins over `log.roll.hours`.",
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
    "How much earlier, at random, a segment may be closed.",
    unit="ms",
    importance=_HIGH,
    update=_DYNAMIC,
    only_default=NO_JITTER,
)
LOG_ROLL_JITTER_HOURS = integer(
    "log.roll.jitter.hours",
    0,
    "How much earlier, at random, a segment may be closed.",
    unit="hours",
    importance=_HIGH,
    only_default=NO_JITTER,
)
LOG_RETENTION_MS = optional_long(
    "log.retention.ms",
    "How long records are kept at least; -1 means forever. Wins over minutes and hours.",
    unit="ms",
    importance=_HIGH,
    update=_DYNAMIC,
    allowed=Allowed("at least 1, or -1", lambda ms: ms is None or ms == -1 or ms >= 1),
)
LOG_RETENTION_MINUTES = optional_integer(
    "log.retention.minutes",
    "How long records are kept at least, in minutes. Wins over hours.",
    unit="minutes",
    importance=_HIGH,
    allowed=Allowed("at least 1, or -1", lambda minutes: minutes is None or minutes == -1 or minutes >= 1),
)
LOG_RETENTION_HOURS = integer(
    "log.retention.hours",
    168,
    "How long records are kept at least, in hours.",
    unit="hours",
    importance=_HIGH,
    allowed=Allowed("at least 1, or -1", lambda hours: hours == -1 or hours >= 1),
)
LOG_RETENTION_BYTES = long(
    "log.retention.bytes",
    -1,
    "How large a partition may grow before its oldest segments go; -1 means without limit.",
    unit="bytes",
    importance=_HIGH,
    update=_DYNAMIC,
)
LOG_RETENTION_CHECK_INTERVAL_MS = long(
    "log.retention.check.interval.ms",
    5 * 60 * 1000,
    "How often retention and rolling by time are looked at.",
    unit="ms",
    allowed=at_least(1),
)
LOG_SEGMENT_DELETE_DELAY_MS = long(
    "log.segment.delete.delay.ms",
    60_000,
    "How long the files of a deleted segment stay, for readers still at them.",
    unit="ms",
    allowed=at_least(0),
    importance=_HIGH,
    update=_DYNAMIC,
    without_effect=NO_DELAY,
)
LOG_FLUSH_INTERVAL_MESSAGES = long(
    "log.flush.interval.messages",
    LONG_MAX,
    "After how many records a partition is forced to disk.",
    allowed=at_least(1),
    importance=_HIGH,
    update=_DYNAMIC,
)
LOG_FLUSH_INTERVAL_MS = optional_long(
    "log.flush.interval.ms",
    "After how long unflushed records are forced to disk.",
    unit="ms",
    importance=_HIGH,
    update=_DYNAMIC,
    allowed=Allowed("at least 0", lambda ms: ms is None or ms >= 0),
)
LOG_FLUSH_SCHEDULER_INTERVAL_MS = long(
    "log.flush.scheduler.interval.ms",
    LONG_MAX,
    "After how long unflushed records are forced to disk, where `log.flush.interval.ms` is not set.",
    unit="ms",
    importance=_HIGH,
    allowed=at_least(0),
)
LOG_FLUSH_BEFORE_ACK = boolean(
    "log.flush.before.ack",
    False,
    "Group commit: an acknowledgement waits until its records are on disk, and one fsync serves all that wait. "
    "With replicas it is the leader that waits for its disk. Millstream's own.",
    importance=_HIGH,
    update=_DYNAMIC,
)
LOG_FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS = integer(
    "log.flush.offset.checkpoint.interval.ms",
    60_000,
    "How often it is written down where logs begin and up to where they are on disk.",
    unit="ms",
    allowed=at_least(0),
    importance=_HIGH,
)
LOG_INDEX_INTERVAL_BYTES = integer(
    "log.index.interval.bytes",
    4096,
    "How many bytes of log lie between two entries of the offset index.",
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
    "The largest record batch that is accepted, as it is on the wire.",
    unit="bytes",
    allowed=at_least(0),
    importance=_HIGH,
    update=_DYNAMIC,
)
COMPRESSION_TYPE = string(
    "compression.type",
    "producer",
    "The codec batches are kept in; `producer` keeps each as it was sent.",
    allowed=CODECS,
    importance=_HIGH,
    update=_DYNAMIC,
)
COMPRESSION_GZIP_LEVEL = integer(
    "compression.gzip.level", -1, "The level, where `compression.type` is gzip.", allowed=GZIP_LEVELS, update=_DYNAMIC
)
COMPRESSION_LZ4_LEVEL = integer(
    "compression.lz4.level", 9, "The level, where `compression.type` is lz4.", allowed=between(1, 17), update=_DYNAMIC
)
COMPRESSION_ZSTD_LEVEL = integer(
    "compression.zstd.level",
    3,
    "The level, where `compression.type` is zstd.",
    allowed=between(-131072, 22),
    update=_DYNAMIC,
)
LOG_MESSAGE_TIMESTAMP_TYPE = string(
    "log.message.timestamp.type",
    "CreateTime",
    "Whether records keep the producer's time or get the broker's.",
    allowed=one_of("CreateTime", "LogAppendTime"),
    update=_DYNAMIC,
)
LOG_MESSAGE_TIMESTAMP_BEFORE_MAX_MS = long(
    "log.message.timestamp.before.max.ms",
    LONG_MAX,
    "How far in the past a record's time may lie.",
    unit="ms",
    allowed=at_least(0),
    update=_DYNAMIC,
)
LOG_MESSAGE_TIMESTAMP_AFTER_MAX_MS = long(
    "log.message.timestamp.after.max.ms",
    60 * 60 * 1000,
    "How far in the future a record's time may lie.",
    unit="ms",
    allowed=at_least(0),
    update=_DYNAMIC,
)
LOG_PREALLOCATE = boolean(
    "log.preallocate",
    False,
    "Whether a segment's file is allocated in full when it is begun.",
    update=_DYNAMIC,
    only_default=NOT_PREALLOCATED,
)
LOG_CLEANUP_POLICY = listed(
    "log.cleanup.policy",
    ("delete",),
    "What happens to old records: `delete` by age and size, `compact` by key.",
    allowed=some_of("compact", "delete"),
    update=_DYNAMIC,
)
LOG_CLEANER_DELETE_RETENTION_MS = long(
    "log.cleaner.delete.retention.ms",
    _DAY_MS,
    "How long a compacted log keeps the marker of a deleted key.",
    unit="ms",
    allowed=at_least(0),
    update=_DYNAMIC,
)
LOG_CLEANER_MIN_COMPACTION_LAG_MS = long(
    "log.cleaner.min.compaction.lag.ms",
    0,
    "How long a record stays as it is before it may be compacted away.",
    unit="ms",
    allowed=at_least(0),
    update=_DYNAMIC,
)
LOG_CLEANER_MAX_COMPACTION_LAG_MS = long(
    "log.cleaner.max.compaction.lag.ms",
    LONG_MAX,
    "After how long a record must have been looked at by compaction.",
    unit="ms",
    allowed=at_least(1),
    update=_DYNAMIC,
)
LOG_CLEANER_MIN_CLEANABLE_RATIO = double(
    "log.cleaner.min.cleanable.ratio",
    0.5,
    "Which share of a log must be uncompacted before it is compacted.",
    allowed=between(0, 1),
    update=_DYNAMIC,
)
LOG_CLEANER_ENABLE = boolean(
    "log.cleaner.enable",
    True,
    "Whether compacted topics are cleaned. Without, they keep all their records, and the internal topics grow.",
)
LOG_CLEANER_THREADS = integer(
    "log.cleaner.threads",
    1,
    "How many logs are cleaned at the same time.",
    allowed=at_least(1),
    update=_DYNAMIC,
)
LOG_CLEANER_DEDUPE_BUFFER_SIZE = long(
    "log.cleaner.dedupe.buffer.size",
    128 << 20,
    "How much memory the maps of keys may take, all threads together. Some 120 to 160 bytes go to a key of a log's "
    "dirty part; what does not fit is left to the next pass.",
    unit="bytes",
    allowed=at_least(1 << 20),
    update=_DYNAMIC,
)
LOG_CLEANER_IO_BUFFER_LOAD_FACTOR = double(
    "log.cleaner.io.buffer.load.factor",
    0.9,
    "How much of `log.cleaner.dedupe.buffer.size` may be filled.",
    allowed=between(0.01, 1),
    update=_DYNAMIC,
)
LOG_CLEANER_IO_BUFFER_SIZE = integer(
    "log.cleaner.io.buffer.size",
    512 << 10,
    "The buffers for reading and writing, of all threads together.",
    unit="bytes",
    allowed=at_least(0),
    update=_DYNAMIC,
)
LOG_CLEANER_IO_MAX_BYTES_PER_SECOND = double(
    "log.cleaner.io.max.bytes.per.second",
    1.7976931348623157e308,
    "How much all threads together may read and write in a second.",
    unit="bytes",
    allowed=Allowed("more than 0", lambda rate: rate > 0),
    update=_DYNAMIC,
)
LOG_CLEANER_BACKOFF_MS = long(
    "log.cleaner.backoff.ms",
    15_000,
    "How long to wait before looking again, when there is no log to clean.",
    unit="ms",
    allowed=at_least(0),
    update=_DYNAMIC,
)
LOG_LOCAL_RETENTION_MS = long(
    "log.local.retention.ms",
    -2,
    "How long a tiered log stays on the local disk.",
    unit="ms",
    update=_DYNAMIC,
    only_default=NO_TIERS,
)
LOG_LOCAL_RETENTION_BYTES = long(
    "log.local.retention.bytes",
    -2,
    "How much of a tiered log stays on the local disk.",
    unit="bytes",
    update=_DYNAMIC,
    only_default=NO_TIERS,
)
MIN_INSYNC_REPLICAS = integer(
    "min.insync.replicas",
    1,
    "How many replicas must have a record before `acks=all` is answered.",
    allowed=at_least(1),
    importance=_HIGH,
    update=_DYNAMIC,
)
UNCLEAN_LEADER_ELECTION_ENABLE = boolean(
    "unclean.leader.election.enable",
    False,
    "Whether a replica that is behind may lead when no other is left, at the price of lost records.",
    importance=_HIGH,
    update=_DYNAMIC,
)
PRODUCER_ID_EXPIRATION_MS = integer(
    "producer.id.expiration.ms",
    _DAY_MS,
    "How long a partition remembers a producer that sends nothing.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.LOW,
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
    "How many log files are kept open at once; more are opened and closed as they are used. Millstream's own.",
    allowed=between(16, INT_MAX),
)
BATCH_MAX_DECOMPRESSED_BYTES = integer(
    "millstream.batch.max.decompressed.bytes",
    128 << 20,
    "The most bytes that the records of one batch may become when the broker opens it. It does so for compacted "
    "topics, topics with schema validation or a codec of their own, share groups with key order or delays, dead "
    "letters, ListOffsets by time, and cleaning; other batches stay closed. A larger batch is refused with "
    "MESSAGE_TOO_LARGE. One that is in a log already is kept by the cleaner as it is, and found by time as a whole. "
    "Millstream's own.",
    unit="bytes",
    allowed=between(1 << 20, 256 << 20),
    update=_DYNAMIC,
)
BATCH_MAX_RECORDS = integer(
    "millstream.batch.max.records",
    1_000_000,
    "The most records of one batch where the broker opens it (see `millstream.batch.max.decompressed.bytes`). A batch "
    "with more is refused with MESSAGE_TOO_LARGE. Millstream's own.",
    allowed=between(1000, INT_MAX),
    update=_DYNAMIC,
)
HOT_KEYS_ENABLE = boolean(
    "millstream.hot.keys.enable",
    True,
    "Whether a few records a second are sampled to find the hottest keys of each topic, for `millstream topic hot`. "
    "Reports, which name those keys, are kept for an hour in `__millstream_hot_keys`. Millstream's own.",
    importance=Importance.LOW,
    update=_DYNAMIC,
)
HOT_KEYS_INTERVAL_MS = integer(
    "millstream.hot.keys.interval.ms",
    10_000,
    "How often a report about a topic's hot keys is written while records arrive. Millstream's own.",
    unit="ms",
    allowed=at_least(1000),
    importance=Importance.LOW,
    update=_DYNAMIC,
)

SETTINGS = declared(globals())
