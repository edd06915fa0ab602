"""Groups and their offsets: limits, time-outs, and how long offsets are kept."""

from millstream.config.setting import INT_MAX, Importance, at_least, declared, integer, long, short

GROUP_MIN_SESSION_TIMEOUT_MS = integer(
    "group.min.session.timeout.ms",
    6000,
    "The shortest session time-out a member of a classic group may ask for. A short one notices dead members early, "
    "at the price of more heartbeats.",
    unit="ms",
)
GROUP_MAX_SESSION_TIMEOUT_MS = integer(
    "group.max.session.timeout.ms",
    1_800_000,
    "The longest session time-out a member of a classic group may ask for.",
    unit="ms",
)
GROUP_INITIAL_REBALANCE_DELAY_MS = integer(
    "group.initial.rebalance.delay.ms",
    3000,
    "How long an empty classic group waits for more members before its first rebalance; each one that comes extends it "
    "again, up to the rebalance time-out.",
    unit="ms",
    allowed=at_least(0),
)
GROUP_MAX_SIZE = integer("group.max.size", INT_MAX, "How many members a classic group may have.", allowed=at_least(1))
OFFSET_METADATA_MAX_BYTES = integer(
    "offset.metadata.max.bytes",
    4096,
    "How long the text may be that a client commits along with an offset.",
    unit="bytes",
    importance=Importance.HIGH,
)
OFFSETS_RETENTION_MINUTES = integer(
    "offsets.retention.minutes",
    7 * 24 * 60,
    "How long the offsets of a group are kept after it became empty, and those of a topic it no longer reads.",
    unit="minutes",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
OFFSETS_RETENTION_CHECK_INTERVAL_MS = long(
    "offsets.retention.check.interval.ms",
    600_000,
    "How often expired offsets are looked for.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
OFFSETS_COMMIT_TIMEOUT_MS = integer(
    "offsets.commit.timeout.ms",
    5000,
    "How long a commit, or any other change of a group, may take to reach the replicas before the client is told to "
    "try again.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
OFFSETS_TOPIC_NUM_PARTITIONS = integer(
    "offsets.topic.num.partitions",
    50,
    "How many partitions `__consumer_offsets` gets when it is created.",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
OFFSETS_TOPIC_REPLICATION_FACTOR = short(
    "offsets.topic.replication.factor",
    3,
    "How many replicas `__consumer_offsets` gets; with fewer brokers, one on each of them.",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
OFFSETS_TOPIC_SEGMENT_BYTES = integer(
    "offsets.topic.segment.bytes",
    100 << 20,
    "The size at which a segment of `__consumer_offsets` is closed, kept small so that it is cleaned and loaded fast.",
    unit="bytes",
    allowed=at_least(1 << 20),
    importance=Importance.HIGH,
)

SETTINGS = declared(globals())
