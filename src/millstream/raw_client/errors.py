"""What can go wrong between a program and a cluster; each text says what, where, and the next step.

`ConnectionLostError` and `RetriableError` are retried inside this package. A caller sees one of the other four.
"""

from millstream.formats.model.errors import ErrorCode


class WireError(Exception):
    """Any failure this room reports."""


class UnreachableError(WireError):
    """No broker answered within the time allowed. `late` says that one was there, but did not answer in time."""

    def __init__(self, text: str, *, late: bool = False) -> None:
        super().__init__(text)
        self.late = late


class RefusedError(WireError):
    """A broker understood the question and said no."""

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
"""What a fetch is refused with where a batch is damaged: its checksum is wrong, or its records cannot be read. Kafka
calls the first one retriable, but it does not pass."""


class UnreadableError(RefusedError):
    """The broker found that the batch at this offset cannot be read."""

    def __init__(self, place: object, offset: int, code: ErrorCode) -> None:
        super().__init__(
            f"{place} cannot be read at offset {offset}: the records of the batch there are damaged. Go on behind them:"
            " the broker's log (batch_unreadable) and its metric millstream_partition_unreadable_batch name their last"
            " offset",
            code,
        )


class SetupError(WireError):
    """The settings cannot work: a wrong name or value, a certificate that is not trusted, a mechanism not offered."""


class ConnectionLostError(WireError):
    """One connection could not be made or broke; another try may help.

    `late`: a broker was there, but no answer came. `mismatch`: whoever is there seems to speak something else.
    """

    def __init__(self, address: str, reason: str, *, late: bool = False, mismatch: bool = False) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason
        self.late = late
        self.mismatch = mismatch


class RetriableError(WireError):
    """A refusal that passes by itself: a leader is being elected, a coordinator loads."""

    def __init__(self, text: str, code: ErrorCode) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


def error_code(number: int) -> ErrorCode:
    """Kafka's name for a code; a code from the future counts as an unknown server error."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


_ADVICE: dict[ErrorCode, str] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "is closed to this user: grant Describe, and Read or Write, on the topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "is closed to this user: grant Read on the group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "is closed to this user: grant the operation on the cluster",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "is closed to this user: grant Write on the transactional id",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "does not exist: create it, or check the name",
    ErrorCode.UNKNOWN_TOPIC_ID: "was deleted, and perhaps created anew: start over from its beginning",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "is not a topic name: letters, digits, '.', '_' and '-', at most 249 of them",
    ErrorCode.TOPIC_ALREADY_EXISTS: "exists already",
    ErrorCode.UNKNOWN_MEMBER_ID: "has members that commit for themselves: use a group id of its own here",
    ErrorCode.ILLEGAL_GENERATION: "has members that commit for themselves: use a group id of its own here",
    ErrorCode.REBALANCE_IN_PROGRESS: "has members that commit for themselves: use a group id of its own here",
    ErrorCode.KAFKA_STORAGE_ERROR: "cannot be read: the broker's disk failed",
    ErrorCode.LEADER_NOT_AVAILABLE: "has no leader: are all brokers that hold it running?",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "moves from leader to leader",
}


def refusal(resource: str, code: ErrorCode, message: str | None = None) -> RefusedError:
    """The error for a refusal that concerns `resource`; a broker's own words go before ours."""
    if message and not code.name.endswith("AUTHORIZATION_FAILED"):  # those only say so again
        return RefusedError(f"{resource}: {message.rstrip('.')}", code)
    return RefusedError(f"{resource} {advice(code)}", code)


def advice(code: ErrorCode) -> str:
    return _ADVICE.get(code, "was refused")
