"""What callers of consumers send, read and checked."""

from dataclasses import dataclass
from typing import Any

from millstream.gateway.consumers.session import RESETS
from millstream.gateway.http.asked import Asked
from millstream.gateway.http.errors import BadRequestError
from millstream.raw_client import TopicPartition

MAX_TOPICS = 100
MAX_INSTANCE_LENGTH = 100
MIN_IDLE_MS, MAX_IDLE_MS = 1_000, 3_600_000
MAX_POLL_RECORDS = 10_000
MAX_POLL_MS = 60_000
MAX_POLL_BYTES = 16 << 20
MAX_PARTITION = 2**31 - 1
MAX_OFFSET = 2**63 - 1
_MAX_TOPIC_LENGTH = 249


@dataclass(frozen=True, slots=True)
class Subscription:
    topics: list[str]
    instance: str
    reset: str | None
    idle_s: float | None


def read_subscription(document: dict[str, Any]) -> Subscription:
    topics = document.get("topics")
    if not isinstance(topics, list) or not topics or not all(_is_topic(name) for name in topics):
        raise BadRequestError(400, "'topics' must be a list of topic names", 'send {"topics": ["orders"]}')
    if len(topics) > MAX_TOPICS:
        raise BadRequestError(400, f"{len(topics)} topics are too many for one consumer", f"name at most {MAX_TOPICS}")
    instance = document.get("instance_id") or ""
    if not isinstance(instance, str) or len(instance) > MAX_INSTANCE_LENGTH:
        raise BadRequestError(400, f"'instance_id' must be a name of at most {MAX_INSTANCE_LENGTH} letters")
    reset = document.get("auto_offset_reset")
    if reset is not None and (not isinstance(reset, str) or reset not in RESETS):
        raise BadRequestError(400, f"'auto_offset_reset' must be one of {', '.join(RESETS)}", "or leave it out")
    idle_ms = document.get("expires_after_ms")
    if idle_ms is not None and not _is_number(idle_ms, MIN_IDLE_MS, MAX_IDLE_MS):
        raise BadRequestError(400, f"'expires_after_ms' must be a whole number from {MIN_IDLE_MS} to {MAX_IDLE_MS}")
    return Subscription(sorted(set(topics)), instance, reset, None if idle_ms is None else idle_ms / 1000)


def read_offsets(document: dict[str, Any]) -> dict[TopicPartition, int] | None:
    """None if none are named: all that was handed out."""
    given = document.get("offsets")
    if given is None:
        return None
    example = 'send {"offsets": {"orders": {"0": 17}}}: by topic and partition the next offset to be read'
    if not isinstance(given, dict):
        raise BadRequestError(400, "'offsets' must be an object", example)
    found: dict[TopicPartition, int] = {}
    for topic, partitions in given.items():
        if not isinstance(partitions, dict):
            raise BadRequestError(400, f"the offsets of {topic!r} must be an object", example)
        for partition, offset in partitions.items():
            if not partition.isdecimal() or len(partition) > 10 or int(partition) > MAX_PARTITION:
                raise BadRequestError(400, f"{partition!r} is no partition of {topic!r}", example)
            if not _is_number(offset, 0, MAX_OFFSET):
                raise BadRequestError(400, f"the offset for {topic}-{partition} must be a whole number", example)
            found[TopicPartition(topic, int(partition))] = offset
    return found


def read_seek(document: dict[str, Any]) -> tuple[TopicPartition, int | str]:
    topic: Any = document.get("topic")
    partition: Any = document.get("partition")
    offset: Any = document.get("offset")
    example = 'send {"topic": "orders", "partition": 0, "offset": 17}'
    if not _is_topic(topic):
        raise BadRequestError(400, "'topic' must be a topic's name", example)
    if not _is_number(partition, 0, MAX_PARTITION):
        raise BadRequestError(400, "'partition' must be a partition's number", example)
    if not (offset in ("earliest", "latest") if isinstance(offset, str) else _is_number(offset, 0, MAX_OFFSET)):
        raise BadRequestError(400, "'offset' must be a whole number, earliest or latest", example)
    return TopicPartition(topic, partition), offset


def within(asked: Asked, name: str, default: int, low: int, high: int) -> int:
    """A number of the query between these."""
    number = asked.number(name, default)
    if not low <= number <= high:
        raise BadRequestError(400, f"?{name}={number} is out of bounds", f"give a number from {low} to {high}")
    return number


def _is_topic(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= _MAX_TOPIC_LENGTH


def _is_number(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
