"""Errors of administrative requests. Each is a WireError with a Kafka error code, so all callers handle them alike."""

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.raw_client.errors import RefusedError, WireError, error_code, refusal


class AdminError(RefusedError):
    """A request that was refused before or by the cluster. Its text is complete; the code is not appended."""

    error: ErrorCode = ErrorCode.INVALID_REQUEST

    def __init__(self, text: str) -> None:
        WireError.__init__(self, text)
        self.code = self.error


class InvalidArgumentError(AdminError):
    """An argument has a value that is not allowed, or arguments exclude each other."""


class NotFoundError(AdminError):
    """The broker, partition or transactional id does not exist."""

    error = ErrorCode.RESOURCE_NOT_FOUND


class GroupNotEmptyError(AdminError):
    """The group has members, which commit offsets themselves. They must be stopped first."""

    error = ErrorCode.NON_EMPTY_GROUP


class NoQuorumLeaderError(AdminError):
    """The metadata quorum has no leader. Nothing can be changed until one is elected."""

    error = ErrorCode.REQUEST_TIMED_OUT

    def __init__(self) -> None:
        super().__init__(
            "the metadata quorum has no leader, so nothing can be changed: start a majority of its controllers"
        )


def check(resource: str, row: Message) -> None:
    """Raises RefusedError if this part of a response has an error code. `resource` is named in the text."""
    if row.error_code:
        raise refusal(resource, error_code(row.error_code), getattr(row, "error_message", None))
