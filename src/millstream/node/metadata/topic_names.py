"""Names of topics: Kafka's rules, and the names of internal topics."""

import re

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicName

CLUSTER_METADATA_TOPIC = TopicName("__cluster_metadata")
CONSUMER_OFFSETS_TOPIC = TopicName("__consumer_offsets")
TRANSACTION_STATE_TOPIC = TopicName("__transaction_state")
SHARE_GROUP_STATE_TOPIC = TopicName("__share_group_state")
HOT_KEYS_TOPIC = TopicName("__millstream_hot_keys")
AUDIT_TOPIC = TopicName("__millstream_audit")
CLIENT_METRICS_TOPIC = TopicName("__millstream_client_metrics")
MIRRORS_TOPIC = TopicName("__millstream_mirrors")
REMOTE_LOG_METADATA_TOPIC = TopicName("__remote_log_metadata")
INTERNAL_TOPICS = frozenset(
    {
        CONSUMER_OFFSETS_TOPIC,
        TRANSACTION_STATE_TOPIC,
        SHARE_GROUP_STATE_TOPIC,
        HOT_KEYS_TOPIC,
        AUDIT_TOPIC,
        CLIENT_METRICS_TOPIC,
        MIRRORS_TOPIC,
        REMOTE_LOG_METADATA_TOPIC,
    }
)
"""Topics that are marked as internal in responses, and that only brokers write to."""

MAX_NAME_LENGTH = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Raises INVALID_TOPIC_EXCEPTION for an invalid topic name."""
    problem = None
    if not name:
        problem = "the empty string is not allowed"
    elif name in (".", ".."):
        problem = f"{name!r} is not allowed"
    elif len(name) > MAX_NAME_LENGTH:
        problem = f"it has {len(name)} characters, at most {MAX_NAME_LENGTH} are allowed"
    elif not _LEGAL.fullmatch(name):
        problem = f"{name!r} has a character other than ASCII letters, digits, '.', '_' and '-'"
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}.")


def is_topic_name(name: str) -> bool:
    try:
        check_topic_name(name)
    except KafkaError:
        return False
    return True


def folded(name: str) -> str:
    """Names with the same folded name differ only in `.` and `_`, which metric names cannot distinguish."""
    return name.replace(".", "_")
