"""Settings of protection: listeners without authentication, and the audit log."""

from millstream.config.setting import Allowed, Update, at_least, between, boolean, declared, double, integer, string


def principals_of(text: str) -> frozenset[str]:
    """The principals of a list that is separated by semicolons: names of certificates have commas."""
    return frozenset(each.strip() for each in text.split(";") if each.strip())


MILLSTREAM_ALLOW_INSECURE_LISTENERS = boolean(
    "millstream.allow.insecure.listeners",
    False,
    "Whether a listener that other machines can reach may be without authentication. Otherwise such a node does not"
    " start; `millstream serve --insecure` is the same. Millstream only.",
)
MILLSTREAM_AUDIT_ENABLE = boolean(
    "millstream.audit.enable",
    False,
    "Whether authentication, refusals and administration are recorded, as JSON in the topic `__millstream_audit`"
    " (docs/audit.md). Millstream only.",
    update=Update.CLUSTER_WIDE,
)
MILLSTREAM_AUDIT_DATA_SAMPLE = double(
    "millstream.audit.data.sample",
    0.0,
    "The share of allowed reads and writes of records, and of successful authentications, that is recorded too, from 0"
    " to 1. Refusals and administration are always recorded. Millstream only.",
    allowed=between(0, 1),
    update=Update.CLUSTER_WIDE,
)
MILLSTREAM_AUDIT_GATEWAYS = string(
    "millstream.audit.gateways",
    "",
    "Principals of gateways, separated by semicolons: `User:gateway`. What such a gateway decides itself (sign-ins,"
    " roles, masks, permissions on subjects) is recorded too. No other client may report events, super users"
    " included. Millstream only.",
    allowed=Allowed(
        "principals such as User:gateway, separated by semicolons",
        lambda text: all(each.startswith("User:") and len(each) > len("User:") for each in principals_of(text)),
    ),
    update=Update.CLUSTER_WIDE,
)
MILLSTREAM_AUDIT_QUEUE_EVENTS = integer(
    "millstream.audit.queue.events",
    10_000,
    "The maximum number of audit events that wait to be written. Further events are dropped, counted and logged, so"
    " that no request waits. A quarter is for administration alone. Millstream only.",
    allowed=at_least(1),
)
MILLSTREAM_AUDIT_FILE = string(
    "millstream.audit.file",
    "",
    "A file to which audit events are also appended, one JSON document per line. Empty writes none. It is"
    " opened for each write, so it can be moved at any time. Millstream only.",
)
MILLSTREAM_AUDIT_FILE_MAX_BYTES = integer(
    "millstream.audit.file.max.bytes",
    100 << 20,
    "The size at which the file is renamed to `FILE.1` and a new one begins. 0 leaves rotation to other programs."
    " Millstream only.",
    unit="bytes",
    allowed=at_least(0),
)

SETTINGS = declared(globals())
