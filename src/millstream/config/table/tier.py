"""Settings of tiered storage, under Kafka's names where it has them."""

from millstream.config.setting import (
    LONG_MAX,
    Allowed,
    Importance,
    Update,
    at_least,
    boolean,
    declared,
    integer,
    long,
    optional_string,
)

BUCKETS = ("s3", "gs", "az")
FORMS = "a URL with s3://, gs:// or az:// and a bucket, or file:/// and the path of a directory"


def is_store_url(url: str) -> bool:
    scheme, _, rest = url.partition("://")
    # A name after file:// is a host in a URL, and would be a directory where the broker was started.
    return rest.startswith("/") if scheme == "file" else scheme in BUCKETS and rest.partition("/")[0] != ""


REMOTE_LOG_STORAGE_SYSTEM_ENABLE = boolean(
    "remote.log.storage.system.enable",
    False,
    "Enables tiered storage: topics may set `remote.storage.enable`. Needs `millstream.tier.url`. Set it on all nodes.",
)
TIER_URL = optional_string(
    "millstream.tier.url",
    "The object store of tiered storage: `s3://bucket/prefix`, `gs://…`, `az://…`, or `file:///directory` that all "
    "brokers share. Credentials come from the environment (`AWS_…`, `GOOGLE_…`, `AZURE_…`). The same on all brokers. "
    "Millstream only.",
    allowed=Allowed(FORMS, lambda url: url is None or is_store_url(url)),
)
TIER_CACHE_BYTES = long(
    "millstream.tier.cache.bytes",
    1 << 30,
    "The disk space for records that were read from the tier. Millstream only.",
    unit="bytes",
    allowed=at_least(64 << 20),
    importance=Importance.LOW,
)
TIER_EVENTS_ENABLE = boolean(
    "millstream.tier.events.enable",
    False,
    "Leaders report copies and deletions of segments in the topic `__remote_log_metadata`, in Kafka's format: for "
    "dashboards and audits. Millstream only.",
    update=Update.CLUSTER_WIDE,
)
TIER_ENCRYPTION_KEY_ID = optional_string(
    "millstream.tier.encryption.key.id",
    "Encrypts new objects in the tier (AES-256-GCM) with data keys that this key wraps. It must be in the key file, or "
    "in the output of the key command, of all brokers. Objects that are there stay as they are. Millstream only.",
    update=Update.CLUSTER_WIDE,
)
TIER_ENCRYPTION_KEY_FILE = optional_string(
    "millstream.tier.encryption.key.file",
    "A file with the keys of encrypted objects: `id=base64 of 32 bytes` in each line. It is read again when an unknown "
    "id is found. Millstream only.",
)
TIER_ENCRYPTION_KEY_COMMAND = optional_string(
    "millstream.tier.encryption.key.command",
    "A command that prints the keys of encrypted objects, as the key file has them: for keys in a vault. Used without "
    "a shell. Millstream only.",
)
TIER_SWEEP_INTERVAL_MS = long(
    "millstream.tier.sweep.interval.ms",
    60 * 60 * 1000,
    "How often one broker searches the tier for objects that belong to no topic. -1: never. Millstream only.",
    unit="ms",
    allowed=at_least(-1),
    importance=Importance.LOW,
)
TIER_SWEEP_AGE_MS = long(
    "millstream.tier.sweep.age.ms",
    24 * 60 * 60 * 1000,
    "The age after which an object that belongs to no topic is deleted. Millstream only.",
    unit="ms",
    allowed=at_least(0),
    importance=Importance.LOW,
)
REMOTE_LOG_MANAGER_TASK_INTERVAL_MS = long(
    "remote.log.manager.task.interval.ms",
    30_000,
    "How often the leader of a tiered partition searches for segments to copy and for objects to delete.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.LOW,
)
REMOTE_LOG_MANAGER_COPIER_THREAD_POOL_SIZE = integer(
    "remote.log.manager.copier.thread.pool.size",
    10,
    "How many segments a broker copies to the tier at the same time.",
    allowed=at_least(1),
    update=Update.CLUSTER_WIDE,
)
REMOTE_LOG_MANAGER_COPY_MAX_BYTES_PER_SECOND = long(
    "remote.log.manager.copy.max.bytes.per.second",
    LONG_MAX,
    "The maximum rate at which a broker copies segments to the tier.",
    unit="bytes",
    allowed=at_least(1),
    update=Update.CLUSTER_WIDE,
)
REMOTE_LOG_MANAGER_FETCH_MAX_BYTES_PER_SECOND = long(
    "remote.log.manager.fetch.max.bytes.per.second",
    LONG_MAX,
    "The maximum rate at which a broker reads from the tier.",
    unit="bytes",
    allowed=at_least(1),
    update=Update.CLUSTER_WIDE,
)
REMOTE_LOG_READER_THREADS = integer(
    "remote.log.reader.threads",
    10,
    "How many reads from the tier a broker has under way at the same time.",
    allowed=at_least(1),
    update=Update.CLUSTER_WIDE,
)
INDEXES_MAX_BYTES = 64 << 20
REMOTE_LOG_INDEX_FILE_CACHE_TOTAL_SIZE_BYTES = long(
    "remote.log.index.file.cache.total.size.bytes",
    1 << 30,
    "The space for indexes of segments in the tier. They are in memory here, so a broker keeps at most 64 MiB of them; "
    "a smaller value counts.",
    unit="bytes",
    allowed=at_least(1),
    importance=Importance.LOW,
    update=Update.CLUSTER_WIDE,
)
REMOTE_LIST_OFFSETS_REQUEST_TIMEOUT_MS = long(
    "remote.list.offsets.request.timeout.ms",
    30_000,
    "The maximum time of a search by timestamp in the tier.",
    unit="ms",
    allowed=at_least(1),
    update=Update.CLUSTER_WIDE,
)

SETTINGS = declared(globals())
