"""The errors of the client. Each message has the next step.

All are `MillstreamError`. Subclasses also derive from the matching built-in error (`ConnectionError`, `TimeoutError`,
`LookupError`), so that code without Millstream's names can catch them.
"""

from typing import Any


class MillstreamError(Exception):
    """Any error of the client. `code` is Kafka's name of the error, if a broker or librdkafka gave one."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code

    def __str__(self) -> str:
        return self.message


class NoBrokerError(MillstreamError, ConnectionError):
    """No broker listens at the address."""


class DeadlineError(MillstreamError, TimeoutError):
    """No response within the timeout."""


class TopicNotFoundError(MillstreamError, LookupError):
    """The topic or the partition does not exist."""


class TopicExistsError(MillstreamError):
    """A topic with this name exists already."""


class OffsetOutOfRangeError(MillstreamError, LookupError):
    """The offset is not in the log, or not any more."""


class DamagedRecordsError(MillstreamError):
    """The records are damaged in the log of the broker."""


class RefusedError(MillstreamError):
    """The broker refused the request."""


class UnexpectedEndError(RefusedError):
    """The partition's end is not the expected one, so the record was not written. `end_offset` is the end now."""

    def __init__(self, message: str, expected: int, end_offset: int) -> None:
        super().__init__(message, "OFFSET_OUT_OF_RANGE")
        self.expected = expected
        self.end_offset = end_offset


class NotAllowedError(MillstreamError, PermissionError):
    """The broker does not accept the user or the password, or the user may not do this."""


class DeliveryError(MillstreamError):
    """Published records were not stored: `failed` is their number, the message has the first reason."""

    def __init__(self, message: str, code: str | None = None, failed: int = 1) -> None:
        super().__init__(message, code)
        self.failed = failed


class EncodingError(MillstreamError, ValueError):
    """A value, key or header cannot be encoded, or a value cannot be decoded."""


_UNREACHABLE = frozenset({"_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE"})
_LATE = frozenset({"_TIMED_OUT", "_MSG_TIMED_OUT", "_TIMED_OUT_QUEUE", "REQUEST_TIMED_OUT"})
_NO_TOPIC = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID"})
_DAMAGED = frozenset({"INVALID_MSG", "_BAD_MSG", "_BAD_COMPRESSION"})
_NOT_AUTHENTICATED = frozenset({"_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED"})
_NOT_ALLOWED = {
    "TOPIC_AUTHORIZATION_FAILED": "topic {topic!r}: this user is not allowed to do this",
    "GROUP_AUTHORIZATION_FAILED": "this user is not allowed to use the group",
    "CLUSTER_AUTHORIZATION_FAILED": "this user is not allowed to do this on the cluster",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "this user is not allowed to use the transactional id",
}
_TOO_LARGE = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG_SIZE"})


def no_broker(bootstrap: str, reason: str = "") -> NoBrokerError:
    """The error for an address without a broker."""
    because = f" ({reason})" if reason else ""
    return NoBrokerError(f"no broker at {bootstrap}{because}: start one with `millstream serve`")


def topic_not_found(topic: str) -> TopicNotFoundError:
    """The error for a topic that does not exist."""
    return TopicNotFoundError(
        f"topic {topic!r} does not exist: create it with `millstream topic create {topic}`"
        f" or client.create_topic({topic!r})",
        "UNKNOWN_TOPIC_OR_PART",
    )


def unreadable_records(topic: str, partition: int, text: str) -> DamagedRecordsError:
    """The error for a batch that the broker cannot read."""
    return DamagedRecordsError(
        f"records of {topic!r}, partition {partition}, cannot be read ({text}): a producer wrote them so. The log of"
        " the broker (batch_unreadable) has the offset after them, at which reading can continue",
        "INVALID_RECORD",
    )


def from_kafka(error: Any, *, bootstrap: str, topic: str = "") -> MillstreamError:
    """The error for a `confluent_kafka.KafkaError`, or for the exception that contains one."""
    error = error.args[0] if isinstance(error, Exception) and error.args else error
    if not hasattr(error, "code") or not hasattr(error, "str"):
        return MillstreamError(str(error))
    code: str = error.name()
    text: str = error.str()
    if code in _NOT_AUTHENTICATED:
        return NotAllowedError(
            f"{bootstrap} does not accept the credentials ({text}): check sasl.mechanism, user and password", code
        )
    if code in _NOT_ALLOWED:
        said = _NOT_ALLOWED[code].format(topic=topic) if topic or "TOPIC" not in code else text
        return NotAllowedError(f"{said} ({code}): an administrator can allow it with `millstream acl add`", code)
    if code == "_SSL":
        return MillstreamError(
            f"no TLS connection with {bootstrap} ({text}): check ssl.ca.location and the host name in the certificate",
            code,
        )
    if code in _UNREACHABLE:
        return no_broker(bootstrap, text)
    if code in _LATE:
        return DeadlineError(
            f"no response from {bootstrap} in time ({text}): is it overloaded or unreachable?"
            " `millstream topic list` shows whether it responds; a longer `timeout` may help",
            code,
        )
    if code == "_UNKNOWN_PARTITION" and topic:
        return TopicNotFoundError(
            f"topic {topic!r} has no such partition: see `millstream topic describe {topic}`", code
        )
    if code in _NO_TOPIC:
        return topic_not_found(topic) if topic else TopicNotFoundError(f"no such topic or partition: {text}", code)
    if code == "TOPIC_ALREADY_EXISTS":
        return TopicExistsError(
            f"topic {topic!r} exists already: describe it with `millstream topic describe {topic}`,"
            " or allow it with exist_ok=True (--if-not-exists)",
            code,
        )
    if code in {"OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET"}:
        return OffsetOutOfRangeError(
            f"the offset is not in the log of {topic!r} any more ({text}): start at 'earliest'", code
        )
    if code in _DAMAGED:
        return DamagedRecordsError(
            f"records of {topic!r} are damaged in the log of the broker ({text}): `millstream log dump --check DIR`"
            " finds them; reading can continue at an offset after them",
            code,
        )
    if code in _TOO_LARGE:
        return RefusedError(
            f"the record is larger than the broker or the topic allows ({text}):"
            " raise the topic's max.message.bytes, and connect with settings={'message.max.bytes': …}"
            " (-X message.max.bytes=…)",
            code,
        )
    return RefusedError(f"{text} ({code})" if text else code, code)
