"""Which topics a member of type "consumer" reads, from the bytes its client sends along with JoinGroup."""

from collections.abc import Iterable

from millstream.formats.protocol.primitives import (
    Cursor,
    MalformedMessage,
    fixed_reader,
    read_length_int16,
    read_length_int32,
)

CONSUMER = "consumer"
"""The protocol type of ordinary consumers; Kafka Connect and others bring their own."""

_read_version = fixed_reader("h")


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all members together; None if one of them cannot be read."""
    topics: set[str] = set()
    try:
        for each in metadata:
            topics.update(_topics(each))
    except MalformedMessage:
        return None
    return frozenset(topics)


def _topics(metadata: bytes) -> list[str]:
    cursor = Cursor(metadata)
    version = _read_version(cursor)
    if version < 0:
        raise MalformedMessage(f"a subscription of version {version}")
    names = []
    for _ in range(cursor.array_count(max(0, read_length_int32(cursor)))):
        names.append(cursor.take_bytes(read_length_int16(cursor)).decode(errors="replace"))
    return names
