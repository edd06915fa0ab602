"""Errors of the raw client. Each text has the resource, the reason and the next step.

`ConnectionLostError` and `RetriableError` are retried inside this package. Callers get one of the other four.
"""

from millstream.formats.model.errors import ErrorCode


class WireError(Exception):
    """Any error of the raw client."""


class UnreachableError(WireError):
    """No response from any broker. `late`: a connection was made, but no response came within the timeout."""

    def __init__(self, text: str, *, late: bool = False) -> None:
        super().__init__(text)
        self.late = late


class RefusedError(WireError):
    """A broker refused the request. `code` is Kafka's error code."""

    def __init__(self, text: str, code: ErrorCode) -> None:
        super().__init__(f"{text} ({code.name})")
        self.code = code


class OffsetOutOfRangeError(RefusedError):
    """The offset is not in the log: deleted by retention, or never written."""

    def __init__(self, text: str, log_start: int, log_end: int) -> None:
        super().__init__(text, ErrorCode.OFFSET_OUT_OF_RANGE)
        self.log_start = log_start
        self.log_end = log_end


UNREADABLE = frozenset({ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD})
"""Errors of a fetch at a damaged batch: its checksum is wrong, or its records cannot be read. Kafka calls the first one
retriable, but a retry does not help."""


class UnreadableError(RefusedError):
    """The batch at this offset is damaged."""

    def __init__(self, topic_partition: object, offset: int, code: ErrorCode) -> None:
        super().__init__(
            f"{topic_partition} cannot be read at offset {offset}: the batch is damaged. Continue after it: the log of"
            " the broker (batch_unreadable) and its metric millstream_partition_unreadable_batch have its last offset",
            code,
        )


class SetupError(WireError):
    """The settings are wrong: a name or value, a certificate that is not trusted, an unsupported mechanism."""


class UnsupportedApiError(SetupError):
    """The broker does not have this API, or no version of it that this client has."""


class ConnectionLostError(WireError):
    """A connection could not be opened, or was lost. It can be retried.

    `late`: there was a connection, but no response. `mismatch`: the other side seems to use another protocol.
    """

    def __init__(self, address: str, reason: str, *, late: bool = False, mismatch: bool = False) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason
        self.late = late
        self.mismatch = mismatch


class RetriableError(WireError):
    """A retriable error: a leader is being elected, a coordinator is loading."""

    def __init__(self, text: str, code: ErrorCode) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


def error_code(number: int) -> ErrorCode:
    """The error code for a number; UNKNOWN_SERVER_ERROR for an unknown one."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


NOT_ALLOWED = frozenset(
    {
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    }
)
"""The broker does not accept the credentials, or the user may not do this."""

_ADVICE: dict[ErrorCode, str] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "is not allowed for this user: grant Describe and Read or Write on it",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "is not allowed for this user: grant Read on the group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "is not allowed for this user: grant the operation on the cluster",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "is not allowed for this user: grant Write on it",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "does not exist: create it, or check the name",
    ErrorCode.UNKNOWN_TOPIC_ID: "was deleted, and perhaps created again: start again from its first offset",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "is not a topic name: letters, digits, '.', '_' and '-', at most 249 of them",
    ErrorCode.TOPIC_ALREADY_EXISTS: "exists already",
    ErrorCode.UNKNOWN_MEMBER_ID: "has members, which commit themselves: use another group id",
    ErrorCode.ILLEGAL_GENERATION: "has members, which commit themselves: use another group id",
    ErrorCode.REBALANCE_IN_PROGRESS: "has members, which commit themselves: use another group id",
    ErrorCode.KAFKA_STORAGE_ERROR: "cannot be read: the broker's disk failed",
    ErrorCode.LEADER_NOT_AVAILABLE: "has no leader: are all brokers that hold it running?",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "has no stable leader",
}


def refusal(resource: str, code: ErrorCode, message: str | None = None) -> RefusedError:
    """The error for a refused request about `resource`, with the message of the broker if there is one."""
    if message and not code.name.endswith("AUTHORIZATION_FAILED"):  # its message has no more than the code
        return RefusedError(f"{resource}: {message.rstrip('.')}", code)
    return RefusedError(f"{resource} {advice(code)}", code)


def advice(code: ErrorCode) -> str:
    return _ADVICE.get(code, "was refused")
